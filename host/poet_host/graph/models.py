"""Built-in models. Each has a default batch size and a default optimiser."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from ..errors import BadInput
from .autodiff import Sgd
from .bert import bert, transformer as one_block
from .builder import Builder, Model, Tensor
from .graph import Graph
from .rules import Shape
from .training_options import DEFAULTS, TrainingOptions

MAX_LENGTH = 65536


@dataclass(frozen=True)
class BuiltIn:
    """A built-in model and its defaults."""

    name: str
    layers: Callable[[Builder], Model]  # its documentation begins with a description of the model
    data: Shape  # of one sample; of a text, the default sequence length
    optimiser: Sgd
    batch: int
    texts: bool  # True if the model reads texts

    @property
    def description(self) -> str:
        return (self.layers.__doc__ or "").partition("\n")[0].removesuffix(".")

    def forward(self, batch: int, length: int | None = None) -> Model:
        """Return the model. `length` is the sequence length of texts."""
        data = (length,) if length else self.data
        return self.layers(Builder(self.name, (batch, *data), "int32" if self.texts else "float32"))


MODELS: dict[str, BuiltIn] = {}
_Layers = Callable[[Builder], Model]


def _model(
    data: Shape, optimiser: Sgd, batch: int = 1, *, texts: bool = False
) -> Callable[[_Layers], _Layers]:
    """Add a function that makes the layers of a model to the built-in models, by its name."""

    def add(layers: _Layers) -> _Layers:
        name = layers.__name__.replace("_", "-")
        MODELS[name] = BuiltIn(name, layers, data, optimiser, batch, texts)
        return layers

    return add


def _conv_norm(b: Builder, x: Tensor, channels: int, tag: str) -> Tensor:
    """Add a 3x3 convolution without bias that keeps the image size, then batchnorm and relu."""
    x = b.conv2d(x, channels, 3, padding=1, bias=False, name=f"conv{tag}")
    return b.relu(b.batchnorm2d(x, name=f"bn{tag}"), name=f"relu{tag}")


def _residual_block(
    b: Builder,
    x: Tensor,
    channels: int,
    name: str,
    *,
    stride: int = 1,
    bias: bool = False,
    shortcut_norm: bool = True,
) -> Tensor:
    """Add a residual block of two 3x3 convolutions. The shortcut is x or a 1x1 convolution of x."""

    def conv(x: Tensor, kernel: int, stride: int, tag: str) -> Tensor:
        padding, full_name = kernel // 2, f"{name}.{tag}"
        return b.conv2d(
            x, channels, kernel, stride=stride, padding=padding, bias=bias, name=full_name
        )

    y = b.batchnorm2d(conv(x, 3, stride, "conv1"), name=f"{name}.bn1")
    y = b.relu(y, name=f"{name}.relu1")
    y = b.batchnorm2d(conv(y, 3, 1, "conv2"), name=f"{name}.bn2")
    if x.shape != y.shape:
        x = conv(x, 1, stride, "shortcut.conv")
        x = b.batchnorm2d(x, name=f"{name}.shortcut.bn") if shortcut_norm else x
    return b.relu(b.add(y, x, name=f"{name}.add"), name=f"{name}.relu2")


def _classify(b: Builder, x: Tensor, classes: int = 10) -> Model:
    return b.model(b.softmax_xent(b.linear(x, classes, name="fc"), name="loss"))


@_model((1, 8, 8), Sgd(0.03), 4)
def resnet_digits(b: Builder) -> Model:
    """8x8 digits: 4 convolutions with batchnorm, one residual block (the demo)."""
    # It needs much memory for activations, but little arithmetic.
    x = _conv_norm(b, b.data, 4, "1")
    x = _residual_block(b, x, 4, "block")
    x = b.maxpool2d(x, 2, name="pool")
    x = _conv_norm(b, x, 16, "2")
    return _classify(b, b.flatten(x))


@_model((1, 8, 8), Sgd(0.02, momentum=0.9), 8)
def lenet_digits(b: Builder) -> Model:
    """8x8 digits: LeNet-5."""
    # It has relu and max pooling.
    x = b.relu(b.conv2d(b.data, 6, 5, padding=2, name="conv1"), name="relu1")
    x = b.maxpool2d(x, 2, name="pool1")
    x = b.relu(b.conv2d(x, 16, 5, padding=2, name="conv2"), name="relu2")
    x = b.flatten(b.maxpool2d(x, 2, name="pool2"))
    x = b.relu(b.linear(x, 120, name="fc1"), name="relu3")
    x = b.relu(b.linear(x, 84, name="fc2"), name="relu4")
    return _classify(b, x)


@_model((3, 32, 32), Sgd(0.01))
def resnet8_cifar(b: Builder) -> Model:
    """32x32 colour images: ResNet-8 of MLPerf Tiny."""
    # The padding is symmetric.
    x = b.batchnorm2d(b.conv2d(b.data, 16, 3, padding=1, name="conv1"), name="bn1")
    x = b.relu(x, name="relu1")
    for i, (channels, stride) in enumerate(((16, 1), (32, 2), (64, 2)), 1):
        x = _residual_block(
            b, x, channels, f"block{i}", stride=stride, bias=True, shortcut_norm=False
        )
    return _classify(b, b.global_avgpool(x, name="pool"))


def _separable(b: Builder, x: Tensor, channels: int, name: str, stride: int = 1) -> Tensor:
    """Add a 3x3 convolution of each channel alone, then a 1x1 convolution, each with batchnorm."""
    own = x.shape[1]
    padding = 1 if stride == 1 else ((0, 1), (0, 1))  # Keras' "same" for even sizes
    x = b.conv2d(x, own, 3, stride=stride, padding=padding, groups=own, name=f"{name}.depthwise")
    x = b.relu(b.batchnorm2d(x, name=f"{name}.bn1"), name=f"{name}.relu1")
    x = b.batchnorm2d(b.conv2d(x, channels, 1, name=f"{name}.pointwise"), name=f"{name}.bn2")
    return b.relu(x, name=f"{name}.relu2")


@_model((1, 49, 10), Sgd(0.01))
def dscnn_speech(b: Builder) -> Model:
    """49x10 spectra of words: DS-CNN of MLPerf Tiny."""
    # It spots keywords in 49 times of 10 MFCC features.
    x = b.conv2d(b.data, 64, (10, 4), stride=2, padding=((4, 5), (1, 1)), name="conv1")
    x = b.relu(b.batchnorm2d(x, name="bn1"), name="relu1")
    x = b.dropout(x, 0.2, name="dropout1")
    for i in range(1, 5):
        x = _separable(b, x, 64, f"block{i}")
    x = b.dropout(x, 0.4, name="dropout2")
    return _classify(b, b.global_avgpool(x, name="pool"), 12)


@_model((3, 96, 96), Sgd(0.01))
def mobilenet_vww(b: Builder) -> Model:
    """96x96 colour images: MobileNetV1 of MLPerf Tiny."""
    # It finds persons (visual wake words), and has a quarter of the usual width.
    x = b.conv2d(b.data, 8, 3, stride=2, padding=((0, 1), (0, 1)), name="conv1")
    x = b.relu(b.batchnorm2d(x, name="bn1"), name="relu1")
    blocks = (16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5
    for i, (channels, stride) in enumerate((*blocks, (256, 2), (256, 1)), 1):
        x = _separable(b, x, channels, f"block{i}", stride)
    return _classify(b, b.global_avgpool(x, name="pool"), 2)


@_model((640,), Sgd(0.01), 4)
def autoencoder_toyadmos(b: Builder) -> Model:
    """640 spectral features: autoencoder of MLPerf Tiny."""
    # It detects anomalies in 5 frames of 128 features. Each label is the sample itself.
    x = b.data
    for i, features in enumerate((128, 128, 128, 128, 8, 128, 128, 128, 128), 1):
        x = b.reshape(b.linear(x, features, name=f"fc{i}"), (x.shape[0], features, 1, 1))
        x = b.flatten(b.relu(b.batchnorm2d(x, name=f"bn{i}"), name=f"relu{i}"))
    return b.model(b.mse(b.linear(x, 640, name="fc10"), name="loss"))


def _resnet(b: Builder, widths: tuple[int, ...]) -> Model:
    """Return a ResNet for 32x32 images with two residual blocks for each number of channels."""
    x = _conv_norm(b, b.data, widths[0], "1")
    for i, channels in enumerate(widths, 1):
        for j in (1, 2):
            stride = 2 if i > 1 and j == 1 else 1
            x = _residual_block(b, x, channels, f"layer{i}.{j}", stride=stride)
    return _classify(b, b.global_avgpool(x, name="pool"))


@_model((3, 32, 32), Sgd(0.003))
def resnet18(b: Builder) -> Model:
    """32x32 colour images: ResNet-18, 64 to 512 channels, 11.2 million weights."""
    # As it is usual for CIFAR, it begins with a 3x3 convolution, without max pooling.
    return _resnet(b, (64, 128, 256, 512))


@_model((3, 32, 32), Sgd(0.01))
def resnet18_cifar(b: Builder) -> Model:
    """32x32 colour images: the paper's ResNet, 16, 32 and 64 channels."""
    return _resnet(b, (16, 32, 64))


@_model((3, 32, 32), Sgd(0.01))
def vgg16_cifar(b: Builder) -> Model:
    """32x32 colour images: VGG-16, 34 million weights."""
    # As in the paper's code, it has no batchnorm, and linear layers of 4096 features.
    x = b.data
    stages = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    for i, (channels, convolutions) in enumerate(stages, 1):
        for j in range(1, convolutions + 1):
            x = b.conv2d(x, channels, 3, padding=1, name=f"conv{i}_{j}")
            x = b.relu(x, name=f"relu{i}_{j}")
        x = b.maxpool2d(x, 2, name=f"pool{i}")
    x = b.flatten(x)
    for i in (1, 2):
        x = b.relu(b.linear(x, 4096, name=f"fc{i}"), name=f"fc{i}.relu")
        x = b.dropout(x, 0.5, name=f"fc{i}.dropout")
    return _classify(b, x)


@_model((784,), Sgd(0.01))
def linear(b: Builder) -> Model:
    """28x28 images, flat: the paper's six linear layers."""
    # A relu follows each layer.
    x = b.data
    for i, features in enumerate((10, 120, 100, 200, 10, 10), 1):
        x = b.relu(b.linear(x, features, name=f"fc{i}"), name=f"relu{i}")
    return b.model(b.softmax_xent(x, name="loss"))


@_model((512, 768), Sgd(0.01))
def transformer(b: Builder) -> Model:
    """512 tokens, embedded, 768 wide: the paper's one block."""
    # It has the sizes of BERT base, with attention, softmax and normalisation.
    return one_block(b, heads=12, classes=10)


@_model((64,), Sgd(0.02), texts=True)
def bert_micro(b: Builder) -> Model:
    """64 tokens of 512 words: BERT, 2 blocks, 64 wide, for boards of 256 KB."""
    # At batch size 1, the embedding table takes 128 KiB. The largest operator needs 145 KiB.
    return bert(b, words=512, width=64, blocks=2, heads=2, classes=10)


@_model((128,), Sgd(0.02), texts=True)
def bert_tiny(b: Builder) -> Model:
    """128 tokens of 30,522 words: BERT, 2 blocks, 128 wide."""
    # Its sizes are those of google/bert_uncased_L-2_H-128_A-2.
    return bert(b, words=30_522, width=128, blocks=2, heads=2, classes=10)


@_model((512,), Sgd(0.01), texts=True)
def bert_base(b: Builder) -> Model:
    """512 tokens of 30,522 words: BERT, 12 blocks, 768 wide, 109 million weights."""
    # Its sizes are those of bert-base-uncased.
    return bert(b, words=30_522, width=768, blocks=12, heads=12, classes=10)


def load(name: str, options: TrainingOptions = DEFAULTS) -> Graph:
    """Return the training graph of a built-in model.

    Raises BadInput for an unknown name, an invalid option, or a sequence length for a model that
    does not read texts.
    """
    built_in, length = find(name), options.sequence_length
    options.check_batch(f"model {name}")
    if options.loss is not None:
        raise BadInput(
            f"model {name} is built in and has its own loss: use --loss only for .onnx models"
        )
    if length is not None and not built_in.texts:
        raise BadInput(f"model {name} does not read texts: omit the sequence length")
    if length is not None and not 1 <= length <= MAX_LENGTH:
        raise BadInput(
            f"model {name}: the sequence length is {length} tokens, but must be from 1 to "
            f"{MAX_LENGTH:,}"
        )
    model = built_in.forward(options.batch or built_in.batch, length)
    return options.training_graph(model, built_in.optimiser)


def find(name: str) -> BuiltIn:
    """Return a built-in model. Raises BadInput if `name` is unknown, and suggests a name."""
    if name not in MODELS:
        close = get_close_matches(name, MODELS, 1)
        listed = f"choose one of {', '.join(MODELS)}, or name an .onnx file or a cost graph (.json)"
        hint = f"did you mean {close[0]}?" if close else listed
        raise BadInput(f"there is no built-in model {name!r}: {hint}")
    return MODELS[name]

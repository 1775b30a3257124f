"""The networks of `make zoo`: a function that makes each, a batch of its inputs, and its loss.

Architectures are those of their packages and papers; some have fewer or narrower layers.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import timm
import torch
import torchvision.models as tv
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.parametrizations import weight_norm

Batch = Callable[[int], tuple[Tensor, ...]]
ZOO: dict[str, tuple[Callable[[], nn.Module], Batch, str]] = {}
CLASSES, TOKENS, LENGTH = 10, 100, 16


class Net(nn.Module):
    """Layers by name, and a function that computes the output from them and the inputs."""

    def __init__(self, compute: Callable[..., Any], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.compute = compute
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs: Tensor) -> Any:
        return self.compute(self, *inputs)


def add(name: str, make: Callable[[], nn.Module], *shapes: int | tuple[int, ...], mse: bool = False,
        vocabulary: int = 0) -> None:  # fmt: skip
    """Add a network whose inputs have these shapes, without the batch."""

    def batch(size: int) -> tuple[Tensor, ...]:
        full = [(size, *(shape if isinstance(shape, tuple) else (shape,))) for shape in shapes]
        if vocabulary:
            return tuple(torch.randint(1, vocabulary, shape) for shape in full)
        return tuple(torch.randn(shape) for shape in full)

    ZOO[name] = make, batch, "mse" if mse else "cross-entropy"


def add_torchvision() -> None:
    sizes = {
        "resnet18": 32, "mobilenet_v2": 32, "mobilenet_v3_small": 32, "shufflenet_v2_x0_5": 32,
        "mnasnet0_5": 32, "efficientnet_b0": 32, "squeezenet1_1": 64, "regnet_y_400mf": 32,
    }  # fmt: skip
    for name, size in sizes.items():
        make = partial(getattr(tv, name), weights=None, num_classes=CLASSES)
        add(f"tv.{name}", make, (3, size, size))
    image, wide = (3, 32, 32), (3, 64, 64)
    resnet = partial(tv.ResNet, tv.resnet.Bottleneck, [1, 1, 1, 1], num_classes=CLASSES)
    add("tv.resnet50_narrow", partial(resnet, width_per_group=16), image)
    add("tv.resnext_narrow", partial(resnet, groups=4, width_per_group=8), image)
    convolutions = partial(tv.vgg.make_layers, [16, "M", 32, "M", 64, "M"], batch_norm=True)
    add("tv.vgg_bn_narrow", lambda: nn.Sequential(
        convolutions(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(),
        nn.Dropout(), nn.Linear(32, CLASSES)), image)  # fmt: skip
    add("tv.densenet_narrow", partial(tv.DenseNet, 8, (2, 2, 2), 16, num_classes=CLASSES), image)
    block = tv.convnext.CNBlockConfig
    add("tv.convnext_narrow", lambda: tv.ConvNeXt(
        [block(24, 48, 2), block(48, None, 2)], num_classes=CLASSES), image)  # fmt: skip
    swin = partial(tv.SwinTransformer, [4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=CLASSES)
    add("tv.swin_narrow", swin, wide)
    second = tv.swin_transformer
    add("tv.swin_v2_narrow", partial(
        swin, block=second.SwinTransformerBlockV2, downsample_layer=second.PatchMergingV2,
    ), wide)  # fmt: skip
    add("tv.googlenet", partial(
        tv.googlenet, weights=None, num_classes=CLASSES, aux_logits=False, init_weights=False,
    ), wide)  # fmt: skip
    add("tv.vit_small", partial(tv.VisionTransformer, 32, 8, 2, 3, 48, 96, num_classes=10), image)


def add_timm() -> None:
    names = (
        "tf_mobilenetv3_small_minimal_100 tf_mobilenetv3_small_075 ghostnet_050 mobileone_s0 "
        "edgenext_xx_small tinynet_e lcnet_050 mobilenetv4_conv_small fbnetc_100 mixnet_s "
        "efficientvit_b0 repvgg_a0 hardcorenas_a rexnet_100 semnasnet_075 fastvit_t8 "
        "mobilevit_xxs convnextv2_atto starnet_s1 resnet10t poolformer_s12"
    )
    for name in names.split():
        add(f"timm.{name}", partial(timm.create_model, name, num_classes=CLASSES), (3, 64, 64))
    for name in ("levit_128s", "efficientformerv2_s0"):
        add(f"timm.{name}", partial(timm.create_model, name, num_classes=CLASSES), (3, 224, 224))
    for name, options in {
        "mixer_s32_224": {}, "vit_tiny_patch16_224": {"depth": 2}, "gmlp_ti16_224": {},
        "deit_tiny_distilled_patch16_224": {"depth": 2}, "cait_xxs24_224": {"depth": 2},
    }.items():  # fmt: skip
        make = partial(timm.create_model, name, num_classes=CLASSES, img_size=64, **options)
        add(f"timm.{name}", make, (3, 64, 64))


def transformer(kind: str, task: str, inputs: Any = "x", **config: Any) -> nn.Module:
    """Return a model of transformers that has only logits as output."""
    settings = getattr(hf, f"{kind}Config")(**config)
    settings._attn_implementation = "eager"
    options = {"use_cache": False} if task.endswith(("CausalLM", "LMHeadModel")) else {}
    names = inputs.split()

    def compute(self: Any, *given: Tensor) -> Any:
        first = given[:1]
        return self.model(*first, **dict(zip(names[1:], given[1:], strict=True)), **options).logits

    return Net(compute, model=getattr(hf, f"{kind}{task}")(settings))


def add_transformers() -> None:
    sizes = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "num_labels": 3,
    }  # fmt: skip
    text = {"vocab_size": TOKENS, "max_position_embeddings": 40}
    one, two = "ForSequenceClassification", "ForImageClassification"
    short = {"embedding_size": 16}
    distil = {"vocab_size": TOKENS, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    gpt = {"vocab_size": TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
    bottleneck = {"intra_bottleneck_size": 16}
    for name, kind, task, options in (
        ("bert", "Bert", one, sizes | text),
        ("bert_tokens", "Bert", "ForTokenClassification", sizes | text),
        ("bert_mlm", "Bert", "ForMaskedLM", sizes | text),
        ("distilbert", "DistilBert", one, {**distil, "num_labels": 3}),
        ("albert", "Albert", one, sizes | text | short),
        ("roberta", "Roberta", one, sizes | text),
        ("electra", "Electra", one, sizes | text | short),
        ("mobilebert", "MobileBert", one, sizes | text | short | bottleneck),
        ("gpt2_lm", "GPT2", "LMHeadModel", gpt),
        ("llama_lm", "Llama", "ForCausalLM", sizes | text),
    ):
        add(f"hf.{name}", partial(transformer, kind, task, **options), LENGTH, vocabulary=TOKENS)
    with_positions = partial(transformer, "Roberta", one, "x position_ids", **sizes, **text)
    add("hf.roberta, positions as an input", with_positions, LENGTH, LENGTH, vocabulary=40)
    patches = {"image_size": 32, "patch_size": 8}
    add("hf.vit", partial(transformer, "ViT", two, **sizes, **patches), (3, 32, 32))
    wide = partial(transformer, "MobileViT", two, image_size=64, num_labels=3)
    add("hf.mobilevit", wide, (3, 64, 64))
    add("hf.wav2vec2", partial(
        transformer, "Wav2Vec2", one, **sizes, conv_dim=(32, 32, 32), conv_kernel=(10, 3, 2),
        conv_stride=(5, 2, 2), num_feat_extract_layers=3, num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4, classifier_proj_size=16,
    ), 800)  # fmt: skip
    spectrum = {"max_length": 64, "num_mel_bins": 32}
    audio = partial(transformer, "AST", "ForAudioClassification", **sizes, **spectrum)
    add("hf.ast", audio, (64, 32))
    add("hf.whisper_encoder", whisper_encoder, (16, 64))


def whisper_encoder() -> nn.Module:
    config = hf.WhisperConfig(
        d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=64,
        num_mel_bins=16, max_source_positions=32, decoder_layers=1,
    )  # fmt: skip
    config._attn_implementation = "eager"
    encoder = hf.models.whisper.modeling_whisper.WhisperEncoder(config)
    return Net(lambda s, x: s.f(s.e(x).last_hidden_state.mean(1)), e=encoder, f=nn.Linear(32, 4))


def stack(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [act(), nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers[1:])


def m5() -> nn.Module:
    def block(inputs: int, outputs: int, *kernel: Any, pool: int) -> list[nn.Module]:
        conv = nn.Conv1d(inputs, outputs, *kernel)
        return [conv, nn.BatchNorm1d(outputs), nn.ReLU(), nn.MaxPool1d(pool)]

    def compute(s: Any, x: Tensor) -> Tensor:
        x = s.n(x)
        return F.log_softmax(s.f(F.avg_pool1d(x, x.shape[-1]).permute(0, 2, 1)).squeeze(1), -1)

    n = [*block(1, 16, 80, 16, pool=4), *block(16, 16, 3, pool=4), *block(16, 32, 3, pool=2)]
    return Net(compute, n=nn.Sequential(*n), f=nn.Linear(32, 10))


def tcn(norm: Callable[[nn.Conv1d], nn.Module] = lambda conv: conv) -> nn.Module:
    def block(inputs: int, dilation: int) -> nn.Module:
        def conv(channels: int) -> list[nn.Module]:
            made = nn.Conv1d(channels, 8, 3, padding=2 * dilation, dilation=dilation)
            return [norm(made), Net(lambda s, x: x[:, :, : -2 * dilation]), nn.ReLU()]

        direct = nn.Conv1d(inputs, 8, 1) if inputs != 8 else nn.Identity()
        both = nn.Sequential(*conv(inputs), *conv(8))
        return Net(lambda s, x: torch.relu(s.n(x) + s.d(x)), n=both, d=direct)

    blocks = nn.Sequential(block(3, 1), block(8, 2), block(8, 4))
    return Net(lambda s, x: s.f(s.b(x)[:, :, -1]), b=blocks, f=nn.Linear(8, 5))


def recurrent(kind: Any, *, both: bool = False) -> nn.Module:
    layer = kind(6, 12, batch_first=True, bidirectional=both)
    return Net(lambda s, x: s.f(s.r(x)[0][:, -1]), r=layer, f=nn.Linear(24 if both else 12, 6))


def deep_conv_lstm() -> nn.Module:
    n: list[nn.Module] = []
    for channels in (1, 8, 8, 8):
        n += [nn.Conv2d(channels, 8, (5, 1)), nn.ReLU()]

    def compute(s: Any, x: Tensor) -> Any:
        return s.f(s.r(s.n(x).permute(0, 2, 1, 3).flatten(2))[0][:, -1])

    lstm = nn.LSTM(48, 16, 2, batch_first=True)
    return Net(compute, n=nn.Sequential(*n), r=lstm, f=nn.Linear(16, 6))


def unrolled_gru() -> nn.Module:
    def compute(s: Any, x: Tensor) -> Any:
        state = x.new_zeros(x.shape[0], 12)
        for i in range(8):
            state = s.r(x[:, i], state)
        return s.f(state)

    return Net(compute, r=nn.GRUCell(6, 12), f=nn.Linear(12, 6))


def inception_time() -> nn.Module:
    def block(inputs: int) -> nn.Module:
        conv = partial(nn.Conv1d, padding="same", bias=False)
        return Net(
            lambda s, x: torch.relu(s.n(torch.cat(
                [*(c(y) for y in [s.b(x)] for c in s.c), s.p(F.max_pool1d(x, 3, 1, 1))], 1))),
            b=conv(inputs, 8, 1), c=nn.ModuleList([conv(8, 8, size) for size in (39, 19, 9)]),
            p=conv(inputs, 8, 1), n=nn.BatchNorm1d(32),
        )  # fmt: skip

    return Net(
        lambda s, x: s.f(torch.relu(s.n(x) + s.d(x)).mean(-1)),
        n=nn.Sequential(block(3), block(32), block(32)), f=nn.Linear(32, 5),
        d=nn.Sequential(nn.Conv1d(3, 32, 1, bias=False), nn.BatchNorm1d(32)),
    )  # fmt: skip


def conv(inputs: int, outputs: int, stride: int = 1, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    layer = nn.Conv2d(inputs, outputs, 3, stride, 1)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), act())


def unet(mode: str) -> nn.Module:
    def compute(s: Any, x: Tensor) -> Any:
        a = s.a(x)
        return s.d(s.c(torch.cat([s.u(s.b(F.max_pool2d(a, 2))), a], 1)))

    up = nn.Upsample(scale_factor=2, mode=mode) if mode else nn.ConvTranspose2d(16, 8, 2, 2)
    c = conv(24 if mode else 16, 8)
    return Net(compute, a=conv(3, 8), b=conv(8, 16), c=c, u=up, d=nn.Conv2d(8, 3, 1))


def yolo(*, heads: int) -> nn.Module:
    def compute(s: Any, x: Tensor) -> Any:
        x = s.a(x)
        y = s.b(x)
        fine = s.g(torch.cat([x, F.interpolate(y, scale_factor=2)], 1))
        return fine if heads == 1 else (s.f(y), fine)

    silu = partial(conv, stride=2, act=nn.SiLU)
    coarse = {"f": nn.Conv2d(16, 18, 1)} if heads == 2 else {}
    first = nn.Sequential(silu(3, 8), silu(8, 16))
    return Net(compute, a=first, b=silu(16, 16), g=nn.Conv2d(32, 18, 1), **coarse)


def vae(*, noise_is_input: bool) -> nn.Module:
    def compute(s: Any, x: Tensor, *noise: Tensor) -> Any:
        h = torch.relu(s.e(x))
        mean, variance = s.m(h), s.v(h)
        random = noise[0] if noise_is_input else torch.randn_like(variance)
        return s.d(mean + torch.exp(0.5 * variance) * random), mean, variance

    encoder, (m, v) = nn.Linear(64, 32), (nn.Linear(32, 4), nn.Linear(32, 4))
    return Net(compute, e=encoder, m=m, v=v, d=stack(4, 32, 64))


def keyword_transformer() -> nn.Module:
    def compute(s: Any, x: Tensor) -> Any:
        x = torch.cat([s.cls.expand(x.shape[0], -1, -1), s.p(x)], 1) + s.pos
        return s.f(s.t(x)[:, 0])

    layer = nn.TransformerEncoderLayer(24, 2, 48, 0.0, "gelu", batch_first=True)
    t = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    cls, pos = (nn.Parameter(torch.randn(1, n, 24)) for n in (1, 17))
    return Net(compute, p=nn.Linear(10, 24), t=t, f=nn.Linear(24, 6), cls=cls, pos=pos)


def matchbox() -> nn.Module:
    def block(inputs: int, size: int, **options: Any) -> list[nn.Module]:
        depthwise = nn.Conv1d(inputs, inputs, size, groups=inputs, **options)
        return [depthwise, nn.Conv1d(inputs, 24, 1), nn.BatchNorm1d(24), nn.ReLU()]

    blocks = [*block(16, 11, padding=5), *block(24, 29, padding=28, dilation=2)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 8))


def eegnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, (1, 15), padding=(0, 7), bias=False), nn.BatchNorm2d(4),
        nn.Conv2d(4, 8, (6, 1), groups=4, bias=False), nn.BatchNorm2d(8), nn.ELU(),
        nn.AvgPool2d((1, 4)), nn.Dropout(0.25), nn.Flatten(), nn.Linear(8 * 12, 4),
    )  # fmt: skip


def autoencoder(*decoder: nn.Module, narrow: int) -> nn.Module:
    first, second = nn.Conv2d(1, 8, 3, 2, 1), nn.Conv2d(8, 4, 3, 2, 1)
    encoder = [first, nn.ReLU(), second, nn.ReLU()] if narrow == 4 else [first, nn.ReLU()]
    return nn.Sequential(*encoder, *decoder)


def add_others() -> None:
    add("M5", m5, (1, 2000))
    add("TCN_dilated", tcn, (3, 48))
    add("TCN_weight_norm", partial(tcn, weight_norm), (3, 48))
    add("DeepConvLSTM", deep_conv_lstm, (1, 32, 6))
    add("GRU_HAR", partial(recurrent, nn.GRU), (32, 6))
    add("LSTM_HAR", partial(recurrent, nn.LSTM), (32, 6))
    add("BiLSTM", partial(recurrent, nn.LSTM, both=True), (32, 6))
    add("RNN_tanh", partial(recurrent, nn.RNN), (32, 6))
    add("GRUCell_unrolled", unrolled_gru, (8, 6))
    add("InceptionTime", inception_time, (3, 64))
    add("AE_dense", lambda: stack(64, 16, 4, 16, 64), 64, mse=True)
    up = nn.ConvTranspose2d
    add("AE_convtranspose", lambda: autoencoder(
        up(4, 8, 2, 2), nn.ReLU(), up(8, 1, 2, 2), nn.Sigmoid(), narrow=4,
    ), (1, 16, 16), mse=True)  # fmt: skip
    add("AE_upsample", lambda: autoencoder(
        nn.Upsample(scale_factor=2), nn.Conv2d(8, 1, 3, 1, 1), narrow=8,
    ), (1, 16, 16), mse=True)  # fmt: skip
    for name, mode in {"nearest": "nearest", "bilinear": "bilinear", "transpose": ""}.items():
        add(f"UNet_{name}", partial(unet, mode), (3, 16, 16))
    add("RNN_LM", lambda: Net(
        lambda s, x: s.f(s.r(s.e(x))[0]), e=nn.Embedding(50, 16),
        r=nn.LSTM(16, 24, batch_first=True), f=nn.Linear(24, 50),
    ), 12, vocabulary=50)  # fmt: skip
    add("VAE", partial(vae, noise_is_input=False), 64, mse=True)
    add("VAE, noise as an input", partial(vae, noise_is_input=True), 64, 4, mse=True)
    add("Siamese", lambda: Net(
        lambda s, a, b: s.f((s.e(a) - s.e(b)).abs()), e=stack(16, 32, 8), f=nn.Linear(8, 2),
    ), 16, 16)  # fmt: skip
    add("YOLO_two_heads", partial(yolo, heads=2), (3, 32, 32), mse=True)
    add("YOLO_one_head", partial(yolo, heads=1), (3, 32, 32), mse=True)
    add("KWT_nn.Transformer", keyword_transformer, (16, 10))
    add("MatchboxNet", matchbox, (16, 50))
    add("EEGNet", eegnet, (1, 6, 48))
    norm, dropout = nn.BatchNorm1d, nn.Dropout
    add("MLP_tabular", lambda: nn.Sequential(
        nn.Linear(9, 32), norm(32), nn.ReLU(), dropout(0.2), nn.Linear(32, 3)), 9)  # fmt: skip
    add("Regression_1", lambda: stack(9, 32, 1, act=nn.Tanh), 9, mse=True)
    add("SELU_Softplus", lambda: nn.Sequential(
        nn.Linear(9, 32), nn.SELU(), nn.Linear(32, 16), nn.Softplus(), nn.Linear(16, 3),
    ), 9)  # fmt: skip

    def waves(s: Any, x: Tensor) -> Any:
        x = s.w(x)
        return s.f(torch.cat([x.sin(), x.cos()], 1))

    add("SIREN_NeRF", lambda: Net(waves, w=nn.Linear(2, 16), f=nn.Linear(32, 3)), 2, mse=True)


for _add in (add_transformers, add_others, add_torchvision, add_timm):
    _add()

"""The user's choices for the training step of a model, in one object."""

from dataclasses import dataclass

from ..errors import BadInput
from .autodiff import training_graph
from .builder import Model
from .clipping import Clipping
from .graph import Graph
from .optimisers import Optimiser, checked_rate, optimiser

MAX_BATCH = MAX_ACCUMULATED = 65536


@dataclass(frozen=True)
class TrainingOptions:
    """Choices for the training step of a model. None means the model's default."""

    batch: int | None = None  # samples in a step
    sequence_length: int | None = None  # tokens of a text
    loss: str | None = None  # loss of an .onnx model: see losses.loss_by_output
    optimizer: str | None = None  # a name of OPTIMISERS
    learning_rate: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    beta1: float | None = None  # of adam and adamw: share of the averages that stays
    beta2: float | None = None  # the same of squares; of rmsprop too
    epsilon: float | None = None  # of adam, adamw and rmsprop
    train: str | None = None  # see trained_parameters
    batchnorm: str | None = None  # "train" or "frozen"
    proximal: float | None = None  # see autodiff.training_graph
    clip_value: float | None = None  # largest absolute value of an element of a gradient
    clip_norm: float | None = None  # largest norm of all gradients together
    accumulate: int | None = None  # number of batches whose mean gradient is an update

    def given(self) -> dict[str, object]:
        """Return the options that are not None, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def check_batch(self, where: str) -> None:
        """Raise BadInput if the batch size is invalid.

        The message begins with the argument `where`, which names the model.
        """
        batch = self.batch
        if batch is not None and (type(batch) is not int or not 1 <= batch <= MAX_BATCH):
            raise BadInput(f"{where}: a batch must have 1 to {MAX_BATCH} samples, not {batch!r}")

    def training_graph(self, model: Model, default: Optimiser) -> Graph:
        """Return the training graph of a forward model.

        If the option `optimizer` is None, the optimiser is `default`. Raises BadInput for a rate
        that the optimiser does not have, and for all errors of autodiff.training_graph.
        """
        chosen = optimiser(
            default, self.optimizer, learning_rate=self.learning_rate, momentum=self.momentum,
            weight_decay=self.weight_decay, beta1=self.beta1, beta2=self.beta2,
            epsilon=self.epsilon,
        )  # fmt: skip
        number = 1 if self.accumulate is None else self.accumulate
        if not 1 <= number <= MAX_ACCUMULATED:
            raise BadInput(
                f"accumulate is {number!r}: it must be a number of batches, 1 to {MAX_ACCUMULATED}"
            )
        return training_graph(
            model,
            chosen,
            "all" if self.train is None else self.train,
            "train" if self.batchnorm is None else self.batchnorm,
            checked_rate("proximal", self.proximal or 0.0),
            Clipping(self.clip_value or 0.0, self.clip_norm or 0.0),
            number,
        )


DEFAULTS = TrainingOptions()

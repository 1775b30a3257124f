"""`make bench-fine-tune`: ResNet-18 learns two more digits in 220 KiB.

PyTorch trains the model on the digits 0 to 7, scaled to 32x32 pixels and three channels. A native
board with 220 KiB of RAM continues with 200 images of all ten digits. Its operators stream.
Prints a table of accuracies, and writes RESULTS-fine-tune.md. All seeds are fixed.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import poet_host as poet
import torch
from poet_host.data.datasets import Dataset
from poet_host.files import write_whole
from poet_host.graph.weights import from_named, to_named
from torch import Tensor, nn
from torch.nn import functional

from .report import about, filled, number, percent, table

RESULTS = Path(__file__).with_name("RESULTS-fine-tune.md")
RAM_BYTES = 220 * 1024
KNOWN_DIGITS = 8  # of which PyTorch sees samples
IMAGES = 200  # of all digits, on the board
EPOCHS = 2  # of PyTorch
BATCH = 32  # of PyTorch
BOARD_EPOCHS = 3
LEAST_NEW, LEAST_ALL = 0.30, 0.05  # gains of accuracy


class Shortcut(nn.Module):
    """A 1x1 convolution and batchnorm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.bn(self.conv(x))
        return y


class Block(nn.Module):
    """A residual block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        if inputs != outputs:
            self.shortcut = Shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return functional.relu(y + (self.shortcut(x) if hasattr(self, "shortcut") else x))


class ResNet18(nn.Module):
    """The built-in model `resnet18`, with the same names of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        for i in range(1, 5):
            first = Block(widths[i - 1], widths[i], 1 if i == 1 else 2)
            blocks = {"1": first, "2": Block(widths[i], widths[i], 1)}
            setattr(self, f"layer{i}", nn.ModuleDict(blocks))
        self.fc = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        for i in range(1, 5):
            for block in getattr(self, f"layer{i}").values():
                x = block(x)
        y: Tensor = self.fc(x.mean((2, 3)))
        return y


def images() -> Dataset:
    """Return the digits as 32x32 images of three equal channels."""
    digits = poet.load_data("digits")
    assert digits.x_test is not None

    def scaled(x: np.ndarray) -> np.ndarray:
        large = x.repeat(4, axis=2).repeat(4, axis=3).repeat(3, axis=1)
        return np.ascontiguousarray(large, dtype=np.float32)

    return Dataset("digits", scaled(digits.x), digits.y, scaled(digits.x_test), digits.y_test)


def pretrained(data: Dataset) -> ResNet18:
    """Return a model that PyTorch trained on the first digits alone."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more threads add in other orders, and train other weights
    module = ResNet18()
    known = np.flatnonzero(data.y < KNOWN_DIGITS)
    optimiser = torch.optim.SGD(module.parameters(), 0.05, momentum=0.9)
    rng = np.random.default_rng(0)
    for _ in range(EPOCHS):
        for chosen in np.array_split(rng.permutation(known), len(known) // BATCH):
            logits = module(torch.tensor(data.x[chosen]))
            loss = functional.cross_entropy(logits, torch.tensor(data.y[chosen]).long())
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return module


def accuracies(module: nn.Module, data: Dataset) -> tuple[float, float]:
    """Return the shares of right answers on the held-out new digits, and on all of them."""
    assert data.x_test is not None
    assert data.y_test is not None
    module.eval()
    with torch.no_grad():
        answers = module(torch.tensor(data.x_test)).argmax(1).numpy()
    right = answers == data.y_test
    return float(right[data.y_test >= KNOWN_DIGITS].mean()), float(right.mean())


def report(before: tuple[float, float], after: tuple[float, float], run: poet.Run) -> str:
    names = ("held-out 8 and 9", "all held-out digits")
    rows = [
        [name, percent(old, 1), percent(new, 1), percent(new - old, 1)]
        for name, old, new in zip(names, before, after, strict=True)
    ]
    assert run.time_us is not None
    return filled(
        "fine_tune",
        about=about("torch", "numpy"),
        last_digit=KNOWN_DIGITS - 1,
        epochs=EPOCHS,
        images=IMAGES,
        board_epochs=BOARD_EPOCHS,
        steps=len(run.steps),
        peak_bytes=run.peak_bytes,
        ram_bytes=RAM_BYTES,
        step_s=number(run.time_us / 1e6),
        table=table(["accuracy, %", "before", "after", "gain"], rows),
    )


def weights_of(module: nn.Module) -> Mapping[str, np.ndarray]:
    state = module.state_dict().items()
    return {name: value.numpy() for name, value in state if "num_batches" not in name}


def main() -> None:
    data = images()
    module = pretrained(data)
    before = accuracies(module, data)
    print(f"before: {before}", flush=True)
    graph = poet.load("resnet18", batchnorm="frozen")
    assert isinstance(graph, poet.Graph)
    plan = poet.solve(graph, "native", ram=RAM_BYTES)
    mine = Dataset("200 digits", data.x[:IMAGES], data.y[:IMAGES])
    with poet.connect("native", arena_bytes=RAM_BYTES) as board:
        start = from_named(graph, weights_of(module))
        run = poet.train(poet.encode(graph, plan), board, mine, epochs=BOARD_EPOCHS, weights=start)
    trained = to_named(graph, run.weights, constants=False)
    state = {name: torch.tensor(value) for name, value in trained.items()}
    module.load_state_dict(state, strict=False)
    after = accuracies(module, data)
    text = report(before, after, run)
    print(text)
    write_whole(RESULTS, text)
    if after[0] - before[0] < LEAST_NEW or after[1] - before[1] < LEAST_ALL:
        raise SystemExit("the accuracy rises by less than it should")


if __name__ == "__main__":
    main()

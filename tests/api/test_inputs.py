"""What people give the Python API: accepted where its meaning is clear, else refused."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host import api
from poet_host.api import inputs
from poet_host.api.inputs import as_dataset, as_profile, checked
from poet_host.card.job import JobState
from poet_host.card.weights import SavedWeights
from poet_host.data.datasets import Dataset, load_data
from poet_host.data.facts import NO_FACTS, DataFacts
from poet_host.data.fitted import adapted
from poet_host.data.normalization import Normalization
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values, to_named
from poet_host.plan.limits import ram_bytes
from poet_host.run.evaluate import Evaluation
from poet_host.sizes import size_bytes
from support import whole_runs as runs
from support.sim_helper import needs_compiler
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.arange(10) % 3
TX, TY = torch.from_numpy(X), torch.from_numpy(Y)
PAIRS = TensorDataset(TX, TY)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield TX[0], TY[0]


class Ended(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return zip(TX.detach(), TY, strict=True)


class Longer:
    """Says that it has two batches, and never ends."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield X[:5], Y[:5]


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        (X.tolist(), Y.tolist()),
        (TX, TY),
        (TX.requires_grad_(), TY),
        (list(TX), list(TY)),
        {"x": TX, "y": Y},
        Dataset("d", X.tolist(), TY),  # type: ignore[arg-type]
        DataLoader(PAIRS, 3),
        DataLoader(PAIRS, 3, shuffle=False, num_workers=0),
        PAIRS,
        Subset(PAIRS, range(10)),
        zip(X, Y, strict=True),
        iter([(X[:4], Y[:4]), (X[4:], Y[4:])]),
        DataLoader(Ended(), 3),
        Ended(),
    ],
    ids=lambda data: type(data).__name__,
)
def test_data_of_every_kind_is_the_same_data(data: Any) -> None:
    found = as_dataset(data)
    assert np.array_equal(found.x, X)
    assert np.array_equal(found.y, Y)
    assert found.x_test is None


@pytest.mark.parametrize("x", [X, TX, X.tolist()])
def test_samples_may_be_their_own_labels(x: Any) -> None:
    for data in ((x, x, x, x), {"x": x, "y": x}, Dataset("d", x, x, x, x)):
        found = as_dataset(data)
        assert found.y is found.x
        assert found.y_test is found.x_test


def test_data_may_hold_samples_out() -> None:
    for data in ((X, Y, TX[:3], Y[:3]), {"x": X, "y": Y, "x_test": X[:3], "y_test": TY[:3]}):
        found = as_dataset(data)
        assert np.array_equal(found.x_test, X[:3])
        assert np.array_equal(found.y_test, Y[:3])


def test_a_name_is_read_and_a_dataset_keeps_what_it_says() -> None:
    assert as_dataset("digits").name == "digits"
    given = Dataset("d", X, Y, flat=True, classes=("a", "b", "c"), shuffle=False)
    found = as_dataset(given)
    assert (found.name, found.flat, found.classes, found.shuffle) == (
        "d",
        True,
        given.classes,
        False,
    )


def test_a_loader_is_read_once_in_its_order() -> None:
    assert not as_dataset(DataLoader(PAIRS, 4)).shuffle
    torch.manual_seed(0)
    mixed = as_dataset(DataLoader(PAIRS, 4, shuffle=True))
    assert mixed.shuffle
    assert not np.array_equal(mixed.x, X)
    assert np.array_equal(mixed.x[np.argsort(mixed.x[:, 0])], X)
    assert len(as_dataset(Longer()).x) == 10


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (X, "ndarray"),
        ((X,), "tuple of 1"),
        ((X, Y, X), "tuple of 3"),
        (5, "int"),
        (None, "NoneType"),
        ({"x": X}, "keys"),
        ({"x": X, "label": Y}, "keys"),
        ((X, None), "None"),
        (([[1, 2], [3]], Y), "x"),
        ((X, {"a": 1}), "y"),
        (np.array(5.0), "no samples"),
        (torch.tensor(5.0), "no samples"),
        (DataLoader(Endless(), 2), "DataLoader"),
        (iter([]), "iterator"),
        (type("Endless", (), {"__getitem__": lambda *_: (X[0], Y[0])})(), "has no length"),
        (DataLoader(TensorDataset(TX), 2), "DataLoader"),
        (DataLoader(TensorDataset(TX[:0], TY[:0]), 2), "DataLoader"),
        ([(X[0], Y[0])] * 3, "list of 3"),
        ("nothing.npz", "nothing.npz"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_other_data_are_refused_in_a_sentence(
    data: Any, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_MOST_BYTES", 1 << 16)
    with pytest.raises(poet.BadInput, match=named) as refused:
        as_dataset(data)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "n" * 300])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(poet.BadInput):
        poet.load_package(name)
    with pytest.raises(poet.BadInput):
        poet.prepare_storage(Path(name), "64MiB")


def linear(example: Any = None, **options: Any) -> Graph:
    example = torch.zeros(2, 4) if example is None else example
    graph = poet.load(MODULE, example, batch=2, **options)
    assert isinstance(graph, Graph)
    return graph


def test_options_of_load() -> None:
    assert linear(lr=0.5) == linear(learning_rate=0.5) != linear()
    assert linear(np.zeros((2, 4))) == linear()


class Shuffled(torch.nn.Module):
    """PyTorch's older exporter has no ChannelShuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4)
        self.shuffle, self.dropout = torch.nn.ChannelShuffle(2), torch.nn.Dropout(0.25)
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.shuffle(torch.relu(self.norm(self.conv(x))))
        logits: torch.Tensor = self.fc(self.dropout(x.mean((2, 3))))
        return logits


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_the_newer_exporter_is_tried_where_the_older_one_fails(batch: int) -> None:
    module = Shuffled()
    before = {name: one.clone() for name, one in module.state_dict().items()}
    graph = poet.load(module, torch.zeros(batch, 1, 8, 8), batch=4)
    assert isinstance(graph, Graph)
    assert graph.batch == 4
    assert (graph.lost, graph.made_up) == ((), ())
    assert {"dropout", "batchnorm", "transpose"} <= {node.op for node in graph}
    named = to_named(graph, start_values(graph, 0), constants=False)
    for name, one in module.state_dict().items():
        assert torch.equal(one, before[name])
        assert name.endswith("num_batches_tracked") or np.array_equal(named[name], one.numpy())


def test_shapes_that_are_refused_are_listed_with_those_that_work() -> None:
    with pytest.raises(poet.BadInput, match=r"\(batch, channels, length\)"):
        poet.load(torch.nn.Conv3d(1, 2, 3), torch.zeros(1, 1, 4, 4, 4))


MODULE = torch.nn.Linear(4, 3)
IMAGES, VALUES = np.zeros((2, 1, 8, 8), np.float32), start_values(runs.digits(), 0)
OPTIMIZER = torch.optim.SGD(MODULE.parameters())


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: poet.load(MODULE, TX, learningrate=0.1), "learning_rate"),  # type: ignore[call-arg]
        (lambda: poet.load(MODULE, TX, lr=0.1, learning_rate=0.2), "lr"),
        (lambda: poet.load(MODULE.state_dict()), "OrderedDict"),
        (lambda: poet.load(torch.nn.Linear, TX), "type"),
        (lambda: poet.load(MODULE, TX, optimizer=OPTIMIZER), "`optimizer` must be text"),
        (lambda: poet.load(MODULE, TX, train=MODULE.state_dict()), "`train` must be text"),
        (lambda: poet.load_package(3), "poet.load_package: `folder` must be text or a path"),  # type: ignore[arg-type]
        (lambda: poet.load(MODULE, TX, batch=2.5), "`batch` must be a whole number"),
        (lambda: poet.load(MODULE, TX, lr="0.1"), "`lr` must be a number"),
        (lambda: poet.load(MODULE, TX, lr=10**400), "learning_rate is 1000"),
        (lambda: poet.load(MODULE, TX, momentum=10**5000), "thousands of digits"),
        (lambda: poet.Schedule.load("a\0.poet"), "NUL"),
        (lambda: poet.save_weights("a\0.safetensors", runs.digits(), VALUES), "NUL"),
        (lambda: poet.accuracy(runs.digits(), {}, IMAGES, np.zeros(2, int)), "is missing"),
        (lambda: poet.accuracy(runs.digits(), VALUES, X, Y), "needs (N, 1, 8, 8)"),
        (lambda: poet.accuracy(runs.digits(), VALUES, IMAGES, Y), "2 samples"),
        (lambda: poet.accuracy(runs.digits(), VALUES, IMAGES, Y[:2] + 10), "none of the 2 labels"),
        (lambda: poet.compare_methods([], jobs=-1), "`jobs`"),
        (lambda: poet.compare_methods([], time_limit_s=np.nan), "time limit"),
        (lambda: poet.compare_methods([runs.digits()]), "a point must be (Problem, method"),  # type: ignore[list-item]
        (lambda: poet.compare_methods([], time_limit_s=1e9), "at most 1,000,000 s"),
        (lambda: poet.solve(runs.digits(), "native", work_limit=1e12), "at most 1,000,000,000"),
        (lambda: poet.Dataset("mine", X, Y, normalization="standard"), "must be a Normalization"),  # type: ignore[arg-type]
        (lambda: poet.load(MODULE), "example"),
        (lambda: poet.load(MODULE, X.tolist()), "example"),
        (lambda: poet.solve("resnet-digits", "native", ram="50%"), "`graph` must be a Graph"),
        (lambda: poet.solve(runs.digits(), "nativ", ram="50%"), "profile nativ"),
        (lambda: poet.solve(runs.digits(), "native", ram=0.5), "0.5"),
        (lambda: poet.solve(runs.digits(), "native", ram=[64]), "`ram` must be"),
        (lambda: poet.solve(), "'graph'"),  # type: ignore[call-arg]
        (lambda: poet.encode(runs.digits(), "native", "plan.json"), "`plan` must be a Plan"),
        (lambda: poet.encode(runs.digits(), "native"), "encode(graph, plan)"),
        (lambda: poet.problem(runs.digits()), "profile"),
        (lambda: poet.estimate_profile("nativ"), "nativ"),
        (lambda: poet.estimate_profile(5), "`board` must be"),
        (lambda: poet.train("none.poet", "native", "digits"), "`connection` must be a Connection"),
        (lambda: poet.evaluate(MODULE, "native", "digits"), "`schedule` must be a Schedule"),
        (lambda: poet.write_card(5, "native", "digits"), "`schedule` must be a Schedule"),
        (lambda: poet.read_card(5, "native"), "`schedule` must be a Schedule"),
        (lambda: poet.export("m.poet", {}), "`graph` must be a Graph"),
        (lambda: poet.export(runs.digits(), [1]), "`weights` must be"),
        (lambda: poet.export(runs.digits(), {"fc.weight": "a"}), "must hold numbers"),
        (lambda: poet.export(runs.digits(), {"fc.bias": [10**30, 1e300]}), "fc.bias"),
        (lambda: poet.export(runs.digits(), {"fc.bias": [10**30]}), "not an array of numbers"),
        (lambda: poet.save_weights("w.safetensors", "resnet-digits", {}), "`graph` must be"),
        (lambda: poet.load_weights("none.safetensors", None), "`graph` must be"),
        (lambda: poet.load_weights("none.safetensors", runs.digits()), "none.safetensors"),
        (lambda: poet.connect("native", arena_bytes="64K"), "64K"),
        (lambda: poet.connect("native", arena_bytes=0.5), "`arena_bytes` must be"),
        (lambda: poet.connect(5), "`port` must be"),
        (lambda: poet.load_data(5), "`spec` must be"),
        (lambda: poet.load_board(5), "`name` must be"),
        (lambda: poet.keep_everything(runs.digits()), "`graph` must be a CostGraph"),
        (lambda: poet.costs_of(MODULE, None), "`graph` must be a Graph"),
        (lambda: poet.prepare_storage("card.img", "much"), "much"),
        (lambda: poet.start_board("native", arena_bytes=1.5), "`arena_bytes` must be"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_in_a_sentence(call: Callable[[], Any], named: str) -> None:
    with pytest.raises(poet.BadInput) as refused:
        call()
    assert named in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_port_that_is_nearly_a_word_is_corrected() -> None:
    with pytest.raises(poet.NoDevice, match="native"):
        poet.connect("nativ")


def test_sizes_and_shares() -> None:
    assert size_bytes("64KiB", "a card of") == size_bytes(np.int64(65536), "a card of") == 65536
    assert ram_bytes(24576.0, None) == ram_bytes(np.int64(24576), None) == 24576
    assert ram_bytes("1.5KiB", None) == 1536
    for wrong in ("1.5", 0.5, "0.5B"):
        with pytest.raises(poet.BadInput, match="50%"):
            ram_bytes(wrong, 1000)


def test_a_profile_may_be_a_board_or_a_file(tmp_path: Path) -> None:
    known = runs.profile()
    known.save(tmp_path / "p.json")
    for given in (
        known,
        "native",
        api.load_board("native"),
        tmp_path / "p.json",
        str(tmp_path / "p.json"),
    ):
        assert as_profile(given) == known
    assert poet.estimate_profile("native") == known
    assert poet.costs_of(runs.digits(), "native") == poet.costs_of(runs.digits(), known)


def test_numbers_of_numpy_are_numbers() -> None:
    @checked
    def double(count: int, rate: float = 0.0) -> Any:
        return type(count), type(rate)

    assert double(np.int64(3), np.float32(0.5)) == (int, float)
    assert double(3, 1) == (int, int)
    with pytest.raises(poet.BadInput, match="count"):
        double(True)


@needs_compiler
def test_training_and_evaluating_with_what_people_have(tmp_path: Path) -> None:
    """A schedule's path, weights as tensors or a file, data of every kind: the same bits."""
    digits = load_data("digits")
    x, y = digits.x[:16], digits.y[:16]
    graph, path = runs.digits(), tmp_path / "m.poet"
    runs.schedule(graph).save(path)
    weights = start_values(graph, 3)
    file = tmp_path / "w.safetensors"
    poet.save_weights(file, graph, weights)
    tensors = {name: torch.from_numpy(one) for name, one in weights.items()}
    loader = DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 5)
    ordered = Dataset("d", x, y, shuffle=False)
    with poet.connect("native", arena_bytes="1MiB") as board:
        assert "native" in repr(board)
        found = [
            poet.train(str(path), board, ordered, weights=weights),
            poet.train(path, board, loader, weights=tensors),
            poet.train(runs.schedule(graph), board, loader, weights=str(file)),
        ]
        assert "4 steps" in repr(found[0])
        assert runs.same(found[0], found[1])
        assert runs.same(found[0], found[2])
        losses = {
            poet.evaluate(path, board, data, weights=given).loss
            for data, given in ((ordered, weights), (loader, file), ((x, y), tensors))
        }
        assert len(losses) == 1
        module = api.load_graph(MODULE, TX)
        mine = start_values(module, 0)
        poet.save_weights(file, module, mine)
        assert poet.export(module, file) == poet.export(module, mine)
        with pytest.raises(poet.BadInput, match="graph"):
            board.profile("resnet-digits")  # type: ignore[arg-type]


def test_every_value_shows_itself_in_a_line() -> None:
    graph, plan = runs.digits(), runs.plan(runs.digits(), "100%", "keep-everything")
    evaluation = Evaluation(
        model="m",
        board="native",
        data="digits",
        half="training",
        samples=5,
        loss=0.5,
        outputs=X,
        time_us=1.0,
    )
    values = [
        (graph, "77 nodes"), (api.costs_of(graph, runs.profile()), "77 nodes"),
        (plan, "keep-everything"), (runs.schedule(graph), "resnet-digits"),
        (runs.profile(), "native"), (load_data("digits"), "1,437 samples"),
        (poet.problem(graph, "native", ram="24KiB"), "24,576 bytes"),
        (poet.load_board("mkr1000"), "24,576 bytes"), (poet.summary(graph), "layers"),
        (evaluation, "5 samples"), (JobState(0, 4, 2, X), "step 2 of 4"),
        (SavedWeights(VALUES, NO_FACTS), f"{len(VALUES)} tensors"),
        (Normalization(tuple(range(784)), (1.0,) * 784), "784 offsets"),
    ]  # fmt: skip
    for value, word in values:
        assert word in repr(value)
        assert repr(value).startswith(f"<{type(value).__name__}")
        assert len(repr(value)) < 160
        assert "\n" not in repr(value)


@pytest.mark.slow
def test_a_type_checker_sees_the_package(tmp_path: Path) -> None:
    assert files("poet_host").joinpath("py.typed").is_file()
    user = tmp_path / "user.py"
    user.write_text(
        "import poet_host as poet\n"
        "graph = poet.load('linear', lr=0.1)\n"
        "with poet.connect('native', arena_bytes='64KiB') as board:\n"
        "    run = poet.train('m.poet', board, ([[1.0]], [0]))\n"
        "reveal_type(run)\n"
        "reveal_type(poet.__version__)\n"
        "poet.train(5, board, 'digits')\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, user],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert 'Revealed type is "poet_host.run.run.Run"' in found.stdout, found.stdout
    assert 'Revealed type is "str"' in found.stdout or "builtins.str" in found.stdout
    assert "Found 1 error" in found.stdout
    assert "user.py:7" in found.stdout


def test_training_takes_the_rates_and_the_order_that_the_command_takes() -> None:
    schedule = runs.schedule(runs.digits())
    graph = schedule.graph
    with poet.connect("native", arena_bytes=1 << 20) as board:

        def weights(**how: Any) -> dict[str, bytes]:
            run = poet.train(schedule, board, "digits", steps=2, erase_card=True, **how)
            return {name: value.tobytes() for name, value in run.weights.items()}

        usual = weights()
        assert weights(shuffle=True) == usual
        assert weights(lr=0.5) == weights(learning_rate=0.5) != usual
        assert weights(shuffle=False) != usual
        with pytest.raises(poet.BadInput, match="momentum"):
            weights(momentum=0.5)  # the schedule has no tensors for it
        with pytest.raises(poet.BadInput, match="`lr`"):
            weights(lr=0.5, learning_rate=0.5)
        with pytest.raises(poet.BadInput, match="`commit_every`"):
            weights(commit_every=0)
    assert graph == schedule.graph


def test_weights_of_any_number_type_are_used_as_float32() -> None:
    schedule, mapping = runs.schedule(runs.digits()), dict(VALUES)
    wanted = poet.predict(schedule, IMAGES + 1, weights=mapping).outputs
    mapping["conv1.weight"] = VALUES["conv1.weight"].astype(np.float64)
    mapping["fc.bias"] = VALUES["fc.bias"].tolist()
    assert poet.predict(schedule, IMAGES + 1, weights=mapping).outputs.tobytes() == wanted.tobytes()
    labels = wanted.argmax(-1)
    assert poet.accuracy(runs.digits(), mapping, IMAGES.astype(np.uint8) + 1, labels) == 1


def test_an_example_without_a_batch_is_refused() -> None:
    with pytest.raises(poet.BadInput, match=r"`example` has shape \(4,\)"):
        poet.load(torch.nn.Linear(4, 3), TX[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_labels_that_equal_the_samples_are_the_samples(tmp_path: Path, dtype: Any) -> None:
    """Then both are normalised, as those of (x, x)."""
    b = Builder("same", (2, 4))
    graph = training_graph(b.model(b.mse(b.linear(b.data, 4))), Sgd(0.1))
    x = np.arange(32).reshape(8, 4).astype(dtype)
    np.savez(tmp_path / "a.npz", x=x, y=x, x_test=x[:2], y_test=x[:2])
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", x)
    files = tmp_path / "a.npz", tmp_path
    loaded = [load_data(path, graph=graph, normalize="0:4") for path in files]
    known = DataFacts(normalization=Normalization((0.0,), (4.0,)))
    pairs = ((row, row.copy()) for row in x)
    for data in (*loaded, *files, (x, x), (x, x.copy()), pairs, Dataset("d", x, x.copy())):
        found = adapted(inputs.fitted(data, graph), known)
        assert found.y is found.x
        assert np.array_equal(found.x, x.astype(np.float32) / 4)
        assert found.y_test is found.x_test

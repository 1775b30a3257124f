"""Bad input on the command line: each has its exit code and a sentence that helps, no traceback."""

import io
import os
import threading
import tty
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host import api, isa
from poet_host.device import device as devices
from poet_host.schedule.model import with_crc
from poet_host.schedule.schedule import Schedule
from poet_host.sim.native import NativeBoard, create_storage
from support import whole_runs as runs
from support.command import Command

BAD, NO_DEVICE, LINK, INFEASIBLE, GAP, UNKNOWN = 2, 3, 4, 5, 6, 7


@pytest.fixture
def poet_host(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    path = tmp_path / "digits.poet"
    runs.schedule(runs.digits(), "60%", "poet").save(path)
    return path


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    path = tmp_path / "card.img"
    poet.prepare_storage(path, 8 * runs.MIB)
    return path


@pytest.fixture
def train(poet_host: Command, schedule: Path, tmp_path: Path) -> Any:
    def call(*more: object, data: object = "digits", port: object = "native") -> Any:
        given = ("--port", port, "--data", data, "--save-weights", tmp_path / "w.safetensors")
        result = poet_host("train", schedule, *given, *more)
        if result.code != 0:
            assert not (tmp_path / "w.safetensors").exists()
        return result

    return call


# What is named does not exist.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("frobnicate",), "No such command 'frobnicate'"),
        (("solve", "resnet-digits"), "--board NAME (estimated) or --profile"),
        (("solve", "resnt-digits", "--board", "native", "--ram", "1KiB"), "built in are resnet-"),
        (("solve", "resnet-digits", "--board", "arduino", "--ram", "1KiB"), "choose one of"),
        (("solve", "resnet-digits", "--ram", "24KiB"), "--board NAME (estimated) or --profile"),
        (("solve", "resnet-digits", "--board", "native", "--ram", "24XB"), "as 50%"),
        (("solve", "resnet-digits", "--board", "native", "--ram", "-1"), "as 50%"),
        (("solve", "none.json", "--ram", "24KiB"), "none.json cannot be read"),
        (("solve", "resnet-digits", "--profile", "none.json", "--ram", "1"), "none.json cannot be"),
        (("profile", "nothing", "--port", "native", "-o", "p.json"), "no model 'nothing'"),
        (("show", "none.poet"), "none.poet cannot be read"),
        (("simulate", "toaster"), "no board toaster"),
        (("flash", "--board", "mkr1000", "--tool", "avrdude"), "choose bossac"),
        (("flash", "--board", "native"), "nothing to flash"),
        (("compare", "resnet-digits", "--board", "native", "--methods", "x"), "no method x"),
        (("train", "none.poet", "--port", "native", "--data", "digits", "--save-weights", "w"),
         "none.poet cannot be read"),
    ],
)  # fmt: skip
def test_unknown_names_are_refused(poet_host: Command, arguments: Any, words: str) -> None:
    result = poet_host(*arguments)
    assert result.code == BAD
    assert words in result.err.replace("\n", " ")
    assert result.out == ""


def test_with_json_an_error_is_one_object_too(poet_host: Command) -> None:
    result = poet_host("solve", "nothing", "--ram", "1KiB", "--json")
    assert result.json["exit_code"] == result.code == BAD
    assert "no model 'nothing'" in result.json["error"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--batch", "0"), "--batch"),
        (("--batch", "70000"), "65536"),
        (("--learning-rate", "-1"), "--learning-rate"),
        (("--momentum", "1.5"), "--momentum"),
        (("--momentum", "nan"), "nan is no finite number"),
        (("--learning-rate", "inf"), "inf is no finite number"),
        (("--train", "fc.nothing"), "it has conv1.weight"),
        (("--deadline", "soon"), "1.2x, or none"),
        (("--deadline", "0"), "positive"),
        (("--deadline", "1x", "--deadline-us", "5"), "not both"),
        (("--gap", "2"), "--gap"),
        (("--time-limit", "0"), "--time-limit"),
        (("--unplaced", "-o", "x.poet"), "leave out --unplaced"),
        (("--profile", "p.json"), "leave out --board"),
    ],
)
def test_numbers_out_of_range_are_refused(poet_host: Command, more: Any, words: str) -> None:
    result = poet_host("solve", "resnet-digits", "--board", "native", "--ram", "50%", *more)
    assert result.code == BAD
    assert words in result.err


# Limits that no plan keeps.


def test_a_budget_too_small_names_the_smallest_that_works(poet_host: Command) -> None:
    solve = ("solve", "resnet-digits", "--board", "native", "--gap", "0.2", "--json", "--ram")
    refused = poet_host(*solve, "9KiB")
    assert refused.code == INFEASIBLE
    assert refused.json["status"] == "infeasible"
    smallest = refused.json["smallest_ram_bytes"]
    assert f"works is {smallest:,} bytes (--ram {smallest})" in refused.err
    assert "fc (linear)" in refused.err  # the operator that sets it
    for tensor in ("relu2 4,096", "fc.weight 10,240", "fc.bias 40", "fc 160"):
        assert tensor in refused.err
    assert "statements" not in refused.json
    works = poet_host(*solve, smallest)
    assert works.code == 0
    assert works.json["peak_bytes"] <= smallest
    assert poet_host(*solve, smallest - 4).code == INFEASIBLE


def test_a_deadline_too_tight_names_one_that_works(poet_host: Command) -> None:
    solve = ("solve", "linear", "--board", "native", "--gap", "0.2", "--json", "--ram", "70%")
    refused = poet_host(*solve, "--deadline", "0.5x")
    assert refused.code == INFEASIBLE
    assert "ms works (--deadline)" in refused.err
    named_ms = refused.err.split("a deadline of ")[-1].split(" ms works")[0]
    assert float(named_ms) * 1e3 >= refused.json["smallest_deadline_us"]
    works = poet_host(*solve, "--deadline", named_ms)
    assert works.code in (0, GAP)
    assert works.json["time_us"] <= float(named_ms) * 1e3


def test_nothing_is_written_for_a_plan_that_does_not_exist(
    poet_host: Command, tmp_path: Path
) -> None:
    out = tmp_path / "x.poet"
    result = poet_host("solve", "resnet-digits", "--board", "native", "--ram", "1KiB", "-o", out)
    assert result.code == INFEASIBLE
    assert not out.exists()


# Ports.


@pytest.mark.parametrize("port", ["/dev/ttyNothing7", "socket://127.0.0.1:9", "magic://x"])
def test_a_port_that_is_not_there(train: Any, port: str) -> None:
    result = train(port=port)
    assert result.code == NO_DEVICE
    assert port in result.err


def test_a_port_that_is_no_device(train: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert train(port=path).code == NO_DEVICE


def test_boards_that_cannot_be_simulated_are_refused(train: Any) -> None:
    result = train(port="sim:toaster")
    assert result.code == BAD
    assert "there is no board toaster" in result.err


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "CONNECT_PATIENCE_S", 0.5)


@pytest.fixture
def stranger() -> Iterator[tuple[int, str]]:
    """A pty with something on it that is no board."""
    master, slave = os.openpty()
    tty.setraw(slave)
    try:
        yield master, os.ttyname(slave)
    finally:
        os.close(slave)
        os.close(master)


@pytest.mark.usefixtures("patience")
def test_a_silent_port_is_no_board(train: Any, stranger: tuple[int, str]) -> None:
    result = train(port=stranger[1])
    assert result.code == NO_DEVICE
    assert stranger[1] in result.err


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("how", ["echo", "noise", "text"])
def test_something_else_on_the_port_is_no_board(
    train: Any, stranger: tuple[int, str], how: str
) -> None:
    master, port = stranger
    rng = np.random.default_rng(0)

    def talk() -> None:
        while True:
            try:
                heard = os.read(master, 4096)
                answer = {"echo": heard, "noise": rng.bytes(300), "text": b"\r\nlogin: "}[how]
                os.write(master, answer)
            except OSError:
                return

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    result = train(port=port)
    assert result.code == NO_DEVICE
    assert port in result.err


def test_a_board_unplugged_in_mid_run(
    train: Any, storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NativeBoard(storage, 64 * 1024) as board:
        before = poet.Connection.__init__

        def unplug_soon(self: Any, device: Any, *rest: Any) -> None:
            before(self, device, *rest)
            step = device.step

            def stepping(number: int, *window: int) -> Any:
                if number == 3:
                    board.kill()
                return step(number, *window)

            device.step = stepping

        monkeypatch.setattr(poet.Connection, "__init__", unplug_soon)
        result = train("--run", tmp_path / "run.json", port=board.port)
    assert result.code == LINK
    assert "weights of step 2 or 3 are safe" in result.err
    assert "--resume" in result.err
    assert not list(tmp_path.glob("*.json"))


# Storage.


def test_a_storage_file_that_is_missing(train: Any, tmp_path: Path) -> None:
    result = train("--storage", tmp_path / "none.img")
    assert result.code == BAD
    assert "poet-host storage prepare" in result.err


@pytest.mark.parametrize("content", [b"", b"\0" * 512, os.urandom(1 << 20), b"\0" * (1 << 22)])
def test_a_storage_file_of_something_else(train: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.img"
    path.write_bytes(content)
    result = train("--storage", path)
    assert result.code == BAD
    assert "storage" in result.err
    assert path.read_bytes() == content


def test_a_partition_without_a_store_is_formatted_when_asked(train: Any, tmp_path: Path) -> None:
    path = tmp_path / "new.img"
    create_storage(path, 8 * runs.MIB)
    refused = train("--storage", path, "--steps", 1)
    assert refused.code == BAD
    assert "prepare" in refused.err
    assert train("--storage", path, "--steps", 1, "--erase-card").code == 0
    assert train("--storage", path, "--steps", 2, "--resume").code == 0


def test_a_storage_file_too_small_for_the_model(train: Any, tmp_path: Path) -> None:
    path = tmp_path / "small.img"
    poet.prepare_storage(path, (2048 + 1400) * 512)
    result = train("--storage", path)
    assert result.code == BAD
    assert "too small" in result.err


def test_a_storage_file_is_not_overwritten(poet_host: Command, storage: Path) -> None:
    before = storage.read_bytes()
    refused = poet_host("storage", "prepare", storage)
    assert refused.code == BAD
    assert "--force" in refused.err
    assert storage.read_bytes() == before
    assert poet_host("storage", "prepare", storage, "--force", "--size", "4MiB").code == 0
    assert storage.stat().st_size == 4 * runs.MIB


@pytest.mark.parametrize(
    ("size", "words"),
    [("1KiB", "no room"), ("1100KiB", "too small"), ("5000000GiB", "is too large: an MBR")],
)
def test_storage_of_a_size_that_holds_no_store_is_refused(
    poet_host: Command, tmp_path: Path, size: str, words: str
) -> None:
    path = tmp_path / "card.img"
    result = poet_host("storage", "prepare", path, "--size", size)
    assert result.code == BAD
    assert words in result.err
    assert not path.exists()


# Schedules.


@pytest.mark.parametrize("at", [0, 10, 100, 3000, -1])
def test_a_damaged_schedule(train: Any, schedule: Path, at: int) -> None:
    data = bytearray(schedule.read_bytes())
    data[at] ^= 0x10
    schedule.write_bytes(data)
    result = train()
    assert result.code == BAD
    assert str(schedule) in result.err


def test_a_cut_schedule(train: Any, schedule: Path) -> None:
    schedule.write_bytes(schedule.read_bytes()[:-7])
    assert train().code == BAD


def test_a_schedule_for_other_operators(train: Any, schedule: Path) -> None:
    data = bytearray(schedule.read_bytes())
    size = len(Schedule.load(schedule).model_part)
    data[isa.ffi().offsetof("struct poet_model", "fingerprint")] ^= 1
    data[:size] = with_crc(bytes(data[:size]))
    schedule.write_bytes(data)
    result = train()
    assert result.code == BAD
    assert "other operators" in result.err


def test_a_schedule_of_costs_alone_trains_nothing(poet_host: Command, tmp_path: Path) -> None:
    path = tmp_path / "costs.poet"
    costs = api.costs_of(runs.digits(), runs.profile())
    api.encode(costs, None, api.solve(costs, ram="100%", method="keep-everything")).save(path)
    out = tmp_path / "w"
    result = poet_host("train", path, "--port", "native", "--data", "digits", "--save-weights", out)
    assert result.code == BAD
    assert "costs alone" in result.err


def test_a_schedule_too_large_for_the_board(train: Any) -> None:
    with NativeBoardOf(8192) as board:
        result = train(port=board.port)
    assert result.code == BAD
    assert "more RAM than the board has" in result.err


class NativeBoardOf:
    """A native board with so much RAM, on a card of its own."""

    def __init__(self, arena_bytes: int) -> None:
        self.native = api.start_board("native", None, arena_bytes)

    def __enter__(self) -> NativeBoard:
        return self.native.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.native.__exit__(*error)


# Data and weights.


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


X, Y = np.zeros((8, 1, 8, 8), np.float32), np.zeros(8, np.int32)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.zeros((8, 28, 28)), Y, "x has shape (8, 28, 28), resnet-digits needs (N, 1, 8, 8)"),
        (np.full_like(X, np.nan), Y, "NaN or infinity"),
        (X, Y + 10, "not in 0..9"),
        (X[:2], Y[:2], "do not fill one batch of 4"),
    ],
)
def test_data_that_does_not_fit(train: Any, tmp_path: Path, x: Any, y: Any, words: str) -> None:
    result = train(data=save(tmp_path / "d.npz", x=x, y=y))
    assert result.code == BAD
    assert words in result.err


def test_data_that_is_not_there(train: Any) -> None:
    result = train(data="none.npz")
    assert result.code == BAD
    assert "an .npz file, a folder of .npy files, a .csv file, `digits`, synthetic" in result.err


def test_a_profile_replaces_no_model_and_no_card(
    poet_host: Command, storage: Path, tmp_path: Path
) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"a model")
    for out, more in (
        (model, ()), (tmp_path / "m.onnx.data", ()), (storage, ("--storage", storage)),
    ):  # fmt: skip
        refused = poet_host("profile", model, "--port", "native", "-o", out, *more)
        assert refused.code == BAD
        assert f"{out} is read by this command too" in refused.err
    solve = ("solve", model, "--board", "native", "--ram", "1KiB")
    refused = poet_host(*solve, "--plan", f"{model}.data")
    assert refused.code == BAD
    assert "is read by this command too" in refused.err
    assert model.read_bytes() == b"a model"


def test_links_in_a_circle_take_no_weights(train: Any, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    refused = train("--save-weights", tmp_path / "a")
    assert refused.code == BAD
    assert "cannot be written: its links go in a circle" in refused.err


def test_what_is_typed_is_said_as_it_is(train: Any) -> None:
    """Not `:a:` as the picture that has that name."""
    refused = train("--data", "synthetic:a:b")
    assert refused.code == BAD
    assert "data 'synthetic:a:b': write it as" in refused.err


def test_data_larger_than_the_memory(train: Any, tmp_path: Path) -> None:
    header = io.BytesIO()
    facts = {"descr": "<f4", "fortran_order": False, "shape": (1 << 50,)}
    np.lib.format.write_array_header_1_0(header, facts)
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as file:
        file.writestr("x.npy", header.getvalue())
        file.writestr("y.npy", header.getvalue())
    refused = train("--data", tmp_path / "d.npz")
    assert refused.code == BAD
    assert f"{tmp_path / 'd.npz'}: " in refused.err
    assert "memory" in refused.err


def test_weights_that_are_none(train: Any, tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    path.write_bytes(b"not weights")
    result = train("--load-weights", path)
    assert result.code == BAD
    assert "no safetensors file" in result.err


def test_weights_of_another_model(train: Any, tmp_path: Path) -> None:
    other = api.load_graph("lenet-digits")
    run = runs.train(runs.schedule(other), steps=1)
    api.save_weights(tmp_path / "start.safetensors", other, run.weights)
    result = train("--load-weights", tmp_path / "start.safetensors")
    assert result.code == BAD
    assert "start.safetensors" in result.err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--epochs", 1, "--steps", 1), "not both"),
        (("--resume", "--erase-card"), "leave out --erase-card"),
        (("--resume",), "needs the --storage file"),
        (("--run", "nowhere/run.json"), "there is no folder nowhere"),
        (("--seed", -1), "--seed"),
        (("--save-weights", "w.pt"), "w.pt"),
    ],
)
def test_options_that_contradict(train: Any, more: Any, words: str) -> None:
    result = train(*more)
    assert result.code == BAD
    assert words in result.err


def test_a_folder_cannot_take_the_weights(
    poet_host: Command, schedule: Path, tmp_path: Path
) -> None:
    result = poet_host(
        "train", schedule, "--port", "native", "--data", "digits", "--save-weights", tmp_path
    )
    assert result.code == BAD


# Losses.


def test_a_loss_that_is_no_number(poet_host: Command, tmp_path: Path) -> None:
    path, weights, told = tmp_path / "wild.poet", tmp_path / "w.safetensors", tmp_path / "run.json"
    runs.schedule(runs.digits(learning_rate=1e30)).save(path)
    result = poet_host(
        "train", path, "--port", "native", "--data", "digits", "--save-weights", weights,
        "--run", told, "--json",
    )  # fmt: skip
    assert result.code == 1
    assert "diverged at step" in result.err
    assert result.json["exit_code"] == 1
    graph = runs.digits()
    kept = api.load_weights(weights, graph)
    reference = runs.train(runs.schedule(runs.digits(learning_rate=1e30)), steps=1)
    assert all(kept[name].tobytes() == reference.weights[name].tobytes() for name in kept)
    assert '"ended": "not_finite"' in told.read_text()

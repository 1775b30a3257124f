"""Bad input: each error has its exit code, names what is wrong, and prints no traceback."""

import io
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host import api, isa
from poet_host.errors import BoardError
from poet_host.schedule.model import with_crc
from poet_host.schedule.schedule import Schedule
from poet_host.sim.native import create_storage
from support import whole_runs as runs
from support.card_image import BLOCK, DATA_BLOCK, PREPARED
from support.command import Command

BAD, INFEASIBLE, GAP = 2, 5, 6
SMALL_CARD_BYTES = (PREPARED + DATA_BLOCK + 50) * BLOCK  # too small for resnet-digits
NATIVE = ("--board", "native", "--ram")


# Names of what does not exist.


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("frobnicate",), "'frobnicate'"),
        (("solve", "resnet-digits"), "--board"),
        (("solve", "resnt-digits", *NATIVE, "1KiB"), "resnet-"),
        (("solve", "resnet-digits", "--board", "arduino", "--ram", "1KiB"), "mkr1000"),
        (("solve", "resnet-digits", "--ram", "24KiB"), "--profile"),
        (("solve", "resnet-digits", *NATIVE, "24XB"), "50%"),
        (("solve", "resnet-digits", *NATIVE, "-1"), "50%"),
        (("solve", "none.json", "--ram", "24KiB"), "none.json"),
        (("solve", "resnet-digits", "--profile", "none.json", "--ram", "1"), "none.json"),
        (("profile", "nothing", "--port", "native", "-o", "p.json"), "'nothing'"),
        (("show", "none.poet"), "none.poet"),
        (("simulate", "toaster"), "toaster"),
        (("flash", "--board", "mkr1000", "--tool", "avrdude"), "bossac"),
        (("flash", "--board", "native"), "native"),
        (("compare", "resnet-digits", "--board", "native", "--methods", "x"), "x"),
        (("train", "none.poet", "--port", "native", "--data", "digits", "--save-weights", "w",
          "--warmup", 0), "none.poet"),
    ],
)  # fmt: skip
def test_unknown_names_are_refused(poet_host: Command, arguments: Any, named: str) -> None:
    result = poet_host(*arguments)
    result.fails(BAD, named)
    assert result.out == ""


def test_with_json_an_error_is_one_object(poet_host: Command) -> None:
    result = poet_host("solve", "nothing", "--ram", "1KiB", "--json")
    assert result.json["exit_code"] == result.code == BAD
    assert "'nothing'" in result.json["error"]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--batch", "0"), "--batch"),
        (("--batch", "70000"), "65536"),
        (("--learning-rate", "-1"), "--learning-rate"),
        (("--momentum", "1.5"), "--momentum"),
        (("--momentum", "nan"), "nan"),
        (("--learning-rate", "inf"), "inf"),
        (("--train", "fc.nothing"), "conv1.weight"),
        (("--deadline", "soon"), "1.2x"),
        (("--deadline", "0"), "positive"),
        (("--deadline", "1x", "--deadline-us", "5"), "--deadline-us"),
        (("--gap", "2"), "--gap"),
        (("--time-limit", "0"), "--time-limit"),
        (("--unplaced", "-o", "x.poet"), "--unplaced"),
        (("--slice", "5x"), "slice '5x'"),
        (("--commit-every", "70000", "-o", "nowhere/x.poet"), "65,535"),  # before any search
        (("--profile", "p.json"), "omit --board"),
    ],
)
def test_wrong_options_of_solve_are_refused(poet_host: Command, more: Any, named: str) -> None:
    poet_host("solve", "resnet-digits", *NATIVE, "50%", *more).fails(BAD, named)


# Limits within which no plan exists.


@pytest.mark.slow
def test_a_budget_too_small_names_the_smallest_that_works(poet_host: Command) -> None:
    solve = ("solve", "resnet-digits", "--no-streaming", "--gap", "0.2", "--json", *NATIVE)
    refused = poet_host(*solve, "9KiB")
    assert refused.json["status"] == "infeasible"
    assert "statements" not in refused.json
    smallest = refused.json["smallest_ram_bytes"]
    tensors = ("relu2 4,096", "fc.weight 10,240", "fc.bias 40", "fc 160")
    refused.fails(INFEASIBLE, f"{smallest:,} bytes", f"--ram {smallest}", "fc (linear)", *tensors)
    works = poet_host(*solve, smallest)
    assert works.code == 0
    assert works.json["peak_bytes"] <= smallest
    assert poet_host(*solve, smallest - 4).code == INFEASIBLE


@pytest.mark.slow
def test_a_deadline_too_short_names_one_that_works(poet_host: Command) -> None:
    solve = ("solve", "linear", "--gap", "0.2", "--json", *NATIVE, "70%")
    refused = poet_host(*solve, "--deadline", "0.5x")
    refused.fails(INFEASIBLE, "--deadline")
    named_ms = refused.err.split("a deadline of ")[-1].split(" ms works")[0]
    assert float(named_ms) * 1e3 >= refused.json["smallest_deadline_us"]
    works = poet_host(*solve, "--deadline", named_ms)
    assert works.code in (0, GAP)
    assert works.json["time_us"] <= float(named_ms) * 1e3


def test_without_a_plan_no_schedule_is_written(poet_host: Command, tmp_path: Path) -> None:
    out = tmp_path / "x.poet"
    poet_host("solve", "resnet-digits", *NATIVE, "1KiB", "-o", out).fails(INFEASIBLE)
    assert not out.exists()


def test_a_firmware_does_not_replace_its_schedule(poet_host: Command, schedule: Path) -> None:
    before = schedule.read_bytes()
    poet_host("build", "mkr1000", "--model", schedule, "-o", schedule).fails(BAD, schedule, "reads")
    assert schedule.read_bytes() == before


# Cards.


def test_a_missing_card_image(train: Any, tmp_path: Path) -> None:
    train("--storage", tmp_path / "none.img").fails(BAD, "poet-host storage prepare")


@pytest.mark.parametrize("content", [b"", b"\0" * 512, os.urandom(1 << 20), b"\0" * (1 << 22)])
def test_a_file_that_is_not_a_card_image(train: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.img"
    path.write_bytes(content)
    train("--storage", path).fails(BAD, "storage")
    assert path.read_bytes() == content


def test_an_empty_partition_is_formatted_with_erase_card(train: Any, tmp_path: Path) -> None:
    path = tmp_path / "new.img"
    create_storage(path, 64 * runs.MIB)
    train("--storage", path, "--steps", 1).fails(BAD, "card check", "--erase-card")
    assert train("--storage", path, "--steps", 1, "--erase-card").code == 0
    assert train("--storage", path, "--steps", 2, "--resume").code == 0


def test_a_damaged_store_may_still_have_weights(train: Any, card: Path) -> None:
    assert train("--storage", card, "--steps", 1).code == 0
    with card.open("rb+") as file:
        file.seek(PREPARED * BLOCK)
        file.write(bytes(BLOCK))
    train("--storage", card, "--steps", 2, "--resume").fails(BAD, "card check")
    with poet.connect("native", storage=card) as connection, pytest.raises(BoardError):
        connection.validate(runs.digits(), runs.profile())
    weights = poet.check_card(card).weights
    assert weights
    assert weights.is_whole


def test_a_card_too_small_for_the_model(train: Any, tmp_path: Path) -> None:
    path = tmp_path / "small.img"
    poet.prepare_storage(path, SMALL_CARD_BYTES)
    train("--storage", path).fails(BAD, "too small")


@pytest.mark.parametrize(
    ("image_bytes", "arena_bytes", "named"),
    [(64 * runs.MIB, 8_192, "arena_small"), (SMALL_CARD_BYTES, 65_536, "storage_small")],
)
def test_nothing_is_erased_for_a_schedule_that_does_not_fit(
    tmp_path: Path, image_bytes: int, arena_bytes: int, named: str
) -> None:
    path = tmp_path / "held.img"
    poet.prepare_storage(path, image_bytes)
    before = path.read_bytes()
    with (
        poet.connect("native", storage=path, arena_bytes=arena_bytes) as connection,
        pytest.raises(BoardError) as refused,
    ):
        poet.train(runs.small(), connection, "digits", steps=1, erase_card=True)
    assert path.read_bytes() == before
    assert (refused.value.name, refused.value.exit_code) == (named, BAD)


def test_an_existing_card_image_is_kept_without_force(poet_host: Command, card: Path) -> None:
    before = card.read_bytes()
    poet_host("storage", "prepare", card).fails(BAD, "--force")
    assert card.read_bytes() == before
    assert poet_host("storage", "prepare", card, "--force", "--size", "64MiB").code == 0
    assert card.stat().st_size == 64 * runs.MIB


@pytest.mark.parametrize(
    ("size", "named"), [("1KiB", "partition"), ("5000KiB", "too small"), ("5000000GiB", "MBR")]
)
def test_card_images_of_impossible_sizes_are_refused(
    poet_host: Command, tmp_path: Path, size: str, named: str
) -> None:
    path = tmp_path / "card.img"
    poet_host("storage", "prepare", path, "--size", size).fails(BAD, named)
    assert not path.exists()


# Schedules.


@pytest.mark.parametrize("at", [0, 10, 100, 3000, -1])
def test_a_damaged_schedule(train: Any, schedule: Path, at: int) -> None:
    data = bytearray(schedule.read_bytes())
    data[at] ^= 0x10
    schedule.write_bytes(data)
    train().fails(BAD, schedule)


def test_a_truncated_schedule(train: Any, schedule: Path) -> None:
    schedule.write_bytes(schedule.read_bytes()[:-7])
    train().fails(BAD)


def test_a_schedule_for_other_operators(train: Any, schedule: Path) -> None:
    found = Schedule.load(schedule)
    data = bytearray(found.model_part)
    data[isa.ffi().offsetof("struct poet_model", "fingerprint")] ^= 1
    replace(found, model_part=with_crc(bytes(data))).save(schedule)
    train().fails(BAD, "operators")


def test_a_schedule_of_a_cost_graph_cannot_train(train: Any, schedule: Path) -> None:
    costs = api.costs_of(runs.digits(), runs.profile())
    plan = api.solve(costs, ram="100%", method="keep-everything")
    api.encode(costs, None, plan).save(schedule)
    train().fails(BAD, "costs")


def test_a_schedule_too_large_for_the_board(train: Any) -> None:
    with api.start_board("native", None, 8192) as board:
        train(port=board.port).fails(BAD, "RAM")


# Data and weights.


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


X, Y = np.zeros((8, 1, 8, 8), np.float32), np.zeros(8, np.int32)


@pytest.mark.parametrize(
    ("x", "y", "named"),
    [
        (np.zeros((8, 28, 28)), Y, ("(8, 28, 28)", "resnet-digits", "(N, 1, 8, 8)")),
        (np.full_like(X, np.nan), Y, ("NaN",)),
        (X, Y + 10, ("0..9",)),
        (X[:2], Y[:2], ("batch of 4",)),
    ],
)
def test_data_that_does_not_fit(train: Any, tmp_path: Path, x: Any, y: Any, named: Any) -> None:
    train(data=save(tmp_path / "d.npz", x=x, y=y)).fails(BAD, *named)


def test_missing_data_names_all_kinds_of_data(train: Any) -> None:
    train(data="none.npz").fails(BAD, "none.npz", ".npy", ".csv", "`digits`", "synthetic")


def test_results_replace_no_model_and_no_card(
    poet_host: Command, card: Path, tmp_path: Path
) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"a model")
    for out, more in (
        (model, ()), (tmp_path / "m.onnx.data", ()), (card, ("--storage", card)),
    ):  # fmt: skip
        poet_host("profile", model, "--port", "native", "-o", out, *more).fails(BAD, out, "reads")
    solve = ("solve", model, *NATIVE, "1KiB")
    poet_host(*solve, "--plan", f"{model}.data").fails(BAD, f"{model}.data", "reads")
    weights = tmp_path / "w.safetensors"
    poet_host("export", model, "--weights", weights, "-o", weights).fails(BAD, weights, "reads")
    poet_host("export", model, "--weights", weights, "-o", model).fails(BAD, model, "reads")
    assert model.read_bytes() == b"a model"


def test_weights_are_not_written_to_a_circle_of_links(train: Any, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    train("--save-weights", tmp_path / "a").fails(BAD, tmp_path / "a", "links")


def test_errors_show_names_as_they_were_typed(train: Any) -> None:
    """Not `:a:` as the emoji of that name."""
    train("--data", "synthetic:a:b").fails(BAD, "'synthetic:a:b'")


def test_a_name_that_is_not_text_is_refused_before_any_work(poet_host: Command) -> None:
    done = poet_host("train", "m.poet", "--log", "run-\udcff.jsonl", "--json")
    done.fails(BAD, "run-\\udcff.jsonl", "rename")


def test_a_name_that_is_too_long_is_bad_input(train: Any, tmp_path: Path) -> None:
    name = tmp_path / ("n" * 300)
    for option in ("--data", "--storage", "--run"):
        train(option, name).fails(2, name)


def test_data_larger_than_the_memory(train: Any, tmp_path: Path) -> None:
    header = io.BytesIO()
    facts = {"descr": "<f4", "fortran_order": False, "shape": (1 << 50,)}
    np.lib.format.write_array_header_1_0(header, facts)
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as file:
        file.writestr("x.npy", header.getvalue())
        file.writestr("y.npy", header.getvalue())
    train("--data", tmp_path / "d.npz").fails(BAD, f"{tmp_path / 'd.npz'}: ", "memory")


def test_a_file_without_weights(train: Any, tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    path.write_bytes(b"not weights")
    train("--load-weights", path).fails(BAD, path, "safetensors")


def test_weights_of_another_model(train: Any, tmp_path: Path) -> None:
    other = api.load_graph("lenet-digits")
    run = runs.train(runs.schedule(other), steps=1)
    api.save_weights(tmp_path / "start.safetensors", other, run.weights)
    train("--load-weights", tmp_path / "start.safetensors").fails(BAD, "start.safetensors")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--epochs", 1, "--steps", 1), "--epochs and --steps"),
        (("--epochs", 10**15), "4,294,967,294 steps"),
        (("--steps", "1e3"), "whole number"),
        (("--lr", "fast"), "number"),
        (("--normalize", "0:0"), "STD finite and above 0"),
        (("--resume", "--erase-card"), "omit --erase-card"),
        (("--resume",), "--storage"),
        (("--run", "nowhere/run.json"), "nowhere"),
        (("--seed", -1), "--seed"),
        (("--save-weights", "w.pt"), "w.pt"),
        (("--save-weights", "."), "'.'"),
        (("--save-weights", "", "--validate"), "--save-weights"),
    ],
)
def test_wrong_options_of_train_are_refused(train: Any, more: Any, named: str) -> None:
    train(*more).fails(BAD, named)


def test_python_without_docstrings_is_refused() -> None:
    """Options have their short names and their texts from docstrings."""
    command = [sys.executable, "-OO", "-m", "poet_host", "models"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unset PYTHONOPTIMIZE" in done.stderr

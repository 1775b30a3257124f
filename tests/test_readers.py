"""Damaged files are refused in a sentence, and what a message quotes of a file is short."""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuzz import host
from onnx import TensorProto, helper
from poet_host import api
from poet_host.card.weights import load_weights, save_weights, step_of_weights
from poet_host.data.datasets import load_data
from poet_host.device.board import load_board, parse_board
from poet_host.errors import BadInput, PoetError, quoted
from poet_host.files import read_text
from poet_host.firmware_build.upload_tools import upload_command
from poet_host.graph.weights import start_values
from poet_host.plan.plan import plan_from_json
from poet_host.profile.meter import read_log
from poet_host.profile.profile import profile_from_json
from poet_host.resources import resource
from poet_host.run.run import Run
from poet_host.schedule.model import NEXT, model_bytes
from poet_host.schedule.schedule import Schedule, file_of, parse
from poet_host.view.listing import listing
from safetensors.numpy import save_file
from support import whole_runs as runs
from support.command import Command
from support.parts import plan_of_model

HUGE = 10**400
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def poet(capsys: Any) -> Command:
    return Command(capsys)


def poet_bytes(meta: bytes, schedule: Schedule) -> bytes:
    """A .poet file with this meta part and its CRC."""
    return file_of({1: schedule.model_part, 2: schedule.plan_part, 3: meta})


def weight(meta: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in meta["tensors"] if row["role"] == "parameter")


def starting(text: Any) -> Change:
    return lambda meta: weight(meta).update(start=text)


META: dict[str, tuple[Change, str]] = {
    "start not a text": (starting(7), r"tensors\[\d+\]\.start"),
    "start of a word": (starting("normal:abc"), "normal:abc"),
    "start without bound": (starting("normal:1e999"), "normal:1e999"),
    "fan-in of 5,000 digits": (starting("kaiming:" + "9" * 5000), "kaiming:999"),
    "empty model start": (starting("model:{}"), "start, at .*names"),
    "model start nested": (starting("model:" + "[" * 5000), "nested"),
    "model start of other sizes": (
        starting('model:{"names":["w"],"shape":[3]}'),
        "conv1.weight",
    ),
    "state of nothing": (lambda m: weight(m).update(name="a:b:c"), "meta part"),
    "graph a list": (lambda m: m.update(graph=[]), r"\$\.graph"),
    "no graph": (lambda m: m.pop("graph"), r"\$\.graph"),
    "no plan": (lambda m: m.pop("plan"), r"\$\.plan"),
    "plan of text": (lambda m: m["plan"].update(energy_uj="7"), "energy_uj"),
    "time not finite": (lambda m: m["plan"].update(time_us=float("nan")), r"plan\.time_us"),
    "whole number of 400 digits": (lambda m: m["plan"].update(ram_bytes=HUGE), r"plan\.ram_bytes"),
    "keep-everything of text": (lambda m: m["keep_everything"].update(time_us="7"), "time_us"),
    "board a number": (lambda m: m.update(board=3), r"\$\.board"),
    "costs of other names": (lambda m: m["costs"]["nodes"][-1].update(name="other"), "costs"),
    "costs of other sizes": (lambda m: m["costs"]["nodes"][2].update(bytes=4), "costs"),
    "costs a number": (lambda m: m.update(costs=3), "costs"),
    "a name twice": (lambda m: weight(m).update(name="data"), "name"),
    "shape of another size": (lambda m: weight(m).update(shape=[1]), "size"),
    "loss of no tensor": (lambda m: m["graph"].update(loss="nothing"), "nothing"),
    "half a character": (lambda m: m.update(model="\ud800"), "surrogate"),
}


@pytest.mark.parametrize("what", META)
def test_a_damaged_meta_part_is_refused_as_it_is_loaded(what: str) -> None:
    change, words = META[what]
    schedule = runs.schedule(runs.digits())
    meta = json.loads(json.dumps(schedule.meta))
    change(meta)
    with pytest.raises(BadInput, match=words) as caught:
        parse(poet_bytes(json.dumps(meta).encode(), schedule), "a.poet")
    assert str(caught.value).startswith("a.poet")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 900, b"\xff", b"{", b'{"a":1,"a":2}'])
def test_a_meta_part_that_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(BadInput, match=r"a\.poet"):
        parse(poet_bytes(text, runs.schedule(runs.digits())), "a.poet")


def test_more_keys_in_the_meta_part_are_allowed() -> None:
    schedule = runs.schedule(runs.digits())
    meta = {**schedule.meta, "deadline_us": 7.0, "anything": [{"b": None}]}
    assert parse(poet_bytes(json.dumps(meta).encode(), schedule)).meta == meta


def test_an_update_of_none_of_its_inputs_is_refused() -> None:
    schedule = runs.schedule(runs.digits())
    model = schedule.model
    tensors = [
        replace(tensor, block=tensor.block + 7) if tensor.place == NEXT else tensor
        for tensor in model.tensors
    ]
    part = model_bytes(replace(model, tensors=tuple(tensors)))
    plan = plan_of_model(schedule.plan_part, part)
    with pytest.raises(BadInput, match=r"bn1\.running:new"):
        parse(Schedule(part, plan, schedule.meta).to_bytes())


def test_a_damaged_schedule_ends_every_command_in_a_sentence(poet: Command, tmp_path: Path) -> None:
    path = tmp_path / "deep.poet"
    path.write_bytes(poet_bytes(b"[" * 100_000, runs.schedule(runs.digits())))
    commands = [
        ("show", path),
        ("evaluate", path, "--port", "native", "--data", "digits", "--weights", path),
        ("train", path, "--port", "native", "--data", "digits", "--steps", 1, "--save-weights",
         tmp_path / "w"),
        ("card", "write", path, "--data", "digits", "-o", tmp_path / "c.img"),
    ]  # fmt: skip
    for command in commands:
        shown = poet(*command)
        assert (shown.code, shown.err.count("\n")) == (2, 1)
        assert str(path) in shown.err


@pytest.mark.parametrize("path", sorted(resource("schedules").glob("*.poet")), ids=lambda p: p.name)
def test_the_schedules_in_the_repository_load(path: Path) -> None:
    schedule = Schedule.load(path)
    assert schedule.to_bytes() == path.read_bytes()
    assert listing(schedule)


# Whole numbers of 400 digits, and tables where texts should be.


@pytest.mark.parametrize("key", ["us_per_mac", "processor_active_uw"])
@pytest.mark.parametrize("digits", [400, 5000])
def test_a_board_with_a_number_of_many_digits_is_refused(key: str, digits: int) -> None:
    text = read_text(resource("boards") / "mkr1000" / "board.toml")
    text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {'9' * digits}", text)
    assert count
    with pytest.raises(BadInput, match=r"b\.toml") as caught:
        parse_board("mine", text, "b.toml")
    assert len(str(caught.value)) < 300


def test_a_board_whose_loading_is_not_a_table_is_refused() -> None:
    text = read_text(resource("boards") / "mkr1000" / "board.toml")
    with pytest.raises(BadInput, match=r"\$\.loading"):
        parse_board("mine", "loading = 3\n" + text.replace("[loading]", "[paper2]"), "b.toml")
    with pytest.raises(BadInput, match=r"\$\.loading\.tools"):
        parse_board("mine", text.replace('tools = { bossac = "samd21" }', "tools = 3"), "b.toml")


def test_a_profile_and_a_plan_with_numbers_of_many_digits_are_refused() -> None:
    graph = runs.digits()
    value = json.loads(json.dumps(runs.profile().to_json()))
    with pytest.raises(BadInput, match=r"p\.json, at \$\.commit_us"):
        profile_from_json({**value, "commit_us": HUGE}, "p.json")
    plan = json.loads(json.dumps(runs.plan(graph, "100%", "keep-everything").to_json()))
    plan["statements"][3]["offset"] = HUGE
    with pytest.raises(BadInput, match=r"p\.json, at \$\.statements\[3\]\.offset"):
        plan_from_json(plan, "p.json")


@pytest.mark.slow
def test_a_run_with_a_number_of_many_digits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run = json.loads(json.dumps(runs.train(runs.schedule(runs.digits()), steps=2).to_json()))
    run["steps"][1]["commit_us"] = HUGE
    path.write_text(json.dumps(run))
    with pytest.raises(BadInput, match=r"run\.json, at \$\.steps\[1\]\.commit_us"):
        Run.load(path)


# Arrays, weights, models.


@pytest.mark.parametrize("shape", ["True,", "9" * 5000 + ",", "1000000000000,", "-1,"])
@pytest.mark.parametrize("folder", [True, False])
def test_an_array_of_no_shape_is_refused(tmp_path: Path, shape: str, folder: bool) -> None:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}\n".encode()
    raw = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(24)
    if folder:
        path = tmp_path / "d"
        path.mkdir()
        (path / "x.npy").write_bytes(raw)
        np.save(path / "y.npy", np.zeros(3))
    else:
        path = tmp_path / "d.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", raw)
            archive.writestr("y.npy", raw)
    with pytest.raises(BadInput, match="data ") as caught:
        load_data(path)
    assert str(path) in str(caught.value)


def test_names_in_an_archive_make_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, **{"a\nb": np.zeros(1), "c" * 5000: np.zeros(1)})
    with pytest.raises(BadInput, match="must hold x and y") as caught:
        load_data(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["[" * 100_000, '{"step":' * 5000, "9" * 5000])
def test_nested_metadata_of_weights_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"a": np.zeros(1, np.float32)}, path, metadata={"poet-host": text})
    with pytest.raises(BadInput, match=r"w\.safetensors"):
        step_of_weights(path)
    graph = runs.digits()
    save_weights(path, graph, start_values(graph, 0), step=3)
    assert step_of_weights(path) == 3


def test_the_message_of_a_library_about_weights_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    head = json.dumps({"a": {"dtype": "\n" + "x" * 5000, "shape": [], "data_offsets": [0, 0]}})
    path.write_bytes(len(head).to_bytes(8, "little") + head.encode())
    for read in (step_of_weights, lambda file: load_weights(file, runs.digits())):
        with pytest.raises(BadInput, match=r"w\.safetensors") as caught:
            read(path)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_a_softmax_whose_axis_is_a_list_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["y"], name="fc"),
        helper.make_node("Softmax", ["y"], ["p"], name="softmax", axis=[1, 2]),
    ]
    value = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], [0.5] * 12)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    p = helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "g", [x], [p], [value])
    path = tmp_path / "m.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    with pytest.raises(BadInput, match="softmax"):
        api.load_graph(str(path))


# Logs of meters, and serial numbers of devices.


@pytest.mark.parametrize("row", ["1e9,100", "1e300,100", "1e10,100", "3,1e300"])
def test_a_stray_time_in_a_power_log_is_refused(tmp_path: Path, row: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"Timestamp(ms),Current(uA)\n0,100\n1,100\n{row}\n")
    with pytest.raises(BadInput, match=r"log\.csv"):
        read_log(path)


@pytest.mark.parametrize("tool", ["openocd", "JLinkExe", "pyocd"])
@pytest.mark.parametrize("number", ["1; exec touch x", "[exit]", "1\n2", "$x", "ü", "{", "-c"])
def test_a_serial_number_is_not_a_command(tmp_path: Path, tool: str, number: str) -> None:
    loading = load_board("nrf52840_dk").loading
    assert loading is not None
    image = tmp_path / "firmware.bin"
    with pytest.raises(BadInput, match="serial number"):
        upload_command(tool, tool, loading, image, "/dev/ttyACM0", number)
    command = upload_command(tool, tool, loading, image, "/dev/ttyACM0", "00a9Z")
    assert tool == "JLinkExe" or any("a9Z" in word for word in command)


# What messages quote.


def test_a_quoted_value_is_one_short_line() -> None:
    for value in ("x" * 5000, "a\nb", "\x1b[2J", "\ud800", HUGE, 10**5000, [1] * 999):
        text = quoted(value)
        assert len(text) < 100
        assert text.isprintable()


def test_no_message_runs_on_for_pages() -> None:
    text = str(PoetError(f"node {'x' * 20_000} is {'y z ' * 9000}\nsecond line"))
    assert len(text) < 2000
    assert text.endswith("\nsecond line")
    assert (
        str(BadInput("/a/path/of/usual/length.json: text")) == "/a/path/of/usual/length.json: text"
    )


# All formats.


@pytest.mark.slow
def test_changed_files_are_read_or_refused() -> None:
    """A short run of `make fuzz`."""
    tests = Path(__file__).parent
    paths = os.pathsep.join([str(tests), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.host", "--cases", "200"],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[-len(host.FORMATS) :]]
    assert [row[0] for row in rows] == list(host.FORMATS)
    for name, cases, valid, accepted, refused, defects in rows:
        assert (cases, valid, defects) == ("200", "4", "0"), name
        assert int(accepted) > 0
        assert int(refused) > 0

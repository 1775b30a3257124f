"""Shell completion of commands, models, boards and ports."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.shell_completion import BashComplete, get_completion_class
from poet_host.api import ALL_METHODS
from poet_host.check import port_query
from poet_host.cli.main import commands
from poet_host.device.board import names
from poet_host.device.ports import SerialPort
from poet_host.graph.models import MODELS

VARIABLE = "_POET_HOST_COMPLETE"


def offered(*words: str) -> list[str]:
    """Completions of the last word."""
    shell = BashComplete(commands, {}, "poet-host", VARIABLE)
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_models_are_built_in_or_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.onnx", "costs.json", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "big.onnx").touch()
    for command in ("solve", "info", "profile", "compare"):
        assert set(MODELS) <= set(offered(command, ""))
        assert offered(command, "m") == ["mobilenet-vww", "mine.onnx", "models/"]
        assert offered(command, "models/") == ["models/big.onnx"]
        assert offered(command, "resnet8") == ["resnet8-cifar"]
    assert offered("solve", "none/x") == []
    assert offered("solve", f"{tmp_path}/mi") == [f"{tmp_path}/mine.onnx"]


@pytest.mark.parametrize(
    "words",
    [("solve", "linear", "--board"), ("info", "linear", "--board"), ("flash", "--board"),
     ("simulate",), ("build",)],
    ids=" ".join,
)  # fmt: skip
def test_boards(words: Sequence[str]) -> None:
    assert offered(*words, "") == names()
    assert offered(*words, "nrf") == ["nrf52840_dk"]


@pytest.mark.parametrize(
    "words",
    [("train", "x.poet", "--port"), ("evaluate", "x.poet", "-p"), ("profile", "--port"),
     ("card", "write", "x.poet", "--port"), ("boards", "--port"), ("flash", "--port")],
    ids=" ".join,
)  # fmt: skip
def test_ports(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    port = SerialPort("/dev/ttyACM7", "2341:804e", "", "")
    monkeypatch.setattr(port_query, "serial_ports", lambda: [port])
    found = offered(*words, "")
    assert {"auto", "native", "sim:mkr1000", "sim:mkr1000:usb", "sim:rpi4b", port.path} == {
        name for name in found if not re.search("nrf|jetson|nano", name)
    }
    assert offered(*words, "/dev") == [port.path]


def test_methods_and_commands() -> None:
    assert offered("solve", "--method", "") == list(ALL_METHODS)
    assert offered("inf") == ["info"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(commands, {}, "poet-host", VARIABLE)
    assert f"{VARIABLE}={shell}_complete" in script.source_template % script.source_vars()

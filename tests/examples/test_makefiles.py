"""The Makefiles of the examples for a Nano 33 IoT."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from support.example import EXAMPLES, copy


@pytest.mark.parametrize("name", ["gait", "gesture", "machine"])
def test_a_library_for_the_ide_is_made_next_to_the_package(name: str, tmp_path: Path) -> None:
    (command,) = re.findall("`(make .*?)`", (EXAMPLES / "nano_33_iot" / "build.mk").read_text())
    folder = copy(name, tmp_path)
    (folder / "package").mkdir()
    for made in (f"{name}.onnx", f"{name}.poet", "package/package.json"):  # by a plain `make`
        (folder / made).touch()
    done = subprocess.run(
        [*shlex.split(command), "-n"], cwd=folder, check=True, capture_output=True, text=True
    )
    assert f"package {name}.poet" in done.stdout
    assert "--for arduino -o library" in done.stdout

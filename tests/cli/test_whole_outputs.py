"""A full disk, or SIGKILL, while outputs are written: no file is ever half written.

This tries some events of each command. `make fuzz-outputs` tries them all.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.output_cases import CASES, cases
from support.output_walk import Commands, built, walk

# `make test` does not run these: they need 10 seconds and more for a few events.
LONG = ("profile", "compare", "demo")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the files that the commands read."""
    return tmp_path_factory.mktemp("inputs")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    found = Commands(tmp_path_factory.mktemp("commands"), built(tmp_path_factory.mktemp("library")))
    yield found
    found.close()


@pytest.mark.slow  # all of them: 30 s
@pytest.mark.parametrize("name", [name for name in CASES if name not in LONG])
def test_outputs_are_whole(name: str, commands: Commands, inputs: Path) -> None:
    if name == "build" and not shutil.which("arm-none-eabi-gcc"):
        pytest.skip("arm-none-eabi-gcc is missing")
    (case,) = cases(inputs, commands, (name,))
    found = walk(commands, case, few=True)
    assert found.events >= (name != "card check")
    assert not found.defects

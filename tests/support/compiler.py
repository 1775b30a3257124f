"""Compilers and emulators that not every computer has. Clang's sanitizers see what GCC's do not."""

import os
import shutil
from pathlib import Path

import pytest
from poet_host.firmware_build import native


def compiler(name: str) -> str:
    """Return its path. Skip the test without it, or fail where all tests must run."""
    found = shutil.which(name)
    if found is None:
        assert "POET_ALL_TESTS" not in os.environ, f"{name} is not installed"
        pytest.skip(f"{name} is not installed")
    return found


def use_small_sources(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the native board be an empty program, for tests of where it is built."""
    source = folder / "small.c"
    source.write_text("int main(void) { return 0; }\n")
    monkeypatch.setattr(native, "c_files", lambda room: [source] * (room.name == "native"))

"""Compilers and emulators that not every computer has. Clang's sanitizers see what GCC's do not."""

import os
import shutil

import pytest


def compiler(name: str) -> str:
    """Return its path. Skip the test without it, or fail where all tests must run."""
    found = shutil.which(name)
    if found is None:
        assert "POET_ALL_TESTS" not in os.environ, f"{name} is not installed"
        pytest.skip(f"{name} is not installed")
    return found

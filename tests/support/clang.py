"""Clang, whose sanitizers see what GCC's do not."""

import os
import shutil

import pytest


def clang() -> str:
    """Return its path. Skip the test without it, or fail where all tests must run."""
    found = shutil.which("clang")
    if found is None:
        assert "POET_ALL_TESTS" not in os.environ, "clang is not installed"
        pytest.skip("clang is not installed")
    return found

"""The kernels under the address and undefined-behaviour sanitizers, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent

LEAVES_ITS_TENSOR = """
import numpy as np
from support import clib
x = np.ones(64, np.float32)
clib.run("relu", "none", {"n": 1, "c": 65, "h": 1, "w": 1}, [x], 0, (65,))
"""


def sanitized(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with libasan in front, running kernels that are built with sanitizers."""
    found = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    )
    environment = {
        **os.environ,
        "POET_SANITIZE": "1",
        "LD_PRELOAD": found.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(TESTS),
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_every_kernel_stays_inside_its_tensors() -> None:
    """All of test_kernels.py and test_kernels_tensor.py again, every access checked."""
    files = [str(HERE / f"test_kernels{part}.py") for part in ("", "_tensor")]
    run = sanitized("-m", "pytest", "-p", "no:cacheprovider", *files)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


@pytest.mark.slow
def test_the_sanitizer_sees_a_kernel_that_leaves_its_tensor() -> None:
    run = sanitized("-c", LEAVES_ITS_TENSOR)
    assert run.returncode != 0
    assert "heap-buffer-overflow" in run.stderr
    assert "poet_relu" in run.stderr

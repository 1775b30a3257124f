"""The kernels in a process of its own: under sanitizers, and with other vectors."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from support.compiler import compiler

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
TESTS = HERE.parent
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider")
EXAMPLES = {"cc": "40", "clang": "20"}  # of each test with random operands
FILES = [str(HERE / f"test_kernels{part}.py") for part in ("", "_tensor")]
LIBRARIES = {"cc": "libasan.so", "clang": f"libclang_rt.asan-{platform.machine()}.so"}

LEAVES_ITS_TENSOR = """
import numpy as np
from support import clib
x = np.ones(64, np.float32)
clib.run("relu", "none", {"n": 1, "c": 65, "h": 1, "w": 1}, [x], 0, (65,))
"""


def in_process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python with these environment variables."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=1500,
    )


def sanitized(*arguments: str, compiler: str = "cc") -> subprocess.CompletedProcess[str]:
    """Python with the sanitizers' library in front, running kernels that are built with them."""
    library = LIBRARIES[compiler]
    found = subprocess.run(
        [compiler, f"-print-file-name={library}"], check=True, capture_output=True, text=True
    )
    return in_process(
        *arguments,
        POET_SANITIZE=compiler,
        POET_EXAMPLES=EXAMPLES[compiler],
        CC=compiler,
        LD_PRELOAD=found.stdout.strip(),
        ASAN_OPTIONS="detect_leaks=0",
        PYTHONMALLOC="malloc",
    )


def test_every_kernel_stays_inside_its_tensors() -> None:
    """All of test_kernels.py and test_kernels_tensor.py again, every access checked."""
    run = sanitized(*PYTEST, *FILES)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


def test_nests_stay_inside_their_memory() -> None:
    """Random nests of every kernel, and their faults. Unused memory of the arena is poisoned."""
    files = ("test_nests.py", "test_nest_faults.py", "test_pairs.py", "test_statistics.py")
    run = sanitized(*PYTEST, *(str(HERE / name) for name in files))
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


def test_slices_stay_inside_their_memory() -> None:
    """Without the schedules that the planner makes, which takes long with a sanitizer."""
    run = sanitized(*PYTEST, str(HERE / "test_slices.py"), "-k", "not nests_and_commits")
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


def test_forward_programs_stay_inside_their_memory() -> None:
    """Those with wrong bytes too."""
    run = sanitized(*PYTEST, str(HERE / "test_forward.py"))
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


def test_clang_finds_no_undefined_behaviour_either() -> None:
    """Of kernels and steps. The fuzzer of nests is built with Clang, too."""
    compiler("clang")
    run = sanitized(*PYTEST, FILES[0], str(HERE / "test_step.py"), compiler="clang")
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


@pytest.mark.parametrize("flags", ["-DPOET_PORTABLE", ""])
def test_vectors_of_any_length_and_none_give_the_same_bits(flags: str) -> None:
    """Without vectors, and with those that every processor of this kind has."""
    files = (FILES[0], str(HERE / "test_kernel_parts.py"))
    run = in_process(*PYTEST, *files, POET_KERNEL_FLAGS=flags, POET_EXAMPLES="40")
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_sanitizer_sees_a_kernel_that_leaves_its_tensor(name: str) -> None:
    if name == "clang":
        compiler("clang")
    run = sanitized("-c", LEAVES_ITS_TENSOR, compiler=name)
    assert run.returncode != 0
    assert "heap-buffer-overflow" in run.stderr
    assert "poet_relu" in run.stderr

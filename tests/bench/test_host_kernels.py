"""The benchmark of kernels on a computer: times next to PyTorch, instructions on AArch64."""

import shutil

import pytest

from bench.host_kernels import measure, report
from bench.instructions import KERNELS, instructions_per_mac

# Instructions per multiply-add in RESULTS-host.md, rounded up.
COMMITTED = {"conv2d": 0.70, "conv2d_grad_input": 0.70, "conv2d_grad_weight": 0.72}


@pytest.mark.slow
def test_kernels_and_pytorch_find_the_same_losses() -> None:
    measured = measure(batch=1, steps=2)
    counts = dict.fromkeys(KERNELS, 0.5)
    rows = [line for line in report([measured], counts).splitlines() if "|" in line]
    assert len(rows) == 3 + 2 + len(measured.operators) + 2 + len(counts)
    assert min(measured.kernels, measured.whole) > 0  # a busy computer may slow either one
    assert sum(measured.operators.values()) == pytest.approx(measured.kernels, rel=0.5)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-gcc") is None or shutil.which("qemu-aarch64") is None,
    reason="aarch64-linux-gnu-gcc or qemu-aarch64 is missing",
)
def test_convolutions_on_aarch64_need_few_instructions() -> None:
    found = instructions_per_mac()
    assert found.keys() == COMMITTED.keys()
    for name, most in COMMITTED.items():
        assert found[name] < 1.05 * most, name

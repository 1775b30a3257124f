"""The kernels are as fast on the simulated chips as bench/kernels.toml says."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from poet_host.errors import PoetError
from poet_host.firmware_build.recipe import compiler_version, recipe
from support.sim_helper import needs_compiler

from bench import kernel_board
from bench.kernel_board import TREE, KernelBoard, base_tree
from bench.kernel_rows import Row, rows, sink_of, windows
from bench.kernel_shapes import (
    MAX_FLOATS,
    OVERHEADS,
    Compared,
    Overhead,
    kernel_of,
    largest_figures,
    report,
    shapes,
)
from bench.kernels import BOARDS, RENEW, STEP_ROWS, cycles, read_figures, schedule

TOLERANCE = 0.05  # relative


@pytest.fixture
def board(request: pytest.FixtureRequest) -> Iterator[KernelBoard]:
    with KernelBoard(request.param) as board:
        yield board


@needs_compiler
@pytest.mark.parametrize("board", list(BOARDS), indirect=True)
def test_kernels_take_the_committed_cycles(board: KernelBoard) -> None:
    compiler, figures = read_figures()
    if compiler != compiler_version(recipe(board.board)):
        pytest.skip(f"bench/kernels.toml has the figures of gcc {compiler}")
    differing = []
    for row in (row for row in rows() if row.board == board.board):
        found, committed = cycles(board, row), figures[board.board][row.name].now
        if found != pytest.approx(committed, rel=TOLERANCE):
            differing.append(f"{row.name}: {found} cycles / {row.unit}, not {committed}")
    assert not differing, f"`{RENEW}` renews bench/kernels.toml: {'; '.join(differing)}"


def test_each_row_has_its_figures() -> None:
    _, figures = read_figures()
    for board in BOARDS:
        names = [row.name for row in rows() if row.board == board]
        assert list(figures[board]) == [*names, STEP_ROWS[board]]
        for name, figure in figures[board].items():  # the base commit lacks some kernels
            assert figure.now, name


def test_work_counts_no_padding() -> None:
    plane = {"n": 2, "c": 4, "h": 5, "w": 5, "k": 6, "groups": 2}
    convolution = Row("", "conv2d_grad_input", "", windows(plane, 3))
    assert convolution.work == 2 * 6 * 2 * (3 * 5 - 2) ** 2
    pool = Row("", "maxpool2d_grad", "", windows({"n": 1, "c": 3, "h": 4, "w": 4}, 3, 1))
    assert (pool.work, pool.unit) == (3 * (3 * 4 - 2) ** 2, "tap")
    assert Row("", "batchnorm", "", {"n": 2, "c": 3, "h": 4, "w": 5}).work == 120


def test_the_job_of_a_gradient_overwrites_the_parameter() -> None:
    fields = {"n": 2, "c": 3, "h": 1, "w": 1, "k": 5}
    job = Row("", "linear_grad_weight", "", fields, "sgd", half_zeros=True).job
    assert job["inputs"] == [(6, "half zeros"), (10, "half zeros"), (15, "normal")]
    assert (job["output"], job["overwrites"]) == (15, 2)


def test_the_plan_is_that_of_the_base_commit() -> None:
    found = schedule()
    assert (found.header.statement_count, found.header.arena_bytes) == (214, 24_464)


def test_random_shapes_are_the_same_each_time_and_fit_the_board() -> None:
    found = shapes(5)
    assert shapes(5, only="conv2d depthwise") == {"conv2d depthwise": found["conv2d depthwise"]}
    assert {kernel_of(row) for row in rows()} - {*found} == {
        "relu", "relu_grad", "add", "momentum_step", "transpose", "elementary", "elementary_grad",
        "gru", "gru_grad", "lstm", "lstm_grad",
    }  # fmt: skip
    for kernel, calls in found.items():
        assert len(calls) == 5
        for row in calls:
            sizes = [size for size, _ in row.job["inputs"]]
            assert sum(sizes) + row.job["output"] <= MAX_FLOATS
            assert row.sink == sink_of(row.op)
            assert kernel == kernel_of(row)


@needs_compiler
def test_random_shapes_stay_within_the_stated_overhead() -> None:
    name = "nrf52840_dk"
    figures = {row: figure.now for row, figure in read_figures()[1][name].items() if figure.now}
    largest = largest_figures(name, figures)
    with KernelBoard(name) as board:
        for kernel, calls in shapes(2).items():
            now = [board.ask(kernel=row.job) for row in calls]
            found = Compared(calls, now, now, largest[kernel], OVERHEADS[name])
            assert max(found.to_limits) <= 1, kernel


@needs_compiler
def test_a_refused_job_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    row = Row("", "relu", "", {"n": 0, "c": 1, "h": 1, "w": 1})
    with KernelBoard("nrf52840_dk") as board, pytest.raises(PoetError, match="relu"):
        board.ask(kernel=row.job)
    assert "refused" in capfd.readouterr().err


def test_slower_shapes_are_counted_and_named() -> None:
    calls = [Row("", "relu", "", {"n": n, "c": 1, "h": 1, "w": 1}) for n in (10, 20, 30)]
    found = Compared(calls, [100, 200, 300], [100, 220, 150], 2, Overhead(40, 1, 9, 9))
    assert found.slower == [1]
    assert found.to_limits == [1, 220 / 160, 150 / 220]
    text = report({board: {"relu": found} for board in OVERHEADS}, 3)
    assert "| relu | 1.00 | 1.10 | 1 | 1 | 1.38 | 11.00 / element |" in text
    assert "- relu, 1.10 (200 to 220 cycles): n=20 c=1 h=1 w=1" in text


def test_a_missing_commit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_board, "BASE", "0" * 40)
    with pytest.raises(PoetError, match="git"), base_tree():
        pass


def has_base_commit() -> bool:
    git = shutil.which("git")
    command = [str(git), "cat-file", "-e", kernel_board.BASE]
    return (
        git is not None and subprocess.run(command, cwd=TREE, capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not has_base_commit(), reason="no history, or one without the base commit")
def test_the_base_commit_has_its_own_firmware() -> None:
    with base_tree() as tree:
        assert (tree / "firmware" / "kernels" / "dots.c").is_file()
        assert (tree / "host" / "poet_host" / "isa.py").is_file()
    assert not tree.exists()

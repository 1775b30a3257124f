"""Temporary files of killed processes are removed; those of running ones, and other files, stay."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import poet_host as poet
import pytest
from poet_host.cli.written import check_space, check_writable
from poet_host.temporary import remove_leftovers, temporary_file, temporary_folder
from support.command import Process

WRITER = """
import sys
from pathlib import Path
from poet_host.temporary import temporary_file
with temporary_file(Path(sys.argv[1]), "mine-") as path:
    path.write_bytes(b"half")
    print(path, flush=True)
    sys.stdin.read()
"""
BUILDER = """
import sys
from pathlib import Path
from poet_host.temporary import temporary_folder
with temporary_folder(Path(sys.argv[1]), "mine-") as path:
    (path / "more").mkdir()
    (path / "more" / "x").touch()
    print(path, flush=True)
    sys.stdin.read()
"""
BOARD = """
import sys
from poet_host.sim.start_board import start_board
with start_board("native") as board:
    print(board.process.args[board.process.args.index("--storage") + 1], flush=True)
    sys.stdin.read()
"""


def started(program: str, *arguments: object) -> Process:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return Process([sys.executable, "-c", program, *arguments], **pipes)


def line(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_private_folder_lasts_for_a_block(tmp_path: Path) -> None:
    with temporary_file(tmp_path, "mine-") as path:
        assert path.parent.parent == tmp_path
        assert path.parent.stat().st_mode & 0o777 == 0o700
        path.write_bytes(b"x")
        remove_leftovers(tmp_path, "mine-")
        assert path.exists()
    with pytest.raises(ValueError, match="wrong"), temporary_file(tmp_path, "mine-"):
        raise ValueError("wrong")
    assert not list(tmp_path.iterdir())


def test_only_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    with started(WRITER, tmp_path) as killed, started(WRITER, tmp_path) as running:
        leftover, used = Path(line(killed)), Path(line(running))
        killed.kill()
        killed.wait()
        assert leftover.read_bytes() == b"half"
        with temporary_file(tmp_path, "mine-") as path:
            path.write_bytes(b"x")
            assert sorted(tmp_path.iterdir()) == sorted((used.parent, path.parent))
        running.communicate()
    assert not list(tmp_path.iterdir())


def test_files_that_are_not_leftovers_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine-12345678").mkdir()
    (tmp_path / "mine-12345678" / "own").touch()
    (tmp_path / "mine-abcdefgh").touch()
    (tmp_path / "mine-longer-name").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / "mine-linked__").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    remove_leftovers(tmp_path, "mine-")
    remove_leftovers(tmp_path / "missing", "mine-")
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "mine-others__").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 12345)
        remove_leftovers(tmp_path, "mine-")
    assert (tmp_path / "mine-others__").exists()
    remove_leftovers(tmp_path, "mine-")
    assert not (tmp_path / "mine-others__").exists()


def test_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    with started(BUILDER, tmp_path) as killed, started(BUILDER, tmp_path) as running:
        leftover, used = Path(line(killed)), Path(line(running))
        killed.kill()
        killed.wait()
        assert (leftover / "more" / "x").exists()
        with temporary_folder(tmp_path, "mine-") as path:
            (path / "x").touch()
            assert sorted(tmp_path.iterdir()) == sorted((used, path))
        running.communicate()
    assert not list(tmp_path.iterdir())


def test_the_test_of_a_folder_removes_leftovers(tmp_path: Path) -> None:
    """A command may be killed before it creates its temporary file, or after it removes it."""
    for test in (lambda: check_writable(tmp_path / "x"), lambda: check_space({tmp_path / "x": 9})):
        (tmp_path / ".poet-writing-12345678").mkdir()
        test()
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "start",
    ["temporary", "storage", "prepare", pytest.param("mkr1000", marks=pytest.mark.slow)],
)
def test_each_start_of_a_board_removes_the_cards_of_killed_hosts(
    start: str, tmp_path: Path, card: Path
) -> None:
    if start == "mkr1000" and not shutil.which("arm-none-eabi-gcc"):
        pytest.skip("arm-none-eabi-gcc is missing")
    with started(BOARD) as killed, started(BOARD) as running:
        leftover, used = Path(line(killed)), Path(line(running))
        killed.kill()
        killed.wait()
        assert leftover.exists()
        if start == "prepare":
            poet.prepare_storage(tmp_path / "new.img", "64MiB")
        else:
            board = "mkr1000" if start == "mkr1000" else "native"
            with poet.start_board(board, None if start == "temporary" else card):
                pass
        assert not leftover.parent.exists()
        assert used.exists()
        running.communicate()
    assert not used.parent.exists()

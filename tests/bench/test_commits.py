"""The commits of planner and boards: found in a repository, written in a report, read again."""

from pathlib import Path

from support.repository import commit, git

from bench import commits
from bench.commits import BOARDS, PLANNER, ROOT, boards_commit, planner_commit, stated, statement


def test_the_last_commits_of_the_folders(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert statement(tmp_path) == "Planner of commit `unknown`, boards of commit `unknown`."
    boards = commit(tmp_path, "boards/b/board.toml", "1")
    planner = commit(tmp_path, "host/poet_host/solver/solve.py", "1")
    commit(tmp_path, "README.md", "1")
    commit(tmp_path, "host/poet_host/graph/summary.py", "1")
    assert (planner_commit(tmp_path), boards_commit(tmp_path)) == (planner, boards)
    assert stated(f"# Report\n\nIt says: {statement(tmp_path)} More.\n") == (planner, boards)

    (tmp_path / "boards/b/chip.toml").write_text("not in git")
    assert (planner_commit(tmp_path), boards_commit(tmp_path)) == (planner, f"{boards}-dirty")
    assert stated(statement(tmp_path)) == (planner, f"{boards}-dirty")
    boards = commit(tmp_path, "boards/b/chip.toml", "in git")
    assert boards_commit(tmp_path) == boards


def test_the_folders_exist_and_a_report_without_the_line_states_nothing() -> None:
    *planner, summary = PLANNER
    assert all((ROOT / folder).is_dir() for folder in (*planner, *BOARDS))
    assert (ROOT / summary.removeprefix(":(exclude)")).is_file()
    assert stated("Planner of commit x.") is None


def test_written_results_do_not_make_the_next_result_dirty(tmp_path: Path) -> None:
    assert commits.commit(tmp_path) == "unknown"
    git(tmp_path, "init", "--quiet")
    head = commit(tmp_path, "bench/solver.py", "1")
    for name in ("bench/RESULTS-solver.md", "bench/cuts.txt", "schedules/table.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("new")
    assert commits.commit(tmp_path) == head
    (tmp_path / "bench/solver.py").write_text("2")
    assert commits.commit(tmp_path) == f"{head}-dirty"

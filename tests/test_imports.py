"""The package's folders import in one direction only, in the order of the six nouns."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "host" / "poet_host"
ROOT = [
    "errors",
    "resources",
    "isa",
    "temporary",
    "files",
    "schema",
    "sizes",
    "closing",
    "handlers",
    "work",
]
ORDER = [
    *ROOT,
    *("graph", "reference", "onnx", "device", "firmware_build", "sim", "profile"),
    *("packing", "plan", "stream", "solver", "baselines", "schedule", "data", "card"),
    *("run", "check", "view", "compare", "api", "cli"),
]
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Rooms of this package that a file imports, inside functions too."""
    depth = len(path.relative_to(PACKAGE).parts)
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            if node.level == depth:
                rooms |= (
                    {node.module.split(".")[0]} if node.module else {a.name for a in node.names}
                )
            elif node.level == 0 and (node.module or "").startswith("poet_host."):
                rooms.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("poet_host.")}
    return rooms


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    allowed = set(ORDER[: ORDER.index(room) + 1])
    assert imported_rooms(path) <= allowed


def test_the_rule_sees_a_wrong_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    wrong = tmp_path / "graph" / "wrong.py"
    wrong.parent.mkdir()
    wrong.write_text("def f():\n    from ..plan.verify import x\n    import poet_host.run.train\n")
    assert imported_rooms(wrong) == {"plan", "run"}


def test_solver_stays_in_the_planner() -> None:
    users = {room_of(p) for p in FILES if "highspy" in p.read_text(encoding="utf-8")}
    assert users <= {"baselines", "solver", "cli"}  # cli: doctor reports its version
    mentions = [p for p in FILES if "unicorn" in p.read_text(encoding="utf-8").lower()]
    assert {room_of(p) for p in mentions} == {"sim"}  # found there, linked by C, never imported
    assert not any("import unicorn" in p.read_text(encoding="utf-8") for p in FILES)

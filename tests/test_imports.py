"""The package's folders import in one direction only, in the order of the six nouns."""

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "host" / "poet_host"
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
FLEETS = ("fleet", "flower")  # in this order, and no other module imports them
ORDER = [
    *ROOT,
    *("graph", "reference", "onnx", "device", "firmware_build", "sim", "profile"),
    *("packing", "plan", "stream", "solver", "baselines", "schedule", "data", "card"),
    *("run", "check", "view", "compare", "package", "api", "cli"),
    *FLEETS,
]
# The most lines that each room may have. Only a commit of its own raises a number, and says why.
LINES = {
    "graph": 4717, "reference": 1311, "onnx": 5697, "device": 1495, "firmware_build": 1582,
    "sim": 1627, "profile": 1087, "packing": 378, "plan": 3840, "stream": 2077, "solver": 6646,
    "baselines": 1936, "schedule": 2921, "data": 2057, "card": 2128, "run": 2166, "check": 829,
    "view": 1440, "compare": 481, "package": 1463, "api": 2590, "cli": 3742,
}  # fmt: skip
ROOT_LINES = 1668  # of the modules that belong to no room
# The same for other folders of the repository, with the suffixes of the files that count.
FOLDERS = {
    "firmware/include": 2361, "firmware/src": 10767, "firmware/kernels": 9106,
    "firmware/port": 6558,
    "host/poet_host/sim/chip": 10714, "host/poet_host/packing": 540,
    "host/poet_host/solver": 805,
    "bench": 9492, "examples": 1938, "tests": 75577,
}  # fmt: skip
MOST_NAMES = 37  # that cli imports from rooms other than api and view: only lower it
COUNTED = {"bench": (".py",), "examples": (".py", ".c", ".h"), "tests": (".py", ".c", ".h", ".S")}
C = (".c", ".h", ".S", ".def")
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


def test_the_command_line_calls_the_api() -> None:
    others = set(ORDER) - set(ROOT) - {"api", "view"}
    names = [
        f"{node.module}.{name.name}"
        for path in (PACKAGE / "cli").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level == 2 and node.module
        for name in node.names
        if node.module.split(".")[0] in others
    ]
    assert len(names) <= MOST_NAMES


def test_solver_stays_in_the_planner() -> None:
    users = {room_of(p) for p in FILES if "highspy" in p.read_text(encoding="utf-8")}
    assert users <= {"baselines", "solver", "check"}  # check: it reports its version
    mentions = [p for p in FILES if "unicorn" in p.read_text(encoding="utf-8").lower()]
    assert {room_of(p) for p in mentions} == {"sim"}  # found there, linked by C, never imported
    assert not any("import unicorn" in p.read_text(encoding="utf-8") for p in FILES)


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in paths)


def totals() -> dict[str, int]:
    """The lines of each room and folder in the tables above."""
    rooms = {room: lines((PACKAGE / room).rglob("*.py")) for room in LINES}
    others = {
        folder: lines(
            path
            for path in (REPOSITORY / folder).rglob("*")
            if path.suffix in COUNTED.get(folder, C)
        )
        for folder in FOLDERS
    }
    return rooms | others | {"no room": lines(PACKAGE.glob("*.py"))}


def test_no_room_exceeds_its_lines() -> None:
    most = LINES | FOLDERS | {"no room": ROOT_LINES}
    found = totals()
    assert {name: n for name, n in found.items() if n > most[name]} == {}
    assert set(LINES) == set(ORDER) - set(ROOT) - set(FLEETS)

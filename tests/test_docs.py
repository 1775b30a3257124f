"""What the pages say: every command line exists, every link leads somewhere, and the commands of
the guides run, as far as they need no hardware."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from runpy import run_path
from typing import Any

import click
import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host import api
from poet_host.cli.main import commands
from support.command import Command
from support.onnx_models import by_dynamo

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md")} - {ROOT / "CHANGELOG.md"})
NAME = "poet-host"
COMMENT = re.compile(r"\s{2,}#.*$")


def blocks(page: Path) -> Iterator[str]:
    """Lines that are set as code; those that end in a backslash with what follows."""
    fenced, held = False, ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            held += COMMENT.sub("", line.strip())
            if held.endswith("\\"):
                held = held[:-1] + " "
                continue
            yield held
            held = ""


def command_lines(page: Path) -> list[str]:
    """Those in blocks."""
    return [" ".join(line.split()) for line in blocks(page) if line.split()[:1] == [NAME]]


def mentions(page: Path) -> list[str]:
    """Those within a sentence's backticks, which may leave things out."""
    text = re.sub(r'"\s+f?"', "", page.read_text(encoding="utf-8"))  # strings in several parts
    quoted = re.findall(rf"`({NAME}(?: [^`]*)?)`", text)
    return [" ".join(item.split()) for item in quoted]


def refusal(line: str, whole: bool = True) -> str | None:
    """Why a command line cannot be typed: a command or an option that there is not, or, if the
    line is a `whole` one, an argument or option that is missing."""
    words = shlex.split(line.replace("...", ""))[1:]
    command: click.Command = commands
    context = click.Context(commands, info_name=NAME)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.get_command(context, name)
        if found is None:
            return f"there is no command {name}"
        command, context = found, click.Context(found, context, name)
    known = {
        option: item
        for item in command.get_params(context)
        if isinstance(item, click.Option)
        for option in (*item.opts, *item.secondary_opts)
    }
    seen: set[str | None] = set()
    arguments = 0
    while words:
        option, given, _ = words.pop(0).partition("=")
        if not option.startswith("-") or option == "-":
            arguments += 1
            continue
        if option not in known:
            return f"{command.name} has no option {option}"
        one = known[option]
        seen.add(one.name)
        if not one.is_flag and not given:
            if not words:
                return f"{option} of {command.name} wants a value"
            value = words.pop(0)
            if isinstance(one.type, click.Choice) and value not in one.type.choices:
                return f"{option} of {command.name} is not {value}"
    wanted = [item for item in command.get_params(context) if item.required and whole]
    if missing := [
        item.opts[0] for item in known.values() if item in wanted and item.name not in seen
    ]:
        return f"{command.name} wants {missing[0]} too"
    if arguments < sum(isinstance(item, click.Argument) for item in wanted):
        return f"{command.name} wants more arguments"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_name_no_command_or_option_that_there_is_not(page: Path) -> None:
    lines = [(line, True) for line in command_lines(page)]
    lines += [(line, False) for line in mentions(page)]
    refused = [f"{line}: {why}" for line, whole in lines if (why := refusal(line, whole))]
    assert not refused, "\n".join(refused)


def options(command: click.Command) -> set[str]:
    """Those of a command and of the commands in it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = [name for param in command.params for name in (*param.opts, *param.secondary_opts)]
    return {"--help", *own}.union(*map(options, below))


def test_pages_mention_no_option_that_there_is_not() -> None:
    for page in PAGES:
        mentioned = set(re.findall(r"`(--[a-z0-9-]+)", page.read_text(encoding="utf-8")))
        assert mentioned <= options(commands), page


def test_the_workflow_names_what_exists() -> None:
    text = (ROOT / ".github/workflows/check.yml").read_text(encoding="utf-8")
    paths, makefile = re.findall(r"\btests/[\w./]+", text), (ROOT / "Makefile").read_text("utf-8")
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    for target in " ".join(re.findall(r"run: make (.*)", text)).split():
        assert f"\n{target}:" in makefile


def test_actions_of_workflows_are_pinned() -> None:
    """A tag can move to other code, a commit cannot. The version is a comment."""
    workflows = sorted((ROOT / ".github/workflows").glob("*.y*ml"))
    texts = [path.read_text(encoding="utf-8") for path in workflows]
    used = [line for text in texts for line in text.splitlines() if re.match(r"[\s-]*uses:", line)]
    assert len(used) >= 8
    pinned = re.compile(r"[\s-]*uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in used if not pinned.fullmatch(line)] == []


def test_messages_name_no_command_or_option_that_there_is_not() -> None:
    sources = [*(ROOT / "host").rglob("*.py"), *(ROOT / "firmware/include").rglob("*.def")]
    found = {line: source.name for source in sources for line in mentions(source)}
    filled = {line: line.replace("{NATIVE}", "native") for line in found}
    refused = [f"{found[a]}: {a}: {why}" for a, b in filled.items() if (why := refusal(b, False))]
    assert not refused, "\n".join(refused)
    assert len(found) > 5
    assert "wire.def" in found.values()


def test_the_guides_have_commands() -> None:
    for page in (DOCS / "how-to").glob("*.md"):
        assert command_lines(page), page.name
    assert len(command_lines(ROOT / "README.md")) >= 5
    assert sum(len(command_lines(page)) for page in PAGES) > 50


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("poet-host fly", "no command fly"),
        ("poet-host train x.poet --prot native", "train has no option --prot"),
        ("poet-host storage unprepare card.img", "no command unprepare"),
        ("poet-host solve m --ram", "--ram of solve wants a value"),
        ("poet-host export m.poet -o m.onnx", "export wants --weights too"),
        ("poet-host show", "show wants more arguments"),
        ("poet-host solve m --optimizer lion", "--optimizer of solve is not lion"),
    ],
)
def test_what_is_refused(line: str, why: str) -> None:
    assert why in (refusal(line) or "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


# Followed, in an empty folder.


def python_of(page: Path) -> str:
    """The block that begins with the import of the package."""
    text = page.read_text(encoding="utf-8")
    return text.partition("```python\nimport poet_host as poet\n")[2].partition("```")[0]


def follow(
    page: str, poet_host: Command, stands_for: dict[str, str], leave_out: Sequence[str] = ()
) -> int:
    """Type a page's commands with real ports replaced; the number of those that ran."""
    done = 0
    for line in command_lines(DOCS / page):
        if any(word in line for word in leave_out):
            continue
        for there, here in stands_for.items():
            line = line.replace(there, here)
        result = poet_host(*shlex.split(line)[1:])
        assert result.code in (0, 6), f"{line}: {result.err}"  # 6: its gap is not yet the wanted
        done += 1
    return done


@pytest.fixture
def poet_host(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(capsys)


@pytest.mark.slow  # 10 s
def test_the_guide_to_boards(poet_host: Command) -> None:
    """Boards that are not here are played by the native one; `mine` is tested with the firmware,
    flashing with stubs, and programs of Linux boards under QEMU."""
    ports = {
        "/dev/ttyACM0": "native",
        "sim:rpi4b": "native",
        "--board planned": "--board mkr1000",
    }
    done = 0
    for page, left_out in (
        ("real-board", "flash"), ("linux-board", "build rpi4b"),
        ("phone", "build rpi4b"), ("add-board", "mine"),
    ):  # fmt: skip
        poet_host("storage", "prepare", f"far-{page}.img")
        with api.start_board("native", f"far-{page}.img", 1 << 26, listen="0") as far:
            there = {**ports, "socket://TOKEN@127.0.0.1:3333": far.port}
            done += follow(f"how-to/{page}.md", poet_host, there, (left_out,))
    assert done >= 19


@pytest.mark.slow  # 5 s
def test_the_guide_to_models_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(64, 2),
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((40, 1, 8, 8), dtype=np.float32)
    np.savez("mine.npz", x=x, y=(x.mean((1, 2, 3)) > 0).astype(np.int64))
    before = {name: value.clone() for name, value in module.named_parameters()}
    names = {"module": module, "example": torch.zeros(1, 1, 8, 8)}
    names["poet"] = poet
    exec(python_of(DOCS / "how-to" / "own-model.md"), names)
    assert all(not torch.equal(before[name], now) for name, now in module.named_parameters())


def test_the_page_of_the_api_names_every_name_and_its_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = DOCS / "reference" / "python-api.md"
    documented = set(re.findall(r"^\.\. [\w:]+:: (\w+)$", page.read_text("utf-8"), re.MULTILINE))
    assert documented - {"poet_host"} == set(dir(poet)) - {"__version__"}
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"poet": poet}
    exec(python_of(page), names)
    assert len(names["run"].steps) == 100
    assert f"{names['result'].accuracy:.1%}" in page.read_text("utf-8")
    assert names["result"].half == "held-out"
    assert Path("mine.safetensors").is_file()


@pytest.mark.slow  # 10 s
def test_the_guides_to_models_and_data(poet_host: Command) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(128, 2),
    )  # fmt: skip
    Path("mine.onnx").write_bytes(by_dynamo(module, torch.zeros(1, 1, 8, 8)))
    random = np.random.default_rng(0)
    x = random.standard_normal((60, 1, 8, 8), dtype=np.float32)
    y = (x.mean((1, 2, 3)) > 0).astype(np.int64)
    np.savez("mine.npz", x=x, y=y)
    rows = [",".join((*map(str, one.ravel()), str(label))) for one, label in zip(x, y, strict=True)]
    Path("mine.csv").write_text("\n".join(rows))
    Path("new.csv").write_text("\n".join(row.rpartition(",")[0] for row in rows))
    done = follow("../README.md", poet_host, {"sim:mkr1000": "native", "w.safe": "readme.safe"})
    assert done == 6
    shorter = {"--steps 200": "--steps 60"}
    assert follow("how-to/own-model.md", poet_host, shorter, ["detector.onnx"]) >= 4
    assert follow("how-to/inspect-schedule.md", poet_host, {}) >= 6
    card = {"--port /dev/ttyACM0": "--port native --storage card.img"}
    done = sum(follow(f"how-to/{page}.md", poet_host, card) for page in ("data", "train-alone"))
    assert done >= 4
    assert follow("how-to/resume-and-cards.md", poet_host, card) >= 4
    assert Path("trained.onnx").is_file()
    assert len(Path("log.jsonl").read_text().splitlines()) > 20


@pytest.mark.slow  # 40 s
def test_the_guides_to_packages(poet_host: Command) -> None:
    model = ROOT / "examples" / "gesture" / "model.py"
    subprocess.run([sys.executable, model, "model.onnx"], check=True)
    for page in ("arduino", "platformio"):
        Path(page).mkdir()
        assert follow(f"how-to/{page}.md", poet_host, {"mymodel": f"{page}/mymodel"}) == 2
        assert Path(f"{page}/mymodel/src/mymodel.h").is_file()
    gesture = {"gesture.poet": "arduino/mymodel.poet"}
    assert follow("how-to/new-sensor.md", poet_host, gesture) == 1


@pytest.mark.slow  # 20 s
def test_the_tutorial(poet_host: Command) -> None:
    """Its last part on the native board too: simulated chips train to these bits elsewhere."""
    here = {"sim:mkr1000": "native", "--time-limit 20": "--time-limit 5"}
    assert follow("tutorial/first-training.md", poet_host, here) == 10
    assert Path("small.safetensors").read_bytes() == Path("large.safetensors").read_bytes()


def test_the_guide_to_cost_graphs(poet_host: Command) -> None:
    page = "how-to/cost-graph.md"
    text = (DOCS / page).read_text(encoding="utf-8")
    Path("tiny.graph.json").write_text(text.partition("```json\n")[2].partition("```")[0])
    assert follow(page, poet_host, {}) == 1
    assert "page_in" in Path("plan.json").read_text()


def test_the_tutorial_quotes_a_row_of_info(poet_host: Command) -> None:
    shown = poet_host("info", "resnet-digits").out.splitlines()
    [row] = (line.split() for line in shown if line.split()[:1] == ["mkr1000"])
    page = (DOCS / "tutorial" / "first-training.md").read_text(encoding="utf-8")
    assert row in [line.split() for line in page.splitlines()]


def test_the_page_of_the_planner_quotes_its_example() -> None:
    text = (DOCS / "explanation/planner.md").read_text("utf-8")
    figures = run_path(str(DOCS / "explanation/five_nodes.py"))["figures"]()
    assert [it for lines in figures.values() for it in lines if it not in text] == []
    assert len(figures["subject to"]) == 7
    drawn = (DOCS / "explanation/five-nodes.svg").read_text("utf-8")
    variables = re.findall(r"[UPRo]_\w+", " ".join(figures["minimise"] + figures["subject to"][:1]))
    assert [name for name in variables if name not in drawn] == []


def built_site(source: Path, to: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` builds it."""
    command = [sys.executable, "-m", "sphinx", "-Wn", "--keep-going", "-q", "-c", DOCS]
    return subprocess.run([*command, source, to], capture_output=True, text=True, check=False)


@pytest.mark.slow  # 10 s
def test_the_site_has_no_dead_link(tmp_path: Path) -> None:
    built = built_site(ROOT, tmp_path)
    assert built.returncode == 0, built.stderr
    text = (tmp_path / "docs/reference/command-line.html").read_text(encoding="utf-8")
    assert "poet-host card write" in text  # from the program's own help
    assert "storage_failed" in (tmp_path / "docs/reference/errors.html").read_text("utf-8")
    assert (tmp_path / "index.html").is_file()


@pytest.mark.slow
def test_a_dead_link_fails(tmp_path: Path) -> None:
    targets = ("gone.md", "index.md#gone", "#gone", "../gone.toml")
    (tmp_path / "docs").mkdir()
    links = "\n\n".join(f"[a link]({target})" for target in targets)
    (tmp_path / "docs/index.md").write_text(f"# Title\n\n{links}\n")
    built = built_site(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert built.stderr.count("gone") == len(targets), built.stderr

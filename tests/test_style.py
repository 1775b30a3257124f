"""How the project is written: words that a lint can find, and how long files and lines may be."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = {
    *(".py", ".c", ".h", ".S", ".js", ".css", ".html", ".def", ".md", ".toml", ".ini", ".yml"),
    *("", ".txt", ".ld"),
}
# This file names the words.
NOT_READ = {"LICENSE", "tests/test_style.py"}
BANNED = {  # a pattern: an example of it, and what to write instead
    r"behind": ("behind", "after"),
    r"tells?|told|telling": ("told", "reports, says; of a function: callback, progress"),
    r"anew": ("anew", "again"),
    r"hears?|heard|hearing": ("heard", "receives"),
    r"besides?": ("beside", "next to, alongside, in addition to"),
    r"mend(s|ed|ing)?": ("mended", "fix"),
    r"lest": ("lest", "so that ... not"),
    r"what becomes of": ("what becomes of", "what happens to"),
    r"for one in": ("for one in", "a name for the element"),
    r"(?<!there )(is|are|was|were) no (?!longer)[\w.-]+": ("is no file", "has no, is not a"),
}
LIMITS = {".py": 400, ".c": 400, ".h": 400, ".S": 400, ".js": 400}
LONGEST_TEST = 500
WIDEST = 100
GENERATED = ("bench/RESULTS-", "schedules/paper/")


def files() -> list[str]:
    """Names of the files of the repository, also those that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


def findings(word: str, text: str) -> list[str]:
    """The lines of a text that have a banned word, also as a part of a name, with their numbers."""
    pattern = re.compile(rf"(?<![\w-])({word})(?![\w-])", re.IGNORECASE)
    if not pattern.search(text.replace("_", " ")):
        return []  # line by line takes ten times as long
    return [
        f"{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line.replace("_", " "))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("word", BANNED)
def test_no_text_has_a_banned_word(word: str) -> None:
    found = [
        f"{name}:{finding}"
        for name in files()
        if Path(name).suffix in TEXT and name not in NOT_READ
        for finding in findings(word, (ROOT / name).read_text(encoding="utf-8"))
    ]
    assert not found, f"{len(found)} times; write instead: {BANNED[word][1]}\n" + "\n".join(found)


@pytest.mark.parametrize("word", BANNED)
def test_the_lint_sees_the_word(word: str) -> None:
    text, name = f"A text: {BANNED[word][0].upper()}, it says.", BANNED[word][0].replace(" ", "_")
    found = findings(word, f"first line\n{text}\nand it goes on\nto_{name}_x")
    assert found == [f"2: {text}", f"4: to_{name}_x"]


def test_files_and_lines_are_short() -> None:
    long = []
    for name in files():
        limit = LIMITS.get(Path(name).suffix)
        if limit is None:
            continue
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        limit = LONGEST_TEST if name.startswith("tests/") else limit
        if len(lines) > limit:
            long.append(f"{name}: {len(lines)} lines, at most {limit}")
        for number, line in enumerate(lines, 1):
            width = len(line.split("  # type: ")[0])
            long += [f"{name}:{number}: {width} columns"] if width > WIDEST else []
    assert not long, "\n".join(long)


def wide_lines(text: str) -> list[int]:
    """Lines of Markdown that need a break: not in fenced code or tables, and not a single word."""
    fenced, found = False, []
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        can_break = re.match(r"\s*[^|\s]\S*\s", line[:WIDEST])
        found += [number] if len(line) > WIDEST and can_break and not fenced else []
    return found


def test_lines_of_markdown_are_short() -> None:
    pages = [name for name in files() if name.endswith(".md") and not name.startswith(GENERATED)]
    wide = {name: wide_lines((ROOT / name).read_text(encoding="utf-8")) for name in pages}
    assert {name: numbers for name, numbers in wide.items() if numbers} == {}
    words, link = "word " * 21, f"({'link' * 26})"
    assert wide_lines(f"{words}\n```\n{words}\n```\n| {words}|\n{link}\n    {words}") == [1, 7]

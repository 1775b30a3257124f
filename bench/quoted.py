"""Which sentences of the documents quote a figure that the results no longer have?

    python -m bench.quoted [COMMIT]

Compares the pages of results with those of COMMIT (default: HEAD). A figure of a document is a
quotation if it is a figure of that commit's pages, rounded to as many digits: of the pages that its
paragraph links to, or else its document, or else of any page. Prints a line for each quotation that
these pages no longer support.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from .commits import ROOT, git

NUMBER = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?![\w,]*\w)")
LINK = re.compile(r"\]\([^)]*?((?:RESULTS-[\w-]+|REPORT)\.md)")
LEAST_DIGITS = 2  # of figures in paragraphs without a link to a page: shorter ones are everywhere


def missing(commit: str = "HEAD", root: Path = ROOT) -> Iterator[str]:
    """Yield "file:line: the figure, no longer in the results, and its paragraph"."""
    pages = sorted((*root.glob("bench/RESULTS-*.md"), root / "schedules" / "paper" / "REPORT.md"))
    now = {page.name: _numbers(page.read_text(encoding="utf-8")) for page in pages}
    before = {
        page.name: _numbers(git(root, "show", f"{commit}:{page.relative_to(root)}"))
        for page in pages
    }
    documents = (root / "README.md", *sorted(root.glob("docs/**/*.md")))
    for document in documents:
        line, content = 1, document.read_text(encoding="utf-8")
        of_document = _linked(content, now) or list(now)
        for paragraph in re.split(r"(\n\s*\n)", content):
            linked = _linked(paragraph, now)
            least, names = (1, linked) if linked else (LEAST_DIGITS, of_document)
            for found in NUMBER.finditer(paragraph):
                text = found[0].rstrip(",")
                if sum(map(str.isdigit, text)) < least:
                    continue
                if _has(before, names, text) and not _has(now, names, text):
                    at = line + paragraph[: found.start()].count("\n")
                    sentence = paragraph.splitlines()[paragraph[: found.start()].count("\n")]
                    yield f"{document.relative_to(root)}:{at}: {text}: {sentence.strip()}"
            line += paragraph.count("\n")


def _linked(text: str, pages: Iterable[str]) -> list[str]:
    return [name for name in LINK.findall(text) if name in pages]


def _numbers(text: str) -> list[str]:
    return [it.rstrip(",").replace(",", "") for it in NUMBER.findall(text)]


def _has(pages: dict[str, list[str]], names: list[str], text: str) -> bool:
    """Does one of the pages have a figure that is `text` when it is rounded to its digits?"""
    wanted = text.replace(",", "")
    digits = len(wanted.partition(".")[2])
    return any(
        len(it.partition(".")[2]) >= digits and f"{float(it):.{digits}f}" == wanted
        for name in names
        for it in pages[name]
    )


if __name__ == "__main__":
    print(*missing(sys.argv[1] if sys.argv[1:] else "HEAD"), sep="\n")

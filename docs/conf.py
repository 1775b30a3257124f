"""Settings of Sphinx, which builds the Markdown pages of this repository into a site: `make docs`.

The source folder is the repository itself, so that a link works on the site as it does on GitHub.
Two reference pages have a comment where this file puts what the program says of itself.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import click
from poet_host import isa
from poet_host.cli.main import commands
from poet_host.resources import resource
from sphinx.application import Sphinx

project = "poet-host"
release = metadata.version("poet-host")
copyright = "the poet-host authors, MIT licence"

root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "bench/RESULTS-*.md",
    "bench/instances/README.md",
    "examples/*/README.md",
    "schedules/FORMAT.md",
    "schedules/paper/REPORT.md",
]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"poet-host {release}"
html_extra_path = ["site"]  # the site's own index.html, which leads to root_doc; a style
html_css_files = ["wide.css"]
html_copy_source = False

myst_heading_anchors = 3
myst_disable_syntax = ["myst_line_comment"]  # a line may begin with a per cent sign
default_role = "literal"  # docstrings write code in single backticks
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures, of this package or of others
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"

FIELD = re.compile(r"^    (\w+): ([^=#\n]+?)(?: = [^#\n]*?)?(?:  # (.*))?$", re.MULTILINE)
DECLARED = re.compile(
    r"^(?:int |uint32_t |const char \*)?((?:struct |enum )?poet_\w+)(?=\(| \{)", re.MULTILINE
)
WIDTH = 88


def command_help() -> str:
    """A section with the help text of each command, commands of groups included."""

    def walk(context: click.Context) -> Iterator[str]:
        command = context.command
        yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                yield from walk(
                    click.Context(
                        child, context, name, terminal_width=WIDTH, max_content_width=WIDTH
                    )
                )

    settings: dict[str, Any] = {**commands.context_settings, "max_content_width": WIDTH}
    return "\n".join(
        walk(click.Context(commands, None, "poet-host", terminal_width=WIDTH, **settings))
    )


def board_errors() -> str:
    """The error codes of wire.def as a table."""
    head = "| code | name | what happened | what to do |\n|---:|---|---|---|\n"
    return head + "\n".join(
        f"| {row.code} | `{row.name}` | {row.columns[0]} | {row.columns[1]} |"
        for row in isa.rows("ERROR")
    )


def learner_header() -> str:
    """The declarations of learner.h, each with the comment before it."""
    text = (resource("firmware") / "include" / "poet" / "learner.h").read_text("utf-8")
    title, *parts = re.split(r"^#.*\n+|\n\n+", text, flags=re.MULTILINE)
    sections = (section for part in parts if (section := _declaration(part)))
    return "\n".join((f"```c\n{title}```\n", *sections))


def _declaration(part: str) -> str:
    found = DECLARED.search(part)
    if found is None:
        return ""
    comment = re.match(r"/\*(.*?)\*/\n", part, re.DOTALL)
    words = re.sub(r"\s*\n \*?\s*", " ", comment[1]).strip() if comment else ""
    code = part[comment.end() if comment else 0 :].strip()
    return f"## `{found[1]}`\n\n{words}\n\n```c\n{code}\n```\n"


GENERATED = {
    "<!-- help of all commands -->": command_help,
    "<!-- board errors -->": board_errors,
    "<!-- learner.h -->": learner_header,
}


def fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    for mark, text in GENERATED.items():
        if mark in source[0]:
            source[0] = source[0].replace(mark, text())


def shorten_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str, returned: str
) -> tuple[str, None] | None:
    """No parameters for a class: functions return most of them, and their fields are listed."""
    return ("", None) if what == "class" else None


def list_fields(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """The fields of a dataclass, each with its type and the comment that stands on it."""
    if what == "class" and dataclasses.is_dataclass(value):
        names = {field.name for field in dataclasses.fields(value)}
        lines.append("")
        for field, kind, comment in FIELD.findall(inspect.getsource(value)):
            if field in names:
                lines.append(f"* `{field}`: `{kind}`" + (f" -- {comment}" if comment else ""))
        lines.append("")


def setup(app: Sphinx) -> None:
    app.connect("source-read", fill_in)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", list_fields)

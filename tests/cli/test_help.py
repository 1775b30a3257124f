"""Every command and option has a help text that says what it does and what its default is."""

from collections.abc import Iterator

import click
import pytest
from poet_host.cli.main import commands
from support.command import Command

VERBS = {
    "Build", "Check", "Compare", "Compute", "Create", "Find", "List", "Measure", "Show", "Start",
    "Train", "Write",
}  # fmt: skip
NAMES = {
    "boards", "models", "info", "doctor", "simulate", "build", "flash", "storage", "profile",
    "solve", "train", "card", "evaluate", "predict", "export", "package", "replay", "show",
    "compare", "demo",
}  # fmt: skip


def walk(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from walk(inner, *words, name)


COMMANDS = dict(walk(commands))
OPTIONS = [
    pytest.param(words, option, id=f"{' '.join(words)} {option.opts[0]}")
    for words, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, click.Option)
]


def test_help_lists_all_commands_and_exit_codes(poet_host: Command) -> None:
    top = poet_host("--help")
    assert set(commands.commands) == NAMES
    assert all(f"\n  {name} " in top.out for name in NAMES)
    assert all(f"; {code} " in top.out.replace("\n ", "") for code in range(1, 8))
    assert poet_host().out == top.out
    assert poet_host("--version").out.startswith("poet-host, version ")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_begins_with_a_verb_and_fits_a_line(
    poet_host: Command, words: tuple[str, ...]
) -> None:
    page = poet_host(*words, "--help")
    assert page.code == 0
    text = COMMANDS[words].help
    assert text is not None
    assert text.split()[0] in VERBS
    summary = text.partition("\n\n")[0]
    assert summary.endswith(".")
    listed = COMMANDS[words].get_short_help_str(limit=64)  # in the list of commands
    assert not words or listed.rstrip(".") == summary.rstrip(".")


@pytest.mark.parametrize(("words", "option"), OPTIONS)
def test_an_option_has_a_help_text_with_its_default(
    words: tuple[str, ...], option: click.Option
) -> None:
    record = option.get_help_record(click.Context(COMMANDS[words]))
    assert record is not None
    name, text = record
    assert option.help
    assert option.help[0].isupper()
    assert option.help.endswith(".")
    assert "RANGE" not in name  # click's own name of a number
    is_switch = option.is_flag and not option.secondary_opts
    assert is_switch or option.required or "[default: " in text

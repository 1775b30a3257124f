"""The command `poet-host`: a thin layer over poet_host.api."""

import errno
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper

import click

from ..errors import BadInput, PoetError, PoetWarning
from ..files import check_name
from .console import emit, failure, say
from .outputs import checked_outputs
from .signals import INTERRUPTED, Ended, end_by_signals

# Each command is in the file of its name.
COMMANDS = (
    "boards", "models", "info", "doctor", "simulate", "build", "flash", "storage", "profile",
    "solve", "train", "card", "evaluate", "predict", "export", "package", "replay", "show",
    "compare", "demo",
)  # fmt: skip
EPILOG = """Exit codes: 0 done; 1 failed; 2 usage or bad input; 3 no such device; 4 link broke;
5 infeasible (proved); 6 a schedule was found but not within the wanted gap; 7 none found in time;
129, 130, 143 ended by SIGHUP (the terminal was closed), by Ctrl-C, by SIGTERM."""


@click.group(
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(version("poet-host"), prog_name="poet-host")
@click.pass_context
def commands(context: click.Context) -> None:
    """Train neural networks on boards that have less RAM than a training step needs.

    `poet-host demo` shows the whole workflow on a simulated board. For your own model, `solve`
    finds a schedule, and `train` runs the schedule on a board.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for name in COMMANDS:
    commands.add_command(getattr(import_module(f".{name}", __package__), name))


def run(arguments: Sequence[str]) -> int:
    """Run one command, print its error if it fails, and return its exit code."""
    with checked_outputs() as outputs, warnings.catch_warnings():
        warnings.simplefilter("always", PoetWarning)
        show = warnings.showwarning
        warnings.showwarning = lambda message, category, *where: (
            say(f"note: {message}") if category is PoetWarning else show(message, category, *where)
        )
        code = _run(arguments)
        return code or int(any(output.failed for output in outputs))


def _run(arguments: Sequence[str]) -> int:
    try:
        if sys.flags.optimize > 1:
            raise BadInput(
                "`python -OO` removes the descriptions of options: unset PYTHONOPTIMIZE, or use -O"
            )
        for argument in arguments:
            check_name(argument)
        code = commands.main(list(arguments), prog_name="poet-host", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "poet-host"
        return _fail(arguments, f"{error.format_message()} (see `{path} --help`)", 2)
    except PoetError as error:
        return _fail(arguments, str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _fail(arguments, "interrupted", INTERRUPTED)
    except Ended as ended:
        return _fail(arguments, f"ended by {ended.name}", ended.exit_code)
    except BrokenPipeError:  # nobody reads stdout any more
        return 1
    except MemoryError as error:
        reason = f" ({error})" if str(error) else ""
        return _fail(
            arguments,
            f"not enough memory on this computer{reason}: use a smaller model or less data",
            1,
        )
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if error.errno == errno.ENAMETOOLONG:
            return _fail(arguments, f"{where}the name is too long: choose a shorter one", 2)
        return _fail(arguments, f"{where}{error.strerror or error}", 1)


def _fail(arguments: Sequence[str], message: str, code: int) -> int:
    say(f"poet-host: {message}")
    if "--json" in arguments:
        # An error of stdout is not reported, because this error came first.
        with suppress(PoetError, BrokenPipeError):
            emit(failure(message, code))
    return code


def main() -> None:
    # Windows does not encode pipes and files as UTF-8 by default. Other systems may encode less.
    encoding = "utf-8" if os.name == "nt" else None
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # Python has no stream if its descriptor was closed
            stream.reconfigure(encoding=encoding, errors="backslashreplace")
    # SIGTERM and SIGHUP, like Ctrl-C, must end simulated boards and delete temporary cards.
    end_by_signals()
    sys.exit(run(sys.argv[1:]))

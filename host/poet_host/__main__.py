"""The command `poet-host`, and `python -m poet_host` where no script is on the path."""

import json
import signal
import sys

# Packages that are installed under another name than they are imported by.
INSTALLED_AS = {"serial": "pyserial"}


def main() -> None:
    """Until the commands are imported, Ctrl-C ends the process silently."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from .cli.main import main as command
    except ImportError as error:
        # As poet_host.cli says all others, whose packages may be what is missing.
        message = _what_is_missing(error)
        print(f"poet-host: {message}", file=sys.stderr)
        if "--json" in sys.argv:
            print(json.dumps({"error": message, "exit_code": 1}))
        sys.exit(1)

    signal.signal(signal.SIGINT, handler)
    command()


def _what_is_missing(error: ImportError) -> str:
    """An import that fails without a name is that of a package whose own code raises."""
    module = (error.name or "").partition(".")[0]
    at = error.__traceback__
    while at is not None and not module:
        caller = at.tb_frame.f_globals.get("__name__", "")
        at = at.tb_next
        if at is None and not caller.startswith("poet_host"):
            module = caller.partition(".")[0]
    package = INSTALLED_AS.get(module, module) or "poet-host"
    return (
        f"a package that everything needs cannot be imported ({error}): try `pip install "
        f"--force-reinstall {package}`"
    )


if __name__ == "__main__":
    main()

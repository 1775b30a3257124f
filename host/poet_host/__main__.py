"""The command `poet-host`, and `python -m poet_host` where no script is on the path."""

import json
import signal
import sys

# Modules whose package has another name.
INSTALLED_AS = {"serial": "pyserial"}


def main() -> None:
    """Run the command. During the import of the commands, Ctrl-C ends the process silently."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from .cli.main import main as command
    except ImportError as error:
        # poet_host.cli prints all other errors, but needs packages that may be the missing ones.
        message = _import_failure(error)
        print(f"poet-host: {message}", file=sys.stderr)
        if "--json" in sys.argv:
            print(json.dumps({"error": message, "exit_code": 1}))
        sys.exit(1)

    signal.signal(signal.SIGINT, handler)
    command()


def _import_failure(error: ImportError) -> str:
    """The message about a package that cannot be imported.

    The error names the module, unless the package itself raised the error. Then the last frame of
    the traceback is the package's.
    """
    module = (error.name or "").partition(".")[0]
    trace = error.__traceback__
    while trace is not None and not module:
        caller = trace.tb_frame.f_globals.get("__name__", "")
        trace = trace.tb_next
        if trace is None and not caller.startswith("poet_host"):
            module = caller.partition(".")[0]
    package = INSTALLED_AS.get(module, module) or "poet-host"
    return (
        f"a package that poet-host needs cannot be imported ({error}): run `pip install "
        f"--force-reinstall {package}`"
    )


if __name__ == "__main__":
    main()

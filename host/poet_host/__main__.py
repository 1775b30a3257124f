"""The entry point of the command `poet-host`, and of `python -m poet_host`."""

import json
import signal
import sys

# For a module whose name is not the name of its package: the package to install.
INSTALLED_AS = {"serial": "pyserial"}


def main() -> None:
    """Run the command. During the import of the commands, Ctrl-C ends the process silently."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from .cli.main import main as command
    except ImportError as error:
        # poet_host.cli prints all other errors, but its import fails if a package is missing.
        message = _import_failure(error)
        print(f"poet-host: {message}", file=sys.stderr)
        if "--json" in sys.argv:
            print(json.dumps({"error": message, "exit_code": 1}))
        sys.exit(1)

    signal.signal(signal.SIGINT, handler)
    command()


def _import_failure(error: ImportError) -> str:
    """Return the error message for a package that cannot be imported.

    `error.name` is the module that cannot be imported. If it is empty, code of the package raised
    the error. Then the last frame of the traceback shows which package this is.
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

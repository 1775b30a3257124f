"""The command `poet-host`, and `python -m poet_host` where no script is on the path."""

import signal


def main() -> None:
    """Until the commands are imported, Ctrl-C ends the process silently."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli.main import main as command

    signal.signal(signal.SIGINT, handler)
    command()


if __name__ == "__main__":
    main()

"""Runs commands with faults of their files; the process preloads fault_writes.c.

Reads JSON lines {"command", "kind", "at", "watched", "output"}. For each it forks, because starting
Python takes longer than most commands, and prints a line with the exit status and the number of
events. A command that begins with `python` is a program, which the API runs.
"""

import json
import mmap
import os
import struct
import sys
import tempfile
from pathlib import Path

import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401 - loaded once, not for each picture
import onnx  # noqa: F401
from poet_host.cli.main import run
from poet_host.cli.signals import end_by_signals
from poet_host.errors import PoetError
from poet_host.sim import start_board

STATE = struct.Struct("5i")  # of fault_writes.c


def called(program: str) -> int:
    try:
        exec(program, {})
    except PoetError as error:
        print(error)
        return error.exit_code
    return 0


def main() -> None:
    with open(os.environ["POET_FAULT_STATE"], "r+b") as file:
        state = mmap.mmap(file.fileno(), STATE.size)
    tempfile.gettempdir()  # Python itself tests the folder by a file, once in each process
    start_board._RAM = Path(os.environ["POET_FAULT_RAM"])
    for line in sys.stdin:
        case = json.loads(line)
        state[:] = STATE.pack(0, 0, 0, 0, 0)
        child = os.fork()
        if child == 0:
            output = os.open(case["output"], os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(output, stream)
            state[:] = STATE.pack(0, case["at"], case["kind"], os.getpid(), case["watched"])
            end_by_signals()
            name, *rest = case["command"]
            code = called(*rest) if name == "python" else run(case["command"])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        events = STATE.unpack(state[:])[0]
        state[:] = STATE.pack(0, 0, 0, 0, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), events]), flush=True)


if __name__ == "__main__":  # not in the processes of `compare`
    main()

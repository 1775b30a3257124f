"""Runs commands with faults of their files; the process preloads fault_writes.c.

Reads JSON lines {"command", "kind", "at", "output"}. For each it forks, because starting Python
takes longer than most commands, and prints a line with the exit status and the number of events.
"""

import json
import mmap
import os
import struct
import sys

from poet_host.cli.main import run
from poet_host.cli.signals import end_by_signals

STATE = struct.Struct("4i")  # of fault_writes.c


def main() -> None:
    with open(os.environ["POET_FAULT_STATE"], "r+b") as file:
        state = mmap.mmap(file.fileno(), STATE.size)
    for line in sys.stdin:
        case = json.loads(line)
        state[:] = STATE.pack(0, 0, 0, 0)
        child = os.fork()
        if child == 0:
            output = os.open(case["output"], os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(output, stream)
            state[:] = STATE.pack(0, case["at"], case["kind"], os.getpid())
            end_by_signals()
            code = run(case["command"])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        events = STATE.unpack(state[:])[0]
        state[:] = STATE.pack(0, 0, 0, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), events]), flush=True)


if __name__ == "__main__":  # not in the processes of `compare`
    main()

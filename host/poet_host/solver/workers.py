"""Workers: processes in which the solver runs, so that it can be stopped at any moment.

A worker runs one search at a time and sends what it finds. It is asked to stop, and ended
if it does not; it ends with the process that started it, however that ends, since its
input then closes. Idle workers are kept for the next search.
"""

import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any, cast

STOP_S = 0.3  # to stop by itself
_START = """
import sys
sys.path[:] = {path!r}
from poet_host.solver.workers import serve
serve({handle})
"""
_WINDOWS = sys.platform == "win32"


class WorkerKilled(RuntimeError):
    """The process of a search ended before the search did."""

    def __init__(self) -> None:
        super().__init__("the planner's worker was killed; perhaps there is too little memory")


@dataclass
class Line:
    """The line from a search to who asked for it: `emit(kind, what)` and `stopped()`."""

    emit: Callable[[str, Any], object]
    stopped: Callable[[], bool]
    latest: Any = None

    def news(self) -> Any:
        """What was told last, once; None: nothing new."""
        latest, self.latest = self.latest, None
        return latest


class Worker:
    """One process. `search` starts a function of search.py; `receive` what it emits."""

    def __init__(self) -> None:
        self.results, theirs = Pipe()  # both ways
        self.busy = False
        handle = theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=sys.path, handle=handle)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            **_inheriting(handle),
        )
        theirs.close()

    def search(self, function: Callable[..., None], *arguments: Any) -> None:
        self.busy = True
        self._send((function, arguments))

    def tell(self, news: Any) -> None:
        """Something that the search may use."""
        self._send((None, news))

    def _send(self, request: Any) -> None:
        with suppress(ConnectionError):  # `receive` says that the process has ended
            self.results.send(request)

    def receive(self) -> tuple[str, Any]:
        """The next of what the search emits; ("idle", None) at its end.

        Raises RuntimeError if the search failed, WorkerKilled if the process ended.
        """
        try:
            kind, found = self.results.recv()
        except (EOFError, ConnectionError):
            self.busy = False
            self._process.wait()
            raise WorkerKilled from None
        if kind == "idle":
            self.busy = False
        if kind == "error":
            self.busy = False
            raise RuntimeError(f"the planner's worker failed:\n{found}")
        return kind, found

    def stop(self) -> bool:
        """End the search; False if the process had to be ended with it."""
        try:
            if self.busy:
                self._send(None)
            while self.busy:
                if not self.results.poll(STOP_S):
                    break
                self.receive()
        except (OSError, RuntimeError):  # it failed, was killed, or is cut off
            self.busy = True
        if self.busy:
            self.end()
        return not self.busy

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self.results.close()


def _inheriting(handle: int) -> dict[str, Any]:
    """Options of a process that inherits one end of a pipe, and no Ctrl-C: that is for the parent,
    who asks for the best plan so far."""
    if not _WINDOWS:
        return {"pass_fds": (handle,), "start_new_session": True}
    windows = cast(Any, subprocess)
    cast(Any, os).set_handle_inheritable(handle, True)
    return {
        "startupinfo": windows.STARTUPINFO(lpAttributeList={"handle_list": [handle]}),
        "creationflags": windows.CREATE_NEW_PROCESS_GROUP,
    }


class Pool:
    """The workers that wait for a search."""

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Leave the workers to the process that started them."""
        self._idle: list[Worker] = []
        self._lock = threading.Lock()

    def take(self) -> Worker:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
                worker.end()
        return Worker()

    def give_back(self, worker: Worker) -> None:
        if worker.stop():
            if not worker.alive:
                worker.end()
                return
            with self._lock:
                self._idle.append(worker)

    def close(self) -> None:
        """End the idle workers; the next search starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()


POOL = Pool()


def serve(handle: int) -> None:
    """The process of a worker: searches that are asked for, one after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = getattr(multiprocessing.connection, "PipeConnection" if _WINDOWS else "Connection")
    parent = pipe(handle)
    pending: list[Any] = []
    arrived = threading.Condition()
    stopped = threading.Event()
    line = Line(lambda kind, found: parent.send((kind, found)), stopped.is_set)

    def listen() -> None:
        while True:
            try:
                request = parent.recv()
            except (EOFError, OSError):
                os._exit(0)
            if request is None:
                stopped.set()
                continue
            if request[0] is None:
                line.latest = request[1]
                continue
            with arrived:
                pending.append(request)
                arrived.notify()

    threading.Thread(target=listen, daemon=True).start()
    while True:
        with arrived:
            while not pending:
                arrived.wait()
            function, arguments = pending.pop()
        stopped.clear()
        line.latest = None
        try:
            function(*arguments, line)
        except ConnectionError:
            os._exit(0)
        except Exception:  # noqa: BLE001 - whatever it is, the parent raises it
            parent.send(("error", traceback.format_exc()))
        else:
            parent.send(("idle", None))

"""Workers: processes that run searches, so that a search can be stopped at any moment.

A worker runs one search at a time and sends its results. A worker that does not stop on request is
killed. When the process that started a worker ends for any reason, the pipe closes and the worker
ends too. Idle workers are kept for the next search.

A search goes on with the counted work of its caller (work.py), and each result moves the caller's
count to that of the search.
"""

import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any, cast

from .. import work

STOP_LIMIT_S = 0.3  # longest wait for a search to stop by itself
HUNG = 75  # exit code of a worker whose solver ignored its time limit
_WORKER_PROGRAM = """
import sys
sys.path[:] = {path!r}
from poet_host.solver.workers import serve
serve({handle})
"""
_WINDOWS = sys.platform == "win32"


class WorkerKilled(RuntimeError):
    """The process of a search ended before the search did."""

    def __init__(self) -> None:
        super().__init__(
            "the planner's worker was killed. Perhaps the computer has too little memory"
        )


class WorkerHung(WorkerKilled):
    """The worker ended itself, since its solver ignored its time limit."""


_is_worker = threading.Event()


@contextmanager
def ends_within(limit_s: float) -> Iterator[None]:
    """End this process if it is a worker and the block takes longer than `limit_s`.

    A native solver cannot be interrupted otherwise.
    """
    timer = threading.Timer(min(limit_s, threading.TIMEOUT_MAX), os._exit, (HUNG,))
    timer.daemon = True
    if _is_worker.is_set():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@dataclass
class Channel:
    """The connection to the caller, for use by a search."""

    emit: Callable[[str, Any], object]  # called with the kind and the content of a result
    is_stopped: Callable[[], bool]
    latest: Any = None  # content that the caller sent last

    def receive(self) -> Any:
        """Return the content that the caller sent last; None if there is no new content."""
        latest, self.latest = self.latest, None
        return latest


class Worker:
    """One worker process, as its caller sees it."""

    def __init__(self) -> None:
        self.results, theirs = Pipe()  # both ways
        self.busy = False
        handle = theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER_PROGRAM.format(path=sys.path, handle=handle)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            **_inheriting(handle),
        )
        theirs.close()

    def search(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run an importable function in the process, with a Channel as its last argument."""
        self.busy = True
        self._request((function, arguments, work.counted_s()))

    def send(self, content: Any) -> None:
        """Send a message to the running search, such as a better plan that another search found.

        A new message replaces an older one that the search has not read yet.
        """
        self._request((None, content, None))

    def _request(self, request: Any) -> None:
        with suppress(ConnectionError):  # if the process has ended, `receive` raises an error
            self.results.send(request)

    def receive(self) -> tuple[str, Any]:
        """Return the kind and content of the next result; ("idle", None) when the search has ended.

        Raises RuntimeError if the search failed, WorkerKilled if the process ended, WorkerHung if
        it ended itself.
        """
        kind, content, counted_s = self._receive()
        work.move_to(counted_s)
        return kind, content

    def _receive(self) -> tuple[str, Any, float | None]:
        try:
            kind, content, counted_s = self.results.recv()
        except (EOFError, ConnectionError):
            self.busy = False
            hung = self._process.wait() == HUNG
            raise WorkerHung if hung else WorkerKilled from None
        if kind == "idle":
            self.busy = False
        if kind == "error":
            self.busy = False
            raise RuntimeError(f"a search process of the planner failed:\n{content}")
        return kind, content, counted_s

    def stop(self) -> bool:
        """Stop the search. Return False if the process had to be killed."""
        try:
            if self.busy:
                self._request(None)
            while self.busy:
                if not self.results.poll(STOP_LIMIT_S):
                    break
                self._receive()  # what it has counted meanwhile depends on the computer
        except (
            OSError,
            RuntimeError,
        ):  # the search failed or was killed, or the pipe is closed
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
    """Return the Popen options of a process that inherits one end of a pipe.

    The process is in a group of its own, so that only the parent receives Ctrl-C.
    """
    if not _WINDOWS:
        return {"pass_fds": (handle,), "start_new_session": True}
    windows = cast(Any, subprocess)
    cast(Any, os).set_handle_inheritable(handle, True)
    return {
        "startupinfo": windows.STARTUPINFO(lpAttributeList={"handle_list": [handle]}),
        "creationflags": windows.CREATE_NEW_PROCESS_GROUP,
    }


class Pool:
    """The idle workers."""

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Forget all idle workers. After a fork, they belong to the parent process."""
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
        """End the idle workers. The next search starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()


POOL = Pool()


def last_results(limit_s: float, search: Callable[..., None], *arguments: object) -> dict[str, Any]:
    """Run a search in a worker. Return the last result of each kind within the time limit."""
    last: dict[str, Any] = {}
    ends_at = work.now_s() + limit_s
    worker = POOL.take()
    try:
        worker.search(search, *arguments)
        while worker.busy and wait([worker.results], _longest_wait_s(ends_at)):
            kind, content = worker.receive()
            last[kind] = content
    except (KeyboardInterrupt, WorkerKilled):
        pass
    finally:
        POOL.give_back(worker)
    return last


def _longest_wait_s(ends_at: float) -> float | None:
    """Return how long a search may take; None if it counts its work, and so ends by itself."""
    return None if work.counted_s() is not None else max(0.0, ends_at - work.now_s())


def serve(handle: int) -> None:
    """Run the process of a worker: one search after another."""
    _is_worker.set()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = getattr(multiprocessing.connection, "PipeConnection" if _WINDOWS else "Connection")
    parent = pipe(handle)
    pending: list[Any] = []
    arrived = threading.Condition()
    stopped = threading.Event()
    channel = Channel(
        lambda kind, content: parent.send((kind, content, work.counted_s())), stopped.is_set
    )

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
                channel.latest = request[1]
                continue
            with arrived:
                pending.append(request)
                arrived.notify()

    threading.Thread(target=listen, daemon=True).start()
    while True:
        with arrived:
            while not pending:
                arrived.wait()
            function, arguments, counted_s = pending.pop()
        stopped.clear()
        channel.latest = None
        try:
            with work.counting(counted_s is not None, counted_s or 0.0):
                function(*arguments, channel)
                channel.emit("idle", None)
        except ConnectionError:
            os._exit(0)
        except Exception:  # noqa: BLE001 - the parent raises it
            parent.send(("error", traceback.format_exc(), None))

"""Solve points in parallel: in processes of this computer, or in an executor of the caller."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from ..errors import BadInput, PoetError
from ..handlers import delayed_signals

ENDING_S = 10.0  # longest wait for the pool's thread, after the pool's processes have ended
CONNECTING_S = 10.0
_MOST_ON_WINDOWS = 61  # processes that a pool of Python may have there
_TRIES = 3  # how often a point is begun, if its process is killed each time

Job = dict[str, Any]
Solve = Callable[[Job], dict[str, Any]]
Solved = Generator[tuple[str, dict[str, Any] | str], None, None]
"""Keys of jobs, each with its result, or with a text that says how its process ended."""


def solve_all(
    jobs: Mapping[str, Job], solve: Solve, processes: int, pool: Executor | None
) -> Solved:
    """Yield the result of each job, in the order in which they end.

    Without `pool`, `processes` of this computer work. If one is killed, the jobs that were running
    are begun again, alone, at most twice. An executor of the caller repeats jobs by its own rules.
    Raises what `solve` raises, and PoetError if the caller's executor no longer works.
    """
    return _by_processes(jobs, solve, processes) if pool is None else _by_pool(jobs, solve, pool)


def _by_processes(jobs: Mapping[str, Job], solve: Solve, processes: int) -> Solved:
    waiting = list(jobs)[::-1]
    processes = min(processes, _MOST_ON_WINDOWS) if os.name == "nt" else processes
    suspects: list[str] = []
    while waiting:
        running: dict[Future[dict[str, Any]], str] = {}
        try:
            with _processes(min(processes, len(waiting))) as pool:
                while waiting or running:
                    with delayed_signals():
                        while waiting and len(running) < processes:
                            running[pool.submit(solve, jobs[waiting[-1]])] = waiting[-1]
                            waiting.pop()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        found = future.result()
                        yield running.pop(future), found
        except BrokenProcessPool:
            suspects += running.values()
    for key in suspects:
        yield key, _alone(jobs[key], solve)


def _alone(job: Job, solve: Solve) -> dict[str, Any] | str:
    for _ in range(_TRIES - 1):
        try:
            with _processes(1) as pool:
                return pool.submit(solve, job).result()
        except BrokenProcessPool:
            continue
    return f"{_TRIES} times"


def _by_pool(jobs: Mapping[str, Job], solve: Solve, pool: Executor) -> Solved:
    running: dict[Future[dict[str, Any]], str] = {}
    try:
        for key, job in jobs.items():
            running[pool.submit(solve, job)] = key
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                key = running.pop(future)
                try:
                    yield key, future.result()
                except Exception as error:
                    if type(error).__name__ != "KilledWorker":  # of Dask, after its own repetitions
                        raise
                    yield key, "as often as the cluster repeats it"
    except PoetError:
        raise
    except Exception as error:
        raise PoetError(
            f"the executor that solves the points failed ({type(error).__name__}: {error}). The "
            "finished points are saved: start it again, and repeat this command"
        ) from error
    finally:
        for future in running:
            future.cancel()


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Provide an executor on a Dask cluster. `address`: its scheduler's, such as tcp://HOST:8786.

    Raises BadInput if the package is missing, or if nothing answers at the address.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise BadInput(
            f"--scheduler: Dask is missing ({error}): run `pip install 'poet-host[cluster]'`"
        ) from error
    try:
        client: Any = Client(address, timeout=CONNECTING_S)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(
            f"--scheduler {address}: no scheduler of Dask answers there ({error}). Start one with "
            "`dask scheduler`, and workers with `dask worker`"
        ) from error
    with client:
        yield client.get_executor(pure=False)


@contextmanager
def _processes(jobs: int) -> Iterator[Executor]:
    """Provide a pool of processes that solve points. After an exception, end them at once."""
    children = set(multiprocessing.active_children())
    threads = set(threading.enumerate())
    # Spawn processes: a fork is unsafe, since the progress bar and the solver have threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - children:
            child.terminate()
        # Wait until the pool's thread notices that the pool's processes ended, before Python exits.
        for thread in set(threading.enumerate()) - threads:
            if not thread.daemon:
                thread.join(ENDING_S)
        raise
    pool.shutdown()


def _begin() -> None:
    """Set up a solving process.

    Ctrl-C reaches every process of a terminal, but only the parent handles it. If the parent is
    killed, this process ends too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

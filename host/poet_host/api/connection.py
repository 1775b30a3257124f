"""An open board: measuring and training need one."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ..closing import Closing
from ..data.datasets import Dataset
from ..data.fitted import example, fit
from ..device import device as devices
from ..device.device import NOTHING_COMMITTED, Device, Progress
from ..errors import BadInput, LinkBroken, NoDevice
from ..graph.graph import Graph
from ..graph.weights import start_values
from ..plan.plan import Plan
from ..plan.pricing import cost_graph
from ..plan.problem import Problem
from ..profile.measure import measure
from ..profile.meter import hold_states, powers, read_log, wait_for
from ..profile.profile import Profile
from ..run.calibrate import Validation, calibrated, observe, validation
from ..run.card import arena_of_card
from ..run.train import Training
from ..schedule.schedule import Schedule
from ..sim.board import SimulatedBoard
from ..sim.native import NativeBoard
from ..sim.start_board import start_board
from .inputs import checked
from .planning import encode, solve

VALIDATION_RAM = 0.8  # of a plan's peak: budget of the schedule that calibrates, to page more
VALIDATION_LIMIT_S = 10.0  # for solving each of the two plans
ENDING_S = 2.0  # to wait for the end of a simulated board's process, after its port is closed
USB = ":usb"  # suffix of the port of a simulated board


class Connection(Closing):
    """An open board: `device` speaks to it, `board` has its facts. A context manager."""

    def __init__(
        self,
        device: Device,
        stack: ExitStack,
        running: NativeBoard | SimulatedBoard | None = None,
    ) -> None:
        self.device = device
        self.board = device.board
        self.running = running
        self.written: tuple[int, int] | None = None  # a model's CRC and a step, from a Run
        self._stack = stack

    @property
    def is_emulated(self) -> bool:
        """True if QEMU runs the board's program, so that its times mean nothing."""
        return isinstance(self.running, NativeBoard) and self.running.is_emulated

    def __repr__(self) -> str:
        return f"<Connection {self.board.name}: arena of {self.device.info.arena_bytes:,} bytes>"

    @checked
    def profile(
        self,
        graph: Graph,
        before: Profile | None = None,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> Profile:
        """Measure the operators of `graph`, and the storage. Add them to the profile `before`."""
        x, y = example(graph)
        values = {**start_values(graph, seed=0), graph.data: x, graph.label: y}
        found = measure(self.device, self.board, graph, values, progress)
        return found if before is None else before.merged(found)

    @checked
    def meter(
        self, profile: Profile, log: Path, supply_mv: float, ask: Callable[[], None]
    ) -> Profile:
        """Return the profile with powers from a meter's log in place of those in board.toml.

        Holds the board in each of its states while the meter records. Then `ask` asks the user to
        save the recording as `log`, and this method waits for the file. Raises BadInput if the
        recording does not show the states.
        """
        states = hold_states(self.device)
        ask()
        wait_for(log)
        return replace(profile, power=powers(*read_log(log), states, supply_mv), metered=True)

    @checked
    def validate(
        self, graph: Graph, profile: Profile, progress: Progress | None = None
    ) -> tuple[Profile, Validation]:
        """Run two schedules of `graph`. The first calibrates the profile with costs that only a
        schedule shows. The second compares the new profile's prediction with the board's times.

        The card must hold no weights, and is empty afterwards. Raises BadInput if it holds
        weights, or if no schedule that fits the board is found within seconds.
        """
        info = self.device.hello()
        if info.committed_step != NOTHING_COMMITTED and info.committed_model:
            raise BadInput(
                "the board's card holds weights, which a schedule would replace: use another card, "
                "or erase it with `poet-host profile --erase-card`"
            )
        problem = Problem(cost_graph(graph, profile), int(info.arena_bytes), profile=profile)
        plan = _fitting(problem)
        if plan is None:
            raise BadInput(
                f"no schedule of {graph.name} was found within {info.arena_bytes:,} bytes in "
                f"{VALIDATION_LIMIT_S:.0f} s"
            )
        tight_bytes = int(VALIDATION_RAM * (plan.peak_bytes or 0))
        tight = _fitting(replace(problem, ram_bytes=tight_bytes)) or plan
        seen = []
        try:
            for item in (tight, plan):
                schedule = encode(graph, item)
                data = fit(Dataset("example", *example(graph)), schedule.graph)
                seen.append(observe(Training(self.device, schedule, data), progress))
        finally:
            self.device.format()
        better = calibrated(profile, graph, seen[0])
        return better, validation(graph, better, cost_graph(graph, better), plan, seen[1])

    def close(self) -> None:
        self._stack.close()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        ended = None
        if isinstance(self.running, SimulatedBoard) and isinstance(error, LinkBroken | NoDevice):
            ended = self.running.wait(ENDING_S)
        self.close()
        if ended:
            raise LinkBroken(f"the simulated {self.board.name} stopped: {ended}") from error


def connect(
    port: str | Path,
    *,
    storage: Path | str | None = None,
    arena_bytes: int | str | None = None,
) -> Connection:
    """Open the board at `port`: a device, a pyserial URL or `auto`. `native` and ports such as
    `sim:mkr1000` start a board on this computer; `sim:mkr1000:usb` connects by USB, not by UART.

    `storage` is the card file of a board that is started (None: a temporary file). `arena_bytes`
    is the native board's RAM, such as 65536 or "64KiB". Closing the connection ends a board that
    this call started.
    """
    port = str(port)
    starts = runs_here(port)
    board = port.removeprefix("sim:")
    if storage is not None and not starts:
        raise BadInput(f"port {port}: a storage file is only for boards on this computer")
    with ExitStack() as stack:
        running = None
        if starts:
            running = stack.enter_context(
                start_board(board.removesuffix(USB), storage, arena_bytes, usb=board.endswith(USB))
            )
            port = running.port
        elif arena_bytes is not None:
            raise BadInput(f"port {port}: an arena size is only for --port native")
        device = stack.enter_context(devices.connect(port))
        return Connection(device, stack.pop_all(), running)


def runs_here(port: str) -> bool:
    """Return whether `connect` starts a board on this computer for `port`."""
    return port == "native" or port.startswith("sim:")


def arena_for(schedule: Schedule, port: str | None, storage: Path | None = None) -> int | None:
    """Return the RAM that a native board needs for a schedule; None for a board with fixed RAM.

    The bytes also suffice for the plan on the card `storage`, which may have another layout.
    """
    if port not in (None, "native"):
        return None
    needed: int = schedule.meta["plan"]["ram_bytes"]
    if storage is None or not storage.is_file():
        return needed
    with connect("native", storage=storage) as connection:
        return max(needed, arena_of_card(connection.device))


def _fitting(problem: Problem) -> Plan | None:
    """Make a plan within the budget: keep-everything if it fits, else the best plan found soon."""
    keep = problem.keep_everything
    if keep and (keep.peak_bytes or 0) <= problem.ram_bytes:
        return replace(keep, ram_bytes=problem.ram_bytes)
    plan = solve(problem, time_limit_s=VALIDATION_LIMIT_S, gap=0.5)
    return plan if plan.statements else None

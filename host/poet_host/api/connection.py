"""Connect to a board, to measure its costs and to train on it."""

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..card.card import allocation_notice, arena_of_card, storage_info
from ..card.card_device import CardDevice
from ..card.card_file import check_table
from ..card.parts import restoring
from ..closing import Closing
from ..data.datasets import Dataset
from ..data.fitted import example, fit
from ..device import device as devices
from ..device.board import load_board
from ..device.device import NOTHING_COMMITTED, Device, Progress
from ..device.health import is_unwanted, reset_text
from ..errors import BadInput, LinkBroken, NoDevice, PoetWarning
from ..firmware_build.native import linux_boards
from ..firmware_build.recipe import simulated_boards
from ..graph.graph import Graph
from ..graph.weights import start_values
from ..plan.plan import Plan
from ..plan.problem import without_staying
from ..profile.measure import measure
from ..profile.meter import hold_states, powers, read_log, wait_for
from ..profile.profile import Profile
from ..run.calibrate import Observed, Validation, calibrated, observe, validation
from ..run.train import Training
from ..schedule.schedule import Schedule
from ..sim.board import SimulatedBoard
from ..sim.native import NativeBoard
from ..sim.start_board import start_board
from .inputs import checked
from .planning import encode, problem, solve

# The calibration run gets this share of the peak RAM of the validation run, so it pages more.
VALIDATION_RAM = 0.8
VALIDATION_LIMIT_S = 10.0  # time limit for solving each of the two plans that `validate` runs
NEVER = 1 << 32  # steps between commits: the runs of `validate` do not wear the chip's flash out
ENDING_S = 2.0  # time to wait until a simulated board exits after its link broke
USB = ":usb"  # suffix of a simulated board's port name: connect by USB, not by UART


class Connection(Closing):
    """An open link to a board, as a context manager. `device` sends requests to the board."""

    def __init__(
        self, device: Device, stack: ExitStack, running: NativeBoard | SimulatedBoard | None = None
    ) -> None:
        self.device = device
        self.board = device.board
        self.running = running
        # Weights that the last training returned: CRC of the model, and step. None: there are none.
        self.written: tuple[int, int] | None = None
        self._stack = stack

    @property
    def is_emulated(self) -> bool:
        """True if QEMU runs the board's program: times then differ from those of a real board."""
        return isinstance(self.running, NativeBoard) and self.running.is_emulated

    def __repr__(self) -> str:
        return f"<Connection {self.board.name}: arena of {self.device.info.arena_bytes:,} bytes>"

    @checked
    def profile(
        self,
        graph: Graph,
        before: Profile | None = None,
        progress: Callable[[int, int, str], None] | None = None,
        *,
        storage: bool = True,
    ) -> Profile:
        """Measure the costs of the operators of `graph`, and of the storage.

        If a profile `before` is given, the result also has its costs of all other operators. If
        `storage` is False, the board has no card: no transfer is measured, and `solve` makes plans
        without storage from the profile.
        """
        x, y = example(graph)
        values = {**start_values(graph, seed=0), graph.data: x, graph.label: y}
        found = measure(self.device, self.board, graph, values, progress, storage)
        return found if before is None else before.merged(found)

    @checked
    def meter(
        self, profile: Profile, log: Path, supply_mv: float, ask: Callable[[], None]
    ) -> Profile:
        """Return `profile` with powers from a power meter's log instead of those in board.toml.

        This method holds the board in each of its power states while the meter records. It then
        calls `ask`, which asks the user to save the recording as the file `log`, and waits for that
        file. Raises BadInput if the recording does not show the states.
        """
        states = hold_states(self.device)
        ask()
        wait_for(log)
        power = powers(*read_log(log), states, supply_mv)
        # The log does not show what the idle card draws.
        power = replace(power, idle_card_uw=profile.power.idle_card_uw)
        return replace(profile, power=power, metered=True)

    @checked
    def validate(
        self, graph: Graph, profile: Profile, progress: Progress | None = None
    ) -> tuple[Profile, Validation]:
        """Run two schedules of `graph`: one calibrates the profile, one checks the new profile.

        Some costs can be measured only while a schedule runs: the first run adds these costs to the
        profile. The second run compares the new profile's prediction with the measured times.

        The card must hold no weights, and is empty afterwards. Without a card, this is the chip's
        flash. Raises BadInput if it holds weights, or if no schedule that fits the board is found
        within VALIDATION_LIMIT_S; BoardError if the store on it is damaged.
        """
        info = storage_info(self.device)  # refuses what `format` below must not erase
        if info.committed_step != NOTHING_COMMITTED and info.committed_model:
            place = "card" if profile.storage else "flash"
            raise BadInput(
                f"the board's {place} holds weights, which a schedule would replace: use another "
                f"{place if profile.storage else 'board'}, or erase the {place} with `poet-host "
                "profile --erase-card`"
            )
        arena_bytes = int(info.arena_bytes)
        plan = _fitting(graph, profile, arena_bytes)
        tight = _fitting(graph, profile, int(VALIDATION_RAM * (plan.peak_bytes or 0)), plan)

        def seen(plan: Plan) -> Observed:
            schedule = encode(graph, plan)
            data = fit(Dataset("example", *example(graph)), schedule.graph)
            training = Training(self.device, schedule, data, commit_every=NEVER)
            return observe(training, progress)

        with restoring(self.device, self.device.format):
            better = calibrated(profile, graph, seen(tight))
            costs = problem(graph, better, ram=plan.ram_bytes, streaming=False).graph
            if plan.problem and plan.problem.streaming:  # its nests have new prices, too
                plan = _fitting(graph, better, arena_bytes)
                costs = plan.problem.graph if plan.problem else costs
            return better, validation(graph, better, costs, plan, seen(plan))

    def close(self) -> None:
        self._stack.close()

    def __exit__(self, *raised: Any) -> None:
        error, ended = raised[1], None
        if isinstance(self.running, SimulatedBoard) and isinstance(error, LinkBroken | NoDevice):
            ended = self.running.wait(ENDING_S)
        self._stack.__exit__(*raised)
        if ended:
            raise LinkBroken(f"the simulated board {self.board.name} stopped: {ended}") from error


class Card(Closing):
    """An open card image, or device of a card, as a context manager; it needs no board.

    `write_card` and `read_card` accept it in place of a Connection. `device` has the methods of
    Device that cards need. `board`: the board whose facts stand for those of an unknown board.
    """

    def __init__(self, device: CardDevice) -> None:
        self.device = device
        self.board = load_board("native")
        self.written: tuple[int, int] | None = None  # as of a Connection: nothing

    def __repr__(self) -> str:
        return f"<Card {self.device.path}>"

    def close(self) -> None:
        self.device.close()


def open_card(path: str | Path, *, writable: bool = False, named: Path | None = None) -> Card:
    """Open a card image, or the device of a card. No board can use it until it is closed.

    Messages call it `named` (None: `path`).

    If `writable` is True, `write_card` may change it: an error then leaves it half written. Raises
    BadInput if the file has no poet partition, PoetError if a board uses it.
    """
    return Card(CardDevice(path, writable=writable, named=named))


def connect(
    port: str | Path,
    *,
    storage: Path | str | None = None,
    arena_bytes: int | str | None = None,
    card: bool = True,
) -> Connection:
    """Open the board at `port`, and start it if it runs on this computer.

    `port`: a serial device such as /dev/ttyACM0, a pyserial URL, or `auto`. `native` and ports such
    as `sim:mkr1000` start a board on this computer; `sim:mkr1000:usb` connects by USB, not by UART.

    If this call starts a board, `storage` is the image file of the board's card (None: a temporary
    file), and closing the connection stops the board. `arena_bytes` is the RAM for tensors of a
    native board, such as 65536 or "64KiB". If `card` is False, a simulated chip has no card:
    `storage` is then the file of its flash, which need not exist.

    Issues a PoetWarning if a power cut may damage the committed weights on the board's card, if the
    board was last reset by a fault, its watchdog or its supply, and if QEMU emulates the board.
    """
    port = str(port)
    starts = runs_here(port)
    board = port.removeprefix("sim:")
    if storage is not None and not starts:
        raise BadInput(
            f"port {port}: only a board that runs on this computer can use a card image: omit "
            "`storage`"
        )
    with ExitStack() as stack:
        running = None
        if starts:
            if storage is not None and card:
                check_table(storage)
            running = stack.enter_context(
                start_board(
                    board.removesuffix(USB),
                    storage,
                    arena_bytes,
                    usb=board.endswith(USB),
                    card=card,
                )
            )
            port = running.port
        elif arena_bytes is not None:
            raise BadInput(
                f"port {port}: only the port `native` accepts an arena size: omit `arena_bytes`"
            )
        device = stack.enter_context(devices.connect(port))
        health = device.health()
        reset = reset_text(health) if is_unwanted(health) else ""
        for text in filter(None, (reset, allocation_notice(device))):
            warnings.warn(text, PoetWarning, stacklevel=3)  # the line that calls connect
        connection = Connection(device, stack.pop_all(), running)
    warn_of_emulation(connection)
    return connection


def warn_of_emulation(connection: Connection) -> None:
    """Warn that QEMU emulates the board, so that its times differ from those of a real board."""
    if connection.is_emulated:
        warnings.warn(
            f"QEMU emulates {connection.board.name} on this computer: its results are exact, but "
            "its times are not those of the board",
            PoetWarning,
            stacklevel=4,  # the line that calls connect
        )


def runs_here(port: str) -> bool:
    """Return True if `connect` starts a board on this computer for this `port`."""
    return port == "native" or port.startswith("sim:")


def ports_here() -> list[str]:
    """Return the ports at which `connect` starts a board on this computer."""
    chips = [f"sim:{name}" for name in simulated_boards()]
    linux = [f"sim:{name}" for name in linux_boards()]
    return ["native", *chips, *linux, *(f"{chip}{USB}" for chip in chips)]


def arena_for(schedule: Schedule, port: str | None, storage: Path | None = None) -> int | None:
    """Return how many bytes of RAM a native board needs to run a schedule.

    If `storage` is an existing card image whose plan needs more RAM, returns the bytes for that
    plan. Returns None if the board is not native, because the RAM of other boards is fixed.
    """
    if port not in (None, "native"):
        return None
    needed: int = schedule.meta["plan"]["ram_bytes"]
    if storage is None or not storage.is_file():
        return needed
    with connect("native", storage=storage) as connection:
        return max(needed, arena_of_card(connection.device))


def _fitting(graph: Graph, profile: Profile, ram_bytes: int, otherwise: Plan | None = None) -> Plan:
    """Return the keep-everything plan if it fits the RAM budget.

    Otherwise, return the best plan that is found within VALIDATION_LIMIT_S. Its operators stream
    only if the budget is too small for one of them. If no plan is found, return `otherwise`, or
    raise BadInput if that is None.
    """
    wanted = problem(graph, profile, ram=ram_bytes, storage=profile.storage)
    # One search, in which nothing stays: any plan can calibrate a profile
    wanted = replace(wanted, graph=without_staying(wanted.graph), streamable=None)
    keep = wanted.keep_everything
    if keep and (keep.peak_bytes or 0) <= ram_bytes:
        return replace(keep, ram_bytes=ram_bytes)
    plan = solve(wanted, time_limit_s=VALIDATION_LIMIT_S, gap=0.5)
    if plan.statements:
        return plan
    if otherwise is None:
        raise BadInput(
            f"no schedule of {graph.name} for the {ram_bytes:,} bytes of RAM of the board was "
            f"found within {VALIDATION_LIMIT_S:.0f} s: use a smaller model"
        )
    return otherwise

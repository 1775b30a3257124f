"""The verbs of the command line as Python functions; `import poet_host as poet`.

graph = poet.load("resnet-digits")
with poet.connect("native") as board:
    profile = board.profile(graph)
    plan = poet.solve(graph, profile, ram="24KiB", deadline="1.2x")
    schedule = poet.encode(graph, profile, plan)
    run = poet.train(schedule, board, "digits", epochs=1)
poet.save_weights("trained.safetensors", graph, run.weights)
"""

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from .device import device as devices
from .device.board import Board, load_board
from .device.board import names as board_names
from .device.device import NOTHING_COMMITTED, Device
from .device.ports import is_there
from .errors import (
    BadInput,
    BoardError,
    Infeasible,
    LinkBroken,
    NoDevice,
    OutOfTime,
    PoetError,
    PoetWarning,
)
from .graph.graph import Graph
from .graph.models import MODELS
from .graph.models import load as load_model
from .graph.onnx_export import export as export_model
from .graph.onnx_import import load as load_onnx
from .graph.onnx_import import training as train_onnx
from .graph.onnx_torch import export_module, is_module
from .graph.returning import notice
from .graph.weights import start_values
from .plan.baselines.registry import METHODS, plan_by
from .plan.build import cost_graph
from .plan.costgraph import dump_cost_graph, load_cost_graph
from .plan.infeasible import why_infeasible
from .plan.keepall import METHOD as KEEP_EVERYTHING
from .plan.keepall import keep_everything
from .plan.plan import Plan
from .plan.problem import CostGraph, Problem
from .plan.solve import DEFAULT_GAP
from .profile.measure import measure
from .profile.meter import hold_states, powers, read_log, wait_for
from .profile.profile import Profile
from .profile.profile import estimate_profile as estimated
from .run.calibrate import Told, Validation, calibrated, observe, validation
from .run.card import check_replaceable, read_weights, resumed
from .run.classes import NO_NAMES
from .run.data import Dataset, check_seed, example, fit, load_data, named_by, steps_per_epoch
from .run.evaluate import Evaluation, Half, accuracy
from .run.evaluate import Told as Counted
from .run.evaluate import evaluate as evaluate_on
from .run.inputs import Data, as_dataset, as_profile, as_schedule, as_weights, checked
from .run.job import JobState, check_room, make_job, read_job, write_job
from .run.limits import deadline_us, ram_budget
from .run.run import Run, Weights
from .run.train import OnStep, Training, take_up
from .run.train import load as load_schedule
from .run.train import train as train_until
from .run.weights import (
    SavedWeights,
    classes_of_weights,
    load_weights,
    save_weights,
    step_of_weights,
)
from .schedule.encode import QUEUE_CAPACITY, encode_costs
from .schedule.encode import encode as encode_plan
from .schedule.recover import graph_of
from .schedule.schedule import Schedule
from .sim.board import SimulatedBoard
from .sim.flashing import flash
from .sim.native import NativeBoard
from .sim.start import prepare_storage, start_board

__all__ = [
    "MODELS", "BadInput", "BoardError", "Connection", "CostGraph", "Dataset", "Evaluation", "Graph",
    "Infeasible", "JobState", "LinkBroken", "NoDevice", "OutOfTime", "Plan", "PoetError",
    "PoetWarning", "Profile", "Run", "Schedule", "accuracy", "board_names", "connect", "costs_of",
    "encode", "estimate_profile", "evaluate", "export", "flash", "keep_everything", "load",
    "load_board", "load_data", "load_weights", "prepare_storage", "read_card", "save_weights",
    "solve", "start_board", "step_of_weights", "train", "write_card",
]  # fmt: skip

ALL_METHODS: tuple[str, ...] = (*METHODS, KEEP_EVERYTHING)
VALIDATION_RAM = 0.8  # of what a schedule takes, for the one to learn from: it pages more
VALIDATION_LIMIT_S = 10.0  # for solving each of the two
Costs = Profile | Board | str | Path
"""What run.inputs.as_profile takes."""
ENDING_S = 2.0  # of a simulated board's process, whose port goes first
USB = ":usb"  # behind the port of a simulated board


class Connection:
    """An open board: `device` speaks to it, `board` has its facts. A context manager."""

    def __init__(
        self,
        device: Device,
        stack: ExitStack,
        running: NativeBoard | SimulatedBoard | None = None,
    ) -> None:
        self.device = device
        self.board = load_board(device.info.board)
        self.running = running
        self.written: tuple[int, int] | None = None  # a model's CRC and a step, from a Run
        self._stack = stack

    @property
    def is_emulated(self) -> bool:
        """Does QEMU run the board's program, so that its times mean nothing?"""
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
        """Measure the operators of `graph`, and the storage; added to the profile `before`."""
        x, y = example(graph)
        values = {**start_values(graph, seed=0), graph.data: x, graph.label: y}
        found = measure(self.device, self.board, graph, values, progress)
        return found if before is None else before.merged(found)

    @checked
    def meter(
        self, profile: Profile, log: Path, supply_mv: float, ask: Callable[[], None]
    ) -> Profile:
        """The profile with powers from a meter's log in place of board.toml's.

        Holds the board in each of its states while the meter records; then `ask` tells the
        user to save the recording as `log`, which is waited for. Raises BadInput if it does not
        show the states.
        """
        states = hold_states(self.device)
        ask()
        wait_for(log)
        return replace(profile, power=powers(*read_log(log), states, supply_mv), metered=True)

    @checked
    def validate(
        self, graph: Graph, profile: Profile, told: Told | None = None
    ) -> tuple[Profile, Validation]:
        """Run two schedules of `graph`. From the first the profile learns what only schedules
        show; what it then predicts of the second is compared with the board's own measurement.

        The card must hold no weights, and is empty afterwards. Raises BadInput if it holds some,
        or if no schedule that fits the board is found within seconds.
        """
        info = self.device.hello()
        if info.committed_step != NOTHING_COMMITTED and info.committed_model:
            raise BadInput(
                "the board's card holds weights, which a schedule would replace: use another card, "
                "or erase it with `poet-host train --erase-card`"
            )
        data = Dataset("example", *example(graph))
        plan = _fitting(graph, profile, int(info.arena_bytes))
        if plan is None:
            raise BadInput(
                f"no schedule of {graph.name} was found within {info.arena_bytes:,} bytes in "
                f"{VALIDATION_LIMIT_S:.0f} s"
            )
        tight = _fitting(graph, profile, int(VALIDATION_RAM * (plan.peak_bytes or 0))) or plan
        seen = []
        try:
            for one in (tight, plan):
                schedule = encode(graph, profile, one)
                training = Training(self.device, self.board, schedule, data)
                seen.append(observe(training, told))
        finally:
            self.device.format()
        better = calibrated(profile, graph, seen[0])
        return better, validation(graph, better, cost_graph(graph, better), plan, seen[1])

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ended = None
        if isinstance(self.running, SimulatedBoard) and isinstance(error, LinkBroken | NoDevice):
            ended = self.running.wait(ENDING_S)
        self.close()
        if ended:
            raise LinkBroken(f"the simulated {self.board.name} stopped: {ended}") from error


def load(
    model: Any,
    example: Any = None,
    *,
    batch: int | None = None,
    sequence_length: int | None = None,
    loss: str | None = None,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    train: str | None = None,
    batchnorm: str | None = None,
) -> Graph | CostGraph:
    """A built-in model (see MODELS; options as graph.models.load), the path of an .onnx file, a
    torch.nn.Module with an `example` of its input (options as graph.onnx_import.load), or a cost
    graph's file. `lr` is `learning_rate`.

    Warns with PoetWarning of weights that do not return to the module.
    """
    if lr is not None and learning_rate is not None:
        raise BadInput("lr is learning_rate: give one of them")
    options = {
        "batch": batch, "sequence_length": sequence_length, "loss": loss, "optimizer": optimizer,
        "learning_rate": learning_rate if lr is None else lr, "momentum": momentum,
        "weight_decay": weight_decay, "train": train, "batchnorm": batchnorm,
    }  # fmt: skip
    if not is_module(model) and not isinstance(model, str | Path):
        raise BadInput(
            "poet.load takes a built-in model's name, the path of an .onnx or .json file, or a "
            f"torch.nn.Module with an example, not {type(model).__name__}"
        )
    if str(model).endswith(".json"):
        given = [name for name, value in options.items() if value is not None]
        if given:
            raise BadInput(
                f"{model} is a graph of costs: {given[0]} is for built-in models and .onnx"
            )
        return load_cost_graph(model)
    graph = load_graph(model, example, **options)
    _warn(graph)
    return graph


def _warn(graph: Graph) -> None:
    """Warn of weights that do not return to the module, at the line that calls poet's verb."""
    if text := notice(graph):
        warnings.warn(text, PoetWarning, stacklevel=4)


def export(graph: Graph, weights: Weights | str | Path) -> bytes:
    """The bytes of an .onnx file with trained weights: see graph.onnx_export.export.

    Warns as `load` does.
    """
    _warn(graph)
    return export_model(graph, as_weights(weights, graph))


def load_graph(model: Any, example: Any = None, **options: Any) -> Graph:
    """The training graph of a model; raises BadInput that lists those that are built in."""
    given = {name: value for name, value in options.items() if value is not None}
    if is_module(model):
        return train_onnx(export_module(model, example), type(model).__name__, **given)
    if example is not None:
        raise BadInput(f"model {model}: an example of the input goes with a torch.nn.Module only")
    if str(model).lower().endswith(".onnx"):
        return load_onnx(model, **given)
    if model not in MODELS:
        raise BadInput(
            f"there is no model {str(model)!r}: built in are {', '.join(MODELS)}; a model of your "
            "own ends in .onnx, a file of costs to solve for in .json"
        )
    if "loss" in given:
        raise BadInput(f"model {model} is built in and has its own: --loss is for .onnx")
    return load_model(str(model), **given)


def estimate_profile(
    board: Board | str, kind: Literal["estimate", "paper"] = "estimate"
) -> Profile:
    """Costs from a board's facts, without measuring: see profile.profile.estimate_profile."""
    return estimated(load_board(board) if isinstance(board, str) else board, kind)


def connect(
    port: str | Path,
    *,
    storage: Path | str | None = None,
    arena_bytes: int | str | None = None,
) -> Connection:
    """Open a board: a device, a pyserial URL, `auto`, or `native` and `sim:mkr1000` and their
    like, which start one here; `sim:mkr1000:usb` is plugged in by USB, not by UART.

    `storage` is the card file of a board that is started (None: a temporary one),
    `arena_bytes` the native board's RAM, as 65536 or "64KiB". Closing the connection ends what
    this call started.
    """
    port = str(port)
    starts = port == "native" or port.startswith("sim:")
    board = port.removeprefix("sim:")
    if storage is not None and not starts:
        raise BadInput(f"port {port}: a storage file is for boards that run here, as `native`")
    with ExitStack() as stack:
        running = None
        if starts:
            running = stack.enter_context(
                start_board(board.removesuffix(USB), storage, arena_bytes, usb=board.endswith(USB))
            )
            port = running.port
        elif arena_bytes is not None:
            raise BadInput(f"port {port}: an arena size is for --port native")
        elif not is_there(port) and (near := get_close_matches(port, ("native", "auto"), 1)):
            raise NoDevice(f"there is no port {port}: did you mean {near[0]}?")
        device = stack.enter_context(devices.connect(port))
        return Connection(device, stack.pop_all(), running)


def costs_of(graph: Graph | CostGraph, profile: Costs | None) -> CostGraph:
    """What a planner sees of a graph. `profile` is not needed for a graph of costs."""
    if isinstance(graph, CostGraph):
        return graph
    if profile is None:
        raise BadInput(f"{graph.name}: its costs need a profile")
    return cost_graph(graph, as_profile(profile))


def solve(
    graph: Graph | CostGraph,
    profile: Costs | None = None,
    *,
    ram: str | float | None = None,
    deadline: str | float | None = None,
    method: str = "poet",
    time_limit_s: float = 60.0,
    gap: float | None = None,
    placed: bool = True,
    progress: Callable[..., object] | None = None,
) -> Plan:
    """The plan of least energy that fits `ram` and `deadline`, or what another method plans.

    `profile`: what was measured, a file of it, or a board's name for its estimate.
    `ram`: bytes, or as "24KiB" or "50%" of what keep-everything needs; None: the arena of the
    profile's board. It may exceed that arena, for studies. `deadline`: "1.2x" of keep-everything's
    time, milliseconds, or None. `gap`: relative distance from the bound at which to stop; None:
    DEFAULT_GAP. The status of the plan says whether there is one; `encode` raises if there is none.
    """
    if not (isfinite(time_limit_s) and time_limit_s > 0):
        raise BadInput(f"a time limit of {time_limit_s} s: give a positive number")
    gap = DEFAULT_GAP if gap is None else gap
    if not 0 <= gap <= 1:
        raise BadInput(f"a gap of {gap}: give a number from 0 to 1")
    known = None if profile is None else as_profile(profile)
    costs = costs_of(graph, known)
    keep = keeping(costs)
    problem = Problem(
        costs,
        ram_budget(ram, graph, known, keep.peak_bytes if keep else None),
        deadline_us(deadline, keep.time_us if keep else None),
    )
    if method == KEEP_EVERYTHING:
        return _within(keep_everything(costs), problem)
    return plan_by(
        method,
        problem,
        time_limit_s=time_limit_s,
        gap=gap,
        placed=placed,
        progress=progress,
    )


def _fitting(graph: Graph, profile: Profile, ram: int) -> Plan | None:
    """A plan within `ram` bytes, keep-everything if that fits, else what is found soon."""
    keep = keeping(cost_graph(graph, profile))
    if keep and (keep.peak_bytes or 0) <= ram:
        return replace(keep, ram_bytes=ram)
    plan = solve(graph, profile, ram=ram, time_limit_s=VALIDATION_LIMIT_S, gap=0.5)
    return plan if plan.statements else None


def keeping(costs: CostGraph) -> Plan | None:
    """Keep-everything's plan, what `%` and `x` refer to; None for a graph that has none."""
    try:
        return keep_everything(costs)
    except BadInput:
        return None


def _within(keep: Plan, problem: Problem) -> Plan:
    """Keep-everything as a method: the one plan that it has, or none."""
    assert keep.peak_bytes is not None
    assert keep.time_us is not None
    plan = replace(keep, ram_bytes=problem.ram_bytes, deadline_us=problem.deadline_us)
    late = problem.deadline_us is not None and keep.time_us > problem.deadline_us * (1 + 1e-9)
    if keep.peak_bytes <= problem.ram_bytes and not late:
        return plan
    return replace(
        plan,
        status="infeasible",
        statements=(),
        energy_uj=None,
        time_us=None,
        total_energy_uj=None,
        peak_bytes=None,
        smallest_ram_bytes=keep.peak_bytes if keep.peak_bytes > problem.ram_bytes else None,
        smallest_deadline_us=keep.time_us if late else None,
    )


def why_no_plan(graph: Graph | CostGraph, profile: Profile | None, plan: Plan) -> str:
    """The limit that no plan keeps, the smallest one that works, and the operator that sets it."""
    kernels = {node.name: node.op for node in graph} if isinstance(graph, Graph) else {}
    return why_infeasible(plan, costs_of(graph, profile), lambda name: kernels.get(name, ""))


def encode(
    graph: Graph | CostGraph,
    profile: Costs | None,
    plan: Plan,
    about: Mapping[str, Any] | None = None,
) -> Schedule:
    """The schedule of a plan, with the costs that it was solved for in its meta part.

    Raises Infeasible or OutOfTime if the plan has no statements.
    """
    known = None if profile is None else as_profile(profile)
    if plan.status == "infeasible":
        raise Infeasible(why_no_plan(graph, known, plan), plan.smallest_ram_bytes)
    if plan.status == "unknown":
        raise OutOfTime("no plan was found in time, and none was proved impossible")
    costs = costs_of(graph, known)
    keep = keeping(costs)
    meta = {
        "board": known.board if known else None,
        "keep_everything": keep
        and {
            "peak_bytes": keep.peak_bytes,
            "time_us": keep.time_us,
            "energy_uj": keep.energy_uj,
        },
        "commit": known and {"time_us": known.commit_us, "energy_uj": known.commit_uj},
        "costs": dump_cost_graph(costs),
        **(about or {}),
    }
    if isinstance(graph, CostGraph):
        return encode_costs(graph, plan, meta)
    queue_capacity = known.transfer_queue if known else QUEUE_CAPACITY
    return encode_plan(graph, plan, meta, queue_capacity)


def train(
    schedule: Schedule | str | Path,
    connection: Connection,
    data: Data,
    *,
    epochs: int = 1,
    steps: int | None = None,
    seed: int = 0,
    weights: Weights | str | Path | None = None,
    first_step: int = 0,
    resume: bool = False,
    erase_card: bool = False,
    before_moving: Callable[[Weights, int], None] | None = None,
    on_step: OnStep | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Run:
    """Train on a board for `epochs` epochs or until step `steps`; for the rest see start_training.

    `on_step` is called after every step; when `stopped()` is true after a step, the run ends there.
    Raises Diverged if the loss or a parameter is not finite, LinkBroken if the board is gone.
    """
    schedule = as_schedule(schedule)
    dataset = _fitting_data(data, graph_of(schedule))
    last = last_step(dataset, schedule, epochs, steps)
    training = start_training(
        schedule, connection, dataset,
        seed=seed, weights=weights, first_step=first_step, resume=resume, erase_card=erase_card,
        before_moving=before_moving,
    )  # fmt: skip
    try:
        return train_until(training, last, on_step, stopped)
    finally:
        connection.written = (schedule.model.crc, training.committed)


def start_training(
    schedule: Schedule | str | Path,
    connection: Connection,
    data: Data,
    *,
    seed: int = 0,
    weights: Weights | str | Path | None = None,
    first_step: int = 0,
    resume: bool = False,
    erase_card: bool = False,
    before_moving: Callable[[Weights, int], None] | None = None,
) -> Training:
    """Bring schedule and starting weights to a board; see Training.

    `schedule` may be a .poet file, `weights` a .safetensors file; `data`: see run.inputs. Raises
    BadInput if the card holds weights that this would lose, unless `erase_card`.
    """
    check_seed(seed)
    schedule = as_schedule(schedule)
    graph = graph_of(schedule)
    dataset = _fitting_data(data, graph)
    given = None if weights is None else as_weights(weights, graph)
    if erase_card:
        connection.device.format()
    check_card(connection, schedule, resume=resume, goes_on=first_step > 0)
    return Training(
        connection.device,
        connection.board,
        schedule,
        dataset,
        seed=seed,
        weights=given,
        first_step=first_step,
        resume=resume,
        classes=classes_of_weights(given),
        before_moving=before_moving,
    )


def check_card(
    connection: Connection, schedule: Schedule, *, resume: bool = False, goes_on: bool = False
) -> None:
    """Raise BadInput if training would lose weights that the card holds.

    Not lost are those that it begins with (`resume`), and those that this connection has trained,
    which its caller has. Where it `goes_on` from a file, weights of the same model are replaced.
    """
    if not resume:
        check_replaceable(connection.device, schedule, connection.written, goes_on)


def _fitting_data(data: Data, graph: Graph) -> Dataset:
    return fit(as_dataset(data), graph)


def last_step(dataset: Dataset, schedule: Schedule, epochs: int, steps: int | None) -> int:
    """The step at which training for `epochs` epochs or until step `steps` ends."""
    count, what = (epochs, "epochs") if steps is None else (steps, "steps")
    if not isinstance(count, int) or count < 1:
        raise BadInput(f"{count!r} {what}: give a whole number from 1")
    return epochs * steps_per_epoch(dataset, graph_of(schedule).batch) if steps is None else steps


def evaluate(
    schedule: Schedule | str | Path,
    connection: Connection,
    data: Data,
    *,
    weights: Weights | str | Path | None = None,
    half: Half | None = None,
    samples: int | None = None,
    told: Counted | None = None,
) -> Evaluation:
    """Loss and accuracy, computed on the board, of `weights` or of those that it has committed.

    Of the samples held out, or of the training samples where none are or `half` says so; of the
    first `samples` of them. Changes nothing that is committed.
    """
    schedule = as_schedule(schedule)
    graph = graph_of(schedule)
    dataset = as_dataset(data)
    classes = NO_NAMES
    if weights is None:
        found = resumed(connection.device, schedule)
        weights, classes = found.weights or read_weights(connection.device, schedule), found.classes
    given = as_weights(weights, graph)
    dataset = fit(named_by(dataset, classes or classes_of_weights(given), graph), graph)
    return evaluate_on(
        connection.device, connection.board, graph, given, dataset, half, samples, told
    )


def write_card(
    schedule: Schedule | str | Path,
    connection: Connection,
    data: Data,
    *,
    epochs: int = 1,
    steps: int | None = None,
    seed: int = 0,
    weights: Weights | str | Path | None = None,
    first_step: int = 0,
    resume: bool = False,
    erase_card: bool = False,
    told: Counted | None = None,
) -> JobState:
    """Put on a board's card what it needs to train alone until step `steps`, or for `epochs`
    epochs: schedule, starting weights and data. The other options are as train's.

    The board begins when it is switched on and no host speaks to it. Raises BadInput if the data
    does not fit, nothing is left to train, or the card holds weights that this would lose (unless
    `erase_card`).
    """
    check_seed(seed)
    schedule = as_schedule(schedule)
    graph, device = graph_of(schedule), connection.device
    dataset = _fitting_data(data, graph)
    last = last_step(dataset, schedule, epochs, steps)
    given = None if weights is None else as_weights(weights, graph)
    first, names = first_step, classes_of_weights(given)
    if resume:
        found = resumed(device, schedule)
        first, names = found.step, found.classes
    if first >= last:
        raise BadInput(f"nothing is left to train: step {first} is done, {last} is the last one")
    dataset = fit(named_by(dataset, names, graph if resume else None), graph)
    job = make_job(schedule, dataset, seed, first, last - first)
    if erase_card:
        device.format()
    check_card(connection, schedule, resume=resume, goes_on=first > 0)
    if not resume:
        load_schedule(device, schedule)
        check_room(device, job)
    take_up(device, schedule, dataset, seed, given, first, resume, names)
    check_room(device, job)
    write_job(device, job, told)
    state = read_job(device)
    assert state is not None
    return replace(state, classes=dataset.classes)


def read_card(
    schedule: Schedule | str | Path, connection: Connection
) -> tuple[JobState | None, Weights]:
    """How far a board has come alone, with the losses of its steps, and its weights."""
    schedule = as_schedule(schedule)
    found = resumed(connection.device, schedule)
    if found.weights is not None:
        return None, found.weights
    weights = read_weights(connection.device, schedule)
    return read_job(connection.device), SavedWeights(weights, found.classes)

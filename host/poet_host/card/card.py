"""Read the weights that a card has committed, and check whether training may replace them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import isa
from ..data.facts import NO_FACTS, DataFacts
from ..device.answers import board_error
from ..device.device import NOTHING_COMMITTED, PLAN, TENSOR, Device
from ..errors import BadInput, BoardError, quoted
from ..graph.graph import Graph, Node
from ..graph.weights import Array, Weights, constant_values, constants_of, weight_nodes
from ..schedule.model import BLOCK, Model, read_model
from ..schedule.schedule import Schedule
from ..schedule.slots import UNIT_BLOCKS
from .card_device import AnyCard
from .card_file import other_format
from .job import read_job
from .note import Note, newest_note
from .parts import own_schedule, parts_on
from .weights import SavedWeights

_MODEL_BYTES = isa.record_size("poet_model")
UNIT_MIB = UNIT_BLOCKS * BLOCK >> 20  # slots and commit records lie at least this far apart


@dataclass(frozen=True)
class Held:
    """The step, the model and the note of the weights that a card has committed."""

    step: int
    model_crc: int
    note: Note | None

    @property
    def facts(self) -> DataFacts:
        return self.note.facts if self.note else NO_FACTS

    def described(self, graph: Graph) -> str:
        if self.note is None:
            return "another model"
        if self.note.model != graph.name:
            return quoted(self.note.model)
        if _same_weights(self, graph):
            return f"{quoted(graph.name)} that another schedule trained"
        return f"{quoted(graph.name)} with other parameters or another optimiser"


@dataclass(frozen=True)
class Resumed:
    """The state from which training continues."""

    step: int
    facts: DataFacts
    # The card's weights if they must be written again in the schedule's layout, otherwise None.
    weights: SavedWeights | None = None


def storage_info(device: AnyCard) -> Any:
    """Return the board's answer to HELLO. Raises an error if the storage cannot be used."""
    info: Any = device.hello()
    if info.storage_status == isa.by_name("ERROR")["storage_version"].code:
        raise other_format(info.storage_version, "the card of the board")
    error = board_error(info.storage_status, 0, "to use its card")
    # Without a card, a chip's own flash has blocks. It takes a schedule without storage.
    if not info.storage_status or (error.name == "no_storage" and info.storage_blocks):
        return info
    if error.name == "foreign_storage" and info.storage_blocks:
        raise BoardError(
            "the card's poet partition is empty, or its first block is damaged: look for weights "
            "on it with `poet-host card check`, or erase the card with --erase-card",
            error.name,
        )
    raise error


def allocation_notice(device: Device) -> str:
    """Return a warning if the card's allocation unit is too large for the format, or ""."""
    mib = int(device.info.allocation_mib)  # 0: unknown
    if mib <= UNIT_MIB:
        return ""
    return (
        "a power cut may damage the committed weights on this card, because its allocation unit "
        f"({mib} MiB) is larger than {UNIT_MIB} MiB: use another card, such as an SDHC card (up to "
        "32 GB)"
    )


def has_weights(info: Any) -> bool:
    """Return whether a board that answers HELLO with `info` has committed weights."""
    return bool(info.committed_step != NOTHING_COMMITTED and info.committed_model)


def held(device: AnyCard) -> Held | None:
    """Return step, model and note of the card's committed weights, or None without weights."""
    info = storage_info(device)
    if not has_weights(info):
        return None
    model_crc = int(info.committed_model)
    return Held(int(info.committed_step), model_crc, newest_note(device, model_crc))


def check_replaceable(
    device: AnyCard, schedule: Schedule, written: tuple[int, int] | None = None, first_step: int = 0
) -> int | None:
    """Raise BadInput if training would delete weights or a job that the user may still need.

    The user may need weights that were trained for one step or more, weights of another model, and
    an unfinished job. `written`: (model CRC, step) of weights that may be deleted, because the
    caller has a copy of them. If `first_step` is above 0, training continues after this step from
    weights in a file. Then weights of the same model may be replaced, and the step of the card's
    weights is returned. Otherwise None is returned.
    """
    found = held(device)
    if found is None or (found.model_crc, found.step) == written:
        return None
    is_same = found.model_crc == schedule.model.crc
    graph = schedule.graph
    if not is_same and not _same_weights(found, graph):
        raise BadInput(
            f"the card holds weights of {found.described(graph)}, trained for {found.step} "
            "steps: continue with --resume and the schedule that trained them, or delete them with "
            "--erase-card"
        )
    if first_step:
        return found.step
    if found.step or not is_same:
        raise BadInput(
            f"the card holds weights of this model that were trained for {found.step} steps: "
            "continue from them with --resume, or delete them with --erase-card"
        )
    with own_schedule(device, schedule):
        job = read_job(device)
    if job and job.committed < job.last:
        raise BadInput(
            f"the card holds an unfinished job, which trains without a host until step {job.last}: "
            "continue the job with --resume, or delete it with --erase-card"
        )
    return None


def arena_of_card(device: AnyCard) -> int:
    """Return the bytes of RAM that the card's plan needs, or 0 without a card or weights."""
    if device.hello().storage_status or held(device) is None:
        return 0
    size = isa.record_size("poet_plan_header")
    return int(isa.unpack("poet_plan_header", device.read(PLAN, 0, size))["arena_bytes"])


def read_weights(device: AnyCard, schedule: Schedule) -> dict[str, Array]:
    """Return all parameters and states of the last committed step, by node name."""
    nodes = weight_nodes(schedule.graph)
    return _read_weights(device, nodes, schedule.model, schedule.numbers)


def _read_weights(
    device: AnyCard, nodes: Iterable[Node], model: Model, numbers: Mapping[str, int]
) -> dict[str, Array]:
    """Read parameters and states. `model`: the loaded model. `numbers`: tensor numbers in it."""
    found = {}
    names = {number: name for name, number in numbers.items()}
    device.tensor_names = [names.get(i, f"{i:,}") for i in range(len(model.tensors))]
    for node in nodes:
        number = numbers[node.name]
        stored = device.read(TENSOR, number, node.size_bytes)
        values = np.frombuffer(model.tensors[number].row_major(stored), dtype="<f4")
        found[node.name] = values.reshape(node.shape)
    return found


def continued(device: AnyCard, schedule: Schedule) -> Held:
    """Return what the card holds. Raises BadInput if it has no weights of the same model."""
    found, graph = held(device), schedule.graph
    if found is None:
        raise BadInput(
            f"the card holds no trained weights of {graph.name}. Name the card that holds them, or "
            "continue from a file with --load-weights"
        )
    if found.model_crc != schedule.model.crc and not _same_weights(found, graph):
        raise BadInput(
            f"the card holds weights of {found.described(graph)}, but this schedule is for "
            f"{graph.name}. Use the schedule that trained the weights on the card, or another card"
        )
    return found


def resumed(device: AnyCard, schedule: Schedule, *, load: bool = True) -> Resumed:
    """Return the state from which training continues: that of the card's committed weights.

    If the weights have the layout of the schedule, the schedule is loaded, unless `load` is False.
    If the same model has another layout (for example, another batch size), it is recognised by the
    names and shapes of its parameters. Raises BadInput if the card holds no weights, or weights of
    another model.
    """
    if isinstance(device, Device):
        device.keep(if_possible=True)
    found = continued(device, schedule)
    weights: Weights | None = None
    if found.model_crc != schedule.model.crc:
        weights = _in_own_layout(device, found, schedule.graph)
    elif load:
        device.load(schedule.model_part, schedule.plan_part)
        if not _has_constants(device, schedule):
            weights = read_weights(device, schedule)
    # A load goes back to the step before if the card has not written all of the newest one.
    step, facts = int(device.hello().committed_step), found.facts
    return Resumed(step, facts, None if weights is None else SavedWeights(weights, facts))


def _same_weights(found: Held, graph: Graph) -> bool:
    if found.note is None:
        return False
    constants = {node.name for node in constants_of(graph)}  # may have another batch size
    wanted = {node.name: node.shape for node in weight_nodes(graph) if node.name not in constants}
    shapes = found.note.shapes
    return {name: it for name, it in shapes.items() if name not in constants} == wanted


def _has_constants(device: AnyCard, schedule: Schedule) -> bool:
    """Return whether the committed weights have the constants of the schedule, such as its loss."""
    numbers, tensors = schedule.numbers, schedule.model.tensors
    return all(
        device.holds(TENSOR, numbers[name], tensors[numbers[name]].in_order(value.tobytes()))
        for name, value in constant_values(schedule.graph).items()
    )


def _in_own_layout(device: AnyCard, found: Held, graph: Graph) -> Weights:
    """Read the card's weights with the model and plan on the card, which know their layout."""
    assert found.note is not None
    model_part, plan_part = parts_on(device)
    if isa.unpack("poet_model", model_part[:_MODEL_BYTES])["fingerprint"] != isa.fingerprint():
        raise BadInput(
            "another version of poet-host, with other operators, wrote the weights on the card. "
            "Save them from the card image or the card's device with `poet-host card export CARD "
            "weights.safetensors`, then continue with --resume and --load-weights "
            "weights.safetensors"
        )
    model = read_model(model_part, "the model on the card")
    if model.crc != found.model_crc:
        raise BadInput(
            "the weights and the model on the card do not belong together, because another "
            "schedule was loaded after training. Read the weights with `card read` and the "
            "schedule that trained them"
        )
    numbers = found.note.numbers
    sizes = [tensor.size_bytes for tensor in model.tensors]
    constants = constant_values(graph)
    nodes = [node for node in weight_nodes(graph) if node.name not in constants]
    if any(sizes[numbers[node.name] :][:1] != [node.size_bytes] for node in nodes):
        raise BadInput(
            "the note with the names of the card's weights does not fit its tensors: read the "
            "weights with `card read` and the schedule that trained them"
        )
    try:
        device.load(model_part, plan_part)
    except BoardError as error:
        if error.name != "arena_small":
            raise
        raise BadInput(
            f"the weights on the card were trained by a schedule that needs {error.detail:,} bytes "
            "of RAM, more than this board has. Read the weights with `card read` and that "
            "schedule, then continue with --load-weights, --resume and --erase-card"
        ) from error
    return {**constants, **_read_weights(device, nodes, model, numbers)}

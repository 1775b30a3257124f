"""Read and write the content of a card: the committed weights, their step, and the host's note.

A board identifies tensors by number. The host's note has the names and shapes of these tensors, and
the classes that the weights distinguish. The card's model area has two places for notes at its end
(FORMAT.md). So the note of the committed model stays until the next model is committed.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from .. import isa
from ..data.classes import NO_NAMES, Classes, classes_from_json
from ..device.device import MODEL, NOTHING_COMMITTED, PLAN, TENSOR, Device, board_error
from ..errors import BadInput, BoardError, quoted
from ..graph.graph import Graph
from ..graph.weights import weight_nodes
from ..schedule.model import part_size, read_model
from ..schedule.schedule import Schedule
from ..schema import Count, convert
from .job import read_job
from .run import Array, Weights
from .weights import SavedWeights

_C = isa.constants()
_PLACES = (_C["POET_NOTE_OFFSET"], _C["POET_NOTE_OFFSET"] + _C["POET_NOTE_BYTES"])
_MOST_BYTES = _C["POET_NOTE_BYTES"] - isa.record_size("poet_meta")
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Note:
    """What the host writes to a card about the model whose weights the card holds.

    The note with the highest `sequence` is the newest one.
    """

    model_crc: int
    model: str  # name of the model
    shapes: Shapes  # shapes of the model's parameters and states, by name
    numbers: Mapping[str, int]  # tensor numbers in the model, by name
    classes: Classes = NO_NAMES
    sequence: int = 0


@dataclass(frozen=True)
class _Row:
    """The JSON form of a note."""

    model_crc: Count
    model: str
    sequence: Count
    weights: tuple[tuple[str, tuple[Count, ...], Annotated[int, Meta(ge=0, lt=2**16)]], ...]
    classes: dict[str, Any] | None


@dataclass(frozen=True)
class Held:
    """The step, the model and the note of the weights that a card has committed."""

    step: int
    model_crc: int
    note: Note | None

    def described(self, graph: Graph) -> str:
        """Describe the card's model, for a message which says that it differs from `graph`."""
        if self.note is None:
            return "another model"
        if self.note.model != graph.name:
            return quoted(self.note.model)
        return f"{quoted(graph.name)} with other parameters or another optimiser"


@dataclass(frozen=True)
class Resumed:
    """The state from which training continues."""

    step: int
    classes: Classes
    # The card's weights if they must be written again in the schedule's layout, otherwise None.
    weights: SavedWeights | None = None


def storage_info(device: Device) -> Any:
    """Return the board's answer to HELLO. Raises BoardError if the storage cannot be used."""
    info = device.hello()
    if info.storage_status:
        raise board_error(info.storage_status, 0, "to use its card")
    return info


def held(device: Device) -> Held | None:
    """Return step, model and note of the card's committed weights, or None without weights."""
    info = storage_info(device)
    if info.committed_step == NOTHING_COMMITTED or not info.committed_model:
        return None
    notes = [note for note in (_read_note(device, place) for place in _PLACES) if note]
    mine = [note for note in notes if note.model_crc == info.committed_model]
    newest = max(mine, key=lambda note: note.sequence, default=None)
    return Held(int(info.committed_step), int(info.committed_model), newest)


def write_note(device: Device, schedule: Schedule, classes: Classes = NO_NAMES) -> None:
    """Write the note of a schedule's model. Afterwards, the board has no schedule loaded."""
    graph = schedule.graph
    before = [_read_note(device, place) for place in _PLACES]
    committed = int(device.hello().committed_model)
    # The committed model's newest note is never overwritten: it must survive a power cut.
    newest = max(range(2), key=lambda i: _rank(before[i], committed))
    sequence = 1 + max((note.sequence for note in before if note), default=0)
    numbers = {name: number for number, name in enumerate(schedule.names)}
    about = {
        "model_crc": schedule.model.crc,
        "model": graph.name,
        "sequence": sequence,
        "weights": [[node.name, node.shape, numbers[node.name]] for node in weight_nodes(graph)],
        "classes": classes.to_json(),
    }
    content = _packed(about)
    if len(content) > _MOST_BYTES and classes:
        content = _packed({**about, "classes": Classes(classes).to_json()})  # without examples
    if len(content) > _MOST_BYTES or len(schedule.model_part) > _PLACES[0]:
        if not classes:
            return  # without a note, the weights are recognised by the model's CRC
        raise BadInput(
            f"{graph.name}: the card has too little space for the names of {len(classes)} classes. "
            "Shorten the names, or use numbers as labels"
        )
    crc = zlib.crc32(content)
    record = isa.pack("poet_meta", magic=_C["POET_NOTE_MAGIC"], crc=crc, bytes=len(content))
    device.write(MODEL, 0, record + content, start=_PLACES[1 - newest])


def _packed(about: Mapping[str, Any]) -> bytes:
    return zlib.compress(json.dumps(about, separators=(",", ":")).encode())


def _rank(note: Note | None, committed: int) -> tuple[bool, int]:
    """Return the rank of a note. A new note replaces the note with the lower rank."""
    return (False, 0) if note is None else (note.model_crc == committed, note.sequence)


def _read_note(device: Device, place: int) -> Note | None:
    size = isa.record_size("poet_meta")
    record = isa.unpack("poet_meta", device.read(MODEL, 0, size, start=place))
    if record["magic"] != _C["POET_NOTE_MAGIC"] or record["bytes"] > _MOST_BYTES:
        return None
    content = device.read(MODEL, 0, record["bytes"], start=place + size)
    if zlib.crc32(content) != record["crc"]:
        return None
    try:
        about = json.loads(zlib.decompressobj().decompress(content, 2**24))
        row = convert(about, _Row, "a note")
        classes = classes_from_json(row.classes)
    except (ValueError, TypeError, KeyError, RecursionError, zlib.error, BadInput):
        return None  # not a valid note; training works without a note
    shapes = {name: shape for name, shape, _ in row.weights}
    numbers = {name: number for name, _, number in row.weights}
    return Note(row.model_crc, row.model, shapes, numbers, classes, row.sequence)


def check_replaceable(
    device: Device,
    schedule: Schedule,
    written: tuple[int, int] | None = None,
    first_step: int = 0,
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
    device.load(schedule.model_part, schedule.plan_part)
    job = read_job(device)
    if job and job.committed < job.last:
        raise BadInput(
            f"the card holds an unfinished job, which trains without a host until step {job.last}: "
            "continue the job with --resume, or delete it with --erase-card"
        )
    return None


def arena_of_card(device: Device) -> int:
    """Return the bytes of RAM that the card's plan needs, or 0 without a card or weights."""
    if device.hello().storage_status or held(device) is None:
        return 0
    size = isa.record_size("poet_plan_header")
    return int(isa.unpack("poet_plan_header", device.read(PLAN, 0, size))["arena_bytes"])


def read_weights(device: Device, schedule: Schedule) -> dict[str, Array]:
    """Return all parameters and states of the last committed step, by node name."""
    numbers = {name: number for number, name in enumerate(schedule.names)}
    return _read_weights(device, schedule.graph, numbers)


def _read_weights(device: Device, graph: Graph, numbers: Mapping[str, int]) -> dict[str, Array]:
    """Read parameters and states. `numbers`: tensor numbers in the model that the board loaded."""
    return {
        node.name: np.frombuffer(
            device.read(TENSOR, numbers[node.name], node.size_bytes), dtype="<f4"
        ).reshape(node.shape)
        for node in weight_nodes(graph)
    }


def nothing_held(graph: Graph) -> BadInput:
    return BadInput(
        f"the card holds no trained weights of {graph.name}. Name the card that holds them, or "
        "continue from a file with --load-weights"
    )


def resumed(device: Device, schedule: Schedule) -> Resumed:
    """Return the state from which training continues: that of the card's committed weights.

    If the weights have the layout of the schedule, the schedule is loaded. If the same model has
    another layout (for example, another batch size), it is recognised by the names and shapes of
    its parameters. Raises BadInput if the card holds no weights, or weights of another model.
    """
    found = held(device)
    graph = schedule.graph
    if found is None:
        raise nothing_held(graph)
    classes = found.note.classes if found.note else NO_NAMES
    if found.model_crc == schedule.model.crc:
        device.load(schedule.model_part, schedule.plan_part)
        return Resumed(found.step, classes)
    if not _same_weights(found, graph):
        raise BadInput(
            f"the card holds weights of {found.described(graph)}, but this schedule is for "
            f"{graph.name}. Use the schedule that trained the weights on the card, or another card"
        )
    return Resumed(found.step, classes, SavedWeights(_in_own_layout(device, found, graph), classes))


def _same_weights(found: Held, graph: Graph) -> bool:
    """Return True if the card holds exactly the parameters and states of the graph."""
    wanted = {node.name: node.shape for node in weight_nodes(graph)}
    return found.note is not None and found.note.shapes == wanted


def _in_own_layout(device: Device, found: Held, graph: Graph) -> Weights:
    """Read the card's weights with the model and plan on the card, which know their layout."""
    assert found.note is not None
    model_part, plan_part = _parts(device)
    model = read_model(model_part, "the model on the card")
    if model.crc != found.model_crc:
        raise BadInput(
            "the weights and the model on the card do not belong together, because another "
            "schedule was loaded after training. Read the weights with `card read` and the "
            "schedule that trained them"
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
    return _read_weights(device, graph, found.note.numbers)


def _parts(device: Device) -> tuple[bytes, bytes]:
    """Read the model and the plan that lie on the card, as the bytes that Device.load needs."""
    size = isa.record_size("poet_model")
    model_bytes = part_size(isa.unpack("poet_model", device.read(MODEL, 0, size)))
    size = isa.record_size("poet_plan_header")
    plan_bytes = size + isa.unpack("poet_plan_header", device.read(PLAN, 0, size))["bit_bytes"]
    return device.read(MODEL, 0, model_bytes), device.read(PLAN, 0, plan_bytes)

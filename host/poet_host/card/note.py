"""Read and write the host's notes on a card.

A board identifies tensors by number. A note has the names and shapes of a model's tensors, their
place in files of weights, the classes that the weights distinguish, and the normalisation of their
data. The card's model area has two places for notes at its end (FORMAT.md). So the note of the
committed model stays until the next model is committed.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from msgspec import Meta

from .. import isa
from ..data.classes import Classes
from ..data.facts import NO_FACTS, DataFacts
from ..data.normalization import NONE
from ..device.device import MODEL
from ..errors import BadInput
from ..graph.source import Source
from ..graph.weights import file_sources, weight_nodes
from ..schedule.schedule import Schedule
from ..schema import Count, convert
from .card_device import AnyCard

_C = isa.constants()
PLACES = (_C["POET_NOTE_OFFSET"], _C["POET_NOTE_OFFSET"] + _C["POET_NOTE_BYTES"])
_MOST_BYTES = _C["POET_NOTE_BYTES"] - isa.record_size("poet_note")
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
    # Place of each parameter and state in files of weights, by name; None: the note lacks it.
    sources: Mapping[str, Source]
    facts: DataFacts = NO_FACTS
    sequence: int = 0


@dataclass(frozen=True)
class _Row:
    """The JSON form of a note."""

    model_crc: Count
    model: str
    sequence: Count
    weights: tuple[tuple[str, tuple[Count, ...], Annotated[int, Meta(ge=0, lt=2**16)]], ...]
    classes: dict[str, Any] | None
    sources: dict[str, Source]
    normalization: dict[str, Any] | None = None  # cards of 0.2.0 do not have it
    sample_rate_hz: int | None = None  # only of sounds


def write_note(device: AnyCard, schedule: Schedule, facts: DataFacts = NO_FACTS) -> None:
    """Write the note of a schedule's model. Afterwards, the board has no schedule loaded."""
    before = [read_note(device, place) for place in PLACES]
    committed = int(device.hello().committed_model)
    # The committed model's newest note is never overwritten: it must survive a power cut.
    newest = max(range(2), key=lambda i: _rank(before[i], committed))
    sequence = 1 + max((note.sequence for note in before if note), default=0)
    if (content := note_content(schedule, facts, sequence)) is not None:
        crc = zlib.crc32(content)
        record = isa.pack("poet_note", magic=_C["POET_NOTE_MAGIC"], crc=crc, bytes=len(content))
        device.write(MODEL, 0, record + content, start=PLACES[1 - newest])


def note_of(schedule: Schedule) -> Note:
    """Return the note of a schedule's model, whose data is not known."""
    graph = schedule.graph
    shapes = {node.name: node.shape for node in weight_nodes(graph)}
    return Note(schedule.model.crc, graph.name, shapes, schedule.numbers, file_sources(graph))


def note_content(schedule: Schedule, facts: DataFacts, sequence: int = 2**31) -> bytes | None:
    """Return the content of a note. None: without a note, the model's CRC identifies the weights.

    Raises BadInput if it is too large for a card.
    """
    note = note_of(schedule)
    about = {
        "model_crc": note.model_crc,
        "model": note.model,
        "sequence": sequence,
        "weights": [[name, shape, note.numbers[name]] for name, shape in note.shapes.items()],
        "sources": {name: asdict(source) for name, source in note.sources.items()},
        **facts.to_json(),
    }
    content = _packed(about)
    if len(content) > _MOST_BYTES and facts.classes:
        about["classes"] = Classes(facts.classes).to_json()  # without examples
        content = _packed(about)
    if len(content) <= _MOST_BYTES and len(schedule.model_part) <= PLACES[0]:
        return content
    if not facts.classes and facts.normalization in (None, NONE):
        return None
    raise BadInput(
        f"{note.model}: the card has too little space for the names of {len(facts.classes)} "
        "classes and the normalisation. Shorten the names or use numbers as labels, and "
        "normalise all values alike (scale, or MEAN:STD)"
    )


def _packed(about: Mapping[str, Any]) -> bytes:
    return zlib.compress(json.dumps(about, separators=(",", ":")).encode())


def _rank(note: Note | None, committed: int) -> tuple[bool, int]:
    """Return the rank of a note. A new note replaces the note with the lower rank."""
    return (False, 0) if note is None else (note.model_crc == committed, note.sequence)


def newest_note(device: AnyCard, model_crc: int) -> Note | None:
    return newest([read_note(device, place) for place in PLACES], model_crc)


def newest(notes: Sequence[Note | None], model_crc: int) -> Note | None:
    """Return the newest of these notes that is of the model with this CRC."""
    mine = [note for note in notes if note and note.model_crc == model_crc]
    return max(mine, key=lambda note: note.sequence, default=None)


def read_note(device: AnyCard, place: int) -> Note | None:
    """Return the note at one of PLACES, or None without a valid note."""
    size = isa.record_size("poet_note")
    record = isa.unpack("poet_note", device.read(MODEL, 0, size, start=place))
    if record["magic"] != _C["POET_NOTE_MAGIC"] or record["bytes"] > _MOST_BYTES:
        return None
    content = device.read(MODEL, 0, record["bytes"], start=place + size)
    if zlib.crc32(content) != record["crc"]:
        return None
    try:
        about = json.loads(zlib.decompressobj().decompress(content, 2**24))
        row = convert(about, _Row, "a note")
        facts = DataFacts.from_json(vars(row))
    except (ValueError, TypeError, KeyError, RecursionError, zlib.error, BadInput):
        return None  # not a valid note; training works without a note
    shapes = {name: shape for name, shape, _ in row.weights}
    numbers = {name: number for name, _, number in row.weights}
    return Note(row.model_crc, row.model, shapes, numbers, row.sources, facts, row.sequence)

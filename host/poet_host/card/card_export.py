"""Take the weights off a card without a board, by the names in its note or in a schedule."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ..data.facts import NO_FACTS, DataFacts
from ..errors import BadInput
from ..graph.weights import Array, tensors_of_file
from ..schedule.model import CURRENT, FIXED, Model
from ..schedule.schedule import Schedule
from .card_device import CardDevice
from .note import Note, newest_note, note_of


@dataclass(frozen=True)
class Exported:
    """Weights of a card, with the names and shapes that they have in files."""

    model: str  # name of the model
    step: int  # number of steps that they were trained for
    facts: DataFacts
    tensors: Mapping[str, Array]

    def __repr__(self) -> str:
        return f"<Exported {self.model}: {len(self.tensors)} tensors after step {self.step:,}>"


def exported(
    card: CardDevice, schedule: Schedule | None = None, *, prior: bool = False
) -> Exported:
    """Read the committed weights of a card, or those of the step before if `prior` is True.

    Names are those of `schedule`, or of the card's note if `schedule` is None. Raises Damaged if
    the weights are not whole, BadInput if their names are not known.
    """
    state = card.state(prior=prior)
    assert card.commit is not None
    note = newest_note(card, card.commit.model_crc)
    if schedule is not None and schedule.model.crc == card.commit.model_crc:
        model, names = schedule.model, note_of(schedule)
    else:
        model = card.model_on_card()
        if model.crc != card.commit.model_crc:
            raise BadInput(
                f"the weights and the model on {card.path} do not belong together, because another "
                "schedule was loaded after training: name the schedule that trained the weights "
                "with --schedule"
            )
        names = _names(card, note, schedule)
    _check(names, model, card)
    card.check_digest(model, prior=prior)
    values = {}
    for name in names.sources:
        number = names.numbers[name]
        stored = model.tensors[number].row_major(card.tensor(model, number, prior=prior))
        values[name] = np.frombuffer(stored, dtype="<f4").reshape(names.shapes[name])
    tensors = tensors_of_file(names.model, names.sources, values)
    return Exported(names.model, state.step, note.facts if note else NO_FACTS, tensors)


def _names(card: CardDevice, note: Note | None, schedule: Schedule | None) -> Note:
    """Return the names of the note, with the places in files from the schedule if there is one."""
    if schedule is None:
        if note is None:
            raise BadInput(
                f"{card.path} has no note with the names of its weights: name a schedule of the "
                "model with --schedule NAME.poet"
            )
        return note
    names = note_of(schedule)
    if note is None or note.shapes != names.shapes:
        raise BadInput(
            f"{card.path} holds weights of another model than the schedule, "
            f"{schedule.graph.name}: name the schedule that trained them"
        )
    return replace(names, numbers=note.numbers)


def _check(names: Note, model: Model, card: CardDevice) -> None:
    for name, source in names.sources.items():
        number, shape = names.numbers.get(name, len(model.tensors)), names.shapes.get(name, ())
        fits = number < len(model.tensors) and model.tensors[number].place in (FIXED, CURRENT)
        fits = fits and 4 * prod(shape) == model.tensors[number].size_bytes
        if not fits or len(source.names) * prod(source.shape) != prod(shape):
            raise BadInput(
                f"the note on {card.path} does not fit its tensors: name a schedule of the model "
                "with --schedule NAME.poet"
            )

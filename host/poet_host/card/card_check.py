"""Read everything on a card, and report what is whole and which weights can be saved."""

import zlib
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from .. import isa
from ..device.device import NOTHING_COMMITTED, Progress
from ..errors import BadInput
from ..schedule import slots
from ..schedule.model import (
    BLOCK,
    CURRENT,
    FIXED,
    FORMAT,
    INPUT,
    PAGE,
    SHARED,
    Model,
    Tensor,
    part_crc,
    part_size,
)
from ..schedule.schedule import Schedule
from ..schedule.slots import State
from .card_device import CardDevice
from .card_file import Unreadable
from .card_report import (
    CardReport,
    CommitReport,
    JobReport,
    PartState,
    SlotReport,
    SlotState,
    StateReport,
    TensorReport,
)
from .note import PLACES, Note, newest, read_note

_C = isa.constants()
_PLACES = {FIXED: "fixed", CURRENT: "current", INPUT: "input"}
_ROLES = ("current", "next", "prior")  # of a CURRENT tensor's slots
_CHUNK_BYTES = 1 << 20  # that are read at a time


def check(
    card: CardDevice, schedule: Schedule | None = None, progress: Progress | None = None
) -> CardReport:
    """Read every slot, note and sample of a card of this format. Nothing is written.

    `schedule`: the schedule that trained the weights, if the model part of the card is damaged.
    Raises BadInput if the card has no store of this format, or if the schedule is another one.
    """
    return _Check(card, progress).report(schedule)


class _Check:
    def __init__(self, card: CardDevice, progress: Progress | None) -> None:
        card.hello()
        self.card, self.progress = card, progress
        self.problems: list[str] = []
        self.done = self.total = 0  # bytes
        # Bytes of the model part and the plan part of an unfinished job
        self.job_bytes: tuple[int, int] | None = None
        commit = card.commit
        held = commit and commit.now.step != NOTHING_COMMITTED and commit.model_crc
        self.commit = commit if held else None

    def read(self, block: int, size_bytes: int, at: int = 0) -> bytes:
        data = self.card.get(block, size_bytes, at)
        self.done += size_bytes
        if self.progress:
            self.progress(min(self.done, self.total), self.total)
        return data

    def report(self, schedule: Schedule | None) -> CardReport:
        card = self.card
        if not card.has_all_blocks():
            self.problems.append("the image ends before its partition: copy the whole card")
        if not card.has_table:
            self.problems.append(
                "the partition table does not lead to the store, so boards refuse the card: save "
                "the weights with `card export`, then make the card again with `storage prepare`"
            )
        commits = tuple(map(self.commit_report, slots.COMMIT_BLOCKS))
        if not card.has_record:
            self.problems.append(
                "the first block of the store is damaged, so boards refuse the card: save the "
                "weights with `card export`, then erase the card with --erase-card"
            )
        if card.commit is None and any(commit.state == "damaged" for commit in commits):
            self.problems.append("both commit records are damaged or missing")
        on_card, model_part = self.model_part()
        plan_part = self.plan_part(on_card)
        model = self.model_of_weights(on_card, schedule)
        notes = [self.note(place) for place in PLACES]
        note = newest(notes, self.commit.model_crc) if self.commit else None
        tensors: tuple[TensorReport, ...] = ()
        states: list[StateReport] = []
        job = None
        if self.commit and model:
            self.total = sum(
                tensor.size_bytes * slots.slots_of(model, tensor) for tensor in model.tensors
            )
            tensors, states = self.slots(model, _names(note, schedule))
            job = self.job(model)
            if job and not {model_part, plan_part} <= {"whole", "earlier"}:
                self.problems.append("without its schedule, the job cannot run: write it again")
            elif self.job_bytes and self.job_bytes != self.part_bytes():
                self.problems.append(
                    "the schedule on the card is not that of the job, so boards do not run the "
                    "job: write it again with `card write --resume`"
                )
        note_blocks = [slots.MODEL_BLOCK + place // BLOCK for place in PLACES]
        if self.commit and not note and "damaged" in map(self.without_content, note_blocks):
            self.problems.append(
                "the note with the names of the weights is damaged: use --schedule to export them"
            )
        pages = [t for t in (model.tensors if model else ()) if t.place == PAGE]
        return CardReport(
            file=str(card.path),
            format=card.version,
            blocks=card.total_blocks,
            commits=commits,
            model_part=model_part,
            plan_part=plan_part,
            notes=tuple(note.model if note else None for note in notes),
            weights=states[0] if states else None,
            prior=states[1] if states[1:] else None,
            tensors=tensors,
            page_count=len(pages),
            page_bytes=sum(page.size_bytes for page in pages),
            job=job,
            problems=tuple(self.problems),
        )

    def commit_report(self, block: int) -> CommitReport:
        found = self.card.commit_record(block)
        if found is None:
            return CommitReport(block, self.without_content(block))
        step = None if found.now.step == NOTHING_COMMITTED else found.now.step
        every = None if step is None else max(found.every, 1)
        return CommitReport(block, "whole", found.sequence, step, every)

    def without_content(self, block: int) -> PartState:
        """Return whether a block without a valid record is empty or damaged."""
        try:
            return "damaged" if any(self.card.get(block, BLOCK)) else "empty"
        except Unreadable:
            return "damaged"

    def note(self, place: int) -> Note | None:
        with suppress(Unreadable):
            return read_note(self.card, place)
        return None

    def model_part(self) -> tuple[Model | None, PartState]:
        model = None
        with suppress(BadInput, Unreadable):
            model = self.card.model_on_card()
        if model is None or not _fits(model, self.card.total_blocks):
            state = self.without_content(slots.MODEL_BLOCK)
            # Without weights, a power cut while a schedule was written does no harm.
            if state == "damaged" and self.commit:
                self.problems.append("the model part is damaged")
            return None, state
        is_own = self.commit is None or model.crc == self.commit.model_crc
        return model, "whole" if is_own else "foreign"

    def plan_part(self, model: Model | None) -> PartState:
        with suppress(Unreadable):
            row = self.record("poet_plan_header", slots.PLAN_BLOCK)
            size = isa.record_size("poet_plan_header")
            size = min(size + row["bit_bytes"], slots.PLAN_BLOCKS * BLOCK)
            part = self.card.get(slots.PLAN_BLOCK, size)
            if row["magic"] == _C["POET_PLAN_MAGIC"] and part_crc(part) == row["crc"]:
                is_own = model is not None and row["model_crc"] == model.crc
                return "whole" if is_own else "foreign"
        state = self.without_content(slots.PLAN_BLOCK)
        return "earlier" if state == "damaged" and self.card.version != FORMAT else state

    def record(self, name: str, block: int) -> dict[str, int]:
        return isa.unpack(name, self.card.get(block, isa.record_size(name)))

    def part_bytes(self) -> tuple[int, int]:
        """Return the bytes of the model part and the plan part on the card, which are whole."""
        plan = self.record("poet_plan_header", slots.PLAN_BLOCK)["bit_bytes"]
        model = part_size(self.record("poet_model", slots.MODEL_BLOCK))
        return model, isa.record_size("poet_plan_header") + plan

    def model_of_weights(self, on_card: Model | None, schedule: Schedule | None) -> Model | None:
        if self.commit is None:
            return None
        if schedule is not None and schedule.model.crc != self.commit.model_crc:
            raise BadInput(
                f"the schedule has not trained the weights on {self.card.path}: name the schedule "
                "that has (after `train --lr`, one that was solved with this --lr), or omit "
                "--schedule"
            )
        model = schedule.model if schedule else on_card
        if model is None or model.crc != self.commit.model_crc:
            self.problems.append(
                "the model part is not that of the weights: name the schedule that trained them "
                "with --schedule"
            )
            return None
        return model

    # Slots.

    def slots(
        self, model: Model, names: dict[int, str]
    ) -> tuple[tuple[TensorReport, ...], list[StateReport]]:
        assert self.commit is not None
        found: list[TensorReport] = []
        trailers: dict[str, list[bytes]] = {role: [] for role in _ROLES}
        for number, tensor in enumerate(model.tensors):
            if tensor.place in _PLACES:
                reports = []
                for slot in range(slots.slots_of(model, tensor)):
                    role, sequences = self.role(tensor, slot)
                    state, there = self.slot(model, tensor, slot, sequences)
                    if tensor.is_renewed:
                        trailers[role] += there
                    reports.append(SlotReport(slot, role, state))
                place, name = _PLACES[tensor.place], names.get(number)
                found.append(TensorReport(number, name, place, tensor.size_bytes, tuple(reports)))
        now, prior = self.commit.now, self.commit.prior
        states = [self.state_report("current", now, found, trailers["current"])]
        if prior.generation:
            states.append(self.state_report("prior", prior, found, trailers["prior"]))
        return tuple(found), states

    def state_report(
        self, role: str, state: State, tensors: list[TensorReport], trailers: list[bytes]
    ) -> StateReport:
        held = [tensor for tensor in tensors if tensor.place != "input"]
        damaged = tuple(tensor.number for tensor in held if not _holds(tensor, role))
        found = StateReport(
            state.step, len(held), damaged, slots.digest_of(trailers) == state.digest
        )
        if not found.is_whole:
            what = f"{len(damaged):,} of {len(held):,} tensors" if damaged else "the digest"
            self.problems.append(f"weights of step {state.step:,}: {what} damaged")
        return found

    def role(self, tensor: Tensor, slot: int) -> tuple[str, tuple[int, ...]]:
        """Return the role of a slot, and the sequence numbers of the commits that it may be for."""
        assert self.commit is not None
        prior = slots.prior_slot(self.commit, self.card.version)
        role = {prior: "prior", self.commit.slot: "current"}.get(slot, "next")
        generations = {
            "current": self.commit.now.generation,
            "prior": self.commit.prior.generation,
            "next": min(self.commit.sequence + 1, slots.LAST_SEQUENCE),
        }
        if tensor.place == CURRENT:
            return role, (generations[role],)
        if tensor.place == FIXED:
            return _PLACES[FIXED], (self.commit.now.fixed,)
        return _PLACES[tensor.place], tuple(generations.values())

    def slot(
        self, model: Model, tensor: Tensor, slot: int, sequences: tuple[int, ...]
    ) -> tuple[SlotState, list[bytes]]:
        base = slots.slot_block(model, slot)
        generations = {self.card.generation_of(model, tensor, number) for number in sequences}
        states: set[SlotState] = set()
        trailers = []
        for piece in slots.pieces(tensor):
            try:
                trailers.append(self.card.get(base, slots.TRAILER_BYTES, piece.trailer))
                crc, is_empty = 0, not any(trailers[-1])
                for part in self.parts(base + piece.block, piece.size_bytes, piece.at):
                    crc = zlib.crc32(part, crc)
                    is_empty = is_empty and part == bytes(len(part))
            except Unreadable:
                states.add("damaged")
                continue
            if trailers[-1] in {slots.trailer_of(piece, crc, number) for number in generations}:
                states.add("whole")
            elif is_empty:
                states.add("empty")
            else:
                states.add("old" if slots.crc_of(trailers[-1]) == crc else "damaged")
        worst: tuple[SlotState, ...] = ("damaged", "old", "empty", "whole")
        return next(state for state in worst if state in states), trailers

    def parts(self, block: int, size_bytes: int, at: int = 0) -> Iterator[bytes]:
        for begin in range(0, size_bytes, _CHUNK_BYTES):
            yield self.read(block, min(_CHUNK_BYTES, size_bytes - begin), at + begin)

    # The job.

    def job(self, model: Model) -> JobReport | None:
        assert self.commit is not None
        block, step = slots.job_block(model.data_blocks), self.commit.now.step
        size = isa.record_size("poet_job")
        try:
            if block >= self.card.total_blocks:
                return None
            raw = self.card.get(block, size)
            row = isa.unpack("poet_job", raw)
            if row["magic"] != _C["POET_JOB_MAGIC"]:
                return None
            if row["crc"] == zlib.crc32(raw[:-4]) and step < row["first"]:
                return None
            is_sound = row["crc"] == zlib.crc32(raw[:-4]) and self.is_job_of(model, row, block)
            if is_sound and step < row["first"] + row["steps"] and self.card.version == FORMAT:
                self.job_bytes = row["model_bytes"], row["plan_bytes"]
            report = self.job_report(block, row, step) if is_sound else JobReport(is_whole=False)
        except Unreadable:
            report = JobReport(is_whole=False)
        if not report.is_whole:
            self.problems.append("the job is damaged: write it again with `card write`")
        return report

    def is_job_of(self, model: Model, row: dict[str, int], block: int) -> bool:
        """Return whether a job's batches fit the model, and its order fits the card."""
        count = len(model.tensors)
        batches = all(
            row[name] < count
            and model.tensors[row[name]].place == INPUT
            and model.tensors[row[name]].size_bytes == row["batch"] * row[f"{name}_bytes"]
            for name in ("data", "label")
        )
        order_bytes = 4 * row["steps"] * row["batch"]
        room = (self.card.total_blocks - block - 1) * BLOCK
        return batches and 0 < order_bytes <= room

    def job_report(self, block: int, row: dict[str, int], step: int) -> JobReport:
        sample_bytes = row["data_bytes"] + row["label_bytes"] + 4
        crc, last = 0, 0
        for part in self.parts(block, 4 * row["steps"] * row["batch"], BLOCK):
            crc, last = zlib.crc32(part, crc), max(last, int(np.frombuffer(part, "<u4").max()))
        damaged, count = 0, last + 1
        if is_order_whole := crc == row["order_crc"]:
            self.total += count * sample_bytes
            at = row["sample_block"] * BLOCK
            for first in range(0, count, group := max(1, _CHUNK_BYTES // sample_bytes)):
                samples = min(group, count - first)
                data = self.read(block, samples * sample_bytes, at + first * sample_bytes)
                for i in range(samples):
                    one = data[i * sample_bytes : (i + 1) * sample_bytes]
                    right = zlib.crc32(one[:-4], first + i).to_bytes(4, "little")
                    damaged += one[-4:] != right
        log_bytes = isa.record_size("poet_job_log")
        done = min(step - row["first"], row["steps"])
        log = self.card.get(block, log_bytes + 4 * done, row["loss_block"] * BLOCK)
        losses = np.frombuffer(log, "<f4", offset=log_bytes)
        return JobReport(
            is_whole=is_order_whole and not damaged,
            first_step=row["first"],
            last_step=row["first"] + row["steps"],
            samples=count,
            damaged_samples=damaged,
            losses=int(np.isfinite(losses).sum()),
            board=log[:log_bytes].rstrip(b"\0").decode("ascii", "replace"),
        )


def _holds(tensor: TensorReport, role: str) -> bool:
    return all(slot.state == "whole" for slot in tensor.slots if slot.role in (role, "fixed"))


def _names(note: Note | None, schedule: Schedule | None) -> dict[int, str]:
    if schedule is not None:
        return dict(enumerate(schedule.names))
    return {number: name for name, number in note.numbers.items()} if note else {}


def _fits(model: Model, total_blocks: int) -> bool:
    """Return whether the slots of a model can be on a card of this size, without overlaps."""
    own = (tensor for tensor in model.tensors if not tensor.flags & SHARED)
    blocks = sum(tensor.blocks * slots.slots_of(model, tensor) for tensor in own)
    return slots.DATA_BLOCK + max(blocks, model.data_blocks) <= total_blocks

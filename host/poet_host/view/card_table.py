"""The table of `card check`."""

from collections.abc import Iterator

from ..card.card_report import CardReport, CommitReport, JobReport, StateReport, TensorReport
from ..schedule.model import FORMAT

Row = tuple[str, str]
_PARTS = {
    ("model part", "foreign"): "whole, but not that of the weights",
    ("plan part", "foreign"): "whole, but not for this model part",
    ("plan part", "earlier"): "of that format, not read",
}
_MAX_ROWS = 20  # of damaged tensors


def card_rows(report: CardReport) -> list[Row]:
    refused = "" if report.format == FORMAT else " (boards of this version refuse it)"
    rows = [("store", f"format {report.format}{refused}, {report.blocks:,} blocks")]
    newest = max((commit.sequence or 0 for commit in report.commits), default=0)
    rows += [_commit_row(commit, newest) for commit in report.commits]
    for name, state in (("model part", report.model_part), ("plan part", report.plan_part)):
        rows.append((name, _PARTS.get((name, state), state)))
    rows.append(("notes", ", ".join(note for note in report.notes if note) or "none"))
    if report.weights:
        rows.append((f"weights of step {report.weights.step:,}", _state(report.weights)))
    if report.prior:
        rows.append((f"weights of step {report.prior.step:,} (before)", _state(report.prior)))
    rows += _damaged(report)
    if inputs := [tensor for tensor in report.tensors if tensor.place == "input"]:
        slots = [slot for tensor in inputs for slot in tensor.slots]
        whole = sum(slot.state == "whole" for slot in slots)
        rows.append(("slots of data and labels", f"{whole:,} of {len(slots):,} hold a batch"))
    if report.page_count:
        pages = f"{report.page_count:,} tensors, {report.page_bytes:,} bytes"
        rows.append(("pages", f"{pages}, which are valid only within a step"))
    rows += [("job", _job(report.job) if report.job else "none"), ("result", report.conclusion)]
    return rows


def _commit_row(commit: CommitReport, newest: int) -> Row:
    name = f"commit record, block {commit.block:,}"
    if commit.sequence is None:
        return name, "incomplete, or damaged" if commit.state == "damaged" else commit.state
    step = "no weights" if commit.step is None else f"step {commit.step:,}"
    if (commit.commit_every or 1) > 1:
        step += f" (a commit every {commit.commit_every:,} steps)"
    current = ", the newest" if commit.sequence == newest else ""
    return name, f"number {commit.sequence:,}, {step}{current}"


def _state(state: StateReport) -> str:
    if state.is_whole:
        return f"whole: {state.tensors:,} tensors"
    if not state.damaged:
        return "damaged: the digest differs from that of the commit"
    return f"damaged: {len(state.damaged):,} of {state.tensors:,} tensors"


def _damaged(report: CardReport) -> list[Row]:
    rows = [row for tensor in report.tensors for row in _damaged_slots(tensor, report)]
    more = [("", f"and {len(rows) - _MAX_ROWS:,} more")] if len(rows) > _MAX_ROWS else []
    return rows[:_MAX_ROWS] + more


def _damaged_slots(tensor: TensorReport, report: CardReport) -> Iterator[Row]:
    steps = {"current": report.weights, "prior": report.prior, "fixed": report.weights}
    for slot in tensor.slots:
        state = steps.get(slot.role)
        if state and slot.state != "whole":
            name = tensor.name or f"tensor {tensor.number:,}"
            where = "" if slot.role == "fixed" else f", step {state.step:,}"
            yield f"- {name}", f"slot {slot.slot}{where}: {_WORDS[slot.state]}"


_WORDS = {
    "damaged": "damaged",
    "old": "holds the bytes of another step or tensor",
    "empty": "empty",
}


def _job(job: JobReport) -> str:
    if not job.last_step:
        return "damaged"
    samples = f"{job.samples - job.damaged_samples:,} of {job.samples:,} samples whole"
    board = f" by {job.board}" if job.board else ""
    return (
        f"steps {job.first_step + 1:,} to {job.last_step:,}, {job.losses:,} losses{board}; "
        f"{samples}" + ("" if job.is_whole or job.damaged_samples else "; their order is damaged")
    )

"""Change the optimiser's rates in a schedule. The plan stays the same."""

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite

from .. import isa
from ..errors import BadInput
from ..graph.autodiff import AHEAD, DECAY, PULL
from ..graph.optimisers import Sgd, checked_rate
from ..reference.rates import CONSTANT, COSINE, FOREVER, LINEAR, MAX_RATES, Rate
from .model import Model, Operator, model_bytes, part_crc, read_model
from .schedule import Schedule, plan_of

_CURVES = {"cosine": COSINE, "linear": LINEAR}
LR_SCHEDULES = "constant, step:EVERY[:FACTOR], cosine[:STEPS[:END]] or linear[:STEPS[:END]]"


def with_rates(
    schedule: Schedule,
    last: int = FOREVER,
    *,
    lr_schedule: str | None = None,
    warmup: int | None = None,
    **rates: float | None,
) -> Schedule:
    """Return the schedule with another `learning_rate`, `momentum`, `weight_decay` or `proximal`.

    If a rate is None, the schedule keeps its rate. `lr_schedule` and `warmup` say how the learning
    rate changes until step `last` (see factors), counted in updates if gradients are accumulated.
    Raises BadInput for a rate that the schedule was solved without: momentum and weight decay may
    need tensors that the plan does not have.
    """
    given = {name: rate for name, rate in rates.items() if rate is not None}
    options: dict[str, object] = {**given, "lr_schedule": lr_schedule, "warmup": warmup or None}
    options = {name: value for name, value in options.items() if value is not None}
    if not options:
        return schedule
    checked_rate("proximal", given.get("proximal", 0.0))
    of_sgd = {name: rate for name, rate in given.items() if name != "proximal"}
    replace(Sgd(0.0), **of_sgd)  # type: ignore[arg-type]  # checks the numbers
    model, operators, used = schedule.model, list[Operator](), set[str]()
    for op, fields in _rates_of(schedule, model):
        changed = {field: given[rate] for field, rate in fields.items() if rate in given}
        operators.append(replace(op, attrs={**op.attrs, **changed}))
        used.update(fields.values())
    for name in given:
        if name not in used:
            option = "--" + name.replace("_", "-")
            raise BadInput(
                f"the schedule of {schedule.graph.name} was solved without "
                f"{name.replace('_', ' ')}, so {option} cannot change it: solve again with {option}"
            )
    if options.keys() - given.keys():
        period = max((int(op.attrs.get("period", 0)) for op in operators), default=0) or 1
        found = factors(lr_schedule or "constant", warmup or 0, last // period)
        model = replace(model, rates=_in_updates(found, period))
    meta = {**schedule.meta, "options": {**(schedule.meta.get("options") or {}), **options}}
    part = model_bytes(replace(model, operators=tuple(operators)))
    return _with_model(replace(schedule, meta=meta), part)


def with_rates_of(schedule: Schedule, model_part: bytes) -> Schedule | None:
    """Return the schedule with the rates of a model part; None if that is of another model."""

    def without_rates(model: Model) -> Model:
        operators = tuple(
            replace(op, attrs={k: v for k, v in op.attrs.items() if k not in fields})
            for op, fields in _rates_of(schedule, model)
        )
        return replace(model, operators=operators, rates=(), crc=0)

    other = read_model(model_part, "the schedule on the card")
    same = without_rates(other) == without_rates(schedule.model)
    return _with_model(schedule, model_part) if same else None


def _with_model(schedule: Schedule, part: bytes) -> Schedule:
    changed = replace(
        schedule, model_part=part, plan_part=plan_of(part, schedule),
        crc_before=schedule.solved_crc,
    )  # fmt: skip
    if schedule.forward is None:
        return changed
    forward = model_bytes(replace(schedule.forward.model, trained_by=part_crc(part)))
    return replace(changed, forward_part=forward + plan_of(forward, schedule.forward))


def factors(lr_schedule: str, warmup: int, last: int) -> tuple[Rate, ...]:
    """Return the factors of all learning rates, for each step up to `last` and after it.

    In the first `warmup` steps, the rate grows in a straight line: in step s, it has the factor
    s / warmup. Then `lr_schedule` (one of LR_SCHEDULES) begins. `step` multiplies the rate by
    FACTOR (0.1) after every EVERY steps. `cosine` and `linear` lead it from 1 to END (0) within
    STEPS steps (until step `last`), after which it stays. These are the rates of StepLR,
    CosineAnnealingLR and LinearLR of PyTorch.
    """
    kind, *texts = lr_schedule.split(":")
    try:
        steps = int(texts[0]) if texts else max(last - warmup, 1)
        end = float(texts[1]) if len(texts) > 1 else 0.1 if kind == "step" else 0.0
    except ValueError:
        kind, steps, end = "", 0, 0.0
    is_known = kind in _CURVES or kind == "step" or lr_schedule == "constant"
    if not is_known or len(texts) > 2 or (kind == "step" and not texts):
        raise BadInput(
            f"lr_schedule is {lr_schedule!r}, but must be {LR_SCHEDULES}, such as step:1000:0.5"
        )
    if not 1 <= steps <= FOREVER or not isfinite(end) or not 0 <= end <= 1:
        raise BadInput(
            f"lr_schedule is {lr_schedule!r}: the steps must be 1 or more, and the factor from 0 "
            "to 1"
        )
    if not 0 <= warmup < FOREVER:
        raise BadInput(f"warmup is {warmup}: it must be a number of steps, 0 or more")
    found = [Rate(warmup, 1 / warmup, 1 + 1 / warmup, LINEAR)] if warmup else []
    if kind in _CURVES:
        return (*found, Rate(steps, 1.0, end, _CURVES[kind]), Rate(FOREVER, end, end, CONSTANT))
    drops = max(last - warmup - 1, 0) // steps if kind == "step" else 0
    if len(found) + drops > MAX_RATES - 2:
        raise BadInput(
            f"lr_schedule is {lr_schedule!r}, which lowers the rate {drops:,} times until step "
            f"{last:,}, but boards keep at most {MAX_RATES - 2}: choose more steps"
        )
    found += [Rate(steps, end**drop, end**drop, CONSTANT) for drop in range(drops)]
    return (*found, Rate(FOREVER, end**drops, end**drops, CONSTANT))


def _in_updates(rates: tuple[Rate, ...], period: int) -> tuple[Rate, ...]:
    """Return the factors for each step, if each of `rates` is for one of every `period` steps."""
    if period == 1:
        return rates
    longer = [replace(rate, steps=min(rate.steps * period, FOREVER)) for rate in rates]
    return (Rate(period - 1, 1.0, 1.0, CONSTANT), *longer)


def _rates_of(schedule: Schedule, model: Model) -> Iterator[tuple[Operator, dict[str, str]]]:
    """Yield each operator of a model, and the rates that are fields of the operator, by field."""
    stored, names = schedule.names[: model.stored_count], schedule.names[model.stored_count :]
    for op, name in zip(model.operators, names, strict=False):
        weight, _, suffix = name.rpartition(":")
        yield op, _fields(op, suffix if weight in stored else "")


def _fields(op: Operator, suffix: str) -> dict[str, str]:
    """Return the rates of an operator. `suffix`: of its name, after that of a weight.

    See autodiff.py, sink.c and update.c.
    """
    kernel, sink = isa.by_code("KERNEL")[op.kernel].name, isa.by_code("SINK")[op.sink].name
    factors = {DECAY: "weight_decay", AHEAD: "momentum", PULL: "proximal"}
    if kernel == "scale" and (rate := factors.get(suffix)):
        return {"factor": rate}
    decays = ("weight_decay",) if op.attrs.get("weight_decay") else ()
    rates: tuple[str, ...] = ()
    if sink == "sgd":
        rates = ("learning_rate", "weight_decay")
    elif sink == "momentum":
        rates = ("momentum", *decays)
    elif kernel in ("momentum_step", "adam_step"):
        rates = ("learning_rate", *decays)
    elif kernel in ("average", "average_square"):
        rates = decays
    return {rate: rate for rate in rates}

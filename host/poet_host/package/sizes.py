"""The RAM and the storage that a learner needs: POET_MEMORY_BYTES, and poet_learner_blocks."""

from math import ceil

from .. import isa
from ..schedule.model import BLOCK, CURRENT
from ..schedule.own_layout import areas
from ..schedule.times import committing_us
from .packaged import Packaged

ERASE_BLOCKS = range(9)
"""The erase units for which a package states its storage: 0 to 8 blocks."""
POINTER_BYTES = 4
LEARNER_BYTES = 1168  # struct poet_learner, on a processor of 32 bits
STACK_BYTES = {"samd21": 1608, "nrf52840": 1552}
"""What a call of a learner takes of the stack at most, with all kernels, by chip; without what the
functions of the application and interrupts take."""
# Time to check and to convert a value of a sample, by chip, on the simulated boards.
_VALUE_US = {"samd21": 18.0, "nrf52840": 1.5}
# Code of the library, by chip, built by GCC 12 with -Os: without kernels, of a kernel on average,
# and of operators that are computed part by part.
_CODE_BYTES = {"samd21": (38_300, 650, 8_000), "nrf52840": (54_000, 850, 9_300)}


def needs(packaged: Packaged) -> tuple[int, ...]:
    """Return the first arguments of POET_MEMORY_BYTES, up to `classes`."""
    both = (packaged.schedule, packaged.forward)
    return (
        max(it.header.arena_bytes for it in both),
        max(1, *(it.header.resident_max for it in both)),
        max(1, *(it.header.queue_max for it in both)),
        1 + packaged.schedule.model.storage,
        max(len(it.model.tensors) for it in both),
        packaged.classes,
    )


def places(packaged: Packaged, *, on_storage: bool) -> tuple[int, int]:
    """Return the last arguments of POET_MEMORY_BYTES."""
    slots = packaged.slots
    return (slots + 1, 0) if on_storage else (slots, packaged.sample_bytes)


def memory_bytes(
    packaged: Packaged, *, on_storage: bool, pointer_bytes: int = POINTER_BYTES
) -> int:
    """Return POET_MEMORY_BYTES on a processor with such pointers."""
    arena, residents, transfers, cached, tensors, classes = needs(packaged)
    count, place_bytes = places(packaged, on_storage=on_storage)
    words = -(-tensors // 32)
    return (
        _rounded(arena)
        + transfers * (48 + 2 * pointer_bytes)
        + cached * (520 + 2 * pointer_bytes)
        + _rounded(residents * 12)
        + 2 * _rounded(words * 4)
        + _rounded(classes * (count + 1) * 4)
        + _rounded(classes * count * place_bytes)
    )


def flash_bytes(packaged: Packaged, chip: str) -> int | None:
    """Return an estimate of the flash of library, schedules and weights; None: not known."""
    if chip not in _CODE_BYTES:
        return None
    code, kernel, parts = _CODE_BYTES[chip]
    return code + kernel * len(packaged.kernels) + parts * packaged.streams + data_bytes(packaged)


def infer_waits_us(packaged: Packaged, chip: str) -> int | None:
    """Return about how long `infer` takes if it must finish a whole step that commits.

    None: not known.
    """
    plans = (it.meta["plan"] for it in (packaged.schedule, packaged.forward))
    times_us: list[float | None] = [it.get("time_us") for it in plans]
    known_us = [it for it in times_us if it is not None]
    if len(known_us) < len(times_us):
        return None
    sample_us = packaged.sample_values * _VALUE_US.get(chip, 0)
    return ceil(sum(known_us) + committing_us(packaged.schedule) + sample_us)


def data_bytes(packaged: Packaged) -> int:
    """Return the bytes of schedules and first values."""
    both = (packaged.schedule, packaged.forward)
    parts = (part for it in both for part in (it.model_part, it.plan_part))
    return sum(map(len, (*packaged.first_values(), *parts)))


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // 8) * 8


def most_storage_blocks(packaged: Packaged) -> int:
    """Return the blocks that are enough for each of ERASE_BLOCKS."""
    return max(storage_blocks(packaged, unit) for unit in ERASE_BLOCKS)


def storage_blocks(packaged: Packaged, erase_blocks: int) -> int:
    """Return the least blocks of storage, as poet_learner_blocks of the library does."""
    unit = max(erase_blocks, 1)
    return areas(packaged.schedule.model, unit)[1] + own_blocks(packaged, unit)


def sample_blocks(packaged: Packaged, unit: int) -> int:
    """Return the blocks of the place of a sample, in units of so many blocks."""
    size_bytes = isa.record_size("poet_sample") + packaged.sample_bytes
    return -(-size_bytes // (BLOCK * unit)) * unit


def own_blocks(packaged: Packaged, unit: int) -> int:
    """Return the blocks of samples, and of tensors that the application writes."""
    model = packaged.schedule.model
    samples = 2 * unit + packaged.classes * (packaged.slots + 1) * sample_blocks(packaged, unit)
    staged = (it for it in model.tensors[: model.stored_count] if it.place == CURRENT)
    return samples + sum(-(-it.size_bytes // (BLOCK * unit)) * unit for it in staged)

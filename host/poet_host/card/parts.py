"""Keep the schedule on a card while other schedules are loaded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .. import isa
from ..device.device import CONNECT_PATIENCE_S, MODEL, PLAN, Device
from ..errors import BoardError, LinkBroken, PoetError
from ..schedule.model import BLOCK, part_crc, part_size
from ..schedule.schedule import Schedule
from ..schedule.slots import MODEL_BLOCKS, PLAN_BLOCKS
from .card_device import AnyCard

Parts = tuple[bytes, bytes]
"""A model part and a plan part, as Device.load needs them."""


def parts_on(device: AnyCard) -> Parts:
    """Read the model and the plan that lie on the card. They may be damaged."""
    size = isa.record_size("poet_model")
    model_bytes = part_size(isa.unpack("poet_model", device.read(MODEL, 0, size)))
    model_bytes = min(model_bytes, MODEL_BLOCKS * BLOCK)  # a damaged header may have any size
    size = isa.record_size("poet_plan_header")
    bit_bytes = isa.unpack("poet_plan_header", device.read(PLAN, 0, size))["bit_bytes"]
    plan_bytes = min(size + bit_bytes, PLAN_BLOCKS * BLOCK)
    return device.read(MODEL, 0, model_bytes), device.read(PLAN, 0, plan_bytes)


def are_whole(parts: Parts, model_crc: int) -> bool:
    """Return whether parts of a card are not damaged, and belong to this model."""
    model_part, plan_part = parts
    size = isa.record_size("poet_plan_header")
    header = isa.unpack("poet_plan_header", plan_part[:size])
    crcs = (part_crc(model_part), header["model_crc"], part_crc(plan_part))
    return crcs == (model_crc, model_crc, header["crc"])


def put_back(device: AnyCard, parts: Parts) -> None:
    """Load the schedule that was on the card, unless this board is too small for it."""
    try:
        device.load(*parts)
    except BoardError as error:
        if error.name not in BoardError.UNFIT:
            raise


@contextmanager
def restoring(device: AnyCard, restore: Callable[[], object]) -> Iterator[None]:
    """Call `restore` after the `with` block.

    If an exception leaves the block, a step that still runs is stopped first, and other errors do
    not replace the exception. After LinkBroken, `restore` is not called: no board answers.
    """
    try:
        yield
    except LinkBroken:
        raise
    except BaseException:
        with suppress(PoetError):
            if isinstance(device, Device):
                device.stop(CONNECT_PATIENCE_S)
            restore()
        raise
    restore()


@contextmanager
def own_schedule(device: AnyCard, schedule: Schedule) -> Iterator[None]:
    """Load the schedule on the card for a `with` block.

    `schedule` has the model of the card's weights. It is loaded instead if the schedule on the card
    is damaged, or does not fit this board. The latter is put back after the block.
    """
    own = parts_on(device)
    if not are_whole(own, schedule.model.crc):
        device.load(schedule.model_part, schedule.plan_part)
        yield
        return
    try:
        device.load(*own)
    except BoardError as error:
        if error.name not in BoardError.UNFIT:
            raise
        with restoring(device, lambda: put_back(device, own)):
            device.load(schedule.model_part, schedule.plan_part)
            yield
        return
    yield

"""Pages go out and come back whole, while the processor computes, and steps are committed."""

from poet_host.device.device import TENSOR, Device
from support import toy
from support.memory_board import MemoryBoard
from support.memory_board import card as memory_card

from tests.hardware.rig import Rig, look
from tests.hardware.test_3_storage import values
from tests.sim.test_firmware import lanes

STEPS = 3


def truth(steps: int) -> tuple[bytes, ...]:
    """The toy's weight and momentum after so many steps, from the library on this computer."""
    board, schedule = MemoryBoard(memory_card()), toy.schedule("lavish")
    board.format()
    board.load(schedule.model_part, schedule.plan_part)
    for number, data in enumerate(toy.values(1)):
        board.write(TENSOR, number, 0, data)
    board.begin(0)
    for step in range(1, steps + 1):
        board.step(step)
    return tuple(board.tensor(number, toy.SIZES[number]) for number in (toy.W, toy.V))


def begin(device: Device) -> None:
    schedule = toy.schedule()
    device.format()
    device.load(schedule.model_part, schedule.plan_part)
    for name, array in values(1).items():
        device.write(TENSOR, schedule.names.index(name), array.tobytes())
    device.begin(0)


def state(device: Device) -> tuple[bytes, ...]:
    return tuple(device.read(TENSOR, number, toy.SIZES[number]) for number in (toy.W, toy.V))


def test_pages_come_back_whole(device: Device) -> None:
    with look("the card (a page that fails its CRC is named above), then its supply: writing draws "
              "up to 100 mA"):  # fmt: skip
        begin(device)
        for step in range(1, STEPS + 1):
            device.step(step)
            assert state(device) == truth(step), f"step {step} has other weights than the host"


def test_a_step_is_committed(rig: Rig, device: Device) -> None:
    begin(device)
    device.step(1)
    device.close()
    with look("flushing of the card: what a step ends with must survive"), rig.connect() as again:
        assert again.info.committed_step == 1
        schedule = toy.schedule()
        again.load(schedule.model_part, schedule.plan_part)
        assert state(again) == truth(1)
        again.step(2)
        assert state(again) == truth(2)


def test_a_transfer_runs_while_an_operator_computes(device: Device) -> None:
    with look(
        "the DMA channel of the SPI bus and its interrupt: transfers do not run by themselves"
    ):
        device.format()
        device.load(*lanes())
        for number in (0, 1):
            device.write(TENSOR, number, bytes(4096))
        device.begin(0)
        device.step(1, 0, 10)
        page_in, compute = (device.trace()[i] for i in (1, 3))
        assert page_in.begin <= compute.begin, "the page-in began after the computation"
        assert compute.end < page_in.end, "the page-in was over before the computation"

"""The card is found, keeps the written bytes, and is fast enough."""

from poet_host.device.answers import board_error
from poet_host.device.device import TENSOR, Device
from support import toy
from support.toy_boards import prepare

from tests.hardware.rig import Rig, look

CARD = (
    "the card: is it in, does it have a partition of type 0xda (`poet-host storage prepare` makes "
    "an image of one), is it one that speaks SPI"
)
BUS = "chip select, clock, MOSI and MISO of the card, pull-ups, 3.3 V under load, short wires"
SLOWEST_BYTES_PER_S = 40_000
MOST_OF_PROCESSOR = 0.75  # half of it is checksums and interrupts on a Cortex-M0+


def test_the_card_is_found(device: Device) -> None:
    with look(f"{CARD}; {BUS}"):
        status = device.hello().storage_status
        assert status in (0, -5), board_error(status, 0, "its storage")
        device.format()
        info = device.hello()
        assert info.storage_status == 0
        assert info.storage_blocks > 2048, f"the partition has {info.storage_blocks} blocks"


def test_it_keeps_the_written_bytes(rig: Rig, device: Device) -> None:
    schedule = toy.schedule()
    with look(f"{BUS}; then the card itself: try another"):
        for seed in (1, 2, 3):
            prepare(device, seed=seed)
            for number, data in enumerate(toy.values(seed)):
                read = device.read(TENSOR, number, len(data))
                assert read == data, f"tensor {schedule.names[number]} came back changed"
        device.reset()
    device.close()
    with look("the board's reset line and power: its store is another now"), rig.connect() as again:
        assert again.info.committed_step == 0
        assert again.info.committed_model == schedule.model.crc


def test_it_is_fast_enough(device: Device) -> None:
    size = min(16 * 512 - 8, device.info.arena_bytes)
    with look("the clock of the SPI bus, its DMA, and the card's speed class"):
        for write in (True, False):
            ticks, cpu_ticks = device.probe_transfer(write, size, repeat=4)
            speed = 4 * size / device.us(ticks) * 1e6
            what = "writes" if write else "reads"
            assert speed > SLOWEST_BYTES_PER_S, f"the card {what} {speed:,.0f} bytes/s"
            assert cpu_ticks < MOST_OF_PROCESSOR * ticks, (
                f"the processor spends {cpu_ticks} of {ticks} us on a transfer: is it polling?"
            )

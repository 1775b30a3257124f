"""Pages are written and read without damage, during computes too; steps are committed."""

from poet_host.device.device import Device
from support.overlap import Overlap
from support.toy_boards import load, prepare, run_step, truth, weights_of

from tests.hardware.rig import Rig, look

STEPS = 3


def test_pages_are_read_as_written(device: Device) -> None:
    with look("the card (a page that fails its CRC is named above), then its supply: writing draws "
              "up to 100 mA"):  # fmt: skip
        prepare(device)
        for step in range(1, STEPS + 1):
            run_step(device, step)
            assert weights_of(device) == truth()[step], (
                f"step {step} has other weights than the host"
            )


def test_a_step_is_committed(rig: Rig, device: Device) -> None:
    prepare(device)
    device.step(1)
    device.close()
    with look("flushing of the card: what a step ends with must survive"), rig.connect() as again:
        assert again.info.committed_step == 1
        load(again)
        assert weights_of(again) == truth()[1]
        run_step(again, 2)
        assert weights_of(again) == truth()[2]


def test_a_transfer_runs_while_an_operator_computes(device: Device) -> None:
    with look(
        "the DMA channel of the SPI bus and its interrupt: transfers do not run by themselves"
    ):
        page_in, compute = Overlap(device, (1, 16, 8, 8)).run(1)
        assert page_in.begin <= compute.begin, "the page-in began after the computation"
        assert compute.end < page_in.end, "the page-in was over before the computation"

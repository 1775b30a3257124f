"""The SD driver of the bare-metal boards, on this computer: resets within a write, and recovery.

The simulated card counts blocks from its start, so faults come at the block that a test names.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from poet_host.sim.chipfile import load_cards
from support.c_fuzzer import finds_nothing_today, fuzz
from support.card_bench import BLOCK, COMMON, CardBench, compile_bench
from support.reverted import changed_copy
from support.usb_layer import SANITIZE

Maker = Callable[..., CardBench]
OLD, NEW = (bytes((k * 13 + i * 7) % 251 for i in range(3 * BLOCK)) for k in (1, 2))
LONG = bytes((i // BLOCK * 31 + i * 7) % 253 for i in range(64 * BLOCK))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("card") / "bench.so"
    compile_bench(target, "-fPIC", "-shared", fuzz=False)
    return target


@pytest.fixture
def bench(library: Path, tmp_path: Path) -> Maker:
    return lambda *name, **changed: CardBench(library, tmp_path, *name, **changed)


def lost_after_a_reset(card: CardBench) -> list[int]:
    """Reset the processor after each byte of a write. After how many is the card not mounted?"""
    lost: list[int] = []
    cut = 0
    while True:
        card.power_on()
        assert card.mount()
        assert card.write(5, OLD) == 0
        result = card.write(5, NEW, cut)
        if result == 0:
            assert cut > 3 * BLOCK
            return lost
        assert result == 1
        if card.mount():
            for k in range(3):  # each block is the old one or the new one
                block = slice(k * BLOCK, (k + 1) * BLOCK)
                assert card.read(5 + k, 1) in (OLD[block], NEW[block])
            assert card.write(5, NEW) == 0
            assert card.read(5, 3) == NEW
        else:
            lost.append(cut)
        assert card.complaint == ""
        cut += 1


@pytest.mark.parametrize("name", load_cards())
def test_a_reset_at_any_byte_of_a_write_mounts_again(bench: Maker, name: str) -> None:
    assert lost_after_a_reset(bench(name)) == []


@pytest.mark.slow
def test_strict_cards_are_lost_by_a_driver_that_does_not_stop_the_write(tmp_path: Path) -> None:
    """What the driver did before: 74 clocks, then CMD0."""
    rule = "  sd_bus.then = block_completed;\n  chip_spi_exchange(NULL, NULL, CHIP_EXCHANGE_MAX);\n"
    unused = "  (void)block_completed;\n  go_idle();\n"
    common = changed_copy(COMMON, tmp_path, "card_mount.c", rule, unused)
    library, cards = tmp_path / "bench.so", tmp_path / "cards"
    cards.mkdir()
    compile_bench(library, "-fPIC", "-shared", fuzz=False, common=common)
    assert len(lost_after_a_reset(CardBench(library, cards))) > 3 * BLOCK
    assert lost_after_a_reset(CardBench(library, cards, "kind")) == []


FAULTS = [  # kind, first block, times, argument, retries
    ("write_crc", 8, 1, 0, 1),
    ("write_crc", 8, 3, 0, 3),
    ("write_error", 8, 1, 0, 1),
    ("write_error", 64, 2, 0, 2),
    ("late_error", 8, 1, 1, 1),
    ("late_error", 8, 1, 20, 1),
    ("late_error", 8, 1, 0, 1),  # only CMD13 reports it
    ("late_error", 64, 1, 0, 1),
    ("slow_write", 8, 1, 240_000, 0),
]


@pytest.mark.parametrize("name", load_cards())
@pytest.mark.parametrize(("kind", "first", "times", "argument", "retries"), FAULTS)
def test_errors_of_a_write_are_repaired(
    bench: Maker, name: str, kind: str, first: int, times: int, argument: int, retries: int
) -> None:
    card = bench(name)
    assert card.mount()
    card.fault(kind, first, times, argument)
    assert card.write(10, LONG) == 0
    assert card.stored(10, 64) == LONG
    assert card.read(10, 64) == LONG
    assert (card.retries, card.complaint) == (retries, "")


@pytest.mark.parametrize(("kind", "times"), [("read_crc", 3), ("read_error", 3), ("read_error", 1)])
def test_errors_of_a_read_are_repaired(bench: Maker, kind: str, times: int) -> None:
    card = bench()
    assert card.mount()
    assert card.write(10, LONG) == 0
    card.fault(kind, 8, times)
    assert card.read(10, 64) == LONG
    assert (card.retries, card.complaint) == (times, "")


def test_only_blocks_that_were_not_written_are_sent_again(bench: Maker) -> None:
    card = bench()
    assert card.mount()
    card.fault("late_error", 60, 1, 3)
    before = card.counts.writes
    assert card.write(10, LONG) == 0
    assert card.counts.writes - before == 64 + 4  # from block 60 on: ACMD22 says 59


def test_writes_of_many_blocks_announce_their_length(bench: Maker) -> None:
    """ACMD23, also before the rest of a write of which the card refused a block."""
    card = bench()
    assert card.mount()
    before = card.counts.announced
    assert card.write(10, LONG) == 0
    assert card.counts.announced - before == 64
    assert card.write(10, LONG[:BLOCK]) == 0
    assert card.read(10, 64) == LONG
    assert card.counts.announced - before == 64
    card.fault("write_error", card.counts.writes + 60)
    assert card.write(10, LONG) == 0
    assert card.counts.announced - before == 64 + 64 + 5
    assert card.complaint == ""


@pytest.mark.parametrize(("kind", "clocks"), [("write_crc", 3), ("write_error", 0)])
def test_a_long_job_may_have_many_errors_but_not_too_many(
    bench: Maker, kind: str, clocks: int
) -> None:
    """`clocks`: slower clocks to try, which CRC errors cause."""
    card = bench()
    assert card.mount()
    most = 3 + 64 // 16 + clocks
    for k in range(most):
        card.fault(kind, 5 + 5 * k)
    assert card.write(10, LONG) == 0
    assert card.retries == most
    card.power_on()
    assert card.mount()
    for k in range(most + 1):
        card.fault(kind, 5 + 5 * k)
    assert card.write(10, LONG) == -1


def test_a_block_that_always_fails_ends_the_job(bench: Maker) -> None:
    card = bench()
    assert card.mount()
    card.fault("write_error", 8, 1000)
    assert card.write(10, LONG) == -1
    assert card.retries == 3
    assert card.stored(10, 7) == LONG[: 7 * BLOCK]
    assert card.mount(), "it is mounted as after a power cut"


def test_a_swapped_card_is_not_written(bench: Maker) -> None:
    card = bench()
    assert card.mount()
    card.fault("swapped", 8)
    assert card.write(10, LONG) == -1
    assert card.stored(10, 8) == LONG[: 7 * BLOCK] + bytes(BLOCK)


def test_a_transfer_is_repaired_and_its_crc_stays_right(bench: Maker) -> None:
    card = bench()
    assert card.mount()
    data = card.ffi.new("uint8_t[]", LONG[:20_002])
    for kind in ("write_crc", "late_error"):
        card.fault(kind, card.counts.writes + 8)
        assert card.lib.bench_transfer(10, data, 20_000, True) == 0
        got = card.ffi.new("uint8_t[20000]")
        card.fault("read_crc", card.counts.reads + 8)
        assert card.lib.bench_transfer(10, got, 20_000, False) == 0
        assert bytes(got) == LONG[:20_000]
    assert card.retries == 4


def test_a_card_that_is_late_to_be_busy_loses_no_time(bench: Maker) -> None:
    for bytes_late in range(9):
        card = bench(busy_bytes=bytes_late, stop_us=5000)
        assert card.mount()
        assert card.write(10, NEW) == 0
        assert card.lib.bench_us() > 5000, "the write ends after the busy time"
        assert card.read(10, 3) == NEW
        assert (card.retries, card.complaint) == (0, "")


@pytest.mark.parametrize("response_bytes", range(1, 9))
def test_the_allocation_unit_is_read_at_a_mount(bench: Maker, response_bytes: int) -> None:
    sizes = [0, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 12, 16, 24, 32, 64]  # table 4-46, in MiB, rounded up
    for code, mib in enumerate(sizes):
        card = bench(au_size=code, response_bytes=response_bytes)
        assert card.lib.bench_allocation_mib() == 0
        assert card.mount()
        assert card.lib.bench_allocation_mib() == mib
        assert card.write(10, NEW) == 0
        assert (card.read(10, 3), card.complaint) == (NEW, "")


def test_a_card_that_refuses_to_give_its_unit_works(bench: Maker) -> None:
    card = bench(sd_status=0, au_size=15)
    assert card.mount()
    assert card.lib.bench_allocation_mib() == 0
    assert card.write(10, NEW) == 0
    assert (card.read(10, 3), card.retries, card.complaint) == (NEW, 0, "")


def test_a_lost_card_has_no_allocation_unit(bench: Maker) -> None:
    card = bench("sdxc")
    assert card.mount()
    card.fault("removed", 2)
    assert card.write(10, NEW) == -1
    assert card.lib.bench_allocation_mib() == 0
    assert not card.mount()
    assert card.lib.bench_allocation_mib() == 0


# -- a wire that disturbs bytes --


@pytest.mark.slow
def test_no_disturbance_of_the_wire_goes_unnoticed(tmp_path: Path) -> None:
    """6,000 rounds, new ones each day, sanitizers on; `make fuzz-card` goes on for longer."""
    program = tmp_path / "fuzz"
    compile_bench(program, *SANITIZE, fuzz=True)
    finds_nothing_today(program)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "rule", "replaced"),
    [
        ("card.c", "if (sd_bus.tail[0]) {", "if (false) {"),
        ("card.c", "(written <= passed ? written : 0)", "(passed + 0 * written)"),
        ("card.c", "if (card.job->write) {", "if (false) {"),
        ("sd_bus.c", "sd_bus.in[at - 1] != 0xff", "false"),
        ("sd_bus.c", "sent != sd_bus.crc", "false && sent"),
        ("sd_bus.c", "else if (sd_bus.crc) {", "else if (false) {"),
    ],
)
def test_the_fuzzer_sees_a_driver_that_forgets_a_rule(
    tmp_path: Path, file: str, rule: str, replaced: str
) -> None:
    common = changed_copy(COMMON, tmp_path, file, rule, replaced)
    program = tmp_path / "fuzz"
    compile_bench(program, *SANITIZE, fuzz=True, common=common)
    assert "a rule of the driver is broken" in fuzz(program, 108_000, 20_000).stderr

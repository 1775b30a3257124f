"""The SD card model and the rules of the SPI mode, driven byte by byte."""

from pathlib import Path

import pytest
from poet_host.sim.chip_library import chips
from support.sd_card import BLOCK, SIZE, Card, pattern


def test_checksums_are_those_of_the_specification() -> None:
    _, lib = chips()  # the examples in sections 4.5 and 7.2.2
    assert lib.sd_crc7(bytes([0x40, 0, 0, 0, 0]), 5) == 0x4A
    assert lib.sd_crc7(bytes([0x51, 0, 0, 0, 0]), 5) == 0x2A
    assert lib.sd_crc7(bytes([0x48, 0, 0, 1, 0xAA]), 5) == 0x43
    assert lib.sd_crc16(b"\xff" * 512, 512) == 0x7FA1


def test_silent_before_cmd0_and_after_too_few_clocks(image: Path) -> None:
    card = Card(image)
    card.select()
    assert card.command(8, 0x1AA, 5) == []
    assert "74 clocks" in card.complaint


def test_initialisation_takes_its_time_and_needs_hcs(image: Path) -> None:
    card = Card(image)
    for _ in range(10):
        card.swap()
    card.select()
    assert card.command(17) == []  # not in SPI mode yet
    assert card.command(0, crc=0x97) == []
    assert card.command(0) == [1]
    assert card.command(8, 0x1AA, crc=0x01) == [9]  # CMD8's CRC always counts
    assert card.command(8, 0x1AA, 5) == [1, 0, 0, 1, 0xAA]
    assert card.command(17) == [5]  # illegal while idle
    begin = card.now
    for _ in range(200):
        assert card.application(41, 0) == [1]  # no SDHC without HCS
    while card.application(41, 1 << 30) == [1]:
        pass
    assert card.now - begin >= 300_000
    assert card.command(58, size=5) == [0, 0xC0, 0xFF, 0x80, 0]
    assert card.complaint == ""


def test_standard_capacity_says_so_and_counts_bytes(image: Path) -> None:
    card = Card(image, sdhc=False).start()
    assert card.command(58, size=5)[1] == 0x80
    assert card.command(16, 512) == [0]
    assert card.command(16, 1024) == [0x40]
    assert card.command(17, 3 * 512) == [0]
    assert card.block() == pattern(3)
    assert card.command(17, 100) == [0x20]  # not at a block's start
    assert card.command(17, SIZE) == [0x40]  # outside


def csd_blocks(csd: bytes) -> int:
    value = int.from_bytes(csd, "big")
    if csd[0] >> 6 == 1:
        return ((value >> 48 & 0x3FFFFF) + 1) * 1024
    return ((value >> 62 & 0xFFF) + 1) << ((value >> 47 & 7) + 2) << (value >> 80 & 15) >> 9


@pytest.mark.parametrize("sdhc", [True, False])
def test_registers(image: Path, sdhc: bool) -> None:
    card = Card(image, sdhc=sdhc).start()
    assert card.command(9) == [0]
    csd = card.block(16)
    assert isinstance(csd, bytes)
    assert csd_blocks(csd) == SIZE // BLOCK
    assert csd[15] == card.lib.sd_crc7(csd, 15) << 1 | 1
    assert card.command(10) == [0]
    cid = card.block(16)
    assert isinstance(cid, bytes)
    assert cid[15] == card.lib.sd_crc7(cid, 15) << 1 | 1
    assert card.command(13, size=2) == [0, 0]
    assert card.command(6) == [4]  # illegal: this card has one speed
    assert card.complaint == ""


def test_crc_is_checked_once_it_is_on(image: Path) -> None:
    card = Card(image).start()
    assert card.command(13, size=1, crc=0x01) == [8]
    assert card.command(24, 5) == [0]
    assert card.give(pattern(99), spoil=1) == 0x0B
    assert card.command(59, 0, 1) == [0]
    assert card.command(13, size=2, crc=0x01) == [0, 0]
    assert card.command(24, 5) == [0]
    assert card.give(pattern(99), spoil=1) == 0x05
    card.wait()
    assert image.read_bytes()[5 * BLOCK : 6 * BLOCK] == pattern(99)
    assert card.counts.crc_errors == 2


def test_single_blocks_take_access_and_busy_time(image: Path) -> None:
    card = Card(image).start()
    assert card.command(17, 2) == [0]
    begin = card.now
    assert card.block() == pattern(2)
    assert card.now - begin >= (500 + 514 - 4) * 1000
    assert card.command(24, 3) == [0]
    assert card.give(pattern(50)) == 0x05
    assert 1780 <= card.wait() <= 1820  # the erase group is entered: 800 + 1000
    assert card.command(24, 4) == [0]
    assert card.give(pattern(51)) == 0x05
    assert 780 <= card.wait() <= 820
    assert image.read_bytes()[3 * BLOCK : 5 * BLOCK] == pattern(50) + pattern(51)
    assert (card.counts.reads, card.counts.writes) == (1, 2)


def test_many_blocks_until_stopped(image: Path) -> None:
    card = Card(image).start()
    assert card.command(18, 4) == [0]
    assert [card.block() for _ in range(3)] == [pattern(4), pattern(5), pattern(6)]
    card.send(12)
    assert card.answer() == [0]
    card.wait()
    assert card.counts.reads == 3
    assert card.application(23, 9) == [0]
    assert card.command(16, BLOCK) == [0]  # the announcement is for the next command only
    assert card.application(23, 3) == [0]
    assert card.command(25, 8) == [0]
    for k in range(3):
        assert card.give(pattern(60 + k), 0xFC) == 0x05
        card.wait()
    card.swap(0xFD)
    card.swap()
    assert card.wait() >= 48
    assert image.read_bytes()[8 * BLOCK : 11 * BLOCK] == b"".join(map(pattern, (60, 61, 62)))
    assert card.counts.announced == 3
    assert card.command(17, 8) == [0]
    assert card.block() == pattern(60)
    assert card.complaint == ""


def test_cmd55_changes_only_commands_that_have_an_application_command(image: Path) -> None:
    """A driver after a reset stops a read, and cannot know that the last command was CMD55."""
    card = Card(image).start()
    assert card.application(17, 4) == [0]
    assert card.block() == pattern(4)
    assert card.application(18, 4) == [0x04]  # of the security applications, which it has not
    assert card.command(18, 4) == [0]
    assert card.block() == pattern(4)
    card.lib.sdcard_new_host(card.card)
    card.now = 0
    card.select()
    assert card.application(12, 0) == [0]
    card.wait()
    assert card.command(13, size=2) == [0, 0]
    assert card.complaint == ""


def test_reading_past_the_end_gives_a_range_error(image: Path) -> None:
    card = Card(image).start()
    last = SIZE // BLOCK - 1
    assert card.command(18, last) == [0]
    assert card.block() == bytes(BLOCK)
    assert card.block() == 0x08
    assert card.command(12) == [0]
    card.wait()
    assert card.command(24, last + 1) == [0x40]


def test_erase_clears_a_range(image: Path) -> None:
    card = Card(image).start()
    assert card.command(38) == [0x10]  # no range given
    assert (card.command(32, 1), card.command(33, 2)) == ([0], [0])
    assert card.command(38) == [0]
    assert card.wait() >= 950
    assert image.read_bytes()[: 4 * BLOCK] == pattern(0) + bytes(2 * BLOCK) + pattern(3)


def test_faults_come_at_their_block_and_go(image: Path) -> None:
    card = Card(image).start()
    card.fault("READ_ERROR", 2)
    card.fault("READ_CRC", 3)
    card.fault("SLOW_READ", 4, argument=9000)
    results = []
    for _ in range(5):
        assert card.command(17, 1) == [0]
        begin = card.now
        results.append((card.block(), (card.now - begin) // 1_000_000))
    good = pattern(1)
    assert [r for r, _ in results] == [good, 0x04, -1, good, good]
    assert [t >= 9 for _, t in results] == [False, False, False, True, False]
    card.fault("WRITE_CRC", 1)
    card.fault("WRITE_ERROR", 2)
    card.fault("SLOW_WRITE", 3, argument=250_000)
    card.fault("TORN_WRITE", 4, argument=100)
    answers, waits = [], []
    for _ in range(4):
        assert card.command(24, 20) == [0]
        answers.append(card.give(pattern(70)))
        waits.append(card.wait())
    assert answers == [0x0B, 0x0D, 0x05, 0x05]
    assert waits[2] >= 250_000
    image_now = image.read_bytes()
    assert image_now[20 * BLOCK : 21 * BLOCK] == pattern(70)
    assert card.command(24, 21) == [0]
    card.fault("TORN_WRITE", 5, argument=100)
    assert card.give(pattern(71)) == 0x05
    card.wait()
    torn = image.read_bytes()[21 * BLOCK : 22 * BLOCK]
    assert torn == pattern(71)[:100] + bytes(412)


def test_a_card_taken_out_and_put_back_must_be_initialised(image: Path) -> None:
    card = Card(image).start()
    card.fault("REMOVED", 1)
    assert card.command(24, 5) == [0]
    assert card.give(pattern(80)) == 0x1F
    assert card.command(13, size=2) == []
    assert image.read_bytes()[5 * BLOCK : 6 * BLOCK] == pattern(5)
    card.select(False)  # in the middle of what is not a block any more
    assert card.complaint == ""
    card.lib.sdcard_set_present(card.card, True)
    assert card.command(13, size=2) == []
    card.select(False)
    card.byte_ns = 20_000
    card.start()
    assert card.command(17, 5) == [0]
    assert card.block() == pattern(5)


def test_a_swapped_card_is_empty_and_another(image: Path) -> None:
    card = Card(image).start()
    before = card.command(10) and card.block(16)
    card.fault("SWAPPED", 1)
    assert card.command(24, 5) == [0]
    assert card.give(pattern(80)) == 0x1F
    card.select(False)
    card.byte_ns = 20_000
    card.start()
    assert card.command(17, 5) == [0]
    assert card.block() == bytes(BLOCK)
    assert (card.command(10) and card.block(16)) != before
    assert image.read_bytes()[5 * BLOCK : 6 * BLOCK] == pattern(5)


@pytest.mark.parametrize("lose_group", [0, 1])
def test_a_power_cut_leaves_part_of_the_block(image: Path, lose_group: int) -> None:
    before = image.read_bytes()
    card = Card(image).start()
    card.fault("POWER_CUT", 2, argument=lose_group)
    for block in (200, 300):
        assert not card.lib.sdcard_power_lost(card.card)
        assert card.command(24, block) == [0]
        assert card.give(pattern(90)) == 0x05
        card.wait()
    assert card.lib.sdcard_power_lost(card.card)
    after = image.read_bytes()
    assert after[200 * BLOCK : 201 * BLOCK] == pattern(90)
    changed = {
        i // BLOCK for i in range(0, SIZE, BLOCK) if after[i : i + BLOCK] != before[i : i + BLOCK]
    }
    if lose_group:
        assert changed >= set(range(256, 384)) - {300}
        assert changed <= {200, *range(256, 384)}
    else:
        assert changed <= {200, 300}
        cut = after[300 * BLOCK : 301 * BLOCK]
        kept = next((i for i in range(BLOCK) if cut[i] != pattern(90)[i]), BLOCK)
        assert cut[kept:] == bytes(BLOCK - kept)


def test_errors_of_the_host_are_reported(image: Path) -> None:
    fast = Card(image)
    fast.byte_ns = 1000
    for _ in range(10):
        fast.swap()
    fast.select()
    fast.command(0)
    assert "400 kHz" in fast.complaint
    hasty = Card(image).start()
    assert hasty.command(24, 1) == [0]
    assert hasty.give(pattern(1)) == 0x05
    hasty.send(13)
    assert "busy" in hasty.complaint
    overclocked = Card(image).start()
    overclocked.byte_ns = 100
    overclocked.command(13)
    assert "25 MHz" in overclocked.complaint
    rude = Card(image).start()
    assert rude.command(24, 1) == [0]
    rude.swap(0xFE)
    rude.swap(0)
    rude.select(False)
    assert "middle of a data block" in rude.complaint


def test_times_vary_with_the_seed_only(image: Path) -> None:
    def waits(seed: int) -> list[int]:
        card = Card(image, seed=seed, spread_percent=50, stall_one_in=4, stall_us=20_000).start()
        found = []
        for _ in range(12):
            assert card.command(24, 6) == [0]
            assert card.give(pattern(1)) == 0x05
            found.append(card.wait())
        return found

    assert waits(1) == waits(1)
    assert waits(1) != waits(2)
    assert all(780 <= w <= 1220 or w >= 20_000 for w in waits(3)[1:])
    assert any(w > 20_000 for w in waits(3))
    assert len(set(waits(3))) > 6


def test_a_size_that_no_card_has_is_refused(tmp_path: Path) -> None:
    ffi, lib = chips()
    path = tmp_path / "odd.img"
    path.write_bytes(bytes(3 * 512))
    config = ffi.new("struct sdcard_config *", {"high_capacity": True})
    assert lib.sdcard_new(str(path).encode(), config) == ffi.NULL
    assert b"512 KiB" in ffi.string(lib.sdcard_error())
    assert lib.sdcard_new(b"/nowhere/card.img", config) == ffi.NULL
    assert b"No such file" in ffi.string(lib.sdcard_error())


def test_the_meter_counts_reading_and_writing(image: Path) -> None:
    card = Card(image).start()
    assert (card.counts.reading_ns, card.counts.writing_ns) == (0, 0)
    assert card.command(17, 2) == [0]
    assert card.block() == pattern(2)
    reading = card.counts.reading_ns
    assert 1000 <= reading // 1000 <= 1040  # 500 us of access, 515 bytes of a microsecond
    for _ in range(100):
        card.swap()
    assert card.counts.reading_ns == reading
    assert card.command(24, 2) == [0]
    assert card.give(pattern(2)) == 0x05
    card.wait()
    assert 2310 <= card.counts.writing_ns // 1000 <= 2340  # 515 us, then 1,800 busy
    assert card.counts.reading_ns == reading

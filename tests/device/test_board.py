"""Boards are folders: every board.toml is complete, and errors name the wrong key."""

import re

import pytest
from poet_host.device.board import load_board, names, parse_board
from poet_host.errors import BadInput
from poet_host.resources import resource

TEXT = (resource("boards") / "mkr1000" / "board.toml").read_text(encoding="utf-8")
US_PER_MAC = next(line for line in TEXT.splitlines() if line.startswith("us_per_mac = "))


@pytest.mark.parametrize("name", names())
def test_every_board_is_complete(name: str) -> None:
    board = load_board(name)
    assert board.name == name
    assert board.power.processor_active_uw > board.power.processor_sleep_uw > 0
    assert board.base_power_uw >= board.power.processor_sleep_uw
    assert board.estimate.us_per_mac > 0
    # The estimate is realistic where the paper is not: no card reads as fast as in the paper.
    if board.paper:
        assert board.base_power_uw > 0
        for size_bytes in (512, 65536):
            estimate, paper = board.estimate, board.paper
            assert estimate.page_in_us + size_bytes / estimate.page_in_bytes_per_us > (
                paper.page_in_us + size_bytes / paper.page_in_bytes_per_us
            )


def test_the_boards_of_the_paper_are_there() -> None:
    assert {"native", "mkr1000", "nrf52840_dk", "rpi4b", "jetson_tx2"} <= set(names())
    assert load_board("mkr1000").arena_bytes == 24 * 1024
    paper = load_board("nrf52840_dk").paper
    assert paper is not None
    assert paper.processor_active_uw == pytest.approx(3328 * 3.3, rel=1e-3)
    four = ("mkr1000", "nrf52840_dk", "rpi4b", "jetson_tx2")
    assert [name for name in names() if load_board(name).paper is None] == ["nano_33_iot", "native"]
    powers = [(66_000, 330_000), (10_982, 330_000), (3_000_000, 150_000), (766_000, 309_000)]
    for name, (processor_uw, storage_uw) in zip(four, powers, strict=True):
        paper = load_board(name).paper
        assert paper is not None
        assert (paper.processor_active_uw, paper.storage_uw) == (processor_uw, storage_uw)


def test_base_power_is_the_power_at_rest() -> None:
    board = load_board("mkr1000")
    power = board.power
    assert board.base_power_uw == (
        power.processor_sleep_uw + power.other_uw + power.storage_idle_uw
    )


def test_an_error_about_an_unknown_board_lists_the_known_boards() -> None:
    with pytest.raises(BadInput, match=r"mkr2000.*mkr1000"):
        load_board("mkr2000")
    with pytest.raises(BadInput, match="boards/mkr1000"):
        load_board("../boards/mkr1000")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[power]", "[power", "not TOML"),
        ("[power]", "[[power]]", r"\$\.power: "),
        ("title =", "titel = 3\ntitle =", r"\$\.titel: "),
        ('title = "', 'title = 3 # "', r"\$\.title: "),
        ("title =", "target = 64\ntitle =", r"\$\.target: "),
        ("arena_bytes = 24576", "arena_bytes = 24577", "arena_bytes"),
        ("arena_bytes = 24576", "arena_bytes = 0", "arena_bytes"),
        (US_PER_MAC, "", r"estimate\.us_per_mac: "),
        (US_PER_MAC, f"{US_PER_MAC}\nspeed = 1", r"estimate\.speed: "),
        (US_PER_MAC, "us_per_mac = -1", r"estimate\.us_per_mac: "),
        (US_PER_MAC, "us_per_mac = nan", r"estimate\.us_per_mac: "),
        (US_PER_MAC, "us_per_mac = true", r"estimate\.us_per_mac: "),
        ("page_in_bytes_per_us = ", "page_in_bytes_per_us = -", r"\.page_in_bytes_per_us: "),
        ("flop_per_us = 0.166667", "", r"paper\.flop_per_us: "),
    ],
)
def test_an_error_names_the_wrong_key(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(BadInput, match=message) as caught:
        parse_board("mine", TEXT.replace(old, new, 1), "mine.toml")
    assert str(caught.value).startswith("mine.toml")


@pytest.mark.parametrize(
    ("board", "source", "name"),
    [
        ("mkr1000", "port/samd21/sizes.h", "BOARD_SLABS"),
        ("nrf52840_dk", "port/nrf52840/sizes.h", "BOARD_SLABS"),
        ("native", "port/native/main.c", "SLABS ="),
        ("rpi4b", "port/native/main.c", "SLABS ="),
    ],
)
def test_slabs_and_cache_are_those_of_the_firmware(board: str, source: str, name: str) -> None:
    text = (resource("firmware") / source).read_text(encoding="utf-8")
    # The native board has fewer with sanitizers.
    found = re.findall(rf"\b{name} (\d+)(?: << (\d+))?", text)
    slabs = max((int(number) << int(shift or 0) for number, shift in found), default=0)
    assert load_board(board).table_slabs == slabs
    cached = re.search(r"\bBOARD_CACHE (\d+)", text)
    assert load_board(board).cache_blocks == (int(cached[1]) if cached else 0)

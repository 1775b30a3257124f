"""Schemas of boards/<name>/chip.toml (a simulated board) and cards.toml (simulated cards)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from ..errors import BadInput
from ..files import parse_toml, read_text
from ..resources import resource
from ..schema import convert

Pin = Annotated[str, Meta(pattern=r"^P([AB]|[01]\.)([0-2]?[0-9]|3[01])$")]  # PA16 or P1.15
_Pins = Annotated[tuple[Pin, ...], Meta(min_length=1, max_length=4)]
_Select = Annotated[int, Meta(ge=0, le=3)]
_Microseconds = Annotated[int, Meta(ge=0, le=10**9)]
_Count = Annotated[int, Meta(ge=0, lt=2**32)]
_CARDS = Path(__file__).parent / "cards.toml"
DEFAULT_CARD = "strict"


@dataclass(frozen=True)
class Pads:
    """A SERCOM of a SAMD21: its number, the pads of its signals, and the multiplexer setting."""

    sercom: Annotated[int, Meta(ge=0, le=5)]
    output_select: _Select
    input_select: _Select
    function: Literal["A", "B", "C", "D", "E", "F", "G", "H"]
    pins: _Pins


@dataclass(frozen=True)
class Samd21Wiring:
    spi: Pads
    uart: Pads
    card_select: Pin
    other_select: Pin | None = None  # select of another device on the card's bus
    # A board with a sensor: its I2C, an LED that shines while its pin is high, and a button that
    # closes to ground.
    i2c: Pads | None = None
    led: Pin | None = None
    button: Pin | None = None
    crystal: bool = True  # of 32 kHz


@dataclass(frozen=True)
class Nrf52840Wiring:
    spi_sck: Pin
    spi_miso: Pin
    spi_mosi: Pin
    card_select: Pin
    uart_tx: Pin
    uart_rx: Pin


@dataclass(frozen=True)
class Card:
    """The times and properties of a card: struct sdcard_config in chip/api.h, without the seed."""

    high_capacity: bool
    strict: bool
    stopped_by_command: bool
    response_bytes: Annotated[int, Meta(ge=1, le=8)]
    init_us: _Microseconds
    read_first_us: _Microseconds
    read_next_us: _Microseconds
    write_us: _Microseconds
    write_next_us: _Microseconds
    erase_us: _Microseconds
    stop_us: _Microseconds
    busy_bytes: Annotated[int, Meta(ge=0, le=8)]
    spread_percent: Annotated[int, Meta(ge=0, le=1000)]
    stall_one_in: _Count
    stall_us: _Microseconds
    burst_blocks: _Count
    burst_us: _Microseconds
    erase_group_blocks: Annotated[int, Meta(ge=1, lt=2**32)]
    sd_status: bool
    au_size: Annotated[int, Meta(ge=0, le=15)]
    clean_khz: _Count
    noise_one_in: _Count
    refuses_supply: bool
    write_protected: bool


@dataclass(frozen=True)
class ChipFile:
    """The content of a chip.toml."""

    chip: Literal["samd21", "nrf52840"]
    wiring: dict[str, Any]  # parse_chip checks it against the chip's class in WIRINGS
    card: str | None = None  # name in cards.toml; None: the board has no card slot


WIRINGS: dict[str, type[Samd21Wiring] | type[Nrf52840Wiring]] = {
    "samd21": Samd21Wiring,
    "nrf52840": Nrf52840Wiring,
}


def load_cards() -> dict[str, Card]:
    """Read all simulated cards, by name."""
    return parse_cards(read_text(_CARDS), str(_CARDS))


def parse_cards(text: str, where: str) -> dict[str, Card]:
    """Read the text of cards.toml. A key that a card omits has the value of the first card."""
    tables = parse_toml(text, where)
    first = next(iter(tables.values()))
    return {
        name: convert(first | table, Card, f"{where}, {name}") for name, table in tables.items()
    }


def load_card(name: str | None) -> Card:
    """Read the simulated card `name`; None: the usual one. Raises BadInput if there is none."""
    cards, name = load_cards(), name or DEFAULT_CARD
    if name not in cards:
        raise BadInput(f"there is no simulated card {name}: choose one of {', '.join(cards)}")
    return cards[name]


def load_chip(board: str) -> ChipFile:
    """Read a board's chip.toml. Raises BadInput, with the file and the key, if it is wrong."""
    path = resource("boards") / board / "chip.toml"
    return parse_chip(read_text(path), str(path))


def parse_chip(text: str, where: str) -> ChipFile:
    """Read the text of a chip.toml. `where` names the file in error messages."""
    found = convert(parse_toml(text, where), ChipFile, where)
    convert(found.wiring, WIRINGS[found.chip], f"{where}, wiring")
    return found

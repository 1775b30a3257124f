"""Facts about boards: what boards/<name>/board.toml says. A board is a folder, nothing else."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ..errors import BadInput
from ..files import parse_toml, read_text
from ..resources import resource
from ..schema import LARGEST_AMOUNT, Amount, convert

_Rate = Annotated[float, Meta(ge=1e-9, le=LARGEST_AMOUNT)]  # something is divided by it
_Arena = Annotated[int, Meta(ge=4, lt=2**32, multiple_of=4)]
_Address = Annotated[int, Meta(ge=0, lt=2**32)]
_UsbIds = Annotated[str, Meta(pattern="^[0-9a-f]{4}:[0-9a-f]{4}$")]


@dataclass(frozen=True)
class Power:
    """Microwatts. Storage's are above the idle card's; `other_uw` is the rest of the board."""

    processor_active_uw: Amount
    processor_sleep_uw: Amount
    other_uw: Amount
    storage_read_uw: Amount
    storage_write_uw: Amount
    storage_idle_uw: Amount


@dataclass(frozen=True)
class Estimate:
    """Rates from which costs are estimated where nothing was measured.

    An operator takes base_us + us_per_mac x macs + us_per_flop x other operations +
    us_per_byte x bytes read and written + us_per_loop x innermost loops; a transfer of whole
    blocks page_*_us + bytes / page_*_bytes_per_us, and of the processor page_*_cpu_us +
    page_*_cpu_us_per_byte x bytes.
    """

    base_us: Amount
    us_per_mac: Amount
    us_per_flop: Amount
    us_per_byte: Amount
    us_per_loop: Amount
    page_in_us: Amount
    page_in_bytes_per_us: _Rate
    page_in_cpu_us: Amount
    page_in_cpu_us_per_byte: Amount
    page_out_us: Amount
    page_out_bytes_per_us: _Rate
    page_out_cpu_us: Amount
    page_out_cpu_us_per_byte: Amount
    commit_us: Amount


@dataclass(frozen=True)
class Paper:
    """The figures of the POET paper: energy is power x time, nothing is drawn at rest."""

    processor_active_uw: Amount
    storage_uw: Amount
    flop_per_us: _Rate
    page_in_us: Amount
    page_in_bytes_per_us: _Rate
    page_out_us: Amount
    page_out_bytes_per_us: _Rate


@dataclass(frozen=True)
class Loading:
    """How an image gets onto a board.

    `tools` maps each program that can do it, in order of preference, to its name for the chip.
    The image begins at `start` of flash. `usb`: vendor and product ids of the board's own USB
    port; `boot_loader`: the one with which its boot loader answers, if it has one. `serial`:
    where the firmware speaks, in words.
    """

    tools: dict[str, str]
    start: _Address
    usb: tuple[_UsbIds, ...]
    boot_loader: str
    serial: str


@dataclass(frozen=True)
class Board:
    """One board. `paper` is None where the paper does not give all figures, `loading` for a
    board without a firmware image. `target`: the GNU triple of a board that runs Linux, whose
    firmware is a program (firmware/port/native); else empty."""

    name: str
    title: str
    arena_bytes: _Arena
    power: Power
    estimate: Estimate
    paper: Paper | None = None
    loading: Loading | None = None
    target: str = ""

    @property
    def is_computer(self) -> bool:
        """Does it run the firmware as a program, beside whatever else it does?"""
        return self.loading is None

    @property
    def processor_active_uw(self) -> float:
        return self.power.processor_active_uw

    @property
    def processor_sleep_uw(self) -> float:
        return self.power.processor_sleep_uw

    @property
    def storage_read_uw(self) -> float:
        """Above the idle card's, as is storage_write_uw."""
        return self.power.storage_read_uw

    @property
    def storage_write_uw(self) -> float:
        return self.power.storage_write_uw

    @property
    def base_power_uw(self) -> float:
        """What the sleeping board and the idle card draw; energies of statements are above it."""
        power = self.power
        return power.processor_sleep_uw + power.other_uw + power.storage_idle_uw


def names() -> list[str]:
    """Names of all boards, sorted."""
    return sorted(path.parent.name for path in resource("boards").glob("*/board.toml"))


def load_board(name: str) -> Board:
    """The facts of one board; raises BadInput for an unknown one or a broken board.toml."""
    if name not in names():
        raise BadInput(f"there is no board {name}: choose one of {', '.join(names())}")
    path = resource("boards") / name / "board.toml"
    return parse_board(name, read_text(path), str(path))


def parse_board(name: str, text: str, where: str) -> Board:
    """The same from a board.toml's text; errors begin with `where`."""
    table = parse_toml(text, where)
    if "name" in table:
        raise BadInput(f"{where}, at $.name: a board's name is that of its folder: delete the key")
    return convert({**table, "name": name}, Board, where)

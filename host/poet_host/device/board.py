"""Facts about boards. Each folder boards/<name> describes one board in its board.toml."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta

from ..errors import BadInput
from ..files import parse_toml, read_text
from ..graph.work import Work
from ..resources import resource
from ..schema import LARGEST_AMOUNT, Amount, convert

_Share = Annotated[float, Meta(ge=0, le=1)]
_Rate = Annotated[float, Meta(ge=1e-9, le=LARGEST_AMOUNT)]  # not 0: it is a divisor
_Arena = Annotated[int, Meta(ge=4, lt=2**32, multiple_of=4)]
_Address = Annotated[int, Meta(ge=0, lt=2**32)]
_UsbIds = Annotated[str, Meta(pattern="^[0-9a-f]{4}:[0-9a-f?]{4}$")]


@dataclass(frozen=True)
class Power:
    """Power of each part of the board, in microwatts."""

    processor_active_uw: Amount
    processor_sleep_uw: Amount
    other_uw: Amount  # the rest of the board
    storage_read_uw: Amount  # above the idle card
    storage_write_uw: Amount  # above the idle card
    storage_idle_uw: Amount


@dataclass(frozen=True)
class Rates:
    """Coefficients from which an operator's time is computed.

    time_us = base_us + us_per_mac x macs + us_per_flop x other_flops + us_per_byte x bytes +
    us_per_loop x loops.
    """

    base_us: Amount
    us_per_mac: Amount
    us_per_flop: Amount
    us_per_byte: Amount
    us_per_loop: Amount = 0.0

    def time_us(self, work: Work) -> float:
        return (
            self.base_us
            + self.us_per_mac * work.macs
            + self.us_per_flop * work.other_flops
            + self.us_per_byte * work.bytes
            + self.us_per_loop * work.loops
        )


@dataclass(frozen=True, kw_only=True)
class Estimate(Rates):
    """Rates for estimating the costs that were not measured.

    Transfer time of whole blocks: page_*_us + bytes / page_*_bytes_per_us. Processor time of a
    transfer: page_*_cpu_us + page_*_cpu_us_per_byte x bytes. The * stands for `in` (a read) or
    `out` (a write).
    """

    page_in_us: Amount
    page_in_bytes_per_us: _Rate
    page_in_cpu_us: Amount
    page_in_cpu_us_per_byte: Amount
    page_out_us: Amount
    page_out_bytes_per_us: _Rate
    page_out_cpu_us: Amount
    page_out_cpu_us_per_byte: Amount
    commit_us: Amount
    # Additional time of a page-out of a tensor that is not kept, and of one that is: the card opens
    # another erase group.
    page_turn_us: Amount = 0.0
    renewed_turn_us: Amount = 0.0
    # Processor time of a cell of an operator that streams, in addition to the time of its kernel.
    cell_us: Amount = 0.0
    # Channels, and neighbours, that a convolution computes at a time: fewer of them take as long.
    tile: Annotated[int, Meta(ge=1)] = 1
    piece_us: Amount = 0.0  # processor time of each transfer of such an operator, in addition
    # Factors of the times of operators, by kernel (see `family` in profile/fit.py).
    kernels: Mapping[str, Amount] = field(default_factory=dict)
    # us_per_loop of the kernels for which it differs.
    loops: Mapping[str, Amount] = field(default_factory=dict)
    # In a slice, kernels take at most this multiple of their estimates; others 1.
    slices: Mapping[str, Amount] = field(default_factory=dict)


@dataclass(frozen=True)
class StatementCosts:
    """Processor times of a schedule's statements, without their kernels and transfers.

    In these times the board decodes the statements and reads the model's records.
    """

    compute_us: Amount = 0.0
    page_us: Amount = 0.0  # for a page-in or page-out, plus a share of the time of waits
    free_us: Amount = 0.0
    # Share of the times above in which the processor sleeps and storage is read.
    reading: _Share = 0.0
    stream_us: Amount = 0.0  # for the computation of an operator that streams

    def without_reading(self) -> "StatementCosts":
        """Return the costs where all records that the board reads are in RAM or in its flash."""
        awake = 1 - self.reading
        return StatementCosts(
            self.compute_us * awake, self.page_us * awake, self.free_us * awake, 0.0,
            self.stream_us * awake,
        )  # fmt: skip


NO_COSTS = StatementCosts()


@dataclass(frozen=True)
class Paper:
    """Figures of the POET paper, for estimating costs as the paper does.

    The paper computes energy as power x time, and assumes that an idle board draws 0 W.
    """

    processor_active_uw: Amount
    storage_uw: Amount
    flop_per_us: _Rate
    page_in_us: Amount
    page_in_bytes_per_us: _Rate
    page_out_us: Amount
    page_out_bytes_per_us: _Rate


@dataclass(frozen=True)
class Loading:
    """Facts that are needed to write a firmware image to a board."""

    tools: dict[str, str]  # the chip's name in each upload program; the first is preferred
    start: _Address  # flash address of the image
    # Vendor and product ids of the board's own USB port; ? is any digit, as in udev's rules.
    usb: tuple[_UsbIds, ...]
    boot_loader: str  # USB ids of the board's boot loader, or empty
    serial: str  # text that says where the firmware's serial port is

    def has(self, usb: str) -> bool:
        """Return whether these are the ids of the board's own USB port."""
        return any(fnmatchcase(usb, ids) for ids in self.usb)


@dataclass(frozen=True)
class Board:
    """The facts about a board, from its board.toml."""

    name: str  # name of its folder
    title: str
    arena_bytes: _Arena  # RAM for tensors
    power: Power
    estimate: Estimate
    statements: StatementCosts = NO_COSTS  # estimated
    paper: Paper | None = None  # None: the paper does not state all figures of this board
    loading: Loading | None = None  # None: the board has no firmware image
    # Slabs of tables of which the firmware knows whether a step must renew them (FORMAT.md, "Kept
    # slabs"); 0: each step renews whole tables.
    table_slabs: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    cache_blocks: Annotated[int, Meta(ge=0, lt=2**16)] = 0  # that the firmware keeps of a card
    target: str = ""  # GNU triple of a board that runs Linux, or empty

    def __repr__(self) -> str:
        return f"<Board {self.name}: arena of {self.arena_bytes:,} bytes>"

    @property
    def is_computer(self) -> bool:
        """True if the firmware is a program that runs on a multitasking operating system."""
        return self.loading is None

    @property
    def base_power_uw(self) -> float:
        """Power of the board while the processor sleeps and the card is idle.

        This power counts during the whole step. So the energies of single operators and transfers
        do not include it.
        """
        power = self.power
        return power.processor_sleep_uw + power.other_uw + power.storage_idle_uw


def names() -> list[str]:
    """Return the names of all boards, sorted."""
    return sorted(path.parent.name for path in resource("boards").glob("*/board.toml"))


def load_board(name: str) -> Board:
    """Return the board `name`. Raises BadInput if it is unknown or its board.toml is wrong."""
    if name not in names():
        raise BadInput(f"there is no board {name}: choose one of {', '.join(names())}")
    path = resource("boards") / name / "board.toml"
    return parse_board(name, read_text(path), str(path))


def parse_board(name: str, text: str, where: str) -> Board:
    """Return the board that a board.toml describes. `where` names the file in error messages."""
    table = parse_toml(text, where)
    if "name" in table:
        raise BadInput(
            f"{where}, at $.name: delete this key. The name of a board is the name of its folder"
        )
    return convert({**table, "name": name}, Board, where)

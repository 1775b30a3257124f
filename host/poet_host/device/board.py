"""Facts about boards: what boards/<name>/board.toml says. A board is a folder, nothing else."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from ..errors import BadInput
from ..files import read_text
from ..resources import resource

_T = TypeVar("_T")
_KEYS = {"title", "arena_bytes", "target", "power", "estimate", "paper", "loading"}
_WORDS = {dict: "a table of texts", int: "a number", list: "a list of texts", str: "text"}


@dataclass(frozen=True)
class Power:
    """Microwatts. Storage's are above the idle card's; `other_uw` is the rest of the board."""

    processor_active_uw: float
    processor_sleep_uw: float
    other_uw: float
    storage_read_uw: float
    storage_write_uw: float
    storage_idle_uw: float


@dataclass(frozen=True)
class Estimate:
    """Rates from which costs are estimated where nothing was measured.

    An operator takes base_us + us_per_mac x macs + us_per_flop x other operations +
    us_per_byte x bytes read and written + us_per_loop x innermost loops; a transfer of whole
    blocks page_*_us + bytes / page_*_bytes_per_us, and of the processor page_*_cpu_us +
    page_*_cpu_us_per_byte x bytes.
    """

    base_us: float
    us_per_mac: float
    us_per_flop: float
    us_per_byte: float
    us_per_loop: float
    page_in_us: float
    page_in_bytes_per_us: float
    page_in_cpu_us: float
    page_in_cpu_us_per_byte: float
    page_out_us: float
    page_out_bytes_per_us: float
    page_out_cpu_us: float
    page_out_cpu_us_per_byte: float
    commit_us: float


@dataclass(frozen=True)
class Paper:
    """The figures of the POET paper: energy is power x time, nothing is drawn at rest."""

    processor_active_uw: float
    storage_uw: float
    flop_per_us: float
    page_in_us: float
    page_in_bytes_per_us: float
    page_out_us: float
    page_out_bytes_per_us: float


@dataclass(frozen=True)
class Loading:
    """How an image gets onto a board.

    `tools` maps each program that can do it, in order of preference, to its name for the chip.
    The image begins at `start` of flash. `usb`: vendor and product ids of the board's own USB
    port; `boot_loader`: the one with which its boot loader answers, if it has one. `serial`:
    where the firmware speaks, in words.
    """

    tools: dict[str, str]
    start: int
    usb: tuple[str, ...]
    boot_loader: str
    serial: str


@dataclass(frozen=True)
class Board:
    """One board. `paper` is None where the paper does not give all figures, `loading` for a
    board without a firmware image. `target`: the GNU triple of a board that runs Linux, whose
    firmware is a program (firmware/port/native); else empty."""

    name: str
    title: str
    arena_bytes: int
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
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{where}: this is no TOML ({error})") from error
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise BadInput(f"{where}: unknown key {unknown[0]}")
    title, arena_bytes = table.get("title"), table.get("arena_bytes")
    target = table.get("target", "")
    if not isinstance(title, str):
        raise BadInput(f"{where}: title must be text")
    if not isinstance(target, str):
        raise BadInput(f"{where}: target must be text")
    if not isinstance(arena_bytes, int) or not 0 < arena_bytes < 2**32 or arena_bytes % 4:
        raise BadInput(f"{where}: arena_bytes must be a positive multiple of 4 below 4 GiB")
    return Board(
        name,
        title,
        arena_bytes,
        _section(Power, table, "power", where),
        _section(Estimate, table, "estimate", where),
        _section(Paper, table, "paper", where) if "paper" in table else None,
        _loading(table["loading"], where) if "loading" in table else None,
        target,
    )


def _loading(values: Any, where: str) -> Loading:
    kinds = {"tools": dict, "start": int, "usb": list, "boot_loader": str, "serial": str}
    if not isinstance(values, dict):
        raise BadInput(f"{where}: loading must be a table")
    wrong = sorted(set(kinds) ^ set(values))
    if wrong:
        problem = "is missing" if wrong[0] in kinds else "is unknown"
        raise BadInput(f"{where}: loading.{wrong[0]} {problem}")
    for key, kind in kinds.items():
        inside = values[key] if kind is list else values[key].values() if kind is dict else ()
        if not isinstance(values[key], kind) or not all(isinstance(one, str) for one in inside):
            raise BadInput(f"{where}: loading.{key} must be {_WORDS[kind]}")
    return Loading(**(values | {"usb": tuple(values["usb"])}))


def _section(kind: type[_T], table: Mapping[str, Any], name: str, where: str) -> _T:
    values = table.get(name, {})
    if not isinstance(values, dict):
        raise BadInput(f"{where}: {name} must be a table")
    wanted = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    wrong = sorted(wanted ^ set(values))
    if wrong:
        problem = "is missing" if wrong[0] in wanted else "is unknown"
        raise BadInput(f"{where}: {name}.{wrong[0]} {problem}")
    for key, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf"):
            raise BadInput(f"{where}: {name}.{key} must be a number that is not negative")
        if value == 0 and key.endswith("_per_us"):
            raise BadInput(f"{where}: {name}.{key} must be positive")
    return kind(**{key: float(value) for key, value in values.items()})

"""Profile: what operators and transfers cost on one board; measured, or estimated from facts.

Energies are time x power, above what the sleeping board draws: a compute's is the awake
processor's power, a transfer's the storage's.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from .. import isa
from ..device.board import Board
from ..errors import BadInput
from ..files import read_json, write_whole
from ..graph.graph import Graph, Node
from ..graph.kernels import KERNELS
from ..graph.operators import work
from .fit import Load, Rates, fit_rates

Kind = Literal["measured", "estimate", "paper"]
FORMAT, VERSION = "poet-profile", 1
_NO_COST = {"learning_rate", "momentum", "weight_decay", "epsilon", "seed", "key", "variant"}
_BLOCK, _TRAILER = (isa.constants()[f"POET_{name}"] for name in ("BLOCK", "TRAILER"))


@dataclass(frozen=True)
class Power:
    """Microwatts above the sleeping board, and of the sleeping board itself."""

    compute_uw: float
    page_in_uw: float
    page_out_uw: float
    base_uw: float


@dataclass(frozen=True)
class Lane:
    """Transfers in one direction: latency and time of each byte of whole blocks, and the
    share of the processor in both."""

    base_us: float
    us_per_byte: float
    cpu_base_us: float
    cpu_us_per_byte: float


@dataclass(frozen=True)
class Measured:
    """One operator's time with the work it did, from which other shapes are fitted."""

    time_us: float
    macs: int
    other_flops: int
    bytes: int

    @property
    def load(self) -> Load:
        return Load(self.macs, self.other_flops, self.bytes)


@dataclass(frozen=True)
class Transfer:
    """What moving one tensor to or from storage costs."""

    page_in_us: float
    page_in_uj: float
    page_in_cpu_us: float
    page_out_us: float
    page_out_uj: float
    page_out_cpu_us: float


@dataclass(frozen=True)
class Profile:
    """Costs on one board. `operators` maps `signature`s to what was measured; `rates` serve
    where nothing was. `unique_id` names the very board that was measured."""

    board: str
    kind: Kind
    power: Power
    rates: Rates
    page_in: Lane
    page_out: Lane
    commit_us: float
    unique_id: str = ""
    operators: Mapping[str, Measured] = field(default_factory=dict)

    @cached_property
    def fitted(self) -> Mapping[str, Rates]:
        """Rates by kernel, and under "" those of all kernels together."""
        groups: dict[str, list[tuple[Load, float]]] = {}
        for name, one in self.operators.items():
            for group in (name.split()[0], ""):
                groups.setdefault(group, []).append((one.load, one.time_us))
        return {group: fit_rates(points) for group, points in groups.items()}

    def cost(self, node: Node, graph: Graph) -> tuple[float, float]:
        """Time (us) and energy (uJ above the sleeping board) of computing a node."""
        measured = self.operators.get(signature(node))
        if measured:
            time_us = measured.time_us
        else:
            rates = self.fitted.get(node.op) or self.fitted.get("") or self.rates
            time_us = rates.time_us(load_of(node, graph))
        return time_us, time_us * self.power.compute_uw / 1e6

    def transfer(self, size_bytes: int) -> Transfer:
        """What a tensor of so many bytes costs: storage moves whole blocks, trailer included."""
        moved = -(-(size_bytes + _TRAILER) // _BLOCK) * _BLOCK
        into, out = self.page_in, self.page_out
        in_us = into.base_us + into.us_per_byte * moved
        out_us = out.base_us + out.us_per_byte * moved
        return Transfer(
            in_us,
            in_us * self.power.page_in_uw / 1e6,
            min(in_us, into.cpu_base_us + into.cpu_us_per_byte * moved),
            out_us,
            out_us * self.power.page_out_uw / 1e6,
            min(out_us, out.cpu_base_us + out.cpu_us_per_byte * moved),
        )

    def merged(self, other: "Profile") -> "Profile":
        """This profile with what another run on the same board measured besides."""
        if (self.board, self.kind) != (other.board, other.kind):
            raise BadInput(
                f"one profile is of {self.board} ({self.kind}), the other of {other.board} "
                f"({other.kind}): keep them in two files"
            )
        return replace(other, operators={**self.operators, **other.operators})

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def save(self, path: Path | str) -> None:
        write_whole(path, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")

    @staticmethod
    def load(path: Path | str) -> "Profile":
        """Read a profile.json; raises BadInput, which names file and key, if it is not sound."""
        return profile_from_json(read_json(path), str(path))


def signature(node: Node) -> str:
    """What an operator's time depends on: kernel, sink, shapes, which inputs there are."""
    sizes = [name for name in KERNELS[node.op].fields.split() if name not in _NO_COST]
    words = [node.op, node.sink, f"inputs={len(node.inputs)}"]
    words += [f"{name}={int(node.attrs.get(name, 0))}" for name in sizes]
    if node.attrs.get("weight_decay"):
        words.append("decay")
    return " ".join(words)


def load_of(node: Node, graph: Graph) -> Load:
    """The work of one node, as the fit counts it."""
    done = work(node, graph)
    return Load(done.macs, done.flops - 2 * done.macs, done.read_bytes + done.written_bytes)


def estimate_profile(board: Board, kind: Literal["estimate", "paper"] = "estimate") -> Profile:
    """A profile from board.toml alone.

    "paper": the POET paper's figures (power x time with nothing drawn at rest, two FLOP for
    a multiply-accumulate). Raises BadInput where the paper does not give them.
    """
    if kind == "paper":
        return _paper_profile(board)
    rates = board.estimate
    return Profile(
        board.name,
        "estimate",
        board_power(board),
        Rates(rates.base_us, rates.us_per_mac, rates.us_per_flop, rates.us_per_byte),
        Lane(
            rates.page_in_us,
            1 / rates.page_in_bytes_per_us,
            rates.page_cpu_us,
            rates.page_cpu_us_per_byte,
        ),
        Lane(
            rates.page_out_us,
            1 / rates.page_out_bytes_per_us,
            rates.page_cpu_us,
            rates.page_cpu_us_per_byte,
        ),
        rates.commit_us,
    )


def board_power(board: Board) -> Power:
    """A board's powers as costs need them."""
    return Power(
        board.processor_active_uw - board.processor_sleep_uw,
        board.storage_read_uw,
        board.storage_write_uw,
        board.base_power_uw,
    )


def _paper_profile(board: Board) -> Profile:
    paper = board.paper
    if paper is None:
        raise BadInput(f"the paper gives no figures for {board.name}: use the estimate")
    return Profile(
        board.name,
        "paper",
        Power(paper.processor_active_uw, paper.storage_uw, paper.storage_uw, 0.0),
        Rates(0.0, 2 / paper.flop_per_us, 1 / paper.flop_per_us, 0.0),
        Lane(paper.page_in_us, 1 / paper.page_in_bytes_per_us, 0.0, 0.0),
        Lane(paper.page_out_us, 1 / paper.page_out_bytes_per_us, 0.0, 0.0),
        0.0,
    )


def profile_from_json(value: Any, where: str = "profile") -> Profile:
    """A profile from its JSON value; raises BadInput that begins with `where`."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise BadInput(f"{where} is no profile: name a file that `poet-host profile` wrote")
    if value.get("version") != VERSION:
        raise BadInput(f"{where} has version {value.get('version')}, not {VERSION}: profile again")
    plain = {key: one for key, one in value.items() if key not in ("format", "version")}
    _keys(plain, Profile, where)
    if not isinstance(plain["board"], str) or not isinstance(plain["unique_id"], str):
        raise BadInput(f"{where}: board and unique_id must be text")
    if plain["kind"] not in ("measured", "estimate", "paper"):
        raise BadInput(f"{where}: kind {plain['kind']!r} is none of measured, estimate, paper")
    if not isinstance(plain["operators"], dict):
        raise BadInput(f"{where}: operators must be an object")
    plain |= {
        "power": _numbers(plain["power"], Power, f"{where}: power"),
        "rates": _numbers(plain["rates"], Rates, f"{where}: rates"),
        "page_in": _numbers(plain["page_in"], Lane, f"{where}: page_in"),
        "page_out": _numbers(plain["page_out"], Lane, f"{where}: page_out"),
        "commit_us": _number(plain["commit_us"], f"{where}: commit_us"),
        "operators": {
            name: _numbers(one, Measured, f"{where}: operator {name!r}")
            for name, one in plain["operators"].items()
        },
    }
    return Profile(**plain)


def _keys(value: Any, kind: type, where: str) -> None:
    wanted = {one.name for one in fields(kind)}
    if not isinstance(value, dict) or set(value) != wanted:
        wrong = sorted(wanted ^ set(value))[0] if isinstance(value, dict) else "no object"
        raise BadInput(f"{where}: wrong or missing key ({wrong}): profile again")


def _numbers(value: Any, kind: type, where: str) -> Any:
    _keys(value, kind, where)
    return kind(**{key: _number(one, f"{where}.{key}") for key, one in value.items()})


def _number(value: Any, where: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise BadInput(f"{where} must be a number that is not negative, not {value!r}")
    return value  # type: ignore[no-any-return]

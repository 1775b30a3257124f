"""Profile: what operators and transfers cost on one board; measured, or estimated from facts.

Energies are time x power, above what the sleeping board draws: the awake processor's while it
computes or serves a transfer, the storage's while it moves data.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from .. import isa
from ..device.board import Board
from ..errors import BadInput, quoted
from ..files import read_json, write_whole
from ..graph.graph import Graph, Node
from ..graph.work import Work, work_of
from ..schema import Amount, Count, convert, of_format
from .fit import Rates, fit_rates

Kind = Literal["measured", "estimate", "paper"]
FORMAT, VERSION = "poet-profile", 2
_Share = Annotated[float, Meta(ge=0, le=1)]
_Queue = Annotated[int, Meta(ge=1, le=2**16)]
_BLOCK, _TRAILER = (isa.constants()[f"POET_{name}"] for name in ("BLOCK", "TRAILER"))


@dataclass(frozen=True)
class Power:
    """Microwatts above the sleeping board, and of the sleeping board itself."""

    compute_uw: Amount
    page_in_uw: Amount
    page_out_uw: Amount
    base_uw: Amount


@dataclass(frozen=True)
class Lane:
    """Transfers in one direction: latency, time of each byte of the blocks that are moved, and
    of each byte of the tensor behind its last whole block, whose CRC no further block hides; and
    what of the processor each takes."""

    base_us: Amount
    us_per_byte: Amount
    cpu_base_us: Amount
    cpu_us_per_byte: Amount
    us_per_rest_byte: Amount = 0.0
    cpu_us_per_rest_byte: Amount = 0.0

    def times_us(self, size_bytes: int) -> tuple[float, float]:
        """Of a tensor's transfer, and what it takes of the processor."""
        moved, rest = moved_bytes(size_bytes), size_bytes % _BLOCK
        time_us = self.base_us + self.us_per_byte * moved + self.us_per_rest_byte * rest
        cpu_us = self.cpu_base_us + self.cpu_us_per_byte * moved + self.cpu_us_per_rest_byte * rest
        return time_us, cpu_us


@dataclass(frozen=True)
class StatementCosts:
    """What a statement of a schedule takes of the processor besides its kernel or transfer:
    it is decoded, and the model's records are read. `reading`: the share of that time in which
    the processor sleeps because the records come from storage."""

    compute_us: Amount = 0.0
    page_us: Amount = 0.0  # to the page and its wait
    free_us: Amount = 0.0
    reading: _Share = 0.0


@dataclass(frozen=True)
class Measured:
    """One operator's time with the work it did, from which other shapes are fitted."""

    time_us: Amount
    macs: Count
    other_flops: Count
    bytes: Count
    loops: Count = 0

    @property
    def work(self) -> Work:
        return Work(self.macs, self.other_flops, self.bytes, self.loops)


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
    where nothing was. `page_turn_us` is what a page of the step takes beyond other transfers
    out: the card turns to another erase group, and back. `unique_id` names the very board that
    was measured."""

    board: str
    kind: Kind
    power: Power
    rates: Rates
    page_in: Lane
    page_out: Lane
    commit_us: Amount
    page_turn_us: Amount = 0.0
    statements: StatementCosts = StatementCosts()
    transfer_queue: _Queue = 8  # transfers that the board takes at once
    metered: bool = False  # are the powers a meter's, or board.toml's, and energies estimated?
    unique_id: str = ""
    operators: Mapping[str, Measured] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Profile {self.board}: {self.kind}, {len(self.operators)} operators measured>"

    @cached_property
    def fitted(self) -> Mapping[str, Rates]:
        """Rates by kernel, and under "" those of all kernels together."""
        groups: dict[str, list[tuple[Work, float]]] = {}
        for name, one in self.operators.items():
            for group in (name.partition(" ")[0], ""):
                groups.setdefault(group, []).append((one.work, one.time_us))
        return {group: fit_rates(points) for group, points in groups.items()}

    def cost(self, node: Node, graph: Graph) -> tuple[float, float]:
        """Time (us) and energy (uJ above the sleeping board) of computing a node, and of the
        statements that do so and free it later."""
        measured = self.operators.get(signature(node))
        if measured:
            time_us = measured.time_us
        else:
            rates = self.fitted.get(node.op) or self.fitted.get("") or self.rates
            time_us = rates.time_us(work_of(node, graph))
        around_us = self.statements.compute_us + self.statements.free_us
        energy_uj = time_us * self.power.compute_uw / 1e6 + self._around_uj(around_us)
        return time_us + around_us, energy_uj

    def _around_uj(self, time_us: float) -> float:
        """Energy of what statements take besides their kernels and transfers."""
        reading, power = self.statements.reading, self.power
        return time_us * ((1 - reading) * power.compute_uw + reading * power.page_in_uw) / 1e6

    def transfer(self, size_bytes: int, *, is_page: bool = False) -> Transfer:
        """What a tensor of so many bytes costs: storage moves whole blocks, trailer included.

        `is_page`: it means nothing after the step, and so lies apart from what does.
        """
        turn_us = self.page_turn_us if is_page else 0.0
        return Transfer(
            *self._moved(self.page_in, self.power.page_in_uw, size_bytes, 0.0),
            *self._moved(self.page_out, self.power.page_out_uw, size_bytes, turn_us),
        )

    def _moved(
        self, lane: Lane, storage_uw: float, size_bytes: int, turn_us: float
    ) -> tuple[float, float, float]:
        """Time, energy and processor time of one transfer."""
        time_us, cpu_us = lane.times_us(size_bytes)
        time_us += turn_us
        around_us = self.statements.page_us
        energy_uj = (time_us * storage_uw + cpu_us * self.power.compute_uw) / 1e6
        return time_us, energy_uj + self._around_uj(around_us), cpu_us + around_us

    @property
    def commit_uj(self) -> float:
        """What ending a step takes above the sleeping board."""
        return self.commit_us * self.power.page_out_uw / 1e6

    def merged(self, other: "Profile") -> "Profile":
        """This profile with what another run on the same board measured besides."""
        if (self.board, self.kind) != (other.board, other.kind):
            raise BadInput(
                f"one profile is of {self.board} ({self.kind}), the other of {other.board} "
                f"({other.kind}): keep them in two files"
            )
        operators = {**self.operators, **other.operators}
        metered = self.metered or other.metered
        power = self.power if self.metered and not other.metered else other.power
        return replace(other, operators=operators, metered=metered, power=power)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def save(self, path: Path | str) -> None:
        write_whole(path, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")

    @staticmethod
    def load(path: Path | str) -> "Profile":
        """Read a profile.json; raises BadInput, which names file and key, if it is not sound."""
        return profile_from_json(read_json(path), str(path))


def moved_bytes(size_bytes: int) -> int:
    """Bytes of the blocks that hold a tensor and its trailer."""
    return -(-(size_bytes + _TRAILER) // _BLOCK) * _BLOCK


def signature(node: Node) -> str:
    """What an operator's time depends on: kernel, sink, shapes, which inputs there are."""
    sizes = [name for name in isa.kernels()[node.op].fields if name in isa.SIZES]
    words = [node.op, node.sink, f"inputs={len(node.inputs)}"]
    words += [f"{name}={int(node.attrs.get(name, 0))}" for name in sizes]
    if node.attrs.get("weight_decay"):
        words.append("decay")
    return " ".join(words)


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
        Rates(
            rates.base_us,
            rates.us_per_mac,
            rates.us_per_flop,
            rates.us_per_byte,
            rates.us_per_loop,
        ),
        Lane(
            rates.page_in_us,
            1 / rates.page_in_bytes_per_us,
            rates.page_in_cpu_us,
            rates.page_in_cpu_us_per_byte,
        ),
        Lane(
            rates.page_out_us,
            1 / rates.page_out_bytes_per_us,
            rates.page_out_cpu_us,
            rates.page_out_cpu_us_per_byte,
        ),
        rates.commit_us,
    )


def board_power(board: Board) -> Power:
    """Return a board's powers as costs need them."""
    power = board.power
    return Power(
        power.processor_active_uw - power.processor_sleep_uw,
        power.storage_read_uw,
        power.storage_write_uw,
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
    plain = of_format(value, FORMAT, VERSION, where, "give what `poet-host profile` wrote")
    operators = plain.get("operators")
    if isinstance(operators, dict):  # each on its own, so that errors name it
        plain["operators"] = {}
    found = convert(plain, Profile, where, complete=True)
    if not isinstance(operators, dict):
        return found
    measured = {
        name: convert(one, Measured, f"{where}, operator {quoted(name)}", complete=True)
        for name, one in operators.items()
    }
    return replace(found, operators=measured)

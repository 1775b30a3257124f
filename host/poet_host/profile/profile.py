"""Profile: costs of operators and transfers on one board, measured or estimated.

Energy is time x power, without the energy of the sleeping board. The processor uses energy while it
is awake for a kernel or a transfer. The storage uses energy while it moves data.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from .. import isa
from ..device.board import NO_COSTS, Board, Rates, StatementCosts, load_board, names
from ..errors import BadInput, quoted
from ..files import read_json, write_whole
from ..graph.cuts import BLOCK, TRAILER
from ..graph.graph import Graph, Node
from ..graph.work import Work, work_of
from ..schema import Amount, Count, convert, of_format
from .fit import family, fit_rates
from .transfer import Lane, Transfer, moved_bytes, shared_blocks, shares

Kind = Literal["measured", "estimate", "paper"]
FORMAT, VERSION = "poet-profile", 3
_Queue = Annotated[int, Meta(ge=1, le=2**16)]
Use = Literal["stored", "page", "renewed"]  # "renewed": the new value of a stored tensor
_LEAST_STEP_US = 1.0  # by a profile without times, a step takes 0
_READBACK_SHARE = isa.constants()["POET_READBACK_PERCENT"] / 100  # of the time of a step


@dataclass(frozen=True)
class Power:
    """Powers in microwatts. All except `base_uw` are in addition to the sleeping board's power."""

    compute_uw: Amount  # the processor is awake
    page_in_uw: Amount  # storage is read
    page_out_uw: Amount  # storage is written
    base_uw: Amount  # the whole board sleeps
    idle_card_uw: Amount = 0.0  # the part of `base_uw` that an idle card draws

    def without_card(self) -> "Power":
        """Return the powers of the board if its card is taken out."""
        return replace(self, base_uw=max(0.0, self.base_uw - self.idle_card_uw), idle_card_uw=0.0)


@dataclass(frozen=True)
class Measured:
    """The measured time and the work of one operator. They also predict times of other shapes."""

    time_us: Amount
    macs: Count
    other_flops: Count
    bytes: Count
    loops: Count = 0

    @property
    def work(self) -> Work:
        return Work(self.macs, self.other_flops, self.bytes, self.loops)


@dataclass(frozen=True)
class Profile:
    """Costs of operators, transfers and commits on one board."""

    board: str
    kind: Kind
    power: Power
    rates: Rates  # estimated rates, used if no operator was measured
    page_in: Lane
    page_out: Lane
    commit_us: Amount
    # Additional time of a page-out, because the card changes to another erase group: of a tensor
    # that a step updates, and (with the change back) of another one. An operator that streams
    # writes a tensor piece by piece, which takes this time once.
    page_turn_us: Amount = 0.0
    renewed_turn_us: Amount = 0.0
    statements: StatementCosts = NO_COSTS
    transfer_queue: _Queue = 8  # largest number of transfers that the board can queue
    metered: bool = False  # True: a meter measured the powers; False: they are from board.toml
    unique_id: str = ""  # unique id of the measured board
    # False: the board has no card. Costs of transfers and commits are then estimates.
    storage: bool = True
    # Without a card, the board checks at the end of a step that all new weights are finite. Here is
    # the time of this check for each byte of them. With a card, it is in the costs of page-outs.
    check_us_per_byte: Amount = 0.0
    # By `signature`.
    operators: Mapping[str, Measured] = field(default_factory=dict)
    # Factors of the times that `rates` give, by `family`; a family without a factor has 1.
    kernels: Mapping[str, Amount] = field(default_factory=dict)
    # What `us_per_loop` of `rates` is for some families instead.
    loops: Mapping[str, Amount] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Profile {self.board}: {self.kind}, {len(self.operators)} operators measured>"

    @cached_property
    def fitted(self) -> Mapping[str, Rates]:
        """Return the rates fitted to each `family` of operators. The key "" has those of all."""
        groups: dict[str, list[tuple[Work, float]]] = {}
        for name, measured in self.operators.items():
            for group in (family(name), ""):
                groups.setdefault(group, []).append((measured.work, measured.time_us))
        return {group: fit_rates(points) for group, points in groups.items()}

    def cost(self, node: Node, graph: Graph) -> tuple[float, float]:
        """Return the time (us) and the energy (uJ, without the sleeping board's) to compute a node.

        The costs of the statements that compute the node and later free it are included.
        """
        time_us = self.kernel_us(node, lambda: work_of(node, graph))
        around_us = self.statements.compute_us + self.statements.free_us
        energy_uj = time_us * self.power.compute_uw / 1e6 + self.around_uj(around_us)
        return time_us + around_us, energy_uj

    def kernel_us(self, node: Node, work: Callable[[], Work]) -> float:
        """Return the time of a node's kernel, by its `work` unless it was measured."""
        measured = self.operators.get(signature(node))
        if measured:
            return measured.time_us
        known, kind = self.fitted, family(signature(node))
        if kind not in known and kind in self.kernels:
            return self.estimate_us(kind, work()) * self.slowness
        rates = known.get(kind) or known.get(node.op) or known.get("")
        return rates.time_us(work()) if rates else self.estimate_us(kind, work())

    def estimate_us(self, kind: str, work: Work) -> float:
        """Return the time of a kernel of the `family` by the estimates of board.toml."""
        rates = self.rates
        if kind in self.loops:
            rates = replace(rates, us_per_loop=self.loops[kind])
        return rates.time_us(work) * self.kernels.get(kind, 1.0)

    @cached_property
    def slowness(self) -> float:
        """Return the time of all measured operators, as a multiple of their estimates."""
        if not self.operators:
            return 1.0
        measured = sum(it.time_us for it in self.operators.values())
        estimates = (self.estimate_us(family(name), it.work) for name, it in self.operators.items())
        return measured / (sum(estimates) or 1.0)

    def without_card(self) -> "Profile":
        """Return the profile of the board without a card.

        The model's records are then in the chip's own memory, so no time passes to read them.
        """
        power, statements = self.power.without_card(), self.statements.without_reading()
        return replace(self, power=power, statements=statements, storage=False)

    def around_uj(self, time_us: float) -> float:
        """Return the energy (uJ) if statements take `time_us`, without kernels and transfers."""
        reading, power = self.statements.reading, self.power
        return time_us * ((1 - reading) * power.compute_uw + reading * power.page_in_uw) / 1e6

    def transfer(
        self, size_bytes: int, use: Use = "stored", piece_sizes: Sequence[int] = ()
    ) -> Transfer:
        """Return the costs of moving a tensor to and from storage, in whole blocks with a trailer.

        `piece_sizes`: the bytes of its pieces if it has several.

        Tensors that are not needed after the step (pages) do not share erase groups with others.
        Small renewed tensors share blocks, whose writes are in the costs of the commit.
        """
        pieces = np.array(piece_sizes if len(piece_sizes) > 1 else (), np.int64)
        page_in = self._moved(self.page_in, self.power.page_in_uw, size_bytes, 0.0, pieces)
        if use == "renewed" and shares(size_bytes):
            around_us = self.statements.page_us
            return Transfer(*page_in, 0.0, self.around_uj(around_us), around_us)
        turn_us = self.turn_us(use)
        page_out = self._moved(self.page_out, self.power.page_out_uw, size_bytes, turn_us, pieces)
        return Transfer(*page_in, *page_out)

    def turn_us(self, use: Use) -> float:
        """Return the time to change the erase group for a page-out."""
        return {"page": self.page_turn_us, "renewed": self.renewed_turn_us}.get(use, 0.0)

    def _moved(
        self,
        lane: Lane,
        storage_uw: float,
        size_bytes: int,
        turn_us: float,
        pieces: NDArray[np.int64],
    ) -> tuple[float, float, float]:
        """Return the time, the energy and the processor time of one transfer."""
        time_us, cpu_us = lane.times_us(size_bytes)
        if pieces.size:
            time_us, cpu_us = lane.pieces_us(pieces).sum(axis=1).tolist()
        time_us += turn_us
        around_us = self.statements.page_us
        energy_uj = (time_us * storage_uw + cpu_us * self.power.compute_uw) / 1e6
        return time_us, energy_uj + self.around_uj(around_us), cpu_us + around_us

    def commit(
        self, renewed_sizes: Iterable[int], step_us: float, home_sizes: Iterable[int] = ()
    ) -> tuple[float, float]:
        """Return the time (us) and energy (uJ) of a commit, without the sleeping board's energy.

        The steps since the last commit take `step_us` without commits, and update tensors of these
        sizes (bytes). The blocks that small tensors share are read and written. Before some
        commits, the board reads one block of each tensor back. The result is the mean of all
        commits (FORMAT.md, "Digest"). The commit itself writes tensors of `home_sizes`, and reads
        them back, block by block. It also reads the last block of each large one before it writes.
        """
        sizes, homes = tuple(renewed_sizes), tuple(home_sizes)
        shared = shared_blocks(sizes)
        checked = shared + sum(not shares(size) for size in sizes)
        read_us, read_uj = self._block(self.page_in, self.power.page_in_uw)
        write_us, write_uj = self._block(self.page_out, self.power.page_out_uw)
        every = 1 + checked * read_us // (max(step_us, _LEAST_STEP_US) * _READBACK_SHARE)
        large = sum(_blocks_read(size) for size in homes if not shares(size))
        read = shared + checked / every + shared_blocks(homes) + large
        record_uj = self.commit_us * self.power.page_out_uw / 1e6
        return (
            self.commit_us + read * read_us + shared * write_us,
            record_uj + read * read_uj + shared * write_uj,
        )

    def gains_if_it_stays(
        self, size_bytes: int, commit_every: int, piece_sizes: Sequence[int] = ()
    ) -> bool:
        """Return whether transfers of a renewed tensor in each step take more energy than commits.

        A commit after `commit_every` steps writes the tensor and reads it back, block by block.
        """
        moved = self.transfer(size_bytes, "renewed", piece_sizes)
        _, block_uj = self._block(self.page_in, self.power.page_in_uw)
        commit_uj = moved.page_out_uj + _blocks_read(size_bytes) * block_uj
        return moved.page_in_uj + moved.page_out_uj > commit_uj / commit_every

    def check(self, renewed_bytes: int) -> tuple[float, float]:
        """Return the time (us) and energy (uJ) of the check of new weights, without a card."""
        time_us = self.check_us_per_byte * renewed_bytes
        return time_us, time_us * self.power.compute_uw / 1e6

    def _block(self, lane: Lane, storage_uw: float) -> tuple[float, float]:
        time_us, cpu_us = lane.times_us(BLOCK - TRAILER)
        return time_us, (time_us * storage_uw + cpu_us * self.power.compute_uw) / 1e6

    def merged(self, other: "Profile") -> "Profile":
        """Return `other`, a newer profile of this board, with the operators of both profiles."""
        if (self.board, self.kind) != (other.board, other.kind):
            raise BadInput(
                f"a profile of {self.board} ({self.kind}) cannot be merged with a profile of "
                f"{other.board} ({other.kind}): save them in two files"
            )
        operators = {**self.operators, **other.operators}
        metered = self.metered or other.metered
        power = self.power if self.metered and not other.metered else other.power
        found = replace(other, operators=operators, metered=metered, power=power)
        return found if found.storage else found.without_card()

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def save(self, path: Path | str) -> None:
        write_whole(path, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")

    @staticmethod
    def load(path: Path | str) -> "Profile":
        """Read a profile.json. Raises BadInput, which names the file and the wrong key."""
        return profile_from_json(read_json(path), str(path))


def _blocks_read(size_bytes: int) -> float:
    """Return the blocks that a commit reads for a tensor in RAM, or its share of a block.

    It reads back what it wrote. The last block of a large tensor is read before it is written.
    """
    if shares(size_bytes):
        return (size_bytes + TRAILER) / BLOCK
    return 1 + moved_bytes(size_bytes) // BLOCK


def signature(node: Node) -> str:
    """Return a text of all that affects an operator's time.

    It has the kernel, the number of inputs, the sizes, and the sink (how the kernel uses a
    gradient).
    """
    sizes = [name for name in isa.kernels()[node.op].fields if name in isa.SIZES]
    words = [node.op, node.sink, f"inputs={len(node.inputs)}"]
    words += [f"{name}={int(node.attrs.get(name, 0))}" for name in sizes]
    if node.attrs.get("weight_decay"):
        words.append("decay")
    return " ".join(words)


def estimate_profile(
    board: Board | str, kind: Literal["estimate", "paper"] = "estimate"
) -> Profile:
    """Return a profile from board.toml alone. `board` is a board or the name of a board.

    If `kind` is "paper", the profile uses the figures and the rules of the POET paper: the board at
    rest needs no power, and a multiply-accumulate counts as two FLOP. Raises BadInput if the paper
    has no figures for the board.
    """
    board = load_board(board) if isinstance(board, str) else board
    if kind == "paper":
        return _paper_profile(board)
    rates = board.estimate
    return Profile(
        board.name,
        "estimate",
        board_power(board),
        Rates(**{field.name: getattr(rates, field.name) for field in fields(Rates)}),
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
        rates.page_turn_us,
        rates.renewed_turn_us,
        board.statements,
        kernels=rates.kernels,
        loops=rates.loops,
    )


def board_power(board: Board, card: bool = True) -> Power:
    """Return the powers of a board with or without a card.

    The processor's power is its active minus its sleep power.
    """
    power = board.power
    found = Power(
        power.processor_active_uw - power.processor_sleep_uw,
        power.storage_read_uw,
        power.storage_write_uw,
        board.base_power_uw,
        power.storage_idle_uw,
    )
    return found if card else found.without_card()


def _paper_profile(board: Board) -> Profile:
    paper = board.paper
    if paper is None:
        raise BadInput(f"the POET paper has no figures for {board.name}: use profile `estimate`")
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
    """Read a profile from a JSON value. Raises BadInput if it is invalid.

    The message begins with the argument `where`, which names the source of the value.
    """
    plain = of_format(value, FORMAT, (VERSION,), where, "use a file that `poet-host profile` wrote")
    plain.setdefault("loops", {})  # which earlier profiles lack
    if isinstance(plain.get("power"), dict):
        plain["power"] = {"idle_card_uw": _idle_card_uw(plain), **plain["power"]}
    operators = plain.get("operators")
    if isinstance(operators, dict):  # check operators one by one, so that errors name them
        plain["operators"] = {}
    found = convert(plain, Profile, where, complete=True)
    found = found if found.storage else found.without_card()
    if not isinstance(operators, dict):
        return found
    measured = {
        name: convert(row, Measured, f"{where}, operator {quoted(name)}", complete=True)
        for name, row in operators.items()
    }
    return replace(found, operators=measured)


def _idle_card_uw(plain: Mapping[str, Any]) -> float:
    """Return the power of an idle card for a profile of an earlier version, which lacks it."""
    board, kind = plain.get("board"), plain.get("kind")
    known = board in names() and kind != "paper"
    return load_board(str(board)).power.storage_idle_uw if known else 0.0

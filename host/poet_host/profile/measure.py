"""Measure the times of a board: for each distinct operator, for storage transfers and for commits.

A commit makes the weights of a step valid on the storage. If a board computes floats in software,
the time depends on the numbers. So operators run on the values of a real training step. The time of
an operator that does not fit the board's arena is predicted instead. Parts of operators are
measured, too: such parts run where operators stream, and they predict what does not fit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from math import prod

import numpy as np

from .. import isa
from ..device.board import Board
from ..device.device import Device
from ..graph.cuts import BLOCK, TRAILER
from ..graph.graph import Graph, Node
from ..graph.operands import operator_of, part_of
from ..graph.weights import Array
from ..graph.work import work_of_part
from ..reference.step import run_step
from .fit import fit_plane
from .profile import Measured, Profile, estimate_profile, signature
from .transfer import Lane, moved_bytes

SAMPLES = 7
SAMPLE_US = 500.0  # shortest time of a sample; a board's clock ticks about once a microsecond
ENOUGH_US = 50_000.0  # if a sample takes this long or longer, one sample is enough
MAX_REPEAT = 65_535  # runs in one request
MAX_TRANSFER_BLOCKS = 128  # number of blocks in the largest measured transfer
# Blocks moved to measure each size of a tensor: so many that the mean includes the card's pauses.
MOVED_BLOCKS = 256
COMMITS = 64  # in one sample
PART_SHARES = (1, 4, 16)  # parts have at most an arena divided by these
# Of a part that is measured: the time of smaller ones is mostly overhead.
LEAST_PART_MACS, LEAST_PART_BYTES = 1_000, 256

Progress = Callable[[int, int, str], None]  # (measurements done, their total, name of the next)
_Times = tuple[float, float]  # (time, processor time) of a transfer, in us


def measure(
    device: Device,
    board: Board,
    graph: Graph,
    stored_values: Mapping[str, Array],
    progress: Progress | None = None,
    storage: bool = True,
) -> Profile:
    """Return the profile of `board`, measured on `device`, for the operators of `graph`.

    `stored_values`: parameters, states, data and label of a step, by node name. The board's storage
    must be formatted. No block of the storage that a model uses is overwritten. Measurements take
    seconds on fast boards, and minutes on slow boards. `storage` False: the board has no card, so
    the costs of transfers and commits are the estimates of its board.toml.
    """
    arena_bytes = int(device.info.arena_bytes)
    todo = _forms(distinct(graph), arena_bytes)
    values = run_step(graph, stored_values, 1) if todo else {}
    sizes = _transfer_sizes(arena_bytes)
    rounds = (SAMPLES if board.is_computer else 1) if storage else 0
    total = len(todo) + rounds * (2 * len(sizes) + 1)
    done = count()

    def report(what: str) -> None:
        if progress:
            progress(next(done), total, what)

    operators: dict[str, Measured] = {}
    estimated = estimate_profile(board)
    for node in todo:
        report(f"{node.op} {node.name}")
        expected_us = estimated.kernel_us(node, partial(work_of_part, node))
        time_us = _operator_us(device, node, graph, values, expected_us / 1e6)
        operators[signature(node)] = Measured(time_us, **asdict(work_of_part(node)))

    page_in: dict[int, list[_Times]] = {}
    page_out: dict[int, list[_Times]] = {}
    commits_us = []
    for _ in range(rounds):
        for size_bytes in sizes:
            for found, write, what in ((page_out, True, "out"), (page_in, False, "in")):
                report(f"page {what} {size_bytes} bytes")
                found.setdefault(size_bytes, []).append(_transfer(device, write, size_bytes))
        report("commit")
        commits_us.append(device.us(device.probe_commit(repeat=COMMITS)) / COMMITS)
    report("done")
    profile = replace(
        estimated,
        kind="measured",
        transfer_queue=max(1, int(device.info.queue_capacity)),
        unique_id=str(device.info.unique_id),
        operators=operators,
    )
    if not storage:
        return profile.without_card()
    return replace(
        profile,
        page_in=_lane(page_in),
        page_out=_lane(page_out),
        commit_us=_typical(commits_us),
    )


def _forms(nodes: Sequence[Node], arena_bytes: int) -> list[Node]:
    """Return the operators and the parts of operators to measure, one of each signature."""
    samples = [part_of(node, {"n": 1}) for node in nodes if "n" in operator_of(node).axes]
    forms = [
        *(fitting(node, arena_bytes) for node in nodes),
        *(
            fitting_part(node, arena_bytes // share)
            for node in (*nodes, *samples)
            for share in PART_SHARES
        ),
    ]
    return list({signature(form): form for form in forms if form is not None}.values())


def fitting(node: Node, arena_bytes: int) -> Node | None:
    """Return the operator in a form whose tensors fit an arena together, or None.

    If possible, its output has memory of its own: an operator in place would compute on its own
    result when it is repeated, and take another time.
    """
    for candidate in (_apart(node), node):
        if _Places.of(candidate).bytes <= arena_bytes:
            return candidate
    return None


def fitting_part(node: Node, arena_bytes: int) -> Node | None:
    """Return a part of an operator that fits an arena, or None.

    The part has fewer samples or channels. Its output has memory of its own where it can. Parts of
    tables are not measured: the tokens of a sample name rows that a part does not have. A part of a
    slice has all channels, because the slice begins and ends at some of them. A part of a layer
    along time has its whole recurrent weight: calls with some of its rows keep sums.
    """
    part, whole = _apart(node), operator_of(node)
    if node.op in ("embedding", "embedding_grad") or arena_bytes < LEAST_PART_BYTES:
        return None
    row = isa.kernels()[node.op]
    least_macs = LEAST_PART_MACS if "macs" in row.work else 0
    of_rows = {"SLICE": "c", "STEPS": "k"}
    uncut = {"h", "oh", "pass", *(of_rows[rule] for rule in of_rows if rule in row.rules)}
    while _Places.of(part).bytes > arena_bytes:
        sizes = {axis: operator_of(part).size(axis) for axis in whole.axes}
        axis = max(sizes.keys() - uncut, key=lambda it: (sizes[it], it), default="")
        if sizes.get(axis, 1) == 1 or work_of_part(part).macs < least_macs:
            return None
        part = part_of(part, {axis: -(-sizes[axis] // 2)})
    return part


def _apart(node: Node) -> Node:
    """Return the node with its output in memory of its own, if the kernel can do this."""
    must = node.sink not in ("none", "store") or isa.kernels()[node.op].in_place is not None
    return node if must else replace(node, overwrites=None)


def distinct(graph: Graph) -> list[Node]:
    """Return the first operator of each signature. Operators of one signature take equal time."""
    found: dict[str, Node] = {}
    for node in graph:
        if not node.stored:
            found.setdefault(signature(node), node)
    return list(found.values())


@dataclass(frozen=True)
class _Places:
    """Arena offsets of an operator's tensors, which lie one after the other for a measurement."""

    inputs: tuple[int, ...]
    output: int
    workspace: int
    bytes: int  # total size of all tensors and the workspace

    @staticmethod
    def of(node: Node) -> "_Places":
        at: dict[str, int] = {}
        end = 0
        *sizes, output_bytes = (4 * prod(shape) for shape in _shapes(node))
        for name, size_bytes in zip(node.inputs, sizes, strict=True):
            if name not in at:
                at[name] = end
                end += size_bytes
        output = end
        if node.overwrites is not None:
            output = at[node.overwrites]
        else:
            end += output_bytes
        workspace_bytes = int(node.attrs.get("workspace_bytes", 0))
        inputs = tuple(at[name] for name in node.inputs)
        return _Places(inputs, output, end if workspace_bytes else 0, end + workspace_bytes)


def _shapes(node: Node) -> list[tuple[int, ...]]:
    operator = operator_of(node)
    return [
        tuple(axis.size for axis in operator.operand(i)) for i in range(operator.input_count + 1)
    ]


def write_operands(
    device: Device, node: Node, graph: Graph, values: Mapping[str, Array]
) -> tuple[bytes, list[int]]:
    """Write the inputs of an operator to the arena. Return the arguments of Device.probe_op.

    They are the operator's record, and the arena offsets of its inputs, output and workspace. A
    part of an operator gets the first elements of its inputs along each axis.
    """
    places, wholes, parts = _Places.of(node), _shapes(graph[node.name]), _shapes(node)
    written: set[str] = set()
    for i, (name, offset) in enumerate(zip(node.inputs, places.inputs, strict=True)):
        if name not in written:
            value = values[name].reshape(wholes[i])[tuple(map(slice, parts[i]))]
            device.probe_write(offset, np.ascontiguousarray(value).tobytes())
            written.add(name)
    return probe_record(node), [*places.inputs, places.output, places.workspace]


def _operator_us(
    device: Device, node: Node, graph: Graph, values: Mapping[str, Array], expected_s: float
) -> float:
    """Return the time of an operator in us. `expected_s`: an estimate of it."""
    op, offsets = write_operands(device, node, graph, values)
    # Not multiplied by `repeat`: only short runs are repeated
    return _sampled(
        device, lambda repeat: device.probe_op(op, offsets, repeat=repeat, expected_s=expected_s)
    )


def probe_record(node: Node) -> bytes:
    """Return the poet_op record of an operator, which Device.probe_op needs."""
    order = list(dict.fromkeys(node.inputs))
    return isa.pack_op(
        isa.by_name("KERNEL")[node.op].code,
        isa.by_name("SINK")[node.sink].code,
        [order.index(name) for name in node.inputs],
        len(order),
        None if node.overwrites is None else order.index(node.overwrites),
        node.attrs,
    )


def _transfer_sizes(arena_bytes: int) -> list[int]:
    """Return tensor sizes (bytes) that fill 2^n storage blocks, or leave the last nearly empty."""
    most = min(MAX_TRANSFER_BLOCKS, arena_bytes // BLOCK)
    counts = [2**i for i in range(most.bit_length())]
    full = [count * BLOCK - TRAILER for count in counts]
    nearly_empty = [4 + (count - 1) * BLOCK for count in counts[:4]]
    return sorted(full + nearly_empty) or [arena_bytes // 4 * 4]


def _transfer(device: Device, write: bool, size_bytes: int) -> _Times:
    """Return the mean time and processor time of a transfer (us), including the card's pauses."""
    repeat = -(-MOVED_BLOCKS * BLOCK // moved_bytes(size_bytes))
    ticks, cpu_ticks = device.probe_transfer(write, size_bytes, repeat=repeat)
    return device.us(ticks) / repeat, device.us(cpu_ticks) / repeat


def _lane(found: Mapping[int, Sequence[_Times]]) -> Lane:
    """Fit a Lane, the coefficients of transfer times, to measured transfers.

    `found` has the measured times of transfers by the size of the tensor in bytes.
    """
    sizes = [(moved_bytes(size_bytes), size_bytes % BLOCK) for size_bytes in found]
    times_us, cpu_us = (
        [_typical([times[kind] for times in samples]) for samples in found.values()]
        for kind in (0, 1)
    )
    base_us, per_byte, per_rest = fit_plane(sizes, times_us)
    cpu_base_us, cpu_per_byte, cpu_per_rest = fit_plane(sizes, cpu_us)
    return Lane(base_us, per_byte, cpu_base_us, cpu_per_byte, per_rest, cpu_per_rest)


def _sampled(device: Device, probe: Callable[[int], int]) -> float:
    """Return the time of one run in microseconds, from several samples of at least SAMPLE_US."""
    repeat = 1
    sample_us = device.us(probe(repeat))
    while sample_us < SAMPLE_US and repeat < MAX_REPEAT:
        grow = 1.2 * SAMPLE_US / max(sample_us, 1e-3)
        repeat = min(MAX_REPEAT, int(repeat * min(max(grow, 2), 64)))
        sample_us = device.us(probe(repeat))
    if sample_us >= ENOUGH_US:
        return sample_us / repeat
    return _typical([device.us(probe(repeat)) for _ in range(SAMPLES)]) / repeat


def _typical(samples: Sequence[float]) -> float:
    """Return the lower quartile of the samples, because other processes can only slow them down."""
    return sorted(samples)[(len(samples) - 1) // 4]

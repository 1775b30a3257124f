"""Schedules: plans survive encoding, damage is found, and waits are as weak as possible."""

import json
import random
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from poet_host import isa
from poet_host.errors import BadInput, PoetError
from poet_host.plan.plan import Plan, Statement
from poet_host.plan.problem import CostGraph, CostNode
from poet_host.schedule.bits import BitReader, BitsError, BitWriter, width
from poet_host.schedule.decode import Wait, decode
from poet_host.schedule.encode import encode_costs
from poet_host.schedule.model import part_crc, with_crc
from poet_host.schedule.schedule import Schedule, parse
from support.parts import with_header
from support.random_plans import random_cost_graph, random_plan

FORMAT = Path(__file__).parents[2] / "schedules" / "FORMAT.md"


def plan_of(*statements: Statement) -> Plan:
    return Plan("feasible", 4096, None, 1.0, 1.0, 0.0, 1.0, 1.0, None, 0.0, statements)


def page_in(node: str, offset: int) -> Statement:
    return Statement("page_in", node, offset)


def compute(node: str, offset: int, workspace: int | None = None) -> Statement:
    return Statement("compute", node, offset, workspace)


def page_out(node: str) -> Statement:
    return Statement("page_out", node)


def free(node: str) -> Statement:
    return Statement("free", node)


CHAIN = CostGraph(
    "chain",
    (
        CostNode("w", (), 64, stored=True),
        CostNode("a", (0,), 32),
        CostNode("b", (1,), 32),
        CostNode("c", (1, 2), 16, keep=True),
    ),
)
CHAIN_PLAN = plan_of(
    page_in("w", 0),
    compute("a", 64),
    page_out("a"),
    free("w"),
    compute("b", 0),
    free("a"),
    page_in("a", 32),
    compute("c", 64),
    free("a"),
    free("b"),
    page_out("c"),
)


# Bits.


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**20)), max_size=40))
def test_bits_are_read_as_written(numbers: list[tuple[bool, int]]) -> None:
    out = BitWriter()
    for gamma, value in numbers:
        if gamma:
            out.gamma(value)
        else:
            out.put(value, value.bit_length())
    reader = BitReader(out.bytes())
    for gamma, value in numbers:
        assert (reader.gamma() if gamma else reader.get(value.bit_length())) == value
    assert reader.rest == 0
    assert reader.length - reader.position < 8


def test_bits_as_the_format_writes_them() -> None:
    out = BitWriter()
    out.code("1110")
    out.gamma(2)  # 3 = 11 in binary: one 0, a 1, then the low bit
    assert out.bytes() == bytes([0b1_1_0_0111])
    assert [width(n) for n in (0, 1, 2, 3, 4, 5, 256, 257)] == [0, 0, 1, 2, 2, 3, 8, 9]


def test_the_end_of_the_bits_is_found() -> None:
    with pytest.raises(BitsError):
        BitReader(b"\x01").get(9)
    with pytest.raises(BitsError):
        BitReader(bytes(8)).gamma()
    (out := BitWriter()).put(4, None)
    assert out.bytes(3) == b"\x04"
    with pytest.raises(ValueError, match="does not fit"):
        out.bytes(2)


# Round trips.


def test_chain_by_hand() -> None:
    schedule = encode_costs(CHAIN, CHAIN_PLAN)
    assert decode(schedule) == (
        page_in("w", 0),
        Wait(0),
        compute("a", 64),
        page_out("a"),
        free("w"),
        compute("b", 0),
        Wait(0),
        free("a"),
        page_in("a", 32),
        Wait(0),
        compute("c", 64),
        free("a"),
        free("b"),
        page_out("c"),
    )
    header = schedule.header
    assert (header.arena_bytes, header.statement_count) == (96, 14)
    assert (header.resident_max, header.queue_max) == (3, 1)
    bits = (
        "101" "00" "0"  # page in w, first fit
        "1110" "1"  # wait 0
        "0" "0" "00"  # compute a, first fit above w; w and a stay
        "1100"  # page out the last output
        "11011" "0"  # free resident 0 of 2
        "0" "0" "00"  # compute b at 0; a and b stay
        "1110" "1"
        "11011" "1"  # free a, resident 1 of 2
        "101" "10" "0"  # page in a (tensor 1: least significant bit first), first fit
        "1110" "1"
        "0" "0" "110"  # compute c above; a and b freed by its bits
        "1100"
        "11110"
    )  # fmt: skip
    stream = schedule.plan_part[isa.record_size("poet_plan_header") :]
    written = "".join(f"{byte:08b}"[::-1] for byte in stream)
    assert written == bits + "0" * (-len(bits) % 8)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(1, 14), st.integers(1, 9))
def test_random_plans_decode_as_encoded(seed: int, nodes: int, capacity: int) -> None:
    rng = random.Random(seed)
    graph = random_cost_graph(rng, nodes)
    plan = random_plan(graph, rng)
    assume(plan is not None)
    assume(plan.statements)
    schedule = encode_costs(graph, plan, {"seed": seed}, capacity)
    assert schedule.header.queue_max <= capacity
    again = parse(schedule.to_bytes())
    assert again.model_part == schedule.model_part
    assert again.plan_part == schedule.plan_part
    assert again.meta == json.loads(json.dumps(schedule.meta))
    decoded = decode(again)
    assert len(decoded) == schedule.header.statement_count
    plain = [s for s in decoded if not isinstance(s, Wait)]
    assert plain == list(plan.statements)
    assert_waits_are_needed(graph, decoded, capacity)


def assert_waits_are_needed(
    graph: CostGraph, decoded: tuple[Statement | Wait, ...], capacity: int
) -> None:
    """Judge the waits without the encoder: each serves the next statement, exactly."""
    inputs = {n.name: [graph.nodes[i].name for i in n.inputs] for n in graph.nodes}
    over = {n.name: graph.nodes[n.overwrites].name for n in graph.nodes if n.overwrites is not None}
    queue: list[tuple[str, str]] = []
    finished = 0
    for i, statement in enumerate(decoded):
        unfinished = queue[finished:]
        if isinstance(statement, Wait):
            follows = decoded[i + 1]
            assert isinstance(follows, Statement)
            first = unfinished[len(unfinished) - statement.remaining - 1]
            finished = len(queue) - statement.remaining
            reasons = [follows.op in ("page_in", "page_out") and len(unfinished) == capacity]
            if follows.op == "free":
                reasons.append(first[1] == follows.node)
            if follows.op == "compute":
                reasons.append(first[0] == "page_in" and first[1] in inputs[follows.node])
                reasons.append(first[1] == over.get(follows.node))
            assert any(reasons), f"wait {i} is not needed"
            continue
        if statement.op in ("page_in", "page_out"):
            queue.append((statement.op, statement.node))
            assert len(queue) - finished <= capacity
        elif statement.op == "free":
            assert all(node != statement.node for _, node in unfinished)
        else:
            arriving = {node for op, node in unfinished if op == "page_in"}
            assert not arriving & set(inputs[statement.node])
            assert over.get(statement.node) not in {node for _, node in unfinished}


def test_queue_capacity_makes_room_with_the_weakest_wait() -> None:
    nodes = [CostNode(f"w{i}", (), 4, stored=True) for i in range(4)]
    graph = CostGraph("g", (*nodes, CostNode("y", (0,), 4)))
    plan = plan_of(*[page_in(f"w{i}", 4 * i) for i in range(4)], compute("y", 16))
    waits = [s for s in decode(encode_costs(graph, plan, queue_capacity=3)) if isinstance(s, Wait)]
    assert waits == [Wait(2)]  # it also covers w0, so that the compute needs none
    waits = [s for s in decode(encode_costs(graph, plan)) if isinstance(s, Wait)]
    assert waits == [Wait(3)]


def test_workspace_and_raw_places() -> None:
    nodes = (CostNode("w", (), 8, stored=True), CostNode("y", (0,), 12, workspace_bytes=20))
    plan = plan_of(page_in("w", 100), compute("y", 128, 108))
    schedule = encode_costs(CostGraph("g", nodes), plan)
    assert [s for s in decode(schedule) if not isinstance(s, Wait)] == list(plan.statements)
    assert schedule.header.arena_bytes == 140
    assert schedule.header.resident_max == 3


# Plans that are refused.


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [
        (0, [], "tensor 0, .* not in RAM"),
        (0, [page_in("w", 0), page_in("w", 64)], "in RAM already"),
        (0, [page_in("w", 0), page_in("b", 64)], "not on storage"),
        (0, [page_in("w", 2)], "offset 2 must be a multiple of 4"),
        (1, [compute("a", 60)], r"bytes \[60, .* in use"),
        (1, [compute("b", 64)], "tensor 1 must be computed before"),
        (2, [page_out("w")], "no page on storage"),
        (3, [free("w"), free("w")], "not in RAM"),
        (7, [compute("c", 64), compute("c", 80)], "in RAM already"),
        (7, [], "never computes tensor 3"),
        (10, [], "must be on storage"),
        (3, [free("nobody")], "uses nobody"),
        (3, [compute("w", 200)], "stored tensor"),
    ],
)
def test_broken_plans_are_refused(at: int, new: list[Statement], message: str) -> None:
    statements = [*CHAIN_PLAN.statements]
    statements[at : at + 1] = new
    if at == 7 and not new:
        statements = [s for s in statements if s.node != "c"]
    with pytest.raises(PoetError, match=message):
        encode_costs(CHAIN, replace(CHAIN_PLAN, statements=tuple(statements)))


def test_a_node_that_the_plan_leaves_out_is_named() -> None:
    unused = CostNode("unused", (0,), 32)
    graph = replace(CHAIN, nodes=(*CHAIN.nodes, unused), may_leave_out=True)
    with pytest.raises(BadInput, match=r"unused.* --plan"):
        encode_costs(graph, CHAIN_PLAN)


@pytest.mark.parametrize("key", ["bytes", "workspace_bytes"])
def test_sizes_of_4_gib_are_refused(key: str) -> None:
    first, *nodes = CHAIN.nodes
    graph = replace(CHAIN, nodes=(first, *(replace(node, **{key: 1 << 32}) for node in nodes)))
    with pytest.raises(BadInput, match="4 GiB"):
        encode_costs(graph, CHAIN_PLAN)


def test_once_is_once() -> None:
    graph = replace(CHAIN, nodes=(*CHAIN.nodes[:2], replace(CHAIN.nodes[2], once=True)))
    again = plan_of(
        page_in("w", 0), compute("a", 64), compute("b", 96), free("b"), compute("b", 96)
    )
    with pytest.raises(PoetError, match="twice"):
        encode_costs(graph, again)


def test_unusable_input_is_refused() -> None:
    with pytest.raises(BadInput, match="--unplaced"):
        encode_costs(CHAIN, plan_of(Statement("page_in", "w")))
    with pytest.raises(BadInput, match="no statements"):
        encode_costs(CHAIN, plan_of())
    with pytest.raises(BadInput, match=r"meta.* key plan"):
        encode_costs(CHAIN, CHAIN_PLAN, {"plan": 1})
    with pytest.raises(BadInput, match="0 bytes"):
        encode_costs(CostGraph("g", (CostNode("x", (), 0),)), plan_of(compute("x", 0)))
    with pytest.raises(BadInput, match=r"graph chain: .* no storage"):
        encode_costs(replace(CHAIN, storage=False), CHAIN_PLAN)
    many = [CostNode(f"x{i}", (), 4, stored=True) for i in range(9)]
    graph = CostGraph("g", (*many, CostNode("y", tuple(range(9)), 4)))
    with pytest.raises(BadInput, match="9 inputs"):
        encode_costs(graph, plan_of(compute("y", 0)))


# Files and damage.


def test_save_and_load(tmp_path: Path) -> None:
    schedule = encode_costs(CHAIN, CHAIN_PLAN, {"seed": 3, "board": "nätive"})
    path = tmp_path / "a.poet"
    schedule.save(path)
    loaded = Schedule.load(path)
    assert loaded == schedule
    assert loaded.names == ("w", "a", "b", "c")
    assert loaded.meta["seed"] == 3
    assert loaded.meta["plan"]["energy_uj"] == 1.0
    assert "statements" not in loaded.meta["plan"]


def test_every_damaged_byte_is_refused() -> None:
    data = encode_costs(CHAIN, CHAIN_PLAN).to_bytes()
    for at in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            damaged = data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
            with pytest.raises(BadInput, match="file"):
                parse(damaged, "file")


def test_every_shortened_file_is_refused() -> None:
    data = encode_costs(CHAIN, CHAIN_PLAN).to_bytes()
    for size in range(len(data)):
        with pytest.raises(BadInput):
            parse(data[:size])
    with pytest.raises(BadInput):
        parse(data + b"\0")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadInput, match=r"not a \.poet file|is incomplete"):
        parse(data)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_statements_with_a_right_crc_never_decode_to_the_same(data: st.DataObject) -> None:
    """Changed bits are refused with BadInput, or they are another plan."""
    schedule = encode_costs(CHAIN, CHAIN_PLAN)
    part = bytearray(schedule.plan_part)
    size = isa.record_size("poet_plan_header")
    for bit in data.draw(
        st.lists(st.integers(0, 8 * (len(part) - size) - 1), min_size=1, max_size=4, unique=True)
    ):
        part[size + bit // 8] ^= 1 << bit % 8
    changed = Schedule(schedule.model_part, with_crc(bytes(part)), schedule.meta)
    try:
        decoded = decode(changed)
    except BadInput:
        return
    assert decoded != decode(schedule)


@pytest.mark.parametrize("field", ["arena_bytes", "statement_count", "resident_max", "queue_max"])
def test_a_header_with_other_numbers_is_refused(field: str) -> None:
    schedule = encode_costs(CHAIN, CHAIN_PLAN)
    other = {field: getattr(schedule.header, field) + 4}
    part = with_header("poet_plan_header", schedule.plan_part, **other)
    with pytest.raises(BadInput, match="breaks a rule"):
        decode(Schedule(schedule.model_part, part, schedule.meta))


def test_parts_of_two_schedules_do_not_mix() -> None:
    one = encode_costs(CHAIN, CHAIN_PLAN)
    other = encode_costs(
        replace(CHAIN, nodes=(*CHAIN.nodes[:3], replace(CHAIN.nodes[3], bytes=20))), CHAIN_PLAN
    )
    mixed = Schedule(other.model_part, one.plan_part, one.meta)
    with pytest.raises(BadInput, match="another model"):
        parse(mixed.to_bytes())


def test_another_fingerprint_is_named() -> None:
    schedule = encode_costs(CHAIN, CHAIN_PLAN)
    part = with_header("poet_model", schedule.model_part, fingerprint=isa.fingerprint() ^ 1)
    assert part_crc(part) == zlib.crc32(part[8:])
    with pytest.raises(BadInput, match="other operators"):
        parse(Schedule(part, schedule.plan_part, schedule.meta).to_bytes())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone\.poet"):
        Schedule.load(tmp_path / "gone.poet")


def test_format_names_every_statement() -> None:
    """Each row of isa.def has its code in the table of FORMAT.md."""
    words = {"end": "end", "compute": "compute", "page_in": "page in", "page_out": "page out"}
    words |= {"free": "free", "wait": "wait until", "stream": "stream the next"}
    _, _, statements = FORMAT.read_text(encoding="utf-8").partition("| bits | statement |")
    table = [line for line in statements.partition("\n\n")[0].splitlines() if "| `" in line[:3]]
    for row in isa.rows("STATEMENT"):
        assert any(f"| {words[row.name]}" in line for line in table), row.name
    codes = [line.split("`")[1].replace(" ", "") for line in table]
    for code in codes:  # a prefix code, and a complete one
        assert not any(other != code and other.startswith(code) for other in codes)
    assert sum(2.0 ** -len(code) for code in codes) == 1.0

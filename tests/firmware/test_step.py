"""Training steps on the runtime: order, repetition, results, traces, failures, any plan."""

import math
import random
import struct
from itertools import pairwise

import numpy as np
import pytest
from poet_host import isa
from poet_host.device.board import load_board
from poet_host.graph.graph import Graph, Node
from poet_host.plan.plan import Plan
from poet_host.plan.pricing import cost_graph
from poet_host.profile.profile import estimate_profile
from poet_host.schedule.decode import Wait, decode
from poet_host.schedule.encode import encode
from poet_host.schedule.model import CURRENT, INPUT
from poet_host.schedule.schedule import Schedule
from support import toy
from support.memory_board import MemoryBoard, card, refusal
from support.random_plans import random_plan
from support.toy_boards import load, trained, truth, weights

ARENA = isa.constants()["POET_OBJECT_ARENA"]
STATEMENT = {row.code: name for name, row in isa.by_name("STATEMENT").items()}


def arrays(data: list[bytes]) -> list[np.ndarray]:
    return [np.frombuffer(d, np.float32) for d in data]


def test_one_step_agrees_with_the_formulas() -> None:
    board = trained(card())
    x, t, w, v = arrays(toy.values(1))
    x, t = x.reshape(toy.N, toy.C), t.reshape(toy.N, toy.K)
    w, v = w.reshape(toy.K, toy.C), v.reshape(toy.K, toy.C)
    z = np.maximum(x @ w.T, 0)
    dy = np.where(z > 0, (z - t) * np.float32(2 / z.size), 0)
    v = 0.9 * v + (dy.T @ x + 0.01 * w)
    w = w - 0.01 * v
    result = board.step(1)
    assert result["loss"] == pytest.approx(((z - t) ** 2).mean(), rel=1e-5)
    found = [np.frombuffer(data, np.float32) for data in weights(board)]
    np.testing.assert_allclose(found[0], w.ravel(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], v.ravel(), rtol=1e-5, atol=1e-6)


def test_two_plans_of_a_model_train_the_same_bits() -> None:
    frugal, lavish = trained(card(), kind="frugal"), trained(card(), kind="lavish")
    for step in range(1, 6):
        assert frugal.step(step)["loss"] == lavish.step(step)["loss"]
        assert weights(frugal) == weights(lavish)


@pytest.mark.parametrize("queue", range(toy.schedule("cut").header.queue_max, 9))
@pytest.mark.parametrize("cache", [1, 2, 3])
@pytest.mark.parametrize("kind", ["cut", "small", "small returning"])
def test_queue_and_cache_change_no_weights(kind: str, queue: int, cache: int) -> None:
    """A cut tensor has more pieces than the queue has entries; small tensors share a block."""
    queue = max(queue, toy.schedule(kind).header.queue_max)
    board = trained(card(), kind=kind, queue=queue, cache=cache)
    for step in range(1, 5):
        board.step(step)
        assert weights(board, kind) == truth(kind)[step]


def test_cached_blocks_save_reads_and_change_no_weights() -> None:
    reads, trained_weights = [], []
    for blocks in (1, 3, 16):
        board = trained(card(), kind="lavish", cache=blocks)
        for step in range(1, 7):
            board.send_batch()
            before = board.reads
            result = board.step(step)
            assert result["reading_ticks"] == board.reads - before
            assert result["writing_ticks"] > 0
            assert result["asleep_ticks"] == 0
        assert 6 % result["readback_every"] == 0  # so that step 6 reads the trailers back
        reads.append(result["reading_ticks"])
        trained_weights.append(weights(board))
    assert trained_weights[0] == trained_weights[1] == trained_weights[2]
    assert reads[0] > reads[1] > reads[2]
    # With room for the whole schedule, a step reads only pages, trailers and its commit record.
    pages = [s for s in toy.lavish().statements if s.op == "page_in"]
    blocks_of = {node.name: -(-(node.size_bytes + 8) // 512) for node in toy.graph()}
    trailers = sum(tensor.place == CURRENT for tensor in toy.schedule().model.tensors)
    assert reads[2] == sum(blocks_of[page.node] for page in pages) + trailers + 1


def test_a_plan_may_change_between_steps() -> None:
    straight, changing = trained(card(), kind="lavish"), trained(card(), kind="lavish")
    for step in range(1, 5):
        load(changing, "frugal" if step % 2 else "lavish")
        changing.step(step)
        straight.step(step)
    assert weights(changing) == weights(straight)


def test_steps_come_in_order() -> None:
    board = trained(card())
    for wrong in (2, 3, 0xFFFFFFFF):
        assert refusal(board.step, wrong) == ("wrong_step", 0)
    board.step(1)
    board.step(2)
    assert refusal(board.step, 1) == ("wrong_step", 2)


def test_a_repeated_step_gives_its_result_again() -> None:
    board = trained(card())
    first = board.step(1, 0, 40)
    after = weights(board)
    writes = board.writes
    assert board.step(1) == first
    assert (board.writes, weights(board)) == (writes, after)


def test_a_restarted_board_has_the_loss() -> None:
    board = trained(card())
    loss = board.step(1)["loss"]
    again = MemoryBoard(board.storage)
    load(again)
    result = again.step(1)
    assert (result["step"], result["loss"], result["ticks"]) == (1, loss, 0)


def test_trace_has_a_record_for_every_statement() -> None:
    board = trained(card())
    result = board.step(1, 0, 100)
    meant = [
        "wait" if isinstance(s, Wait) else s.op for s in decode(toy.schedule())
    ] + ["end"]  # fmt: skip
    assert result["trace_records"] == len(meant)
    records = [
        isa.unpack("poet_trace", bytes(board.ffi.buffer(board.trace + i, 12)))
        for i in range(len(meant))
    ]
    assert [STATEMENT[r["kind"]] for r in records] == meant
    assert [r["statement"] for r in records] == list(range(len(meant)))
    for kinds in ({"compute", "wait", "free", "end"}, {"page_in", "page_out"}):
        lane = [r for r in records if STATEMENT[r["kind"]] in kinds]
        assert all(r["begin"] <= r["end"] for r in lane)
        assert all(a["end"] <= b["begin"] for a, b in pairwise(lane))
    spent = {
        kind: sum(r["end"] - r["begin"] for r in records if STATEMENT[r["kind"]] in kinds)
        for kind, kinds in (("compute", {"compute"}), ("transfer", {"page_in", "page_out"}))
    }
    assert result["compute_ticks"] == spent["compute"]
    assert result["transfer_ticks"] == spent["transfer"]
    assert 0 < result["commit_ticks"] < result["ticks"]


@pytest.mark.parametrize(("first", "count", "records"), [(5, 10, 10), (35, 30, 5), (90, 9, 0)])
def test_trace_has_the_requested_statements(first: int, count: int, records: int) -> None:
    board = trained(card())
    assert board.step(1, first, count)["trace_records"] == records
    for i in range(records):
        record = isa.unpack("poet_trace", bytes(board.ffi.buffer(board.trace + i, 12)))
        assert record["statement"] == first + i


def test_high_water_mark_is_measured_again_in_each_step() -> None:
    board = trained(card(), kind="frugal")
    assert board.step(1)["peak_bytes"] == toy.schedule("frugal").header.arena_bytes
    lavish = toy.schedule("lavish")
    board.load(lavish.model_part, lavish.plan_part)
    # No kernel uses the workspace of 12 bytes at the top.
    assert board.step(2)["peak_bytes"] == lavish.header.arena_bytes - 12
    board.write(ARENA, 0, 4000, b"\1" * 8)
    assert board.step(3)["peak_bytes"] == lavish.header.arena_bytes - 12


def test_only_memory_near_the_plan_is_checked_for_use() -> None:
    """On a computer the arena may have a gigabyte, and checking all of it takes long."""
    board = trained(card(), arena_bytes=1 << 16)
    height = toy.schedule().header.arena_bytes
    board.arena[(1 << 14) - 1] = 7  # its last word
    assert [board.step(step)["peak_bytes"] for step in (1, 2)] == [height, height]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_a_loss_that_is_not_finite_stops_before_the_commit(bad: float) -> None:
    board = trained(card())
    board.step(1)
    before = weights(board)
    data = toy.values(1)[toy.X]
    board.write(2, toy.X, 0, struct.pack("<f", bad) + data[4:])
    loss = 6  # its number
    assert refusal(board.step, 2) == ("not_finite", loss)
    assert weights(board) == before
    assert board.state.status.error == -19
    board.write(2, toy.X, 0, data)
    straight = trained(card())
    straight.step(1)
    straight.step(2)
    board.step(2)
    assert weights(board) == weights(straight)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["frugal", "lavish"])
def test_a_parameter_that_is_not_finite_stops_before_the_commit(bad: float, kind: str) -> None:
    """The loss of the step is finite: it was computed before the update."""
    board = trained(card(), kind=kind)
    board.step(1)
    momentum = board.tensor(toy.V, toy.SIZES[toy.V])
    board.write(2, toy.V, 0, momentum[:-4] + struct.pack("<f", bad))
    board.begin(1)
    before = weights(board)
    refused = refusal(board.step, 2)
    assert refused.name == "not_finite"
    renewed = toy.schedule(kind).model.tensors[refused.detail]
    assert renewed.block == toy.schedule(kind).model.tensors[toy.V].block
    assert weights(board) == before
    board.write(2, toy.V, 0, momentum)
    board.begin(1)
    straight = trained(card(), kind=kind)
    for step in (1, 2):
        straight.step(step)
    board.step(2)
    assert weights(board) == weights(straight)


@pytest.mark.parametrize("after", range(0, 40, 7))
def test_a_step_stops_on_request(after: int) -> None:
    board = trained(card())
    straight = trained(card())
    straight.step(1)
    asked = iter(range(1000))
    callback = board.ffi.callback("int(void *)", lambda _: int(next(asked) >= after))
    board.state.poll = callback
    assert refusal(board.step, 1).name == "stopped"
    assert board.state.committed.now.step == 0
    board.state.poll = board.ffi.NULL
    board.step(1)
    assert weights(board) == weights(straight)


@pytest.mark.parametrize("access", range(0, 26, 3))
def test_a_transfer_that_fails_ends_the_step(access: int) -> None:
    board = trained(card())
    before = weights(board)
    real = board._callbacks["submit"]
    count = iter(range(100))

    def submit(context: object, transfer: object) -> None:
        board.failing = next(count) == access
        board.lib.poet_transfer_run(board.port, transfer, board._keep[5])
        board.failing = False

    failing = board.ffi.callback("void(void *, struct poet_transfer *)", submit)
    board.port.submit = failing
    transfers = sum(s.op in ("page_in", "page_out") for s in toy.frugal().statements)
    if access < transfers:
        assert refusal(board.step, 1).name == "storage_failed"
    else:
        board.step(1)
        return
    board.port.submit = real
    load(board)
    assert weights(board) == before
    board.step(1)


# Any plan of any graph.

_SHAPES = ((1, 2, 2, 2), (1, 2, 1, 1), (1, 1, 1, 3))


def random_graph(rng: random.Random, count: int) -> Graph:
    """Elementwise operators, pooling and updates over tensors of three shapes."""
    nodes: list[Node] = []
    gone: set[str] = set()
    for shape in _SHAPES:
        nodes.append(Node(f"d{len(nodes)}", shape, "data"))
        nodes.append(Node(f"p{len(nodes)}", shape, "parameter", start="ones"))
    for _ in range(count):
        alive = [node for node in nodes if node.name not in gone]
        x = rng.choice(alive)
        like = [node for node in alive if node.shape == x.shape]
        n, c, h, w = x.shape
        attrs: dict[str, int | float] = {"n": n, "c": c, "h": h, "w": w}
        if rng.random() < 0.4:
            attrs["workspace_bytes"] = 4 * rng.randint(1, 9)
        name, kind = f"n{len(nodes)}", rng.random()
        parameters = [
            p for p in like
            if p.role == "parameter" and p is not x and p.updates is None
        ]  # fmt: skip
        if kind < 0.25:
            nodes.append(Node(name, x.shape, op="relu", inputs=(x.name,), attrs=attrs))
        elif kind < 0.55:
            inputs = (x.name, rng.choice(like).name)
            over = rng.choice([None, x.name])
            if over is not None and (inputs[0] == inputs[1] or x.stored or x.updates):
                over = None
            if over is not None:
                gone.add(over)
            nodes.append(Node(name, x.shape, op="add", inputs=inputs, attrs=attrs, overwrites=over))
        elif kind < 0.75 and h > 1:
            attrs |= {"k": c, "oh": 1, "ow": 1, "kernel_h": 2, "kernel_w": 2,
                      "stride_h": 2, "stride_w": 2}  # fmt: skip
            nodes.append(Node(name, (n, c, 1, 1), op="avgpool2d", inputs=(x.name,), attrs=attrs))
        elif parameters:
            p = rng.choice(parameters)
            gone.add(p.name)
            nodes.append(
                Node(name, x.shape, op="apply_gradient", inputs=(x.name, p.name),
                     attrs={**attrs, "learning_rate": 0.125}, sink="sgd", overwrites=p.name,
                     updates=p.name)
            )  # fmt: skip
    last = next(node for node in nodes[::-1] if node.name not in gone)
    attrs = dict(zip("nchw", last.shape, strict=True))
    nodes.append(Node("loss", (1,), op="mse", inputs=(last.name, last.name), attrs=attrs))
    return Graph("random", tuple(nodes), "d0", "d2", "loss", last.name)


def statements(board: MemoryBoard, schedule: Schedule) -> list[tuple[object, ...]]:
    """Return the loaded plan in the host's terms."""
    found: list[tuple[object, ...]] = []
    for op, s in board.statements():
        if op == "wait":
            found.append((op, board.state.decoder.queued - board.state.decoder.finished))
        elif op in ("compute", "page_in"):
            space = board.state.op.workspace_bytes if op == "compute" else 0
            found.append((op, schedule.names[s.tensor], s.offset, s.workspace if space else None))
        else:
            found.append((op, schedule.names[s.tensor]))
    return found


def as_tuples(schedule: Schedule) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for s in decode(schedule):
        if isinstance(s, Wait):
            found.append(("wait", s.remaining))
        elif s.op in ("compute", "page_in"):
            found.append((s.op, s.node, s.offset, s.workspace_offset))
        else:
            found.append((s.op, s.node))
    return found


def run(graph: Graph, plan: Plan, queue: int) -> tuple[list[tuple[object, ...]], object]:
    """Run two steps of a plan; return its statements, and the losses with all trained tensors."""
    schedule = encode(graph, plan, queue_capacity=queue)
    board = MemoryBoard(card(), arena_bytes=1 << 14, queue=queue)
    board.format()
    board.load(schedule.model_part, schedule.plan_part)
    assert statements(board, schedule) == as_tuples(schedule)
    rng = np.random.default_rng(3)
    stored = [node for node in graph if node.stored]
    for number, node in enumerate(stored):
        value = rng.uniform(-1, 1, node.shape).astype(np.float32).tobytes()
        board.write(2, number, 0, value)
        if schedule.model.tensors[number].place == INPUT:
            board.batch[number] = value
    board.begin(0)
    losses = [board.step(step)["loss"] for step in (1, 2)]
    trained = {node.name for node in graph.trainable}
    return as_tuples(schedule), (
        losses,
        [board.tensor(i, n.size_bytes) for i, n in enumerate(stored) if n.name in trained],
    )


def test_random_plans_decode_as_on_the_host_and_train_the_same_bits() -> None:
    rng, profile = random.Random(11), estimate_profile(load_board("native"))
    seen: set[str] = set()
    compared = 0
    while compared < 40:
        graph = random_graph(rng, rng.randint(3, 14))
        costs = cost_graph(graph, profile)
        plans = [p for p in (random_plan(costs, rng) for _ in range(6)) if p is not None]
        results = []
        for plan in plans:
            statements_seen, result = run(graph, plan, rng.choice((1, 2, 8)))
            seen |= {str(s[0]) for s in statements_seen}
            results.append(result)
        assert all(result == results[0] for result in results)
        compared += max(len(results) - 1, 0)
    assert seen == {"compute", "page_in", "page_out", "free", "wait"}


def test_a_step_of_hours_is_timed_although_its_clock_wraps_around() -> None:
    """With ticks of a microsecond, this step takes almost two hours."""
    times = []
    for ticks_per_call in (1, 1 << 26):
        board = trained(card())
        board.ticks_per_call = ticks_per_call
        times.append(board.step(1, 0, 100))
    quick, slow = times
    assert slow["ticks"] > 1.5 * 3600 * 10**6
    for name in ("ticks", "compute_ticks", "transfer_ticks"):
        assert slow[name] == quick[name] << 26 > 0
    assert slow["reading_ticks"] == quick["reading_ticks"]
    assert slow["writing_ticks"] == quick["writing_ticks"] > 0

"""A learner (poet/learner.h) on a device in Python, and what it must have learned."""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import cffi
import numpy as np
import poet_host as poet
from numpy.typing import NDArray
from poet_host import isa
from poet_host.card.weights import SavedWeights
from poet_host.data.facts import DataFacts
from poet_host.data.normalization import Normalization
from poet_host.data.taught import Taught, drawn
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values
from poet_host.package.packaged import RAW, Packaged, Raw
from poet_host.package.sizes import memory_bytes
from poet_host.plan.plan import Plan, Statement
from poet_host.reference.inference import forward_graph, logits
from poet_host.reference.step import run_step
from poet_host.schedule.decode import initial_offsets
from poet_host.schedule.encode import encode
from poet_host.schedule.forward import with_forward
from poet_host.schedule.schedule import Schedule
from support import memory_board

BLOCK, BUSY, NO_STEP = 512, 1, 0xFFFFFFFF
CLASSES, SLOTS, BATCH, SEED = 3, 4, 2, 77
SAMPLES, WEIGHTS = 1, 2  # what to forget
RAW_SCALE, RAW_OFFSET = 1 / 64, 3.0
Array = NDArray[Any]


@cache
def library() -> tuple[cffi.FFI, Any]:
    ffi, lib = memory_board.library()
    declared = "".join(
        memory_board.declarations(f"include/poet/{it}.h") for it in ("package", "learner")
    )
    size = f"uint64_t opaque[{1408 // 8}];"
    ffi.cdef(
        re.sub(r"(struct poet_learner \{).*?^\};", rf"\1 {size} }};", declared, flags=re.M | re.S)
    )
    return ffi, lib


@cache
def graph(kind: "Kind") -> Graph:
    if kind.autoencoder:
        b = Builder("auto", data=(BATCH, 12))
        x = b.linear(b.relu(b.linear(b.data, 5, name="in"), name="relu"), 12, name="out")
        return training_graph(b.model(b.mse(x, name="loss")), Sgd(kind.learning_rate), kind.train)
    b = Builder("small", data=(BATCH, 2, 1, 6))
    x = b.relu(b.conv2d(b.data, kind.channels, (1, 3), padding=(0, 1), name="conv"), name="relu")
    model = b.model(b.softmax_xent(b.linear(b.global_avgpool(x), CLASSES, name="fc")))
    rule = Sgd(kind.learning_rate, momentum=0.9)
    return training_graph(model, rule, kind.train, accumulate=kind.accumulate)


@dataclass(frozen=True)
class Kind:
    """A package. `pages`: weights are paged in from storage, instead of staying in RAM."""

    pages: bool = False
    raw: str = "int16"
    slots: int = SLOTS
    learning_rate: float = 0.05
    autoencoder: bool = False
    start: int = 1  # seed of the starting weights
    train: str = "all"  # the other parameters are frozen
    every: int = 1  # steps to a commit; if more, some weights stay in RAM
    accumulate: int = 1  # steps to an update of the weights
    channels: int = 4  # of the convolution, whose weights take 24 bytes each

    @property
    def graph(self) -> Graph:
        return graph(self)

    @property
    def classes(self) -> int:
        return 1 if self.autoencoder else CLASSES

    @property
    def normalization(self) -> Normalization:
        return Normalization((0.1, -0.2), (1.1, 0.7))

    def floats(self, raw: Array) -> Array:
        x = (raw.astype("<f4") - np.float32(RAW_OFFSET)) * np.float32(RAW_SCALE)
        return self.normalization.apply("", x)

    def sample(self, number: int) -> Array:
        rng = np.random.default_rng(number)
        values = rng.normal(0, 40, (2, 1, 6))
        values = np.abs(values) if self.raw == "uint8" else values
        return np.clip(values, -128, 255 if self.raw == "uint8" else 127).astype(RAW[self.raw])


def outputs_count(kind: Kind) -> int:
    return 12 if kind.autoencoder else CLASSES


@cache
def schedule(kind: Kind) -> Schedule:
    more: dict[str, Any] = {"ram": 800, "commit_every": kind.every} if kind.every > 1 else {}
    problem = poet.problem(kind.graph, "native", storage=kind.pages, **more)
    plan = poet.solve(problem, work_limit=500) if more else problem.keep_everything
    assert plan is not None
    made = encode(kind.graph, plan, storage=kind.pages)
    return with_forward(made, *forward(kind.graph, made, plan))


def forward(trained: Graph, made: Schedule, plan: Plan) -> tuple[Graph, Plan]:
    """Return the inference, and a plan that uses no byte of RAM twice."""
    graph, homes = forward_graph(trained), initial_offsets(made)
    end = max([at + graph[name].size_bytes for name, at in homes.items()], default=0)
    places: dict[str, int] = {}

    def place(name: str, size: int) -> int:
        nonlocal end
        places[name] = (end + 3) // 4 * 4
        end = places[name] + size
        return places[name]

    place(graph.data, graph[graph.data].size_bytes)
    steps = []
    for node in graph:
        if node.stored:
            continue
        for name in node.inputs:
            if graph[name].stored and name not in homes and name not in places:
                steps.append(Statement("page_in", name, place(name, graph[name].size_bytes)))
        work = node.attrs.get("workspace_bytes", 0)
        workspace = place(f"{node.name} workspace", work) if work else None
        offset = None if node.overwrites else place(node.name, node.size_bytes)
        steps.append(Statement("compute", node.name, offset, workspace))
    start = ((graph.data, places[graph.data]),)
    return graph, replace(plan, statements=tuple(steps), initial_offsets=start)


@cache
def start(kind: Kind) -> dict[str, Array]:
    return start_values(kind.graph, kind.start)


def stored(kind: Kind) -> list[str]:
    """Names of the tensors that an application can read, in the order of their numbers."""
    graph = kind.graph
    return [it.name for it in graph if it.stored and it.name not in (graph.data, graph.label)]


@cache
def packaged(kind: Kind) -> Packaged:
    weights = SavedWeights(start(kind), DataFacts(normalization=kind.normalization))
    raw = Raw(kind.raw, RAW_SCALE, RAW_OFFSET)
    return Packaged("small", schedule(kind), weights, raw, kind.slots, SEED)


@cache
def package(kind: Kind) -> SimpleNamespace:
    """The record of a package, and what it points to."""
    ffi, _ = library()
    made, keep = schedule(kind), []

    def data(content: bytes) -> Any:
        keep.append(ffi.new("uint8_t[]", content))
        return keep[-1]

    def program(part: Schedule) -> Any:
        parts = (part.model_part, part.plan_part)
        return [*(data(it) for it in parts), *(len(it) for it in parts), 0]

    first = packaged(kind).first_values()
    values = [data(content) if content else ffi.NULL for content in first]
    pair = (kind.normalization.scale, kind.normalization.offset)
    scale, offset = (np.array(it, "<f4").tobytes() for it in pair)
    assert made.forward is not None
    table = ffi.new("const uint8_t *[]", values)
    keep.append(table)
    record = ffi.new("struct poet_package *", {
        "magic": isa_value("POET_PACKAGE_MAGIC"), "training": program(made),
        "forward": program(made.forward), "values": table,
        "values_crc": zlib.crc32(b"".join(first)),
        "raw_scale": RAW_SCALE, "raw_offset": RAW_OFFSET,
        "scale": ffi.cast("float *", data(scale)), "offset": ffi.cast("float *", data(offset)),
        "channels": 2, "sample_values": 12, "outputs": outputs_count(kind),
        "batch": BATCH, "seed": SEED, "data": made.names.index(kind.graph.data),
        "label": made.names.index(kind.graph.label), "classes": kind.classes, "slots": kind.slots,
        "raw": [*RAW].index(kind.raw), "repeats_the_input": kind.autoencoder,
    })  # fmt: skip
    return SimpleNamespace(record=record, keep=keep)


def isa_value(name: str) -> int:
    text = (memory_board.resource("firmware") / "include/poet/package.h").read_text()
    found = re.search(rf"#define {name} (\w+?)u?\b", text)
    assert found is not None
    return int(found[1].rstrip("u"), 0)


class Device:
    """Storage in memory whose power can be cut.

    `cut_at`: the number of the write or erase, from 1, that is torn; later accesses fail.
    Of storage without erases, the writes since the last flush that `survive` names are kept.
    """

    def __init__(self, blocks: int, unit: int = 0, image: bytes | None = None) -> None:
        ffi, _ = library()
        fresh = b"\xff" if unit else b"\0"
        self.image = bytearray(image if image is not None else fresh * (blocks * BLOCK))
        self.unit = unit
        self.cut_at: int | None = None
        self.survive: Callable[[int], list[int]] = lambda count: [*range(count)]
        self.changes = self.accesses = self.now = self.us_per_call = 0
        self.fail_at: int | None = None  # this access fails, and no other
        self.off_at: int | None = None  # from this access on, all fail
        self.lose_at: int | None = None  # this write is not made, without an error
        self.busy_bus = False
        self.is_busy: Callable[[], bool] = lambda: False  # then the caller asks again
        self.asks_again = False
        self.bus_taken = 0
        self.inside: Callable[[], object] = lambda: None  # called in each access
        self.unflushed: list[tuple[int, bytes, bytes]] = []
        self.broken_rules: list[str] = []
        self._functions = {
            "micros": ffi.callback("uint32_t(void *)", self._micros),
            "read": ffi.callback("int(void *, uint32_t, void *)", self._read, error=-1),
            "write": ffi.callback("int(void *, uint32_t, const void *)", self._write, error=-1),
            "flush": ffi.callback("int(void *)", self._flush, error=-1),
            "erase": ffi.callback("int(void *, uint32_t)", self._erase, error=-1),
            "take_bus": ffi.callback("int(void *)", self._take_bus, error=1),
            "give_bus": ffi.callback("void(void *)", self._give_bus),
        }
        facts = {"blocks": len(self.image) // BLOCK, "erase_blocks": unit}
        self.record = ffi.new("struct poet_device *", {**facts, **self._functions})
        if not unit:
            self.record.erase = ffi.NULL

    def _micros(self, _: Any) -> int:
        self.now += self.us_per_call
        return self.now & 0xFFFFFFFF

    def _is_off(self) -> bool:
        self.inside()
        self.accesses += 1
        if not self.bus_taken:
            self.broken_rules.append("an access without the bus")
        is_off = self.off_at is not None and self.accesses > self.off_at
        return is_off or self.accesses - 1 == self.fail_at or self.changes == self.cut_at

    def _inside(self, block: int, count: int = 1) -> bool:
        if block + count > len(self.image) // BLOCK:
            self.broken_rules.append(f"block {block} is beyond the storage")
            return False
        return True

    def _read(self, _: Any, block: int, data: Any) -> int:
        if self._is_off() or not self._inside(block):
            return -1
        library()[0].memmove(data, self.image[block * BLOCK : (block + 1) * BLOCK], BLOCK)
        return 0

    def _write(self, _: Any, block: int, data: Any) -> int:
        if self._is_off() or not self._inside(block):
            return -1
        at = block * BLOCK
        old, new = bytes(self.image[at : at + BLOCK]), bytes(library()[0].buffer(data, BLOCK))
        if self.unit and old != b"\xff" * BLOCK:
            self.broken_rules.append(f"block {block} is written without an erase")
        self.changes += 1
        if self.changes == self.cut_at:  # this write is torn
            new = new[:200] + old[200:]
        if self.changes == self.lose_at:
            new = old
        self.unflushed.append((at, old, new))
        self.image[at : at + BLOCK] = new
        return -1 if self.changes == self.cut_at else 0

    def _erase(self, _: Any, block: int) -> int:
        if self._is_off() or not self._inside(block, self.unit):
            return -1
        if block % self.unit:
            self.broken_rules.append(f"block {block} begins no erase unit")
        self.changes += 1
        size = self.unit * BLOCK
        if self.changes == self.cut_at:
            size //= 2
        self.image[block * BLOCK : block * BLOCK + size] = b"\xff" * size
        return -1 if self.changes == self.cut_at else 0

    def _flush(self, _: Any) -> int:
        if self._is_off():
            return -1
        self.unflushed.clear()
        return 0

    def _take_bus(self, _: Any) -> int:
        self.asks_again = self.is_busy()
        if self.busy_bus or self.asks_again:
            return 1
        if self.bus_taken:
            self.broken_rules.append("the bus is taken twice")
        self.bus_taken = 1
        return 0

    def _give_bus(self, _: Any) -> None:
        self.bus_taken = 0

    def after_the_cut(self) -> bytes:
        """Return the storage as the next device finds it."""
        image = bytearray(self.image)
        if not self.unit:
            for at, before, _ in reversed(self.unflushed):
                image[at : at + BLOCK] = before
            for i in self.survive(len(self.unflushed)):
                at, before, new = self.unflushed[i if i >= 0 else -1 - i]
                image[at : at + BLOCK] = new if i >= 0 else new[:24] + before[24:]
        return bytes(image)


class Refused(Exception):
    """A negative result; `name` is its row in wire.def."""

    def __init__(self, code: int) -> None:
        self.name = isa.by_code("ERROR")[code].name
        super().__init__(self.name)


class StorageFailed(Refused):
    """A function of the device failed."""


STORAGE_FAILED = next(it.code for it in isa.rows("ERROR") if it.name == "storage_failed")


class Learner:
    """`device`: None if there is no storage."""

    def __init__(self, kind: Kind, device: Device | None = None, **how: Any) -> None:
        ffi, self.lib = library()
        self.ffi, self.kind = ffi, kind
        self.device = device or Device(0)
        self.package = package(kind)
        self.state_ = ffi.new("struct poet_learner *")
        on_storage = device is not None
        self.bytes_ = memory_bytes(packaged(kind), on_storage=on_storage, pointer_bytes=8)
        self._memory = ffi.new("uint64_t[]", self.bytes_ // 8 + 2)  # and a guard
        self._memory[self.bytes_ // 8] = 0x5AFE5AFE5AFE5AFE
        if how.pop("open", True):
            self.open(**how)

    def open(self, offset: int = 0, fewer: int = 0) -> None:
        memory = self.ffi.cast("uint8_t *", self._memory) + offset
        self.call("open", self.package.record, self.device.record, memory, self.bytes_ - fewer)

    def call(self, name: str, *arguments: Any) -> int:
        """Return 0 or BUSY."""
        self.device.asks_again = True
        while self.device.asks_again:
            self.device.asks_again = False
            code: int = getattr(self.lib, f"poet_learner_{name}")(self.state_, *arguments)
        assert not self.device.bus_taken
        assert not self.device.broken_rules, self.device.broken_rules
        assert self._memory[self.bytes_ // 8] == 0x5AFE5AFE5AFE5AFE
        if code < 0:
            raise (StorageFailed if code == STORAGE_FAILED else Refused)(code)
        assert code in (0, BUSY)
        return code

    def infer(self, sample: Array) -> Array:
        outputs = self.ffi.new("float[]", self.package.record.outputs)
        self.call("infer", self.raw(sample), outputs)
        return np.frombuffer(self.ffi.buffer(outputs), "<f4").copy()

    def raw(self, sample: Array) -> Any:
        return self.ffi.new("uint8_t[]", sample.astype(RAW[self.kind.raw]).tobytes())

    def teach(self, sample: Array, label: int) -> bool:
        """Return False if there is no room before a commit."""
        return self.call("teach", self.raw(sample), label) == 0

    def learn(self, steps: int) -> None:
        self.call("learn", steps)

    def poll(self, budget_us: int = 0) -> int:
        return self.call("poll", budget_us)

    def run(self, budget_us: int = 0) -> None:
        while self.poll(budget_us):
            pass

    def save(self) -> None:
        self.call("save")

    def state(self) -> Any:
        state = self.ffi.new("struct poet_learner_state *")
        self.call("state", state)
        return state

    def read(self, tensor: int, size: int, offset: int = 0) -> bytes:
        to = self.ffi.new("uint8_t[]", size)
        self.call("read", tensor, offset, to, size)
        return bytes(self.ffi.buffer(to, size))

    def write(self, tensor: int, content: bytes, offset: int = 0) -> None:
        self.call("write", tensor, offset, self.ffi.new("uint8_t[]", content), len(content))

    def weights(self) -> dict[str, bytes]:
        names = stored(self.kind)
        return {
            name: self.read(i, self.kind.graph[name].size_bytes) for i, name in enumerate(names)
        }

    def forget(self, what: int) -> None:
        self.call("forget", what)


def blocks(kind: Kind, unit: int) -> int:
    _, lib = library()
    return int(lib.poet_learner_blocks(package(kind).record, unit))


@dataclass
class Trace:
    """What was taught, as `replay` reads it, and the weights that must come of it."""

    kind: Kind
    x: list[Array] = field(default_factory=list)
    taught: list[Taught] = field(default_factory=list)

    def teach(self, learner: Learner, label: int) -> bool:
        """Teach the next sample. It stays in the trace if the call fails."""
        self.x.append(self.kind.sample(1000 * label + len(self.x)))
        self.taught.append(Taught(label, learner.state().next_step))
        if learner.teach(self.x[-1], label):
            return True
        self.x.pop()
        self.taught.pop()
        return False

    def replay(self, steps: int) -> dict[str, bytes]:
        """Return the weights after so many steps, by the reference kernels."""
        kind, batches = self.kind, b""  # a digest of what the steps have drawn
        made = start(kind)
        weights = {name: made[name].astype("<f4").tobytes() for name in stored(kind)}
        for step in range(1, steps + 1):
            chosen = drawn(self.taught, SEED, step, BATCH, kind.slots)
            assert chosen is not None
            batch = tuple((self.taught[i].label, self.x[i].tobytes()) for i in chosen)
            batches = sha256(batches + repr(batch).encode()).digest()
            known = _REPLAYED.get((kind, batches))
            weights = known or trained(kind, step, weights, batch)
            _REPLAYED[kind, batches] = weights
        return weights


_REPLAYED: dict[tuple[Kind, bytes], dict[str, bytes]] = {}


def forget_replays() -> None:
    """Free the memory of weights that were replayed."""
    _REPLAYED.clear()


def trained(
    kind: Kind, step: int, before: dict[str, bytes], batch: Sequence[tuple[int, bytes]]
) -> dict[str, bytes]:
    graph = kind.graph
    values = {
        name: np.frombuffer(content, "<f4").reshape(graph[name].shape)
        for name, content in before.items()
    }
    raw = [np.frombuffer(sample, RAW[kind.raw]).reshape(2, 1, 6) for _, sample in batch]
    data = kind.floats(np.stack(raw)).reshape(graph[graph.data].shape)
    labels = np.array([label for label, _ in batch], "<i4")
    values |= {graph.data: data, graph.label: data if kind.autoencoder else labels}
    after = run_step(graph, values, step)
    renewed = {node.updates: node.name for node in graph if node.updates}
    return {name: after[renewed.get(name, name)].astype("<f4").tobytes() for name in stored(kind)}


def outputs_of(kind: Kind, weights: dict[str, bytes], sample: Array) -> Array:
    """Return the outputs for a sample, by the reference kernels."""
    graph = kind.graph
    values = {
        name: np.frombuffer(content, "<f4").reshape(graph[name].shape)
        for name, content in weights.items()
    }
    data = kind.floats(sample[None]).reshape(1, *graph[graph.data].shape[1:])
    return logits(graph, values, data)

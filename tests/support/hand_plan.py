"""A model and a plan by hand, bit by bit, with every form of statement."""

from functools import cache

from poet_host import isa
from poet_host.schedule.bits import BitWriter
from poet_host.schedule.model import (
    CURRENT,
    FIXED,
    KEEP,
    NEXT,
    ONCE,
    PAGE,
    STORED,
    Model,
    Operator,
    Tensor,
    model_bytes,
    with_crc,
)
from poet_host.schedule.slots import UNIT_BLOCKS
from support.memory_board import MemoryBoard, card

KERNEL = {name: row.code for name, row in isa.by_name("KERNEL").items()}
SINK = {name: row.code for name, row in isa.by_name("SINK").items()}
FOUR = {"n": 1, "c": 4, "h": 1, "w": 1}
S, P, A, B, C, D, Q = range(7)
PAGES = 3 * UNIT_BLOCKS  # the first block of the pages

MODEL = Model(
    tensors=(
        Tensor(16, FIXED, STORED, 0),
        Tensor(16, CURRENT, STORED, 1),
        Tensor(16, PAGE, 0, PAGES),
        Tensor(16, PAGE, 0, PAGES + 1),
        Tensor(16, PAGE, 0, PAGES + 2),
        Tensor(16, PAGE, 0, PAGES + 3),
        Tensor(16, NEXT, KEEP | ONCE, 1),
    ),
    operators=(
        Operator(KERNEL["relu"], (S,), attrs=FOUR),
        Operator(KERNEL["add"], (A, A), attrs={**FOUR, "workspace_bytes": 8}),
        Operator(KERNEL["add"], (A, B), attrs=FOUR),
        Operator(KERNEL["apply_gradient"], (C, B), SINK["accumulate"], B, FOUR),
        Operator(KERNEL["apply_gradient"], (D, P), SINK["sgd"], P, FOUR),
    ),
    slot_stride=UNIT_BLOCKS,
    data_blocks=PAGES + 4,
)

# A number (value, width), or a pattern of bits as FORMAT.md writes it.
Item = str | tuple[int, int]
FIT, NO, YES = "0", "0", "1"


def above(resident: int, width: int) -> list[Item]:
    return ["10", (resident, width)]


def raw(offset: int) -> list[Item]:
    return ["11", (offset // 4, 4)]


def page_in(tensor: int, *place: Item) -> list[Item]:
    return ["101", (tensor, 3), *place]


def again(tensor: int, *rest: Item) -> list[Item]:
    return ["100", (tensor, 3), *rest]


WAIT_0: list[Item] = ["1110", "1"]
WAIT_1: list[Item] = ["1110", "010"]
OUT_LAST: list[Item] = ["1100"]
END: list[Item] = ["11110"]


def out(resident: int, width: int) -> list[Item]:
    return ["11010", (resident, width)]


def free(resident: int, width: int) -> list[Item]:
    return ["11011", (resident, width)]


# For each statement its bits, and their meaning as (name, tensor, offset).
PLAN: list[tuple[list[Item], list[tuple[str, int, int]]]] = [
    (page_in(S, FIT), [("page_in", S, 0)]),
    (WAIT_0, [("wait", 0, 0)]),
    (["0", FIT, YES, NO], [("compute", A, 16), ("free", S, 0)]),
    (["0", FIT, *above(1, 1), NO, NO], [("compute", B, 32)]),
    (OUT_LAST, [("page_out", B, 32)]),
    (["0", *raw(48), YES, NO, NO], [("compute", C, 48), ("free", A, 16)]),
    (page_in(P, FIT), [("page_in", P, 0)]),
    (out(2, 2), [("page_out", C, 48)]),
    (WAIT_1, [("wait", 0, 0)]),
    (["0", NO, NO], [("compute", D, 32)]),  # where B was; C is still being written
    (["0", YES, NO], [("compute", Q, 0), ("free", D, 32)]),  # where P was
    (OUT_LAST, [("page_out", Q, 0)]),
    (page_in(S, *raw(16)), [("page_in", S, 16)]),
    (WAIT_0, [("wait", 0, 0)]),
    (again(A, FIT, YES, YES), [("compute", A, 32), ("free", S, 16), ("free", A, 32)]),
    (page_in(B, FIT), [("page_in", B, 16)]),
    (free(2, 2), [("free", C, 48)]),
    (WAIT_0, [("wait", 0, 0)]),
    (free(1, 1), [("free", B, 16)]),
]
COUNTS = {
    "arena_bytes": 64,
    "statement_count": sum(len(meant) for _, meant in PLAN),
    "resident_max": 4,
    "queue_max": 3,
    "commit_every": 1,
}


def bits_of(items: list[Item]) -> bytes:
    writer = BitWriter()
    for item in items:
        if isinstance(item, str):
            writer.code(item)
        else:
            writer.put(*item)
    return writer.bytes()


def plan_part(bits: bytes, model: bytes, **changes: int) -> bytes:
    fields = {**COUNTS, **changes}
    header = isa.pack(
        "poet_plan_header",
        magic=isa.constants()["POET_PLAN_MAGIC"],
        model_crc=isa.unpack("poet_model", model[: isa.record_size("poet_model")])["crc"],
        bit_bytes=len(bits),
        **fields,
    )
    return with_crc(header + bits)


@cache
def model_part() -> bytes:
    return model_bytes(MODEL)


def board() -> MemoryBoard:
    found = MemoryBoard(card())
    found.format()
    return found


def whole() -> list[Item]:
    return [item for bits, _ in PLAN for item in bits] + END


def load(
    items: list[Item] | None = None, model: bytes | None = None, **changes: int
) -> dict[str, int]:
    """Load a plan of these statements (None: whole()) and a model (None: MODEL) on a new board."""
    part = model or model_part()
    return board().load(part, plan_part(bits_of(items or whole()), part, **changes))

"""The board's decoder: every form of statement, and everything that FORMAT.md refuses."""

from dataclasses import replace
from functools import cache

import pytest
from memory_board import MemoryBoard, Refused, card, library
from poet_host import isa
from poet_host.schedule.bits import BitWriter
from poet_host.schedule.model import (
    CURRENT,
    FIXED,
    KEEP,
    NEXT,
    ONCE,
    PAGE,
    PLACE_NONE,
    STORED,
    Model,
    Operator,
    Tensor,
    model_bytes,
    with_crc,
)

KERNEL = {name: row.code for name, row in isa.by_name("KERNEL").items()}
SINK = {name: row.code for name, row in isa.by_name("SINK").items()}
STATEMENT = {name: row.code for name, row in isa.by_name("STATEMENT").items()}
FOUR = {"n": 1, "c": 4, "h": 1, "w": 1}
S, P, A, B, C, D, Q = range(7)

MODEL = Model(
    tensors=(
        Tensor(16, FIXED, STORED, 0),
        Tensor(16, CURRENT, STORED, 1),
        Tensor(16, PAGE, 0, 128),
        Tensor(16, PAGE, 0, 129),
        Tensor(16, PAGE, 0, 130),
        Tensor(16, PAGE, 0, 131),
        Tensor(16, NEXT, KEEP | ONCE, 1),
    ),
    operators=(
        Operator(KERNEL["relu"], (S,), attrs=FOUR),
        Operator(KERNEL["add"], (A, A), attrs={**FOUR, "workspace_bytes": 8}),
        Operator(KERNEL["add"], (A, B), attrs=FOUR),
        Operator(KERNEL["apply_gradient"], (C, B), SINK["accumulate"], B, FOUR),
        Operator(KERNEL["apply_gradient"], (D, P), SINK["sgd"], P, FOUR),
    ),
    slot_stride=64,
    data_blocks=132,
)

# A number (value, width) or a pattern of bits, as FORMAT.md writes them.
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
END: list[Item] = ["1111"]


def out(resident: int, width: int) -> list[Item]:
    return ["11010", (resident, width)]


def free(resident: int, width: int) -> list[Item]:
    return ["11011", (resident, width)]


# Statement by statement: bits, and what they mean as (name, tensor, offset).
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
    (["0", NO, NO], [("compute", D, 32)]),  # where B was; C is still going out
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
        model_crc=isa.unpack("poet_model", model[:28])["crc"],
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


def load(items: list[Item], **changes: int) -> dict[str, int]:
    return board().load(model_part(), plan_part(bits_of(items), model_part(), **changes))


def refusal(items: list[Item], **changes: int) -> tuple[str, int]:
    with pytest.raises(Refused) as found:
        load(items, **changes)
    return found.value.name, found.value.detail


def decoded(target: MemoryBoard) -> list[tuple[str, int, int]]:
    """All statements of the loaded plan, from the library's own decoder."""
    names = {code: name for name, code in STATEMENT.items()}
    target.lib.poet_decode_start(target.state)
    found = []
    while True:
        statement = target.ffi.new("struct poet_statement *")
        target.call("decode", statement)
        name = names[statement.code]
        assert statement.index == len(found)
        if name == "end":
            return found
        waits = name == "wait"
        found.append((name, 0 if waits else statement.tensor, 0 if waits else statement.offset))


def test_rows_are_the_same_in_both_languages() -> None:
    ffi, lib = library()
    assert ffi.buffer(lib.poet_rows, lib.poet_rows_size())[:] == isa.fingerprint_text()
    assert lib.poet_fingerprint() == isa.fingerprint()


def test_every_form_of_statement() -> None:
    target = board()
    facts = target.load(model_part(), plan_part(bits_of(whole()), model_part()))
    assert facts == {
        "statement_count": 24, "peak_bytes": 64, "resident_max": 4, "queue_max": 3,
    }  # fmt: skip
    assert decoded(target) == [statement for _, meant in PLAN for statement in meant]


def prefix(count: int) -> list[Item]:
    """The bits of the plan's first `count` lines."""
    return [item for bits, _ in PLAN[:count] for item in bits]


def statements(count: int) -> int:
    return sum(len(meant) for _, meant in PLAN[:count])


@pytest.mark.parametrize(
    ("lines", "bad", "later"),
    [
        pytest.param(0, ["0", FIT, NO, NO], 0, id="compute without its input"),
        pytest.param(1, ["0", FIT, NO, NO], 0, id="compute of an input on its way"),
        pytest.param(2, page_in(S, FIT), 0, id="page in what is in RAM"),
        pytest.param(3, again(A, FIT, NO, NO), 0, id="compute what is in RAM"),
        pytest.param(0, free(0, 0), 0, id="free from nothing"),
        pytest.param(8, free(3, 2), 0, id="free a resident that is not there"),
        pytest.param(8, out(3, 2), 0, id="page out a resident that is not there"),
        pytest.param(2, OUT_LAST, 0, id="page out the last output before any"),
        pytest.param(15, OUT_LAST, 0, id="page out a last output that is freed"),
        pytest.param(2, out(0, 0), 0, id="page out a fixed tensor"),
        pytest.param(9, out(0, 2), 0, id="page out a current tensor"),
        pytest.param(3, page_in(C, FIT), 0, id="page in what is not on storage"),
        pytest.param(3, page_in(Q, FIT), 0, id="page in the next value before it is written"),
        pytest.param(3, page_in(7, FIT), 0, id="page in a tensor that does not exist"),
        pytest.param(2, WAIT_0, 0, id="wait for nothing"),
        pytest.param(1, WAIT_1, 0, id="wait for fewer than are left"),
        pytest.param(0, page_in(S, *raw(52)), 0, id="memory outside the arena"),
        pytest.param(1, page_in(P, *raw(12)), 0, id="memory of a resident, from below"),
        pytest.param(3, page_in(P, *raw(28)), 0, id="memory of a resident, from above"),
        pytest.param(8, page_in(S, *above(3, 2)), 0, id="a place above no resident"),
        pytest.param(3, ["0", FIT, *raw(4), NO, NO], 0, id="memory of the workspace"),
        pytest.param(3, ["0", *raw(8), *raw(8)], 0, id="workspace over a resident"),
        pytest.param(1, free(0, 0), 0, id="free of what is on its way in"),
        pytest.param(5, ["0", *raw(48), NO, YES, NO], 1, id="free of what is on its way out"),
        pytest.param(8, ["0", NO, NO], 0, id="overwriting of what is on its way out"),
        pytest.param(14, again(Q, NO, NO), 0, id="a second update"),
        pytest.param(3, again(C, FIT, NO, NO, NO), 0, id="again before the first time"),
        pytest.param(3, again(P, FIT, NO, NO), 0, id="again of what has no operator"),
        pytest.param(11, ["0", FIT, NO, NO], 0, id="more computes than operators"),
        pytest.param(10, END, 0, id="end before every operator has run"),
        pytest.param(1, ["1110", "0" * 32, "1"], 0, id="a number of more than 32 bits"),
    ],
)
def test_statements_that_are_refused(lines: int, bad: list[Item], later: int) -> None:
    assert refusal(prefix(lines) + bad + END) == ("bad_plan", statements(lines) + later)


def test_end_needs_what_must_be_kept() -> None:
    items = prefix(11) + prefix(len(PLAN))[len(prefix(12)) :] + END
    assert refusal(items, statement_count=23)[0] == "bad_plan"


def test_queue_may_not_grow_beyond_the_headers() -> None:
    assert refusal(whole(), queue_max=2) == ("bad_plan", statements(7))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("statement_count", 23),
        ("statement_count", 25),
        ("resident_max", 3),
        ("resident_max", 5),
        ("queue_max", 2),
        ("queue_max", 4),
        ("arena_bytes", 60),
        ("arena_bytes", 68),
    ],
)
def test_header_must_tell_the_truth(field: str, value: int) -> None:
    # Raw offsets keep their width of 4 bits at 60, but not at 68 bytes.
    assert refusal(whole(), **{field: value})[0] == "bad_plan"


def test_stream_ends_where_the_header_says() -> None:
    bits = bits_of(whole())
    part = model_part()
    for wrong in (bits[:-1], bits + b"\0", bits[:-1] + bytes([bits[-1] | 0x80])):
        with pytest.raises(Refused, match="bad_plan"):
            board().load(part, plan_part(wrong, part))
    assert bits[-1] < 0x80  # so the last one differed


def test_plan_must_belong_to_the_model() -> None:
    other = model_bytes(replace(MODEL, data_blocks=200))
    with pytest.raises(Refused, match="bad_crc"):
        board().load(other, plan_part(bits_of(whole()), model_part()))


@pytest.mark.parametrize(
    ("capacity", "name", "detail"),
    [
        ({"arena_bytes": 60}, "arena_small", 64),
        ({"residents": 3}, "table_small", 4),
        ({"tensors": 6}, "table_small", 7),
        ({"queue": 2}, "table_small", 3),
    ],
)
def test_board_is_too_small(capacity: dict[str, int], name: str, detail: int) -> None:
    target = MemoryBoard(card(), **capacity)
    target.format()
    with pytest.raises(Refused) as found:
        target.load(model_part(), plan_part(bits_of(whole()), model_part()))
    assert (found.value.name, found.value.detail) == (name, detail)


def test_storage_is_too_small_for_the_model() -> None:
    target = MemoryBoard(card(8 + 1344 + 131))
    target.format()
    with pytest.raises(Refused) as found:
        target.load(model_part(), plan_part(bits_of(whole()), model_part()))
    assert (found.value.name, found.value.detail) == ("storage_small", 1344 + 132)


def changed_tensor(number: int, **fields: int) -> Model:
    tensors = list(MODEL.tensors)
    tensors[number] = replace(tensors[number], **fields)
    return replace(MODEL, tensors=tuple(tensors))


def changed_op(output: int, **fields: object) -> Model:
    operators = list(MODEL.operators)
    operators[output - 2] = replace(operators[output - 2], **fields)  # type: ignore[arg-type]
    return replace(MODEL, operators=tuple(operators))


BROKEN_MODELS = {
    "size 0": changed_tensor(A, size_bytes=0),
    "size of a broken word": changed_tensor(A, size_bytes=18),
    "size that the kernel does not make": changed_tensor(C, size_bytes=20),
    "size that the kernel does not read": changed_tensor(S, size_bytes=12),
    "unknown place": changed_tensor(A, place=5),
    "unknown flag": changed_tensor(A, flags=16),
    "stored flag of a computed tensor": changed_tensor(A, flags=STORED),
    "no stored flag of a stored tensor": changed_tensor(S, flags=0),
    "stored page": changed_tensor(S, place=PAGE, block=132),
    "computed fixed tensor": changed_tensor(A, place=FIXED, block=2),
    "computed current tensor": changed_tensor(A, place=CURRENT, block=2),
    "stored next tensor": changed_tensor(S, place=NEXT),
    "overlapping stored tensors": changed_tensor(P, block=0),
    "stored tensor behind the stride": changed_tensor(P, block=64),
    "page over the second slots": changed_tensor(A, block=65),
    "page over the first slots": changed_tensor(A, block=1),
    "overlapping pages": changed_tensor(B, block=128),
    "page behind the data area": changed_tensor(D, block=132),
    "page far behind the data area": changed_tensor(D, block=0xFFFFFFFF),
    "second slot behind the data area": replace(MODEL, slot_stride=1 << 20),
    "stride within an erase group": replace(MODEL, slot_stride=63),
    "next tensor that is not kept": changed_tensor(Q, flags=ONCE),
    "next tensor of no current one": changed_tensor(Q, block=0),
    "current tensor that nothing renews": changed_tensor(Q, place=PAGE, block=132),
    "kept tensor that is never on storage": changed_tensor(A, place=PLACE_NONE, flags=KEEP),
    "current tensor renewed by what does not read it": changed_op(
        Q, inputs=(D, C), overwrites=C
    ),
    "kernel none": changed_op(A, kernel=0),
    "unknown kernel": changed_op(A, kernel=200),
    "unknown sink": changed_op(D, sink=9),
    "sink where there is none": changed_op(A, sink=SINK["store"]),
    "no sink where one is needed": changed_op(D, sink=0),
    "too few inputs": changed_op(B, inputs=(A,)),
    "too many inputs": changed_op(A, inputs=(S, S)),
    "input behind the output": changed_op(A, inputs=(B,)),
    "input that is the output": changed_op(A, inputs=(A,)),
    "overwritten tensor that is no input": changed_op(Q, overwrites=C),
    "overwriting by a kernel that cannot": changed_op(
        A, kernel=KERNEL["global_avgpool"], overwrites=S
    ),
    "overwriting of one of two equal inputs": changed_op(B, overwrites=A),
    "no overwriting by a kernel that must": changed_op(D, overwrites=None),
    "momentum with decay, without weights": changed_op(
        D, sink=SINK["momentum"], attrs={**FOUR, "weight_decay": 0.5}
    ),
    "no elements": changed_op(A, attrs={**FOUR, "c": 0}),
    "more elements than 32 bits count": changed_op(A, attrs={**FOUR, "n": 1 << 31}),
}  # fmt: skip


@pytest.mark.parametrize("model", BROKEN_MODELS.values(), ids=BROKEN_MODELS.keys())
def test_tables_that_are_refused(model: Model) -> None:
    part = model_bytes(model)
    with pytest.raises(Refused, match="bad_table"):
        board().load(part, plan_part(bits_of(whole()), part))


def conv(**fields: int) -> Model:
    """Tensor A as a convolution of S, 1 x 2 x 2 elements, with a 2 x 2 window, padded by 1."""
    attrs = {
        "n": 1, "c": 1, "h": 2, "w": 2, "k": 1, "oh": 2, "ow": 2, "kernel_h": 2, "kernel_w": 2,
        "stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1, "groups": 1, **fields,
    }  # fmt: skip
    return changed_op(A, kernel=KERNEL["conv2d"], inputs=(S, P), attrs=attrs)


CONV_PLAN: list[tuple[list[Item], None]] = [
    (page_in(S, FIT), None),
    (page_in(P, FIT), None),
    (WAIT_0, None),
    (["0", FIT, YES, NO, NO], None),
    (["0", FIT, FIT, NO, NO], None),
    (["0", FIT, YES, NO, NO], None),
    (["0", YES, NO], None),
    (["0", YES, NO], None),
    (OUT_LAST, None),
]


def load_conv(model: Model) -> None:
    part = model_bytes(model)
    bits = bits_of([item for items, _ in CONV_PLAN for item in items] + END)
    board().load(part, plan_part(bits, part, statement_count=13, resident_max=4, queue_max=2))


def test_windows_that_fit_are_accepted() -> None:
    load_conv(conv())


@pytest.mark.parametrize(
    "fields",
    [
        {"oh": 3},
        {"ow": 1},
        {"stride_h": 0},
        {"stride_w": 0},
        {"kernel_h": 0},
        {"kernel_h": 5},
        {"groups": 0},
        {"groups": 2},
        {"k": 2},
        {"c": 2},
        {"pad_w": 2},
    ],
)
def test_windows_that_do_not_fit_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(Refused, match="bad_table"):
        load_conv(conv(**fields))


HEADER = {
    "magic": ("bad_magic", 1),
    "version": ("bad_version", 2),
    "fingerprint": ("bad_fingerprint", 3),
    "tensor_count": ("bad_table", 8),
    "stored_count": ("bad_table", 3),
    "keep_count": ("bad_table", 2),
    "data_blocks": ("bad_table", 131),
}


@pytest.mark.parametrize("field", HEADER)
def test_model_header_is_checked(field: str) -> None:
    name, value = HEADER[field]
    fields = isa.unpack("poet_model", model_part()[:28])
    part = with_crc(isa.pack("poet_model", **{**fields, field: value}) + model_part()[28:])
    with pytest.raises(Refused, match=name):
        board().load(part, plan_part(bits_of(whole()), part))


def test_plan_header_is_checked() -> None:
    plan = plan_part(bits_of(whole()), model_part())
    target = board()
    for wrong, name in (
        (b"x" + plan[1:], "bad_magic"),
        (plan[:-1] + bytes([plan[-1] ^ 1]), "bad_crc"),
        (plan + b"\0", "bad_plan"),
        (plan[:27], "bad_plan"),
    ):
        with pytest.raises(Refused, match=name):
            target.load(model_part(), wrong)
        assert target.hello()["loaded_plan"] == 0
    target.load(model_part(), plan)
    assert target.hello()["loaded_plan"] == isa.unpack("poet_plan_header", plan[:28])["crc"]


def test_parts_larger_than_their_areas_are_refused() -> None:
    target = board()
    with pytest.raises(Refused, match="bad_object"):
        target.write(1, 0, 128 * 512, b"x")
    with pytest.raises(Refused, match="bad_object"):
        target.write(0, 0, 1024 * 512 - 1, b"xy")
    target.write(0, 0, 1024 * 512 - 1, b"y")

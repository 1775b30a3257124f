"""The board's tables: every rule of the model part and of the headers."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from poet_host import isa
from poet_host.schedule.model import (
    CURRENT,
    FIXED,
    INPUT,
    KEEP,
    NEXT,
    ONCE,
    PAGE,
    PLACE_NONE,
    SHARED,
    STORED,
    Model,
    model_bytes,
)
from support import toy
from support.card_image import DATA_BLOCK
from support.hand_plan import (
    END,
    FIT,
    FOUR,
    KERNEL,
    MODEL,
    NO,
    OUT_LAST,
    SINK,
    WAIT_0,
    YES,
    A,
    B,
    C,
    D,
    Item,
    P,
    Q,
    S,
    bits_of,
    board,
    load,
    model_part,
    page_in,
    plan_part,
    whole,
)
from support.memory_board import PARTITION, MemoryBoard, card, refusal
from support.parts import with_header

PLAN = plan_part(bits_of(whole()), model_part())


@pytest.mark.slow
def test_plan_must_belong_to_the_model() -> None:
    other = model_bytes(replace(MODEL, data_blocks=MODEL.data_blocks + 64))
    assert refusal(board().load, other, PLAN).name == "bad_crc"


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
    assert refusal(target.load, model_part(), PLAN) == (name, detail)


def test_storage_is_too_small_for_the_model() -> None:
    blocks = DATA_BLOCK + MODEL.data_blocks
    target = MemoryBoard(card(PARTITION + blocks - 1))
    target.format()
    assert refusal(target.load, model_part(), PLAN) == ("storage_small", blocks)


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
    "unknown place": changed_tensor(A, place=6),
    "unknown flag": changed_tensor(A, flags=32),
    "shared block of a page": changed_tensor(A, flags=SHARED),
    "stored flag of a computed tensor": changed_tensor(A, flags=STORED),
    "no stored flag of a stored tensor": changed_tensor(S, flags=0),
    "stored page": changed_tensor(S, place=PAGE, block=132),
    "computed fixed tensor": changed_tensor(A, place=FIXED, block=2),
    "computed current tensor": changed_tensor(A, place=CURRENT, block=2),
    "computed input tensor": changed_tensor(A, place=INPUT, block=2),
    "stored next tensor": changed_tensor(S, place=NEXT),
    "overlapping stored tensors": changed_tensor(P, block=0),
    "stored tensor after the stride": changed_tensor(P, block=64),
    "page over the second slots": changed_tensor(A, block=65),
    "page over the first slots": changed_tensor(A, block=1),
    "overlapping pages": changed_tensor(B, block=128),
    "page after the data area": changed_tensor(D, block=132),
    "page far after the data area": changed_tensor(D, block=0xFFFFFFFF),
    "second slot after the data area": replace(MODEL, slot_stride=1 << 20),
    "second slot of an input over that of its neighbour": changed_tensor(
        S, place=INPUT, size_bytes=1024
    ),
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
    "input after the output": changed_op(A, inputs=(B,)),
    "input that is the output": changed_op(A, inputs=(A,)),
    "overwritten tensor that is not an input": changed_op(Q, overwrites=C),
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
    assert refusal(load, model=model_bytes(model)).name == "bad_table"


SMALL = toy.schedule("small")
W1, V1 = (SMALL.model.tensors.index(t) for t in SMALL.model.tensors[:-3:-1])


def shared(fields: Mapping[str, int], *numbers: int) -> Model:
    tensors = list(SMALL.model.tensors)
    for number in numbers:
        tensors[number] = replace(tensors[number], **fields)
    return replace(SMALL.model, tensors=tuple(tensors))


BLOCK_OF_W = SMALL.model.tensors[toy.W].block
BROKEN_SHARES = {
    "overlap": shared({"at": 100}, toy.W, W1),
    "other order than that of the renewals": shared({"at": 204}, toy.V, V1),
    "after the end of the block": shared({"at": 412}, toy.W, W1),
    "not at a word": shared({"at": 106}, toy.W, W1),
    "tensor that is larger than a block": shared({"size_bytes": 1 << 31}, toy.W, W1),
    "block of another tensor": shared({"block": 0}, toy.W, W1),
    "block after the stride": shared({"block": 1 << 20}, toy.W, W1),
    "only the new value shares": shared({"flags": STORED}, toy.W),
    "only the old value shares": shared({"flags": KEEP | ONCE}, W1),
    "page in the block": shared({"block": BLOCK_OF_W}, toy.V + 1),
    "page in the third slot of the block": shared(
        {"block": BLOCK_OF_W + 2 * SMALL.model.slot_stride}, toy.V + 1
    ),
}


@pytest.mark.parametrize("model", BROKEN_SHARES.values(), ids=BROKEN_SHARES.keys())
def test_shared_blocks_that_are_refused(model: Model) -> None:
    target = MemoryBoard(card())
    target.format()
    assert refusal(target.load, model_bytes(model), SMALL.plan_part).name == "bad_table"


def conv(**fields: int) -> Model:
    """Tensor A as a convolution of S, 1 x 2 x 2 elements, with a 2 x 2 window, padded by 1."""
    attrs = {
        "n": 1, "c": 1, "h": 2, "w": 2, "k": 1, "oh": 2, "ow": 2, "kernel_h": 2, "kernel_w": 2,
        "stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1, "groups": 1, **fields,
    }  # fmt: skip
    return changed_op(A, kernel=KERNEL["conv2d"], inputs=(S, P), attrs=attrs)


CONV_PLAN: list[Item] = [
    *page_in(S, FIT),
    *page_in(P, FIT),
    *WAIT_0,
    *("0", FIT, YES, NO, NO),
    *("0", FIT, FIT, NO, NO),
    *("0", FIT, YES, NO, NO),
    *("0", YES, NO),
    *("0", YES, NO),
    *OUT_LAST,
]


def load_conv(model: Model) -> None:
    counts = {"statement_count": 13, "resident_max": 4, "queue_max": 2}
    load([*CONV_PLAN, *END], model_bytes(model), **counts)


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
        {"stride_w": 3},
    ],
)
def test_windows_that_do_not_fit_are_refused(fields: dict[str, int]) -> None:
    assert refusal(load_conv, conv(**fields)).name == "bad_table"


HEADER = {
    "magic": ("bad_magic", 1),
    "version": ("bad_version", 1),
    "fingerprint": ("bad_fingerprint", 3),
    "tensor_count": ("bad_table", 8),
    "stored_count": ("bad_table", 3),
    "keep_count": ("bad_table", 2),
    "data_blocks": ("bad_table", MODEL.data_blocks - 1),
}


@pytest.mark.parametrize("field", HEADER)
def test_model_header_is_checked(field: str) -> None:
    name, value = HEADER[field]
    part = with_header("poet_model", model_part(), **{field: value})
    assert refusal(load, model=part).name == name


def test_plan_header_is_checked() -> None:
    target = board()
    for wrong, name in (
        (b"x" + PLAN[1:], "bad_magic"),
        (PLAN[:-1] + bytes([PLAN[-1] ^ 1]), "bad_crc"),
        (PLAN + b"\0", "bad_plan"),
        (PLAN[: isa.record_size("poet_plan_header") - 1], "bad_plan"),
    ):
        assert refusal(target.load, model_part(), wrong).name == name
        assert target.hello()["loaded_plan"] == 0
    target.load(model_part(), PLAN)
    assert target.hello()["loaded_plan"] == isa.unpack("poet_plan_header", PLAN[:32])["crc"]


def test_parts_larger_than_their_areas_are_refused() -> None:
    target = board()
    assert refusal(target.write, 1, 0, 128 * 512, b"x").name == "bad_object"
    assert refusal(target.write, 0, 0, 1024 * 512 - 1, b"xy").name == "bad_object"
    target.write(0, 0, 1024 * 512 - 1, b"y")

"""The board's decoder: every form of statement, and every rule of FORMAT.md."""

import pytest
from poet_host import isa
from support.hand_plan import (
    END,
    FIT,
    NO,
    OUT_LAST,
    PLAN,
    WAIT_0,
    WAIT_1,
    YES,
    A,
    C,
    Item,
    P,
    Q,
    S,
    above,
    again,
    bits_of,
    board,
    free,
    load,
    model_part,
    out,
    page_in,
    plan_part,
    raw,
    whole,
)
from support.memory_board import MemoryBoard, library, refusal


def decoded(target: MemoryBoard) -> list[tuple[str, int, int]]:
    """Return the loaded plan as PLAN describes it."""
    return [
        (name, 0, 0) if name == "wait" else (name, statement.tensor, statement.offset)
        for name, statement in target.statements()
    ]


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
        pytest.param(5, ["0", *raw(32), NO, NO], 0, id="the place of what is on its way out"),
        pytest.param(2, ["0", *raw(0), NO], 0, id="the place of a stored tensor"),
        pytest.param(3, ["0", FIT, *raw(16), NO], 0, id="the place of an input that occurs twice"),
        pytest.param(14, again(Q, NO, NO), 0, id="a second update"),
        pytest.param(3, again(C, FIT, NO, NO, NO), 0, id="again before the first time"),
        pytest.param(3, again(P, FIT, NO, NO), 0, id="again of what has no operator"),
        pytest.param(11, ["0", FIT, NO, NO], 0, id="more computes than operators"),
        pytest.param(10, END, 0, id="end before every operator has run"),
        pytest.param(1, ["1110", "0" * 32, "1"], 0, id="a number of more than 32 bits"),
    ],
)
def test_statements_that_are_refused(lines: int, bad: list[Item], later: int) -> None:
    assert refusal(load, prefix(lines) + bad + END) == ("bad_plan", statements(lines) + later)


def test_end_needs_what_must_be_kept() -> None:
    items = prefix(11) + prefix(len(PLAN))[len(prefix(12)) :] + END
    assert refusal(load, items, statement_count=23).name == "bad_plan"


def test_queue_may_not_grow_beyond_the_headers() -> None:
    assert refusal(load, queue_max=2) == ("bad_plan", statements(7))


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
def test_header_must_state_the_truth(field: str, value: int) -> None:
    # Raw offsets keep their width of 4 bits at 60, but not at 68 bytes.
    assert refusal(load, **{field: value}).name == "bad_plan"


def test_stream_ends_where_the_header_says() -> None:
    bits = bits_of(whole())
    part = model_part()
    for wrong in (bits[:-1], bits + b"\0", bits[:-1] + bytes([bits[-1] | 0x80])):
        assert refusal(board().load, part, plan_part(wrong, part)).name == "bad_plan"
    assert bits[-1] < 0x80  # so the last one differed

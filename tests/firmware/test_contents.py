"""Cards whose contents are wrong: the fuzzer of card contents, and what it has found."""

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from poet_host import isa
from poet_host.resources import resource
from support import toy
from support.c_fuzzer import finds_nothing_today, fuzz
from support.card_image import COMMIT_BLOCKS, DATA_BLOCK
from support.contents_bench import compile_fuzzer
from support.memory_board import NO_STEP, PARTITION, MemoryBoard, Refused, card, refusal
from support.reverted import changed_copy
from support.schedule_copy import MODEL_BLOCK, put_in_copy
from support.toy_boards import in_partition, load, trained


def test_a_partition_that_begins_with_the_partition_table_is_foreign() -> None:
    storage = card()
    storage[446 + 8 : 446 + 12] = bytes(4)
    before = storage.copy()
    board = MemoryBoard(storage)
    assert board.hello()["storage_status"] == isa.by_name("ERROR")["foreign_storage"].code
    assert refusal(board.format).name == "foreign_storage"
    assert storage == before


def test_no_commit_has_a_sequence_number_that_is_lost() -> None:
    """The number after 2^32 - 1 is 0, so a reader would take an older commit."""
    storage = trained(card(), 1).storage
    for block in COMMIT_BLOCKS:
        at = in_partition(block).start
        raw = bytearray(storage[at : at + isa.record_size("poet_commit") - 4])
        (sequence,) = struct.unpack_from("<I", raw, 4)
        struct.pack_into("<I", raw, 4, 2**32 - 6 + sequence)
        storage[at : at + len(raw) + 4] = raw + struct.pack("<I", zlib.crc32(raw))
    board = MemoryBoard(storage)
    load(board)
    assert refusal(board.step, 2).name == "storage_failed"
    assert MemoryBoard(storage).hello()["committed_step"] == 1
    board.format()


def test_no_step_has_the_number_that_means_no_step() -> None:
    board = trained(card())
    board.begin(NO_STEP - 1)
    assert refusal(board.step, NO_STEP) == ("wrong_step", NO_STEP - 1)
    assert MemoryBoard(board.storage).hello()["committed_step"] == NO_STEP - 1


def changed_after_load(field: str, value: int) -> MemoryBoard:
    """Return a board that has loaded the toy, and whose card then changes the record of x."""
    board = trained(card(), 1)
    load(board)
    part, size = toy.schedule().model_part, isa.record_size("poet_tensor")
    at = isa.record_size("poet_model") + toy.X * size
    record = isa.pack(
        "poet_tensor", **(isa.unpack("poet_tensor", part[at : at + size]) | {field: value})
    )
    put_in_copy(board.storage, PARTITION, part, MODEL_BLOCK, at, record)
    board.lib.poet_forget(board.state, 0)
    return board


@pytest.mark.parametrize("block", [1 << 17, (1 << 32) - DATA_BLOCK, (1 << 32) - 1])
def test_a_record_that_changes_after_the_load_leads_nowhere_else(block: int) -> None:
    for refused in (
        lambda board: board.tensor(toy.X, 4),
        lambda board: board.write(2, toy.X, 0, bytes(4)),
        lambda board: board.begin(7),
        lambda board: board.step(2),
    ):
        board = changed_after_load("block", block)
        before = board.storage.copy()
        with pytest.raises(Refused, match="bad_table"):
            refused(board)
        assert not board.strayed
        for number, content in before.written():
            if number < PARTITION + DATA_BLOCK and number - PARTITION not in COMMIT_BLOCKS:
                assert board.storage.blocks[number] == content


class OtherCut(MemoryBoard):
    """After `reads_left` reads, the card has another number of parts in a piece of x."""

    reads_left = NO_STEP
    parts = 1

    def _read(self, context: Any, block: int, data: Any, count: int) -> int:
        self.reads_left -= 1
        if not self.reads_left:
            part = toy.schedule("cut").model_part
            size = isa.record_size("poet_tensor")
            at = isa.record_size("poet_model") + toy.X * size
            cuts = self.state.model.cut_count
            record = isa.unpack("poet_tensor", part[at : at + size])["cut"] - 1 - cuts
            at = len(part) + record * isa.record_size("poet_cut") + 16  # piece_parts
            changed = struct.pack("<H", self.parts)
            put_in_copy(self.storage, PARTITION, part, MODEL_BLOCK, at, changed)
        return super()._read(context, block, data, count)


@pytest.mark.parametrize("parts", [3, 100])
def test_a_cut_that_changes_in_a_step_ends_the_step(parts: int) -> None:
    storage = trained(card(), kind="cut").storage
    found = set()
    for reads in range(1, 120):
        board = OtherCut(storage.copy(), queue=3, cache=1)
        load(board, "cut")
        board.parts, board.reads_left = parts, reads
        try:
            board.step(1)
        except Refused as error:
            found.add(error.name)
        assert board.state.retired == board.state.submitted
        assert not board.strayed
    assert found == {"page_damaged"}  # the trailers of such pieces are not those on the card


@pytest.mark.slow
def test_no_content_of_a_card_harms_the_board_or_other_partitions(tmp_path: Path) -> None:
    """6,000 rounds, new ones each day, sanitizers on; `make fuzz-contents` goes on."""
    program, images = compile_fuzzer(tmp_path)
    finds_nothing_today(program, *images)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "rule", "replaced"),
    [
        ("mount.c", "p->store.total_blocks > p->partition_blocks ||", ""),
        ("pieces.c", "return slots_are_in_data_area(", "return true || slots_are_in_data_area("),
        ("arena.c", "size_bytes > p->plan.arena_bytes - offset", "false"),
        ("job.c", "part = part < room ? part : room", "(void)room"),
        ("weights.c", ".digest = digest,", ".digest = digest & 0,"),
    ],
)
def test_the_fuzzer_sees_firmware_that_forgets_a_check(
    tmp_path: Path, file: str, rule: str, replaced: str
) -> None:
    firmware = changed_copy(resource("firmware"), tmp_path, f"src/{file}", rule, replaced)
    program, images = compile_fuzzer(tmp_path, firmware=firmware)
    done = fuzz(program, 100_001, 60_000, *images)
    assert "a rule of the firmware is broken" in done.stderr or "Sanitizer" in done.stderr

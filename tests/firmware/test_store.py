"""The store: formats and mounts, uploads, commits, and power cuts at every write."""

import random
import struct
import zlib
from dataclasses import replace

import pytest
from poet_host import isa
from poet_host.schedule.model import CURRENT, FORMAT, model_bytes
from poet_host.schedule.slots import COMMIT_BLOCKS
from support import toy
from support.card_image import BLOCK, DATA_BLOCK, CardImage
from support.memory_board import NO_STEP, PARTITION, MemoryBoard, card, refusal
from support.parts import plan_of_model
from support.toy_boards import in_partition, load, trained, truth, weights

SUPERBLOCK = 0
BLOCKS = 1 << 17  # of a card


# Finding the partition.


def test_a_new_card_is_foreign_until_it_is_formatted() -> None:
    board = MemoryBoard(card(BLOCKS))
    hello = board.hello()
    assert (hello["storage_status"], hello["storage_blocks"]) == (-5, BLOCKS - PARTITION)
    assert hello["committed_step"] == NO_STEP
    board.format()
    hello = board.hello()
    assert (hello["storage_status"], hello["committed_step"]) == (0, NO_STEP)


@pytest.mark.parametrize("mib", [0, 4, 64])
def test_the_board_reports_the_allocation_unit_of_its_card(mib: int) -> None:
    board = MemoryBoard(card())
    board.allocation_mib = mib
    board.format()
    hello = board.hello()
    assert (hello["allocation_mib"], hello["storage_version"]) == (mib, hello["version"])


def test_no_card() -> None:
    board = MemoryBoard(CardImage(0))
    assert board.hello()["storage_status"] == -4
    for refused in (
        lambda: board.format(),
        lambda: board.write(0, 0, 0, b"x"),
        lambda: board.read(0, 0, 0, 1),
        lambda: board.begin(0),
        lambda: board.step(1),
    ):
        assert refusal(refused).name == "no_storage"


def test_a_card_put_in_later_is_found() -> None:
    board = MemoryBoard(CardImage(0))
    assert board.hello()["storage_status"] == -4
    board.storage = trained(card(), 2).storage
    hello = board.hello()
    assert (hello["storage_status"], hello["committed_step"]) == (0, 2)


@pytest.mark.parametrize("kind", [0x0C, 0x83, 0x00])
def test_foreign_partitions_are_not_written(kind: int) -> None:
    storage = card(partition_type=kind)
    before = storage.copy()
    board = MemoryBoard(storage)
    assert board.hello()["storage_status"] == -5
    assert refusal(board.format).name == "foreign_storage"
    assert storage.copy() == before


def test_a_card_without_partition_table_is_foreign() -> None:
    storage = card()
    storage[510] = 0
    board = MemoryBoard(storage)
    assert refusal(board.format).name == "foreign_storage"


def test_a_card_that_ends_before_its_partition() -> None:
    storage = card(BLOCKS)
    storage.size_bytes = 2000 * BLOCK
    board = MemoryBoard(storage)
    assert board.hello()["storage_status"] == -6
    assert refusal(board.format) == ("storage_small", BLOCKS - 2000)


def test_a_partition_without_room_for_data() -> None:
    board = MemoryBoard(card(PARTITION + DATA_BLOCK))
    assert refusal(board.format).name == "storage_small"
    assert board.hello()["storage_status"] == -6


def test_format_takes_part_of_the_partition_if_asked() -> None:
    board = MemoryBoard(card(BLOCKS))
    assert refusal(board.format, BLOCKS - PARTITION + 1).name == "storage_small"
    assert refusal(board.format, DATA_BLOCK).name == "storage_small"
    board.format(DATA_BLOCK + 132)
    assert refusal(load, board).name == "storage_small"  # its data area is larger
    board.format(BLOCKS - PARTITION)
    load(board)


def test_nothing_is_written_outside_the_partition() -> None:
    blocks = DATA_BLOCK + toy.schedule().model.data_blocks
    storage = card(PARTITION + blocks + 30)
    before = bytes(storage[: PARTITION * BLOCK])
    storage[446 + 12 : 446 + 16] = struct.pack("<I", blocks)  # it ends before the card
    tail = (PARTITION + blocks) * BLOCK
    storage[tail:] = b"\xa5" * (len(storage) - tail)
    trained(storage, 3)
    assert storage[:446] == before[:446]
    assert storage[446 + 16 : PARTITION * BLOCK] == before[446 + 16 :]
    assert set(storage[tail:]) == {0xA5}


def test_format_forgets_what_was_committed() -> None:
    board = trained(card(), 3)
    board.format()
    assert board.hello()["committed_step"] == NO_STEP
    load(board)
    assert refusal(board.step, 4).name == "wrong_step"


def test_identities_of_formats_at_about_the_same_time_are_far_apart() -> None:
    """Trailers depend on identity xor the number of a step, so that is never a small number."""
    identities = []
    for now in range(1000, 1200):
        board = MemoryBoard(card())
        board.now = now
        board.format()
        identities.append(int(board.state.store.identity))
    pairs = ((a, b) for i, a in enumerate(identities) for b in identities[:i])
    assert min(a ^ b for a, b in pairs) >= 2**12


@pytest.mark.parametrize("at", [0, 4, 8, 12, 16])
def test_a_damaged_superblock_is_foreign(at: int) -> None:
    board = trained(card(), 1)
    board.storage[in_partition(SUPERBLOCK).start + at] ^= 1
    assert MemoryBoard(board.storage).hello()["storage_status"] == -5


@pytest.mark.parametrize("version", [2, 4])
def test_a_store_of_another_version_is_reported_as_such(version: int) -> None:
    board = trained(card(), 1)
    assert board.hello()["storage_version"] == FORMAT
    size = isa.record_size("poet_store")
    at = in_partition(SUPERBLOCK).start
    row = isa.unpack("poet_store", board.storage[at : at + size]) | {"version": version}
    raw = isa.pack("poet_store", **row)[:-4]
    board.storage[at : at + size] = raw + zlib.crc32(raw).to_bytes(4, "little")
    again = MemoryBoard(board.storage)
    hello = again.hello()
    assert hello["storage_status"] == isa.by_name("ERROR")["storage_version"].code
    assert (hello["storage_version"], hello["committed_step"]) == (version, NO_STEP)
    assert refusal(load, again) == ("storage_version", version)
    again.format()
    assert again.hello()["storage_version"] == FORMAT


# Objects.


def test_parts_and_tensors_read_back_as_written() -> None:
    board = trained(card())
    schedule = toy.schedule()
    assert board.read(0, 0, 0, len(schedule.model_part)) == schedule.model_part
    assert board.read(1, 0, 0, len(schedule.plan_part)) == schedule.plan_part
    assert [board.tensor(i, toy.SIZES[i]) for i in range(4)] == toy.values(1)
    assert board.read(2, toy.W, 511, 3) == toy.values(1)[toy.W][511:514]


def test_tensors_may_arrive_in_any_pieces() -> None:
    board = trained(card())
    new = toy.values(2)
    rng = random.Random(5)
    for number, data in enumerate(new):
        at = 0
        while at < len(data):
            piece = rng.randint(1, 300)
            board.write(2, number, at, data[at : at + piece])
            board.write(2, number, at, data[at : at + piece])  # a repeated request
            at += piece
    board.begin(0)
    assert [board.tensor(i, toy.SIZES[i]) for i in range(4)] == new


@pytest.mark.parametrize(
    ("object", "tensor", "offset", "size"),
    [
        (2, 0, 601, 0),
        (2, 0, 600, 1),
        (2, 0, 0, 601),
        (2, 0, 0xFFFFFFFF, 4),
        (2, 4, 0, 1),
        (2, 0xFFFF, 0, 1),
        (3, 0, 4096, 1),  # the arena
        (3, 0, 0xFFFFFFFF, 4),
        (4, 0, 0xFFFFFFFF, 4),  # a job
        (5, 0, 2 * BLOCKS * BLOCK, 1),  # the partition
        (6, 0, 0, 1),
    ],
)
def test_ranges_outside_an_object_are_refused(
    object: int, tensor: int, offset: int, size: int
) -> None:
    board = trained(card())
    assert toy.SIZES[0] == 600
    before = board.storage.copy()
    for refused in (
        lambda: board.write(object, tensor, offset, b"x" * size),
        lambda: board.read(object, tensor, offset, size),
    ):
        assert refusal(refused).name == "bad_object"
    assert board.storage.copy() == before


def test_a_host_reads_and_writes_whatever_the_partition_holds() -> None:
    board = trained(card())
    at = in_partition(DATA_BLOCK).start
    assert board.read(5, 0, 0, 600) == board.storage[at - DATA_BLOCK * BLOCK :][:600]
    board.write(5, 0, 3 * BLOCK + 7, b"x" * 600)
    assert board.storage[at - DATA_BLOCK * BLOCK + 3 * BLOCK + 7 :][:600] == b"x" * 600
    board.write(5, 0, 0, bytes(BLOCK))  # then the board finds no store
    assert refusal(board.read, 2, 0, 0, 1).name == "foreign_storage"
    assert board.read(5, 0, 0, BLOCK) == bytes(BLOCK)


def test_tensors_need_a_schedule() -> None:
    board = MemoryBoard(card())
    board.format()
    for refused in (
        lambda: board.write(2, 0, 0, b"x"),
        lambda: board.tensor(0, 1),
        lambda: board.begin(0),
        lambda: board.step(1),
    ):
        assert refusal(refused).name == "no_schedule"


def test_writing_a_part_unloads_the_schedule() -> None:
    board = trained(card())
    board.write(1, 0, 0, toy.schedule().plan_part)
    assert board.hello()["loaded_plan"] == 0
    assert refusal(board.step, 1).name == "no_schedule"


def test_begin_needs_every_current_tensor() -> None:
    board = MemoryBoard(card())
    board.format()
    load(board)
    for number in (toy.X, toy.T, toy.W):
        board.write(2, number, 0, toy.values(1)[number])
    assert refusal(board.begin, 0) == ("bad_object", toy.V)
    assert refusal(board.step, 1).name == "wrong_step"
    assert refusal(board.tensor, toy.V, 4).name == "bad_object"  # there is no value of it yet
    board.write(2, toy.V, 0, toy.values(1)[toy.V])
    board.begin(0)
    board.step(1)


def test_begin_refuses_a_tensor_that_is_half_written() -> None:
    board = trained(card(), 1)
    board.write(2, toy.W, 0, b"\1" * 700)
    assert refusal(board.begin, 7) == ("page_damaged", toy.W)
    assert board.hello()["committed_step"] == 1


def test_begin_may_be_repeated_and_may_rename_the_step() -> None:
    board = trained(card(), 2)
    writes = board.writes
    board.begin(2)
    assert board.writes == writes  # nothing was new
    board.begin(40)
    assert weights(board) == truth()[2]
    board.step(41)
    assert weights(board) == truth()[3]


def test_uploads_count_only_after_begin() -> None:
    board = trained(card(), 2)
    board.write(2, toy.W, 0, toy.values(2)[toy.W])
    assert board.tensor(toy.W, 900) == toy.values(2)[toy.W]  # the latest bytes
    again = MemoryBoard(board.storage)  # but the power goes before begin
    load(again)
    assert weights(again) == truth()[2]
    again.step(3)
    assert weights(again) == truth()[3]


def test_begin_keeps_tensors_that_were_not_written() -> None:
    board = trained(card(), 2)
    board.write(2, toy.W, 0, toy.values(2)[toy.W])
    board.begin(0)
    assert weights(board) == (toy.values(2)[toy.W], truth()[2][1])


def test_writing_another_model_ends_the_commit_of_the_first() -> None:
    board = trained(card(), 2)
    model = toy.schedule().model
    bigger = model_bytes(replace(model, data_blocks=model.data_blocks + 64))
    board.load(bigger, plan_of_model(toy.schedule().plan_part, bigger))
    board.batch = {}
    assert refusal(board.step, 3).name == "wrong_step"
    assert board.hello()["committed_step"] == 2  # loading alone destroys nothing
    board.write(2, toy.W, 0, b"\0" * 4)
    assert board.hello()["committed_step"] == NO_STEP
    again = MemoryBoard(board.storage)
    assert again.hello()["committed_step"] == NO_STEP


def test_damage_on_storage_is_found() -> None:
    board = trained(card(), 1)
    tensors = toy.schedule().model.tensors
    assert tensors[toy.W].place == CURRENT
    slot = tensors[toy.W].block + toy.schedule().model.slot_stride  # of step 1
    board.storage[in_partition(DATA_BLOCK + slot).start + 77] ^= 1
    again = MemoryBoard(board.storage)
    load(again)
    assert refusal(again.tensor, toy.W, 900) == ("page_damaged", toy.W)
    assert again.hello()["committed_step"] == 0  # the board has gone back by itself
    again.step(1)
    assert weights(again) == truth()[1]


def test_a_step_that_finds_damage_goes_back_to_the_step_before() -> None:
    board = trained(card(), 2)
    slot = toy.schedule().model.tensors[toy.W].block + 2 * toy.schedule().model.slot_stride
    board.storage[in_partition(DATA_BLOCK + slot).start + 77] ^= 1
    assert refusal(board.step, 3) == ("page_damaged", toy.W)
    assert board.hello()["committed_step"] == 1
    for step in (2, 3):
        board.step(step)
    assert weights(board) == truth()[3]


def test_a_block_in_the_wrong_place_is_found() -> None:
    board = trained(card())
    tensors = toy.schedule().model.tensors
    w, v = (in_partition(DATA_BLOCK + tensors[i].block).start for i in (toy.W, toy.V))
    size = 2 * BLOCK
    board.storage[w : w + size] = board.storage[v : v + size]  # the CRC is right, the owner is not
    again = MemoryBoard(board.storage)
    load(again)
    assert refusal(again.tensor, toy.W, 900).name == "page_damaged"


def test_a_card_is_read_again_after_a_failure() -> None:
    board = trained(card(), 1)
    board.failing = True
    assert refusal(board.step, 2).name == "storage_failed"
    assert board.hello()["storage_status"] == -7
    board.failing = False
    assert board.hello()["storage_status"] == 0
    assert refusal(board.step, 2).name == "no_schedule"  # it might be another card
    load(board)
    board.step(2)
    assert weights(board) == truth()[2]


@pytest.mark.parametrize("block", COMMIT_BLOCKS)
def test_a_lost_commit_record_does_not_bring_back_another_training(block: int) -> None:
    board = trained(card(), 3, seed=2)
    for number, data in enumerate(toy.values(1)):
        board.write(2, number, 0, data)
    board.begin(0)
    board.storage[in_partition(block)] = bytes(BLOCK)
    again = MemoryBoard(board.storage)
    load(again)
    assert again.hello()["committed_step"] == 0
    assert weights(again) == truth()[0]
    again.step(1)
    assert weights(again) == truth()[1]

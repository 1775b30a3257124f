"""A card whose partition table does not lead to its store: its weights are found and saved."""

from collections.abc import Callable
from pathlib import Path

import poet_host as poet
import pytest
from poet_host.card import partition
from poet_host.card.card_file import CardFile
from poet_host.card.weights import load_weights
from poet_host.errors import BadInput
from poet_host.run.run import weights_sha256
from support import whole_runs as runs
from support.card_image import BLOCK, PREPARED, CardImage, read_image
from support.command import Command

STEPS = 2
MIB = 1 << 20
ENTRY = 446  # offset of the first partition in the table
# Every bit that must be right: type, first block and length of the partition, signature.
BITS = [8 * at + bit for at in (ENTRY + 4, *range(ENTRY + 8, ENTRY + 16), 510, 511)
        for bit in range(8)]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[CardImage, str]:
    """The blocks of a card, and the SHA-256 of its weights."""
    path = tmp_path_factory.mktemp("trained") / "card.img"
    poet.prepare_storage(path, 64 * MIB)
    run = runs.train(runs.small(), storage=path, steps=STEPS)
    return read_image(path), weights_sha256(run.weights)


@pytest.fixture
def card(trained: tuple[CardImage, str], tmp_path: Path) -> Path:
    path = tmp_path / "card.img"
    trained[0].write_to(path)
    return path


def flip(path: Path, bit: int) -> None:
    with path.open("rb+") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def test_each_bit_of_the_table_may_be_wrong(card: Path, trained: tuple[CardImage, str]) -> None:
    for bit in BITS:
        flip(card, bit)
        with CardFile(card) as file:
            found = (file.has_table, file.first, file.committed_step)
        flip(card, bit)
        assert found == (False, PREPARED, STEPS), bit
    with CardFile(card) as file:
        assert (file.has_table, file.committed_step) == (True, STEPS)
    for at in (510, ENTRY + 4, ENTRY + 8, ENTRY + 13):
        flip(card, 8 * at + 2)
        weights = card.with_name("w.safetensors")
        assert poet.export_card(card, weights).step == STEPS
        assert weights_sha256(load_weights(weights, runs.small().graph)) == trained[1]
        assert poet.check_card(card).problems
        flip(card, 8 * at + 2)


def no_table(image: CardImage) -> None:
    image[:BLOCK] = bytes(BLOCK)


def damaged_type(image: CardImage) -> None:
    image[ENTRY + 4] = 0xDE


@pytest.mark.parametrize("damage", [no_table, damaged_type])
def test_commands_name_the_export_before_anything_that_erases(
    trained: tuple[CardImage, str],
    tmp_path: Path,
    poet_host: Command,
    damage: Callable[[CardImage], None],
) -> None:
    image, path, schedule = trained[0].copy(), tmp_path / "card.img", tmp_path / "s.poet"
    runs.small().save(schedule)
    damage(image)
    image.write_to(path)
    data = ("--data", "digits", "--steps", STEPS + 1)
    train = ("train", schedule, "--port", "native", *data, "--storage", path)
    saved = ("--save-weights", tmp_path / "t.safetensors")
    for command in (
        (*train, *saved, "--resume"),
        (*train, *saved, "--erase-card"),
        ("evaluate", schedule, "--port", "native", "--data", "digits", "--storage", path),
        ("card", "write", schedule, *data, "-o", path, "--resume"),
        ("card", "write", schedule, *data, "-o", path, "--erase-card"),
        ("storage", "prepare", path),
    ):
        failed = poet_host(*command)
        text = " ".join(failed.err.split())
        assert failed.code == 2, command
        assert "card export" in text
        assert f"step {STEPS}" in text
        assert read_image(path) == image
    checked = poet_host("card", "check", path, "--json")
    assert checked.code == 1
    assert "card export" in checked.json["problems"][0]
    assert checked.json["weights"]["step"] == STEPS
    assert poet_host("card", "export", path, tmp_path / "w.safetensors").code == 0
    assert poet_host("storage", "prepare", path, "--force", "--size", "64MiB").code == 0
    assert poet_host(*train, *saved).code == 0


@pytest.mark.parametrize("first", [1, 63, 2048, 3 * 2048, 5 * 8192])
def test_a_store_is_found_wherever_it_usually_begins(
    trained: tuple[CardImage, str], tmp_path: Path, first: int
) -> None:
    """So is the one with weights, if an empty store lies before it."""
    moved = CardImage(len(trained[0]) + first * BLOCK)
    for number, block in trained[0].written():
        if number >= PREPARED:
            moved.blocks[number - PREPARED + first] = block
    empty = tmp_path / "empty.img"
    poet.prepare_storage(empty, 64 * MIB)
    moved.blocks[0] = read_image(empty).blocks[PREPARED]
    moved.write_to(tmp_path / "moved.img")
    with CardFile(tmp_path / "moved.img") as file:
        assert (file.has_table, file.first, file.committed_step) == (False, first, STEPS)


def test_what_holds_no_weights_is_refused_as_before(tmp_path: Path, poet_host: Command) -> None:
    path = tmp_path / "card.img"
    path.write_bytes(b"somebody's photographs" * 100_000)
    with pytest.raises(BadInput):
        CardFile(path)
    poet_host("storage", "prepare", path).fails(2, "--force")
    poet.prepare_storage(path, 64 * MIB)
    flip(path, 8 * 510)
    with CardFile(path) as file:
        assert (file.has_table, file.committed_step) == (False, None)
    with pytest.raises(BadInput):
        CardFile(path, writable=True)
    assert "card export" not in poet_host("storage", "prepare", path).err


def test_a_large_card_is_searched_within_a_bound() -> None:
    reads: list[int] = []

    def read(position: int, size: int) -> bytes:
        reads.append(position)
        return bytes(size)

    assert not list(partition.stores(read, 1 << 31))
    assert len(reads) == len(set(reads)) < 30_000

"""The format of card images: changed blocks and records, whose CRCs are often right."""

import contextlib
import io
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import poet_host as poet
from poet_host import isa
from poet_host.card.note import PLACES
from poet_host.cli.main import run as command
from poet_host.data.datasets import Dataset
from poet_host.data.fitted import example
from poet_host.schedule.model import with_crc
from poet_host.schedule.slots import COMMIT_BLOCKS, MODEL_BLOCK, PLAN_BLOCK, job_block
from poet_host.view.card_table import card_rows
from support.card_image import BLOCK, PREPARED, ZEROS, CardImage, read_image
from support.whole_runs import MIB, schedule, train

from .formats import FORMATS as OTHERS, Format, lenet
from .learners import FORMATS as LEARNERS
from .mutate import changed, damaged, json_bytes

STEPS = 3
_META = isa.record_size("poet_note")


class CardFormat(Format):
    suffix = ".img"
    exit_codes = (1, 2)  # 1: damaged

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.schedule = schedule(lenet())
        self.poet = folder / "base.poet"
        self.schedule.save(self.poet)
        x, y = example(lenet())
        self.data = Dataset("example", x, y)
        self.new = self.trained()
        self.there: CardImage | None = None  # what the file of the cases holds
        self.notes = [note for place in PLACES if (note := self.written_note(place))]

    def written_note(self, place: int) -> Any:
        at = (PREPARED + MODEL_BLOCK) * BLOCK + place
        row = isa.unpack("poet_note", self.new[at : at + _META])
        if row["magic"] != isa.constants()["POET_NOTE_MAGIC"]:
            return None
        return json.loads(zlib.decompress(self.new[at + _META : at + _META + row["bytes"]]))

    def trained(self) -> CardImage:
        """A card with weights of two steps, a note and a job."""
        card = self.folder / "base.img"
        poet.prepare_storage(card, 64 * MIB)
        train(self.schedule, (self.data.x, self.data.y), storage=card, steps=STEPS)
        with poet.open_card(card, writable=True) as opened:
            poet.write_card(self.schedule, opened, self.data, steps=STEPS + 4, resume=True)
        return read_image(card)

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        made = self.new.copy()
        for _ in range(0 if valid else rng.choice((1, 1, 2, 4))):
            change = rng.choice((self.block, self.block, self.record, self.record, self.note))
            change(made, rng)
        self.write_changes(path, made)
        if not valid and rng.random() < 0.05:
            with path.open("rb+") as file:
                self.there = None
                file.truncate(rng.choice((0, 511, MIB, PREPARED * BLOCK + 700, 20 * MIB)))

    def write_changes(self, path: Path, made: CardImage) -> None:
        """Write only the blocks that differ from those of the case before, which is faster."""
        before, self.there = self.there, made
        if before is None:
            made.write_to(path)
            return
        with path.open("rb+") as file:
            for number in made.blocks.keys() | before.blocks.keys():
                data = made.blocks.get(number, ZEROS)
                if data is not before.blocks.get(number, ZEROS):
                    file.seek(number * BLOCK)
                    file.write(data)

    def block(self, card: CardImage, rng: Random) -> None:
        number = rng.choice(sorted(card.blocks))
        content = damaged(card.blocks[number], rng) if rng.random() < 0.9 else bytes(BLOCK)
        card.blocks[number] = content[:BLOCK].ljust(BLOCK, b"\0")

    def record(self, card: CardImage, rng: Random) -> None:
        """Change a record, and make its CRC right."""
        job = job_block(self.schedule.model.data_blocks)
        places: list[tuple[str, int]] = [("poet_commit", block) for block in COMMIT_BLOCKS]
        places += [("poet_store", 0), ("poet_job", job)]
        if rng.random() < 0.3:
            self.part(card, rng)
            return
        name, block = rng.choice(places)
        at, size = (PREPARED + block) * BLOCK, isa.record_size(name)
        raw = bytearray(card[at : at + size])
        for _ in range(rng.choice((1, 1, 2))):
            field = 4 * rng.randrange(1, size // 4 - 1)
            value = rng.choice((0, 1, 2, 3, 7, 2**16, 2**31, 2**32 - 1, rng.randrange(2**32)))
            raw[field : field + 4] = value.to_bytes(4, "little")
        raw[-4:] = zlib.crc32(raw[:-4]).to_bytes(4, "little")
        card[at : at + size] = bytes(raw)

    def part(self, card: CardImage, rng: Random) -> None:
        """Change the tables of the model part, or the plan part, and its CRC."""
        model, plan = self.schedule.model_part, self.schedule.plan_part
        block, part = rng.choice(((MODEL_BLOCK, model), (PLAN_BLOCK, plan)))
        made = with_crc((damaged(part, rng) + bytes(len(part)))[: len(part)])
        at = (PREPARED + block) * BLOCK
        card[at : at + len(part)] = made
        if rng.random() < 0.7 and block == MODEL_BLOCK:  # the commits are of this model
            for commit in COMMIT_BLOCKS:
                at, size = (PREPARED + commit) * BLOCK, isa.record_size("poet_commit")
                row = isa.unpack("poet_commit", card[at : at + size])
                row["model_crc"] = int.from_bytes(made[4:8], "little")
                raw = isa.pack("poet_commit", **row)[:-4]
                card[at : at + size] = raw + zlib.crc32(raw).to_bytes(4, "little")

    def note(self, card: CardImage, rng: Random) -> None:
        content = json_bytes(changed(rng.choice(self.notes), rng), rng)
        packed = zlib.compress(content) if rng.random() < 0.9 else damaged(content, rng)
        magic = isa.constants()["POET_NOTE_MAGIC"]
        head = isa.pack("poet_note", magic=magic, crc=zlib.crc32(packed), bytes=len(packed))
        for place in PLACES:
            at = (PREPARED + MODEL_BLOCK) * BLOCK + place
            card[at : at + _META + len(packed)] = head + packed

    def use(self, path: Path, rng: Random) -> None:
        uses: tuple[Callable[[Path], None], ...] = (
            self.check, self.check, self.export, self.export_by_schedule, self.read, self.rewrite,
        )  # fmt: skip
        if rng.random() < 0.02:
            self.by_command(path)
        else:
            rng.choice(uses)(path)

    def check(self, path: Path) -> None:
        report = poet.check_card(path)
        json.dumps(report.to_json(), allow_nan=False)
        assert card_rows(report)
        if report.problems:
            raise poet.PoetError(report.problems[0])

    def export(self, path: Path) -> None:
        poet.export_card(path, self.folder / "w.safetensors")

    def export_by_schedule(self, path: Path) -> None:
        poet.export_card(path, self.folder / "w.safetensors", schedule=self.schedule, prior=True)

    def read(self, path: Path) -> None:
        with poet.open_card(path) as opened:
            poet.read_card(self.schedule, opened)

    def rewrite(self, path: Path) -> None:
        self.there = None
        with poet.open_card(path, writable=True) as opened:
            poet.write_card(self.schedule, opened, self.data, steps=STEPS + 9, resume=True)

    def by_command(self, path: Path) -> None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command(["card", "check", str(path), "--json"])
        assert json.loads(out.getvalue()).get("exit_code", 0) == code
        if code:
            raise poet.PoetError(err.getvalue().splitlines()[-1])


FORMATS: dict[str, type[Format]] = {**OTHERS, **LEARNERS, "card": CardFormat}

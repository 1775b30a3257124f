"""`poet-host doctor --port`: each fault of a board, its card and its port gets its sentence."""

import getpass
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import poet_host as poet
import pytest
from poet_host.check import board_check
from poet_host.check.card_failure import mount_failure
from poet_host.check.kernel_check import KernelRun
from poet_host.device import device as devices
from poet_host.device.answers import board_error
from poet_host.device.card_registers import card_identity, whole_register
from poet_host.device.device import Device, connect
from poet_host.errors import BoardError
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.sim.board import SimulatedBoard
from poet_host.sim.native import NativeBoard
from poet_host.sim.simulated_chip import CardFault
from support import corpus
from support.bad_line import BadLine
from support.command import Command, Result
from support.fake_board import FakeBoard
from support.pty_peer import PtyPeer
from support.sim_helper import needs_compiler, with_other_relu
from support.toy_boards import prepare

MKR, NRF = "mkr1000", "nrf52840_dk"
both = pytest.mark.parametrize("name", [MKR, NRF])
Found = dict[str, tuple[str, str]]  # of each check: its verdict, and its sentence


def found_in(result: Result) -> Found:
    rows = result.json["findings"]
    found = {row["check"]: (row["verdict"], f"{row['found']}: {row['advice']}") for row in rows}
    assert len(found) == len(rows)
    wrong = [row for row in rows if row["verdict"] == "wrong"]
    assert result.json["ok"] == (not wrong)
    assert result.code == (1 if wrong else 0)
    return found


@contextmanager
def board(
    name: str, card: Path | None, /, *faults: CardFault, **kind: Any
) -> Iterator[SimulatedBoard]:
    with SimulatedBoard(name, build_firmware(name), card, faults=faults, card=kind) as running:
        yield running


@pytest.fixture
def few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the kernels out: they take most of the time, and no fault concerns them."""
    relu = KernelRun("relu", "relu n=1", True, 1.0, 1.0)
    monkeypatch.setattr(board_check, "kernel_runs", lambda *_, **__: (relu,))


@pytest.mark.parametrize("port", [f"sim:{MKR}", f"sim:{NRF}", "native"])
def test_a_good_board(poet_host: Command, port: str) -> None:
    result = poet_host("doctor", "--port", port, "--json")
    found = found_in(result)
    assert result.code == 0
    checks = {"firmware", "partition", "reading", "writing", "kernels"}
    if port != "native":
        checks |= {"reset", "supply", "card"}
    assert found.keys() == checks | {"link"}
    assert {found[check][0] for check in checks} == {"ok"}


@needs_compiler
@both
def test_the_registers_of_the_card(name: str, card: Path) -> None:
    with board(name, card) as running, connect(running.port) as device:
        known = device.card()
    assert known.is_ready
    assert known.khz == {MKR: 12_000, NRF: 16_000}[name]
    assert str(card_identity(known.cid)) == "POETS (maker 0x00 SM)"
    csd = whole_register(known.bytes)
    assert csd is not None
    assert (int.from_bytes(csd[7:10], "big") & 0x3FFFFF) + 1 == (64 << 20) // (512 << 10)
    assert whole_register([*known.bytes[:-1], known.bytes[-1] ^ 1]) is None


# A card, and the check and the words that it must get.
CARDS: dict[str, tuple[dict[str, Any], tuple[CardFault, ...], str, str, tuple[str, ...]]] = {
    "noisy wires": (
        {"clean_khz": 4000, "noise_one_in": 1000}, (), "card", "warning", ("4,000 kHz", "10 cm"),
    ),
    "another voltage": ({"refuses_supply": 1}, (), "card", "wrong", ("CMD8", "2.7 to 3.6 V")),
    "it never starts": ({"init_us": 10**9}, (), "card", "wrong", ("ACMD41", "100 mA")),
    "write-protected": (
        {"write_protected": 1}, (), "card", "wrong", ("CSD", "another card"),
    ),
    "blocks with wrong CRCs": (
        {}, (CardFault("read_crc", 20, 10**6),), "reading", "wrong", ("1,000 kHz", "wires"),
    ),
    "dead blocks": (
        {}, (CardFault("read_error", 20, 10**6),), "reading", "wrong", ("reports", "another card"),
    ),
    "dead from the start": (
        {}, (CardFault("read_error", 1, 10**6),), "card", "wrong", ("no block", "contacts"),
    ),
    "removed": ({}, (CardFault("removed", 300),), "writing", "wrong", ("CMD0", "contacts")),
    "one bad block": (
        {}, (CardFault("read_crc", 20),), "reading", "warning", ("repeated: 1 (0.10%)", "contacts"),
    ),
    "large allocation units": ({"name": "sdxc"}, (), "partition", "warning", ("64 MiB",)),
    "a slow card": ({"read_next_us": 2000}, (), "reading", "warning", ("expects", "faster card")),
}  # fmt: skip


@needs_compiler
@pytest.mark.usefixtures("few_kernels")
@pytest.mark.parametrize("what", CARDS)
def test_a_bad_card(poet_host: Command, card: Path, what: str) -> None:
    kind, faults, check, verdict, words = CARDS[what]
    with board(NRF, card, *faults, **kind) as running:
        found = found_in(poet_host("doctor", "--port", running.port, "--json"))
    assert found[check][0] == verdict, found
    for word in words:
        assert word in found[check][1]


@needs_compiler
@pytest.mark.usefixtures("few_kernels")
@both
def test_a_board_without_a_card(poet_host: Command, name: str) -> None:
    with board(name, None) as running:
        found = found_in(poet_host("doctor", "--port", running.port, "--json"))
        verdict, text = found["card"]
        assert verdict == "wrong"
        for word in ("CMD0", "CS", "MISO", "--no-storage"):
            assert word in text
        assert "reading" not in found
        found = found_in(poet_host("doctor", "--port", running.port, "--no-storage", "--json"))
        assert "card" not in found
        assert found["reset"][0] == "ok"


@needs_compiler
@pytest.mark.usefixtures("few_kernels")
def test_a_card_without_a_partition(poet_host: Command, image: Path) -> None:
    with board(NRF, image) as running:
        found = found_in(poet_host("doctor", "--port", running.port, "--json"))
    assert found["card"][0] == "ok"
    assert found["partition"][0] == "wrong"
    assert "storage prepare" in found["partition"][1]


def test_a_card_of_an_older_format(poet_host: Command, tmp_path: Path) -> None:
    """The other checks go on."""
    old, path = tmp_path / "old.img", tmp_path / "b.zip"
    old.write_bytes(corpus.content(corpus.BEFORE / "card.img.xz"))
    with NativeBoard(old) as running:
        result = poet_host("doctor", "--port", running.port, "--bundle", path, "--json")
    found = found_in(result)
    assert found["partition"][0] == "wrong"
    assert "card export" in found["partition"][1]
    assert found["kernels"][0] == found["link"][0] == "ok"
    assert json.loads(ZipFile(path).read("bundle.json"))["findings"]


@needs_compiler
@pytest.mark.usefixtures("few_kernels")
def test_weights_on_the_card_stay(poet_host: Command, card: Path) -> None:
    with board(NRF, card) as running:
        with connect(running.port) as device:
            prepare(device)
        before = card.read_bytes()
        found = found_in(poet_host("doctor", "--port", running.port, "--json"))
        assert "holds weights" in found["writing"][1]
        assert card.read_bytes() == before
        with connect(running.port) as device:
            assert not device.info.loaded_plan  # the arena was overwritten


def wait_for_reset(running: SimulatedBoard) -> None:
    """Wait until the chip has been awake for 0.1 s: it was reset, and waits for its supply."""
    before, end = running.meter, time.monotonic() + 60
    while (now := running.meter).ticks - before.ticks < now.tick_hz // 10:
        assert time.monotonic() < end
        if now.asleep_ticks > before.asleep_ticks:
            before = now
        time.sleep(0.01)


@needs_compiler
@pytest.mark.usefixtures("few_kernels")
def test_a_brown_out(poet_host: Command, card: Path) -> None:
    with board(MKR, card) as running:
        running.ask("set_supply", 2600)
        Path(running.port).write_bytes(b"\0")  # wake it up
        wait_for_reset(running)
        running.ask("set_supply", 3300)
        found = found_in(poet_host("doctor", "--port", running.port, "--json"))
    assert found["reset"][0] == "wrong"
    assert "supply voltage" in found["reset"][1]
    with board(NRF, card) as running:
        running.ask("set_supply", 2600)
        found = found_in(poet_host("doctor", "--port", running.port, "--json"))
    assert found["supply"][0] == found["writing"][0] == "wrong"
    assert "2.7 V" in found["supply"][1]
    assert "supply" in found["writing"][1]


@needs_compiler
@pytest.mark.usefixtures("few_kernels")
def test_a_watchdog_reset(poet_host: Command, card: Path) -> None:
    with board(NRF, card) as running:
        with connect(running.port) as device:
            prepare(device)
            running.ask("hang", "kernel")
            with pytest.raises(BoardError):
                device.step(1)
        found = found_in(poet_host("doctor", "--port", running.port, "--json"))
    assert found["reset"][0] == "wrong"
    assert "watchdog" in found["reset"][1]


@pytest.mark.usefixtures("few_kernels")
def test_other_firmware(
    poet_host: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for changed in ({"version": 1}, {"fingerprint": 7}):
        with FakeBoard() as other:
            fields = other.hello_fields() | {"board": b"mkr1000"} | changed
            other.handlers["hello"] = lambda fields=fields: {"hello": fields}
            path = tmp_path / "b.zip"
            result = poet_host("doctor", "--port", other.port, "--bundle", path, "--json")
        assert found_in(result).keys() == {"firmware"}
        assert "lash the firmware" in found_in(result)["firmware"][1]
        assert json.loads(ZipFile(path).read("bundle.json"))["findings"]

    def unknown(self: Device) -> Any:
        raise board_error(-1, 0, "card")

    monkeypatch.setattr(Device, "card", unknown)  # firmware before this request
    found = found_in(poet_host("doctor", "--port", "native", "--json"))
    assert found["reset"][0] == "warning"
    assert "flash" in found["reset"][1]


@needs_compiler
def test_a_kernel_with_other_bits(poet_host: Command, card: Path, tmp_path: Path) -> None:
    """Its relu returns at once."""
    elf, _ = with_other_relu(NRF, bytes.fromhex("7047"), tmp_path)  # bx lr
    with SimulatedBoard(NRF, elf, card) as running:
        found = found_in(poet_host("doctor", "--port", running.port, "--json"))
    assert found["kernels"][0] == "wrong"
    assert "relu:" in found["kernels"][1]
    assert "conv2d" not in found["kernels"][1]


@needs_compiler
def test_a_slow_processor(poet_host: Command, monkeypatch: pytest.MonkeyPatch, card: Path) -> None:
    slow = KernelRun("relu", "relu n=1", True, 3.0, 1.0)
    monkeypatch.setattr(board_check, "kernel_runs", lambda *_, **__: (slow,))
    with board(NRF, card) as running:
        found = found_in(poet_host("doctor", "--port", running.port, "--json"))
    assert found["kernels"][0] == "warning"
    assert "clock" in found["kernels"][1]


@pytest.mark.usefixtures("few_kernels")
def test_a_line_that_damages_frames(
    poet_host: Command, monkeypatch: pytest.MonkeyPatch, card: Path
) -> None:
    monkeypatch.setitem(devices.connect.__kwdefaults__, "timeout_s", 0.1)
    with NativeBoard(card) as native, BadLine(native.port, "flipped") as line:
        found = found_in(poet_host("doctor", "--port", line.port, "--json"))
        assert line.spoiled
    assert found["link"][0] == "warning"
    assert "cable" in found["link"][1]


def test_every_step_of_an_initialisation_has_a_sentence() -> None:
    seen = set()
    for command in (0, 8, 55, 41, 59, 10, 9, 13):
        for response in (0, 1, 4, 5, 8, 9, 0xFF):
            fields = {"command": command, "response": response, "khz": 12_000}
            what, advice = mount_failure(type("Card", (), fields))
            assert advice
            seen.add(what)
    assert len(seen) > 12


# -- the bundle --


@needs_compiler
def test_the_bundle_of_a_simulated_chip(poet_host: Command, card: Path, tmp_path: Path) -> None:
    path = tmp_path / "board.zip"
    with board(NRF, card) as running:
        result = poet_host("doctor", "--port", running.port, "--bundle", path, "--json")
    assert result.json["bundle"] == str(path)
    facts, report = contents(path)
    assert facts["health"]["reset"] == "power_on"
    assert facts["card"]["identity"]["product"] == "POETS"
    assert bytes.fromhex(facts["card"]["cid"])[1:8] == b"SMPOETS"
    assert [moved["write"] for moved in facts["transfers"]] == [False, True]
    assert facts["ledger"]["ram"]["arena"] == facts["board"]["arena_bytes"] == 225_280
    assert facts["versions"]["compiler"]
    assert len({run["kernel"] for run in facts["kernels"]}) > 30
    for run in facts["kernels"]:
        assert run["same_bits"]
        assert run["measured_us"] == pytest.approx(run["simulated_us"], rel=0.02, abs=1), run
        assert run["kernel"] in report
    assert "arena" in report


def contents(path: Path) -> tuple[dict[str, Any], str]:
    """Return what a bundle holds. It has no names of this user, computer and folder."""
    with ZipFile(path) as file:
        assert file.namelist() == ["bundle.json", "report.txt"]
        assert file.testzip() is None
        texts = [file.read(name).decode() for name in file.namelist()]
    private = {str(Path.home()), platform.node(), str(path.parent), os.getcwd()}
    if getpass.getuser() != "root":  # part of many words
        private.add(getpass.getuser())
    for text in texts:
        assert not [name for name in private if len(name) > 1 and name in text]
    return json.loads(texts[0]), texts[1]


def test_the_bundle_of_a_computer(poet_host: Command, tmp_path: Path) -> None:
    path = tmp_path / "board.zip"
    assert poet_host("doctor", "--port", "native", "--bundle", path).code == 0
    facts, report = contents(path)
    assert facts["card"] is facts["ledger"] is None
    assert facts["board"]["board"] == "native"
    assert all(run["same_bits"] for run in facts["kernels"])
    assert "have the bits of the reference" in report


# -- wrong input --


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (("--bundle", "b.zip"), 2, "--port"),
        (("--no-storage",), 2, "--port"),
        (("--port", "native", "--bundle", "/none/b.zip"), 2, "/none"),
        (("--port", "native", "--bundle", "b.poet"), 2, ".zip"),
        (("--port", "/dev/ttyNothing7"), 3, "/dev/ttyNothing7"),
        (("--port", "socket://127.0.0.1:9"), 3, "socket://127.0.0.1:9"),
        (("--port", "sim:toaster"), 2, "toaster"),
    ],
)
def test_wrong_input(poet_host: Command, options: tuple[str, ...], code: int, named: str) -> None:
    result = poet_host("doctor", *options)
    result.fails(code, named)
    assert not result.out


@pytest.mark.usefixtures("few_kernels")
def test_a_full_disk(poet_host: Command) -> None:
    poet_host("doctor", "--port", "native", "--bundle", "/dev/full").fails(1, "/dev/full")


def test_a_busy_port(poet_host: Command) -> None:
    with poet.connect("native") as connection:
        port = connection.device.link.port
        poet_host("doctor", "--port", port).fails(3, port, "in use")


class Noise(PtyPeer):
    """A device with another baud rate."""

    def _serve(self) -> None:
        while self._open:
            if self._received():
                self.say(bytes(range(1, 200)) + b"\0")


def test_a_port_with_noise(poet_host: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "CONNECT_PATIENCE_S", 0.5)
    with Noise() as stranger:
        poet_host("doctor", "--port", stranger.port).fails(3, stranger.port, "not frames")

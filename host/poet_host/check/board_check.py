"""Check a connected board from its wires to its kernels: say what is wrong, and what to do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .. import isa
from ..card.card import allocation_notice, storage_info
from ..device.card_registers import card_identity, is_write_protected, whole_register
from ..device.device import NOTHING_COMMITTED, Device, Progress
from ..device.health import is_unwanted, reset_text
from ..errors import BadInput, BoardError, listed
from ..profile.profile import estimate_profile
from .card_failure import CONTACTS, SUPPLY, WIRES, mount_failure, transfer_failure
from .kernel_check import CHECKED, KernelRun, kernel_runs

Verdict = Literal["ok", "warning", "wrong"]
FLASH = "flash the firmware of this poet-host"
BLOCKS = 1024  # number of blocks that are read, and written, to count errors
# Each request moves tensors of so many blocks to so many places. More would take slow cards longer
# than the link waits before it sends a request again.
MOVED_AT_ONCE, PLACES = 32, 4
SLOW = 2.0  # a transfer that takes this multiple of its estimate gets a warning
TOLERANCE = 0.4  # of the time of all kernels, compared with the estimates
BLOCK, TRAILER = (isa.constants()[f"POET_{name}"] for name in ("BLOCK", "TRAILER"))


@dataclass(frozen=True)
class Finding:
    """What one check has found, and what to do if it is not ok."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.found}: {self.advice}" if self.advice else self.found


@dataclass(frozen=True)
class Moved:
    """A measured transfer of blocks between card and RAM."""

    write: bool
    blocks: int
    retries: int  # repeated accesses
    us: float
    estimated_us: float  # from board.toml

    @property
    def kb_per_s(self) -> float:
        return self.blocks * BLOCK * 1e3 / self.us


@dataclass
class BoardCheck:
    """The findings about a board, and the facts from which they follow."""

    device: Device
    has_card: bool = True  # False: the user says that the board has no card
    findings: list[Finding] = field(default_factory=list)
    health: Any = None  # poet_health; None: the firmware does not report it
    card: Any = None  # poet_card before the transfers; None: the firmware does not report it
    moved: list[Moved] = field(default_factory=list)
    kernels: Sequence[KernelRun] = ()

    def run(self, progress: Progress | None = None) -> None:
        """Run all checks.

        No block of the storage that a model uses is overwritten, but the arena is. So the board
        unloads its schedule first: without a card, weights after the last commit are lost. Raises
        LinkBroken if the board does not answer any more.
        """
        self.device.reset()
        self._check_firmware()
        self._check_reset()
        if self.has_card and self._card_works() and self._partition_works():
            self._check_transfers()
        self.kernels = kernel_runs(self.device, CHECKED, every_shape=False, progress=progress)
        self._check_kernels()
        self._check_link()

    def _note(self, check: str, found: str, advice: str = "", verdict: Verdict = "warning") -> None:
        """Add a finding. It is ok if it needs no advice."""
        self.findings.append(Finding(check, verdict if advice else "ok", found, advice))

    def _check_firmware(self) -> None:
        info, board, advice = self.device.info, self.device.board, ""
        found = (
            f"{board.title}, version {info.version}, operators {info.fingerprint:08x}, arena of "
            f"{info.arena_bytes:,} bytes"
        )
        if not board.is_computer and info.arena_bytes != board.arena_bytes:
            found += f", but the arena of this poet-host's firmware has {board.arena_bytes:,}"
            advice = FLASH
        self._note("firmware", found, advice)

    def _check_reset(self) -> None:
        try:
            self.health, self.card = self.device.health(), self.device.card()
        except BoardError:
            found = "this firmware does not report resets or the registers of its card"
            self._note("reset", found, FLASH)
            return
        if self.device.board.is_computer:
            self.card = None  # its storage is a file
            return
        again = "then switch the board off and on, so that it reports its next reset"
        self._note("reset", reset_text(self.health), again * is_unwanted(self.health), "wrong")
        if self.card.supply_is_low:
            found = "the supply is below 2.7 V, so the board does not write to its card"
            self._note("supply", found, SUPPLY, "wrong")
        else:
            self._note("supply", "the supply is above 2.7 V")

    def _card_works(self) -> bool:
        card = self.card
        if card is None:
            return True
        if not card.is_ready:
            self._note("card", *mount_failure(card), "wrong")
            return False
        found, advice = f"{card_identity(card.cid)}, bus at {card.khz:,} kHz", ""
        verdict: Verdict = "warning"
        csd = whole_register(card.bytes)
        if csd and is_write_protected(csd):
            found += ", but its register CSD protects it against writes"
            advice, verdict = "use another card", "wrong"
        elif card.slower:
            found += f", lowered {card.slower} times after CRC errors"
            advice = WIRES
        elif card.retries:
            found += f", accesses repeated since the reset: {card.retries:,}"
            advice = CONTACTS
        self._note("card", found, advice, verdict)
        return True

    def _partition_works(self) -> bool:
        try:
            info = storage_info(self.device)
        except (BadInput, BoardError) as error:  # BadInput: a card of another format
            self.findings.append(Finding("partition", "wrong", str(error)))
            return False
        held = f"weights of step {info.committed_step:,}" if _holds_weights(info) else "no weights"
        found = f"{info.storage_blocks * BLOCK / 2**20:,.1f} MiB with {held}"
        if notice := allocation_notice(self.device):
            self.findings.append(Finding("partition", "warning", f"{found}; {notice}"))
        else:
            self._note("partition", found)
        return True

    def _check_transfers(self) -> None:
        for write in (False, True):
            check = "writing" if write else "reading"
            if write and _holds_weights(self.device.info):
                self._note(check, "not tried, because the card holds weights")
                return
            khz = self.card.khz if self.card else 0
            try:
                moved = self._move(write)
            except BoardError as error:
                if error.name != "storage_failed" or self.card is None:
                    self.findings.append(Finding(check, "wrong", str(error)))
                else:
                    self._note(check, *transfer_failure(self.device.card(), khz), "wrong")
                return
            self.moved.append(moved)
            self._judge(check, moved, khz)

    def _move(self, write: bool) -> Moved:
        """Move BLOCKS blocks that no model uses."""
        device = self.device
        count = max(1, min(MOVED_AT_ONCE, device.info.arena_bytes // BLOCK))
        size_bytes, requests = count * BLOCK - TRAILER, BLOCKS // count // PLACES
        before = device.card().retries if self.card else 0
        ticks = sum(
            device.probe_transfer(write, size_bytes, repeat=PLACES)[0] for _ in range(requests)
        )
        retries = device.card().retries - before if self.card else 0
        estimate = estimate_profile(device.board)
        time_us, _ = (estimate.page_out if write else estimate.page_in).times_us(size_bytes)
        transfers = requests * PLACES
        return Moved(write, count * transfers, retries, device.us(ticks), time_us * transfers)

    def _judge(self, check: str, moved: Moved, khz: int) -> None:
        found, advice = f"{moved.blocks:,} blocks at {moved.kb_per_s:,.0f} kB/s", ""
        now = self.device.card() if self.card else None
        if moved.retries and now:
            share = moved.retries / moved.blocks
            found += f", accesses repeated: {moved.retries:,} ({share:.2%})"
            if now.khz < khz:
                found += f"; the clock was lowered from {khz:,} to {now.khz:,} kHz"
            advice = WIRES if now.slower else CONTACTS
        elif moved.us > SLOW * moved.estimated_us and not self.device.board.is_computer:
            expected = moved.kb_per_s * moved.us / moved.estimated_us
            found += f", but board.toml expects {expected:,.0f}"
            lowered = now is not None and now.slower
            advice = WIRES if lowered else "use a faster card, or solve with a profile of this one"
        else:
            found += ", no error"
        self._note(check, found, advice)

    def _check_kernels(self) -> None:
        wrong = sorted({run.kernel for run in self.kernels if not run.same_bits})
        measured_us = sum(run.measured_us for run in self.kernels)
        estimated_us = sum(run.estimated_us for run in self.kernels)
        found = f"{len(self.kernels)} kernels have the bits of the reference"
        times = f"{measured_us / 1e3:,.1f} ms, estimated {estimated_us / 1e3:,.1f} ms"
        if not self.kernels:
            found = f"no kernel fits the arena of {self.device.info.arena_bytes:,} bytes"
            self._note("kernels", found, FLASH, "wrong")
        elif wrong:
            found = f"other bits than those of the reference: {listed(wrong)}"
            advice = f"{FLASH}; then check the supply of the chip"
            self._note("kernels", found, advice, "wrong")
        elif self.device.board.is_computer:
            self._note("kernels", found)
        elif abs(measured_us / estimated_us - 1) > TOLERANCE:
            advice = "report it with --bundle: the clock of the processor may be wrong"
            self._note("kernels", f"{found}, but took {times}", advice)
        else:
            self._note("kernels", f"{found}, in {times}")

    def _check_link(self) -> None:
        resent = self.device.link.resent
        if resent:
            found = f"{resent:,} requests had to be sent again"
            advice = "use another cable or USB port; on a UART, check ground and 1 Mbaud"
            self._note("link", found, advice)
        else:
            self._note("link", "every request was answered at once")


def _holds_weights(info: Any) -> bool:
    return bool(info.committed_step != NOTHING_COMMITTED and info.committed_model)

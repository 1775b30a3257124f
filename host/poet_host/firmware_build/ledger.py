"""Memory ledger of a firmware image: bytes of flash, and of RAM by purpose.

    python -m poet_host.firmware_build.ledger docs/reference/memory.md

This command writes the table of all boards into a file, between two marker lines. The module needs
the standard library only, because PlatformIO's builder imports it too.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from ..files import read_text, write_whole
from .image import read_elf
from .recipe import compiler_version, recipe, simulated_boards
from .stack import stack_bound

RAM_START = 0x20000000
BEGIN, END = "<!-- ledger: made by `make ledger` -->", "<!-- end of ledger -->"

# The purpose of each variable. All other variables have the purpose `other`.
PURPOSES = {
    "board": "state of the runtime",
    "residents": "tables of tensors",
    "bitmap": "tables of tensors",
    "queue": "queue of transfers",
    "trace": "trace of a step",
    "steps": "slabs of tables that the next steps renew",
    "cache": "stream buffer: cached blocks of model and plan",
    "lane": "block buffer and state of the transfer lane",
    "sd_bus": "state of the SD driver",
    "card": "state of the SD driver",
    "frame": "serial frame",
    "ring": "serial ring",
    "sending": "serial ring",
    "usb": "packets and state of USB",
    "port": "packets and state of USB",
    "controller": "packets and state of USB",
    "noted": "why the board was reset",
    "last": "why the board was reset",
    "base": "DMA descriptors",
    "written_back": "DMA descriptors",
    "bounce": "DMA buffer in a RAM block of its own",
}
ORDER = ("stack", *dict.fromkeys(PURPOSES.values()), "code in RAM", "other", "arena")


@dataclass(frozen=True)
class Ledger:
    """The memory that the firmware of one board uses."""

    board: str
    flash_bytes: int
    ram: dict[str, int]  # bytes by purpose
    stack_bound_bytes: int | None  # largest use of the stack; None: not known
    stack_doubt: str = ""  # why the stack bound is not known, or does not hold

    @property
    def arena_bytes(self) -> int:
        return self.ram["arena"]


def memory_ledger(board: str, path: Path) -> Ledger:
    """Return the ledger of a board's firmware image, from its sections and symbols."""
    image = read_elf(path)
    ram = dict.fromkeys(ORDER, 0)
    nothing = (0, 0)  # an application has no arena of its own
    ram["arena"], ram["stack"] = (image.sections.get(it, nothing)[1] for it in (".arena", ".stack"))
    ram["code in RAM"] = sum(len(code) for address, code in image.code if address >= RAM_START)
    for name, (address, size_bytes) in image.objects.items():
        if address >= RAM_START and name in PURPOSES:
            ram[PURPOSES[name]] += size_bytes
    every = sum(size for address, size in image.sections.values() if address >= RAM_START)
    ram["other"] = every - sum(ram.values())
    used = {purpose: size_bytes for purpose, size_bytes in ram.items() if size_bytes}
    used["code in RAM"] = ram["code in RAM"]  # the table has this row even if its value is 0
    _, flash = image.flash()
    fpu = any(flag.startswith("-mfpu") for flag in recipe(board).core)
    doubt, bound = "", None
    try:
        bound = stack_bound(image, fpu=fpu)
        if bound > ram["stack"]:
            doubt = (
                f"too small: link with -Wl,--defsym=APPLICATION_STACK_BYTES={-(-bound // 8) * 8}"
            )
    except BadInput as error:  # calls.toml does not fit the output of this compiler
        doubt = str(error)
    return Ledger(board, len(flash), used, bound, doubt)


def ledger_rows(ledgers: Sequence[Ledger]) -> list[tuple[str, ...]]:
    """Return a header row, then a row for each purpose: the bytes on each board, or `-`."""

    def row(name: str, values: Sequence[int | None]) -> tuple[str, ...]:
        return name, *("-" if value is None else f"{value:,}" for value in values)

    rows = [
        ("bytes", *(ledger.board for ledger in ledgers)),
        row("flash", [ledger.flash_bytes for ledger in ledgers]),
        row("RAM", [sum(ledger.ram.values()) for ledger in ledgers]),
    ]
    for purpose in ORDER:
        if any(purpose in ledger.ram for ledger in ledgers):
            rows.append(row(f"- {purpose}", [ledger.ram.get(purpose) for ledger in ledgers]))
        if purpose == "stack":
            rows.append(
                row("  - of which can be used", [ledger.stack_bound_bytes for ledger in ledgers])
            )
    return rows


def ledger_text(ledgers: Sequence[Ledger]) -> str:
    """Return the ledgers as a text table, then a line for each stack whose bound is in doubt."""
    rows = ledger_rows(ledgers)
    first = max(len(row[0]) for row in rows)
    width = max(len(value) for row in rows for value in row[1:])
    lines = [
        row[0].ljust(first) + "".join(value.rjust(width + 2) for value in row[1:]) for row in rows
    ]
    doubts = [f"{it.board}'s stack: {it.stack_doubt}" for it in ledgers if it.stack_doubt]
    return "\n".join([*lines, *doubts])


def ledger_markdown(ledgers: Sequence[Ledger]) -> str:
    """Return the ledgers as a Markdown table, for docs/reference/memory.md."""
    made = recipe(ledgers[0].board)
    built = f"bytes, built by {made.compiler} {compiler_version(made)} with all kernels that fit"
    (_, *boards), *rows = ledger_rows(ledgers)
    head = f"| {' | '.join((built, *boards))} |\n|---|{'---:|' * len(boards)}"
    return "\n".join([head, *(f"| {' | '.join(part.strip() for part in row)} |" for row in rows)])


def with_ledger(text: str, where: str, ledgers: Sequence[Ledger]) -> str:
    """Return `text` with the table of `ledgers` between its two marker lines.

    Raises BadInput if `text` has no marker lines.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise BadInput(f"{where} has no marker lines for the table: add {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{ledger_markdown(ledgers)}\n{END}{after}"


def all_ledgers() -> list[Ledger]:
    """Build the images of all boards with a bare-metal port, and return their ledgers."""
    from .bare_metal import build_firmware  # which needs cffi

    return [memory_ledger(board, build_firmware(board)) for board in simulated_boards()]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_whole(target, with_ledger(read_text(target), str(target), all_ledgers()))

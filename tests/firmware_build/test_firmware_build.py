"""The bare-metal images: one recipe for two builds, the memory ledger, the stack bound."""

import os
import re
import shutil
import struct
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from poet_host.device import wire
from poet_host.device.board import load_board
from poet_host.device.device import connect
from poet_host.errors import BadInput, PoetError
from poet_host.firmware_build import ledger as ledgers
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.firmware_build.image import read_elf
from poet_host.firmware_build.ledger import Ledger, memory_ledger
from poet_host.firmware_build.recipe import (
    compiler_version,
    find_compiler,
    recipe,
    simulated_boards,
)
from poet_host.firmware_build.stack import functions, stack_bound
from poet_host.sim.board import SimulatedBoard
from poet_host.sim.simulated_chip import SimulatedChip
from support.sim_helper import CORES, FOLDER, needs_compiler
from support.toy_boards import prepare, run_step

pytestmark = needs_compiler
ROOT = Path(__file__).parents[2]
BOARDS = simulated_boards()
both = pytest.mark.parametrize("board", BOARDS)
PIO = shutil.which("pio", path=str(Path(sys.executable).parent)) or shutil.which("pio")
needs_pio = pytest.mark.skipif(PIO is None, reason="PlatformIO is missing")


def pio_run(folder: Path, *arguments: str, path: str | None = None) -> str:
    """Run `pio run` on this checkout without a change to it or to the user's PlatformIO."""
    environment = {
        **os.environ,
        "PATH": path or os.environ["PATH"],
        "PLATFORMIO_CORE_DIR": str(folder / "core"),
        "PLATFORMIO_WORKSPACE_DIR": str(folder / "work"),
        "PLATFORMIO_PLATFORMS_DIR": str(folder / "platforms"),
        "PLATFORMIO_SETTING_ENABLE_TELEMETRY": "no",
        "PLATFORMIO_DISABLE_UPGRADE_CHECK": "true",
        "PYTHONPATH": "",
    }
    command = [str(PIO), "run", "-d", str(ROOT), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def pio(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder where `pio run` has built all boards, and its output."""
    folder = tmp_path_factory.mktemp("pio")
    return folder / "work" / "build", pio_run(folder)


@needs_pio
@both
def test_platformio_builds_the_same_image(board: str, pio: tuple[Path, str]) -> None:
    built, printed = pio
    ours, theirs = read_elf(build_firmware(board)), read_elf(built / board / "firmware.elf")
    assert theirs.flash() == ours.flash()
    assert theirs.sections == ours.sections
    assert (built / board / "firmware.bin").read_bytes() == ours.flash()[1]
    assert ledgers.ledger_text([memory_ledger(board, build_firmware(board))]) in printed


@needs_pio
@both
def test_frames_are_those_that_the_compiler_reports(board: str, pio: tuple[Path, str]) -> None:
    reported: dict[str, int] = {}
    for path in (pio[0] / board).rglob("*.su"):
        for line in path.read_text().splitlines():
            place, size_bytes, kind = line.split("\t")
            assert kind == "static"
            name = place.rpartition(":")[2].partition(".")[0]
            reported[name] = max(reported.get(name, 0), int(size_bytes))
    found: dict[str, int] = {}
    for function in functions(read_elf(build_firmware(board))).values():
        found[function.name] = max(found.get(function.name, 0), function.frame_bytes)
    common = set(reported) & set(found)
    assert len(common) > 150
    assert [name for name in common if found[name] < reported[name]] == []
    assert sum(found[name] == reported[name] for name in common) > 0.9 * len(common)


@needs_pio
def test_platformio_uses_its_compiler_if_the_system_has_none(tmp_path: Path) -> None:
    made = recipe("mkr1000")
    package = tmp_path / "core" / "packages" / "toolchain-gccarmnoneeabi"
    (package / "bin").mkdir(parents=True)
    for tool in ("gcc", "objcopy", "objdump"):
        wrapper = package / "bin" / f"arm-none-eabi-{tool}"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which(wrapper.name)} "$@"\n')
        wrapper.chmod(0o755)
    version = made.package.partition("~")[2]
    about = f'"name": "toolchain-gccarmnoneeabi", "version": "{version}"'
    spec = '"owner": "platformio", "name": "toolchain-gccarmnoneeabi", "id": null'
    (package / "package.json").write_text(f"{{{about}}}")
    (package / ".piopm").write_text(
        f'{{"type": "tool", {about}, "spec": {{{spec}, "requirements": null, "uri": null}}}}'
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    printed = pio_run(tmp_path, "-e", "mkr1000", path=str(tmp_path / "bin"))
    assert "toolchain-gccarmnoneeabi @" in printed
    built = read_elf(tmp_path / "work" / "build" / "mkr1000" / "firmware.elf")
    assert built.flash() == read_elf(build_firmware("mkr1000")).flash()


@needs_pio
def test_platformio_uploads_with_poet_host(pio: tuple[Path, str], tmp_path: Path) -> None:
    stub = tmp_path / "poet-host"
    stub.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/log\n')
    stub.chmod(0o755)
    asked = ("-e", "mkr1000", "-t", "nobuild", "-t", "upload", "--upload-port", "/dev/x")
    pio_run(pio[0].parents[1], *asked, path=f"{tmp_path}:{os.environ['PATH']}")
    elf = pio[0] / "mkr1000" / "firmware.elf"
    arguments = (tmp_path / "log").read_text().split()
    assert arguments == [
        "flash",
        "--board",
        "mkr1000",
        "--image",
        str(elf),
        "--upload-port",
        "/dev/x",
    ]
    assert elf.exists()


def test_the_compiler_is_from_the_path_or_from_platformio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recipe("mkr1000")
    assert find_compiler(made) == shutil.which("arm-none-eabi-gcc")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLATFORMIO_CORE_DIR", str(tmp_path))
    with pytest.raises(PoetError, match=r"apt install gcc-arm-none-eabi .* 'pio pkg install"):
        find_compiler(made)
    package = tmp_path / "packages" / "toolchain-gccarmnoneeabi@1.120301.0" / "bin"
    package.mkdir(parents=True)
    compiler = package / "arm-none-eabi-gcc"
    compiler.touch(0o755)
    assert find_compiler(made) == str(compiler)


def test_the_ledger_needs_no_package_in_the_python_of_platformio() -> None:
    command = "import poet_host.firmware_build.ledger"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "host")}
    subprocess.run([sys.executable, "-S", "-c", command], check=True, env=environment)


@both
def test_manifest_and_linker_script_agree(board: str) -> None:
    manifest = (ROOT / "firmware" / "platform" / "boards" / f"{board}.json").read_text()
    script = recipe(board).script.read_text()
    lengths = dict(re.findall(r"(\w+) \(\w+\) : ORIGIN = \w+, LENGTH = ([\dK -]+)", script))
    sizes = {name: eval(text.replace("K", "*1024")) for name, text in lengths.items()}
    assert f'"maximum_size": {sizes["FLASH"]},' in manifest
    ram = sizes["RAM"] + sizes.get("SPIM3", 0)
    assert f'"maximum_ram_size": {ram} ' in manifest


@both
def test_every_vector_is_a_function(board: str) -> None:
    image = read_elf(build_firmware(board))
    start, flash = image.flash()
    at, size = image.objects["vectors"]
    assert at == start
    words = [int.from_bytes(flash[i : i + 4], "little") for i in range(0, size, 4)]
    names = dict(image.functions)
    assert words[0] == image.symbols["stack_top"]
    handlers = [names[word & ~1] for word in words[1:]]
    assert all(word & 1 for word in words[1:])
    assert handlers[0] == "reset_handler"
    own = [name for name in handlers[1:] if name != "fault_handler"]
    assert len(own) == {"samd21": 5, "nrf52840": 6}[recipe(board).chip]
    assert len(handlers) == {"samd21": 43, "nrf52840": 63}[recipe(board).chip]


@pytest.fixture(scope="module")
def all_ledgers() -> dict[str, Ledger]:
    return {ledger.board: ledger for ledger in ledgers.all_ledgers()}


@both
def test_the_ledger_accounts_for_every_byte(board: str, all_ledgers: dict[str, Ledger]) -> None:
    ledger = all_ledgers[board]
    room = {"samd21": 32 << 10, "nrf52840": 256 << 10}[recipe(board).chip]
    assert 0.9 * room < sum(ledger.ram.values()) <= room
    assert 0 <= ledger.ram["other"] < 256
    named = ("stack", "queue of transfers", "serial frame", "state of the runtime")
    assert min(ledger.ram[part] for part in named) > 0
    # With all kernels, unrolled and aligned to lines of the cache, and CRCs in 20 KiB.
    most = {"samd21": 154 << 9, "nrf52840": 242 << 9}[recipe(board).chip]
    assert ledger.flash_bytes <= most
    assert load_board(board).arena_bytes <= ledger.arena_bytes
    assert ledger.arena_bytes >= {"samd21": 24 << 10, "nrf52840": 220 << 10}[recipe(board).chip]


@both
def test_the_stack_is_bounded_below_what_is_reserved(
    board: str, all_ledgers: dict[str, Ledger], storage: Path
) -> None:
    """A run with the deepest calls stays below the bound too."""
    ledger = all_ledgers[board]
    assert ledger.stack_doubt == ""
    assert ledger.stack_bound_bytes is not None
    assert ledger.stack_bound_bytes <= ledger.ram["stack"]
    with (
        SimulatedBoard(board, build_firmware(board), storage) as running,
        connect(running.port) as device,
    ):
        assert device.info.arena_bytes == ledger.arena_bytes
        prepare(device)
        for step in (1, 2):
            run_step(device, step, 0, 30)
        used = ledger.ram["stack"] - running.meter.stack_free_bytes
    assert 0.3 * ledger.stack_bound_bytes < used <= ledger.stack_bound_bytes


@both
def test_the_painted_stack_shows_its_use(board: str, all_ledgers: dict[str, Ledger]) -> None:
    chip = SimulatedChip(board, build_firmware(board), None)
    assert chip.run(10**9) == "idle"
    chip.give(wire.frame(1, wire.messages()["hello"].code, b""))
    assert chip.run(10**9) == "idle"
    ledger = all_ledgers[board]
    reserved = ledger.ram["stack"]
    stack = chip.ffi.new("uint8_t[]", reserved)
    bottom = chip.image.symbols["__stack_limit"]
    assert chip.lib.machine_peek(chip.machine, bottom, stack, reserved)
    words = struct.unpack(f"<{reserved // 4}I", bytes(stack))
    untouched = next(i for i, word in enumerate(words) if word != 0x5AC3965A) * 4
    assert 0 < chip.meter.stack_free_bytes <= untouched < reserved
    assert ledger.stack_bound_bytes is not None
    assert reserved - untouched <= ledger.stack_bound_bytes


@both
def test_interrupts_nest_as_calls_toml_says(board: str) -> None:
    """The levels in calls.toml are the priorities that the port sets."""
    folder = ROOT / "firmware" / "port" / recipe(board).chip
    port = "".join(path.read_text() for path in sorted(folder.glob("*.[ch]")))
    handlers = dict(re.findall(r"\[16 \+ IRQ_(\w+)\] = (\w+)", port))
    priorities = {
        name: int(value, 16) for name, value in re.findall(r"(\w+_PRIORITY) = (\w+)", port)
    }
    set_to = dict(re.findall(r"_interrupt\(IRQ_(\w+), (\w+)\);", port))
    priority_of = {handlers[irq]: priorities[name] for irq, name in set_to.items()}
    assert set(set_to) == set(handlers)
    rules = tomllib.loads((ROOT / "firmware" / "calls.toml").read_text())["interrupts"]
    levels = [
        {priority_of[handler] for handler in level if handler in priority_of}
        for level in rules["levels"]
    ]
    assert all(len(level) == 1 for level in levels)
    assert levels == sorted(levels, key=min, reverse=True)
    assert set().union(*rules["levels"]) >= set(priority_of)


PROGRAM = """
#include <stdint.h>
extern uint32_t stack_top[];
typedef void handler(void);
volatile int word;
void poet_serve(void) {{ word++; }}
{fault}
{body}
__attribute__((section(".vectors"), used)) handler *const vectors[4] = {{
  (handler *)(void *)stack_top, reset_handler, fault_handler, fault_handler}};
"""
FAULT = "void fault_handler(void) { for (;;) word++; }"
REPORT = "void look(char *p) { *p = word; } void report(void) { char a[200]; look(a); }"
REPORT += """ __attribute__((naked)) void fault_handler(void) {
  __asm("ldr r3, =%s\\n mov sp, r3\\n b report"); }"""
BIG = "void use(char *p) { *p = word; } void reset_handler(void) { char a[%d]; use(a); }"
LOOP = "int f(int n); int g(int n) { return f(n - 1) + word; }"
LOOP += "int f(int n) { return n ? g(n) * word : 0; } void reset_handler(void) { word = f(word); }"
ALLOCA = "void use(char *p) { *p = word; } void reset_handler(void) { char a[word]; use(a); }"
POINTER = "void (*volatile p)(void); void reset_handler(void) { p(); word++; }"
SPLIT = "void h(void) { word++; } void *volatile p; void reset_handler(void) {"
SPLIT += 'void *q; __asm("movw %0, #:lower16:h\\n movt %0, #:upper16:h" : "=r"(q)); p = q; }'
TAKEN = "static void h(void) { word++; } void *volatile p; void reset_handler(void) { p = h; }"


def compiled(core: str, body: str, folder: Path, fault: str = FAULT) -> Path:
    source, elf = folder / "program.c", folder / "program.elf"
    source.write_text(PROGRAM.format(body=body, fault=fault))
    command = ["arm-none-eabi-gcc", *CORES[core], "-mthumb", "-O1", "-fno-inline", "-nostartfiles"]
    command += ["-fno-optimize-sibling-calls", "--specs=nosys.specs", f"-T{FOLDER / 'test.ld'}"]
    command += ["-Wl,--no-warn-rwx-segments", "-Wl,--emit-relocs", str(source)]
    subprocess.run([*command, "-o", str(elf)], check=True)
    return elf


@pytest.mark.parametrize("core", list(CORES))
@pytest.mark.parametrize("size_bytes", [8, 400, 1000, 5000, 70000])
def test_large_frames_are_seen(core: str, size_bytes: int, tmp_path: Path) -> None:
    bound = stack_bound(read_elf(compiled(core, BIG % size_bytes, tmp_path)), fpu=False)
    assert size_bytes + 36 < bound <= size_bytes + 36 + 48


@pytest.mark.parametrize("core", list(CORES))
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (LOOP, "no known bound, because [fg] calls [fg] calls [fg]"),
        (ALLOCA, "reset_handler .* stack pointer .* bound"),
        (POINTER, "reset_handler: .* call through a pointer, but firmware/calls.toml"),
        (TAKEN, r"addresses of h, but no group in firmware/calls\.toml"),
    ],
)
def test_what_has_no_bound_is_refused(core: str, body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        stack_bound(read_elf(compiled(core, body, tmp_path)), fpu=False)


@pytest.mark.parametrize("core", list(CORES))
def test_a_fault_handler_that_resets_the_stack_adds_nothing(core: str, tmp_path: Path) -> None:
    def bound(size_bytes: int, fault: str) -> int:
        return stack_bound(read_elf(compiled(core, BIG % size_bytes, tmp_path, fault)), fpu=False)

    resets = REPORT % "stack_top"
    assert bound(400, resets) == bound(400, FAULT)
    assert bound(400, resets.replace("mov sp, r3", "nop")) == bound(400, FAULT) + 200 + 8
    assert bound(8, resets) == 200 + 8  # the report alone
    with pytest.raises(BadInput, match=r"fault_handler .* stack pointer"):
        bound(8, REPORT % "0x20001234")


def without_what_compilers_differ_in(text: str) -> str:
    return re.sub(r"(?m)^(\| (flash|- other|- of which|bytes, built).*?\|).*", r"\1", text)


def test_addresses_in_two_halves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="MOVW"):
        stack_bound(read_elf(compiled("m4f", SPLIT, tmp_path)), fpu=False)


def test_the_table_in_the_docs_is_that_of_this_build(all_ledgers: dict[str, Ledger]) -> None:
    text = (ROOT / "docs/reference/memory.md").read_text(encoding="utf-8")
    fresh = ledgers.with_ledger(text, "memory.md", list(all_ledgers.values()))
    if f" {compiler_version(recipe('mkr1000'))} " not in text:
        text, fresh = map(without_what_compilers_differ_in, (text, fresh))
    assert fresh == text, "the firmware has changed: run `make ledger`"


def test_damaged_images_are_refused(tmp_path: Path) -> None:
    good = build_firmware("mkr1000").read_bytes()
    path = tmp_path / "image.elf"
    head = bytearray(good[:52])
    head[44:46] = bytes(2)  # no program headers
    damages = [(good[: len(good) // 2], "damaged"), (good[:100], "damaged"), (head, "damaged")]
    damages += [(head + good[52:], "no segment"), (b"", "not a 32-bit")]
    for data, words in damages:
        path.write_bytes(data)
        with pytest.raises(BadInput, match=words):
            read_elf(path)
    with pytest.raises(BadInput, match=r"none.elf cannot be read"):
        read_elf(tmp_path / "none.elf")


def test_a_file_without_marker_lines_is_refused() -> None:
    with pytest.raises(BadInput, match=r"NOTES\.md"):
        ledgers.with_ledger("# Title\n", "NOTES.md", [])

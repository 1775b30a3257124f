"""Packages for the Arduino IDE: the rules of arduino-lint, and sketches that are built."""

import re
import subprocess
from pathlib import Path

import poet_host as poet
import pytest
from poet_host.package.folder import write
from poet_host.package.packaged import Packaged
from support.compiler import compiler
from support.learner_bench import Kind, packaged
from support.sim_helper import CORES, needs_compiler

CORE = Path(__file__).parent / "arduino"
AVR = Path("/usr/share/arduino/hardware/arduino/avr")  # of Debian's arduino-core-avr
STRICT = ["-Wall", "-Wextra", "-Werror"]
CARD = """#include <stdint.h>
int read_block(void *, uint32_t, void *) { return 1; }
int write_block(void *, uint32_t, const void *) { return 1; }
"""
FAILING_CARD = """#include <stdint.h>
#include <string.h>
static uint8_t blocks[2000][512];
static int writes;
int read_block(void *, uint32_t block, void *to) { return !memcpy(to, blocks[block], 512); }
int write_block(void *, uint32_t block, const void *from) {
  return ++writes > MOST || !memcpy(blocks[block], from, 512);
}
"""
CATEGORIES = {
    "Display", "Communication", "Signal Input/Output", "Sensors", "Device Control", "Timing",
    "Data Storage", "Data Processing", "Other",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(packaged(Kind()), "arduino", tmp_path / "small")
    return tmp_path / "small"


def test_a_library_obeys_the_rules_of_arduino_lint(folder: Path) -> None:
    """Those of `arduino-lint --compliance strict` that need no network: LS, LP, LC, LD and SS."""
    files = [it for it in folder.rglob("*") if it.is_file()]
    names = {it.name for it in folder.iterdir()}
    lines = (folder / "library.properties").read_text().splitlines()
    properties = dict(line.split("=", 1) for line in lines)
    assert len(properties) == len(lines)
    assert re.fullmatch(r"[a-zA-Z0-9][\w.-]{0,62}", folder.name)  # LS002, LS003
    assert not any(it.is_symlink() for it in folder.rglob("*"))  # LS005
    assert not {it.suffix for it in files} & {".exe", ".pde"}  # LS007, SS004
    assert (folder / "src" / f"{properties['name']}.h").exists()  # LS008
    assert {"src", "extras", "examples", "library.properties", "README.md", "LICENSE"} <= names
    assert not names & {"utility", ".development", ".gitmodules"}  # LS004, LS006, LS010
    assert [it.parent for it in files if it.name == "library.properties"] == [folder]  # LP004
    assert re.fullmatch(r"[a-zA-Z][\w.-]{0,31}", properties["name"])  # LP008 to LP011, LP015
    assert not re.search("arduino|library", properties["name"], re.IGNORECASE)  # LP012 to LP016
    assert re.fullmatch(r"\d+\.\d+\.\d+", properties["version"])  # LP020, LP021
    for name in ("author", "maintainer", "sentence", "paragraph", "url"):  # LP023 to LP041
        assert properties[name]
    assert "arduino" not in properties["maintainer"].lower()  # LP027, LP057
    assert not properties["paragraph"].startswith(properties["sentence"])  # LP036
    assert properties["category"] in CATEGORIES  # LP038
    assert re.match("https://[a-z]", properties["url"])  # LP041
    assert re.fullmatch("[a-z0-9_,]+", properties["architectures"])  # LP044, LP046
    aliases = {"atmelavr", "atmelmegaavr", "atmelsam", "espressif32", "nordicnrf52", "raspberrypi"}
    assert not aliases & {*properties["architectures"].split(",")}  # LP045
    assert (folder / "src" / properties["includes"]).exists()  # LP051, LP052
    assert properties.keys() <= {
        "name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url",
        "architectures", "includes",
    }  # fmt: skip
    sketches = [it for it in files if it.suffix == ".ino"]
    assert [it.relative_to(folder).parts[0] for it in sketches] == ["examples"]  # LD003, LD004
    for sketch in sketches:
        assert sketch.stem == sketch.parent.name  # SS001
        assert re.fullmatch(r"[a-zA-Z0-9][\w.-]{0,62}", sketch.stem)  # SS002, SS003
        assert "#include <Arduino.h>" in sketch.read_text()  # LC001, SC001
    for line in (folder / "keywords.txt").read_text().splitlines():
        assert re.fullmatch(r"\w+\t(KEYWORD1|KEYWORD2|LITERAL1)", line)


def objects(folder: Path, name: str, options: list[str]) -> list[str]:
    """Compile the sources of a library and its sketch as the Arduino IDE does."""
    source, out = folder / "src", folder.parent / "out"
    out.mkdir()
    include = [*options, *STRICT, "-Os", "-ffunction-sections", "-fdata-sections", f"-I{source}"]
    c, cpp = (compiler(f"{name}{it}") for it in ("gcc", "g++"))
    subprocess.run([c, *include, "-std=gnu11", "-c", *source.glob("*.c")], check=True, cwd=out)
    sketch = folder / "examples" / "small" / "small.ino"
    subprocess.run(
        [cpp, *include, "-std=gnu++11", "-fno-exceptions", "-fno-rtti", f"-I{CORE}", "-c", "-xc++",
         sketch, CORE / "core.cpp"],
        check=True, cwd=out,
    )  # fmt: skip
    return [str(it) for it in out.glob("*.o")]


def test_a_sketch_learns(folder: Path) -> None:
    program = folder.parent / "program"
    subprocess.run([compiler("g++"), *objects(folder, "", []), "-lm", "-o", program], check=True)
    keys = "012" * 20 + "." * 200 + "0?1?2?9"
    ran = subprocess.run(
        [program], input=keys, capture_output=True, text=True, check=True, timeout=60
    )
    taught = [line.removeprefix("taught ") for line in ran.stdout.splitlines()[:60]]
    assert taught == ["0", "1", "2"] * 20
    found = ran.stdout.splitlines()[60:]
    assert found == ["taught 0", "found 0", "taught 1", "found 1", "taught 2", "found 2"]


def test_a_sketch_of_an_autoencoder_prints_its_outputs(tmp_path: Path) -> None:
    write(packaged(Kind(autoencoder=True, raw="uint8")), "arduino", tmp_path / "small")
    program = tmp_path / "program"
    subprocess.run(
        [compiler("g++"), *objects(tmp_path / "small", "", []), "-lm", "-o", program], check=True
    )
    ran = subprocess.run([program], input="?", capture_output=True, text=True, timeout=60)
    assert len([*map(float, ran.stdout.splitlines())]) == 12


@pytest.mark.parametrize(("writes", "failed"), [(0, "open"), (100, "poll")])
def test_a_sketch_says_what_failed(writes: int, failed: str, tmp_path: Path) -> None:
    """Also if the first message was lost, or while it waits for a commit."""
    write(packaged(Kind(pages=True, every=50, slots=2)), "arduino", tmp_path / "small")
    card, program = tmp_path / "card.cpp", tmp_path / "program"
    card.write_text(FAILING_CARD)
    made = objects(tmp_path / "small", "", [])
    subprocess.run(
        [compiler("g++"), *made, f"-DMOST={writes}", card, "-lm", "-o", program], check=True
    )
    ran = subprocess.run(
        [program], input="0" * 12, capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.count(f"{failed}: The storage failed") >= 3


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("core", list(CORES))
@pytest.mark.parametrize("kind", [Kind(), Kind(pages=True)], ids=["RAM", "card"])
def test_a_sketch_is_linked_for_chips(core: str, kind: Kind, tmp_path: Path) -> None:
    folder, image, card = tmp_path / "small", tmp_path / "image.elf", tmp_path / "card.cpp"
    write(packaged(kind), "arduino", folder)
    options = ["-mthumb", *CORES[core]]
    made = objects(folder, "arm-none-eabi-", options)
    card.write_text(CARD)
    subprocess.run(
        ["arm-none-eabi-g++", *options, "--specs=nosys.specs", "-Wl,--gc-sections", *made,
         *[card][: kind.pages], "-lm", "-o", image],
        check=True, capture_output=True,
    )  # fmt: skip
    found = subprocess.run(
        ["arm-none-eabi-nm", image], check=True, capture_output=True, text=True
    ).stdout.split()
    assert {"poet_learner_teach", "poet_conv2d", "small_package"} <= {*found}
    assert not {"poet_gelu", "poet_sigmoid", "poet_avgpool2d", "poet_server_poll"} & {*found}


@pytest.mark.skipif(not AVR.exists(), reason="arduino-core-avr is missing")
@pytest.mark.parametrize("kind", [Kind(), Kind(pages=True)], ids=["RAM", "card"])
def test_a_sketch_fits_the_headers_of_a_core(kind: Kind, tmp_path: Path) -> None:
    write(packaged(kind), "arduino", tmp_path / "small")
    subprocess.run(
        [compiler("avr-g++"), "-mmcu=atmega2560", "-DF_CPU=16000000L", "-DARDUINO=10819",
         "-Os", "-std=gnu++11", *STRICT, "-fsyntax-only", f"-I{tmp_path / 'small' / 'src'}",
         f"-I{AVR / 'cores' / 'arduino'}", f"-I{AVR / 'variants' / 'mega'}", "-xc++",
         tmp_path / "small" / "examples" / "small" / "small.ino"],
        check=True,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["_3axes", "Arduino_gesture", "a" * 64])
def test_names_that_the_ide_refuses_are_refused(name: str, tmp_path: Path) -> None:
    made = Packaged(name, packaged(Kind()).schedule, packaged(Kind()).weights)
    with pytest.raises(poet.BadInput, match=name):
        write(made, "arduino", tmp_path / "out")
    assert not (tmp_path / "out").exists()

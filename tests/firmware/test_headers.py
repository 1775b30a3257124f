"""The public headers compile as C99 to C23 and as C++11 to C++23, for each kind of processor."""

import re
import subprocess
from pathlib import Path

import pytest
from poet_host.firmware_build.recipe import c_files
from poet_host.resources import resource
from support.compiler import compiler
from support.sim_helper import CORES

INCLUDE = resource("firmware/include")
HEADERS = sorted(path.name for path in (INCLUDE / "poet").glob("*.h"))
COMPILERS = [
    pytest.param("gcc", [], id="gcc"),
    pytest.param("clang", [], id="clang"),
    *(
        pytest.param(name, [*options, "-mthumb", *CORES[core]], id=core, marks=pytest.mark.slow)
        for core in CORES
        for name, options in (
            ("arm-none-eabi-gcc", []),
            ("clang", ["--target=arm-none-eabi", "-ffreestanding"]),
        )
    ),
]
STANDARDS = {
    "c": ["", *(f"-std={kind}{year}" for kind in ("c", "gnu") for year in (99, 11, 17, "2x"))],
    "c++": [
        "",
        *(f"-std={kind}++{year}" for kind in ("c", "gnu") for year in (11, 14, 17, 20, "2b")),
    ],
}
# Functions and macros of the headers that a port or an application uses.
CALLS = """
extern char memory[POET_MEMORY_BYTES(9960u, 14u, 1u, 1u, 29u, 3u, 9u, 0u)];
bool end(struct poet_transfer *transfer);
bool end(struct poet_transfer *transfer) {
  poet_ignore(poet_transfer_has_ended(transfer));
  poet_transfer_end(transfer);
  return poet_transfer_has_ended(transfer);
}
"""
STRICT = [
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wcast-qual",
    "-Wshadow",
    "-Wundef",
    "-pedantic-errors",
    "-Werror",
]
OF_LANGUAGE = {"c": ["-Wstrict-prototypes", "-Wc++-compat"], "c++": ["-Wold-style-cast"]}


def errors(command: list[str], language: str, text: str) -> str:
    """Compile a text and return the messages of the compiler."""
    ran = subprocess.run(
        [*command, f"-I{INCLUDE}", "-c", "-o", "/dev/null", f"-x{language}", "-"],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.stderr


@pytest.mark.parametrize("language", STANDARDS)
@pytest.mark.parametrize(("name", "core"), COMPILERS)
def test_headers_compile_in_each_standard(name: str, core: list[str], language: str) -> None:
    command = [compiler(name), *core]
    everything = "".join(f'#include "poet/{header}"\n' for header in HEADERS) + CALLS
    strict = [*STRICT, *OF_LANGUAGE[language]]
    for standard in STANDARDS[language]:
        for options in ([], strict, ["-O2", "-fshort-enums"]):
            found = errors(
                [*command, *([standard] if standard else []), *options], language, everything
            )
            assert found == "", (standard, options)
    for header in HEADERS:  # each one alone
        assert errors([*command, *strict], language, f'#include "poet/{header}"\n') == "", header
    assert "nothing_here" in errors(command, language, everything + "int a = nothing_here;\n")


@pytest.mark.parametrize(("name", "core"), COMPILERS)
def test_the_library_needs_no_options_but_its_folders(name: str, core: list[str]) -> None:
    """It has no warning of -Wall -Wextra either. Clang, which takes longer, sees it as C99 only."""
    folders = [INCLUDE.parent / it for it in ("include", "src", "kernels")]
    sources = [str(path) for folder in folders for path in c_files(folder)]
    command = [compiler(name), *core, *(f"-I{folder}" for folder in folders[:2])]
    if name == "clang" and core:
        command += ["-isystem", str(newlib())]
    for standard in ("c99",) if name == "clang" else ("c99", "gnu11", "c2x"):
        options = [f"-std={standard}", "-Wall", "-Wextra", "-fsyntax-only"]
        ran = subprocess.run([*command, *options, *sources], capture_output=True, check=False)
        assert ran.stderr == b"", standard


def newlib() -> Path:
    """Return the folder of the headers that belong to the cross compiler."""
    command = [compiler("arm-none-eabi-gcc"), "-print-file-name=libc.a"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return Path(found).parents[1] / "include"


def test_c_plus_plus_calls_each_function_by_its_name_in_c(tmp_path: Path) -> None:
    declared = {
        name
        for header in HEADERS
        for name in re.findall(
            r"^(?!typedef)(?:POET_CHECKED )?[a-z]\w* [\w *]*?\*?(poet_\w+)\(",
            (INCLUDE / "poet" / header).read_text(),
            re.M,
        )
    }
    assert {"poet_init", "poet_step", "poet_transfer_run", "poet_kernel", "poet_serve"} <= declared
    inline = {"poet_apart", "poet_ignore", "poet_elements", "poet_row"}
    inline |= {"poet_transfer_end", "poet_transfer_has_ended"}
    text = "".join(f'#include "poet/{name}"\n' for name in HEADERS)
    used = "".join(f"  (void *)&{name},\n" for name in sorted(declared - inline))
    text += f"void *const functions[] = {{\n{used}"
    text += '#define KERNEL(code, name, ...) (void *)&poet_##name,\n#include "poet/isa.def"\n};\n'
    text += "void *const *use() { return functions; }\n"
    built = tmp_path / "all.o"
    command = [compiler("g++"), "-std=c++11", f"-I{INCLUDE}", "-xc++", "-c", "-o", str(built), "-"]
    subprocess.run(command, input=text, text=True, check=True)
    listed = subprocess.run(["nm", "-u", built], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert declared - inline <= names
    assert "poet_conv2d" in names
    assert not [name for name in names if name.startswith("_Z")]

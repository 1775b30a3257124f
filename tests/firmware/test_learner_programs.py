"""Programs that learn with a package in C: in both languages, with each compiler."""

import shutil
import subprocess
from pathlib import Path

import pytest
from poet_host.data.taught import Taught
from poet_host.firmware_build.compile import c_files
from poet_host.firmware_build.native import build_library
from poet_host.resources import resource
from support.compiler import compiler
from support.learner_bench import Kind, Trace, outputs_of, stored
from support.learner_package import APP, write
from support.sim_helper import bare, build, run

STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic-errors"]
LANGUAGES = {
    "c99": ("gcc", "c", "-std=c99"),
    "clang": ("clang", "c", "-std=c99"),
    "c++11": ("g++", "c++", "-std=c++11"),
}


def built(kind: Kind, unit: int, language: str, folder: Path) -> Path:
    write(kind, folder)
    (folder / "app").write_text(APP)
    name, kind_of, standard = LANGUAGES[language]
    include = [f"-I{resource('firmware/include')}", f"-I{folder}"]
    package, app = folder / "small.o", folder / "program"
    subprocess.run(
        [compiler("gcc"), "-std=c99", *STRICT, *include, "-c", folder / "small.c", "-o", package],
        check=True,
    )
    library = build_library()
    subprocess.run(
        [compiler(name), standard, *STRICT, f"-DUNIT={unit}", *include, f"-x{kind_of}",
         folder / "app", "-xnone", package, library, f"-Wl,-rpath={library.parent}", "-o", app],
        check=True,
    )  # fmt: skip
    return app


@pytest.mark.parametrize(
    ("kind", "unit", "language"),
    [
        (Kind(), 0, "c99"),
        (Kind(), 1, "clang"),
        (Kind(), 8, "c++11"),
        (Kind(pages=True), 0, "c++11"),
        (Kind(autoencoder=True, raw="float32"), 4, "c99"),
    ],
)
def test_a_program_learns_what_the_reference_does(
    kind: Kind, unit: int, language: str, tmp_path: Path
) -> None:
    trace, samples = Trace(kind), b""
    for number in range(4):
        label = number % kind.classes
        trace.x.append(kind.sample(number))
        trace.taught.append(Taught(label, 1))
        samples += bytes([label]) + trace.x[-1].tobytes()
    program, data = built(kind, unit, language, tmp_path), tmp_path / "samples"
    data.write_bytes(samples)
    ran = subprocess.run([program, data], capture_output=True, check=False)
    assert ran.stderr == b""
    weights = trace.replay(20)
    expected = outputs_of(kind, weights, trace.x[-1]).tobytes()
    assert ran.stdout == b"".join(weights[it] for it in stored(kind)) + expected


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="no cross compiler")
@pytest.mark.parametrize("core", ["m0plus", "m4f"])
def test_a_call_from_an_interrupt_is_refused(core: str, tmp_path: Path) -> None:
    firmware = resource("firmware")
    folders = [firmware / it for it in ("src", "kernels")]
    sources = [str(path) for folder in folders for path in c_files(folder)]
    options = ["-Os", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-fno-builtin"]
    include = [f"-I{firmware / it}" for it in ("include", "src")]
    found = run(bare(core, build(core, "learner.c", tmp_path, *options, *include, *sources)))
    first, inside = found.text.split()[:11], found.text.split()[11:]
    assert (found.code, first) == (0, ["package", *["closed"] * 10])
    assert inside == ["reentered"] * 11

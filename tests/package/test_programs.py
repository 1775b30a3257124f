"""Programs that learn with a package: in both languages, with each compiler."""

import subprocess
from pathlib import Path

import pytest
from poet_host.data.taught import Taught
from poet_host.package.folder import write
from support.compiler import compiler
from support.learner_bench import Kind, Trace, outputs_of, packaged, stored
from support.sim_helper import CORES, needs_compiler

APP = Path(__file__).parent / "app.c"
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic-errors"]
LANGUAGES = {
    "c99": ("gcc", "-xc", "-std=c99"),
    "clang": ("clang", "-xc", "-std=c99"),
    "c++11": ("g++", "-xc++", "-std=c++11"),
}


def built(source: Path, language: str, *options: str) -> Path:
    """Compile the sources of a package, and the program in the language, without other options."""
    program = source / "program"
    name, kind, standard = LANGUAGES[language]
    subprocess.run(
        [compiler(name), standard, *STRICT, f"-I{source}", *options, kind, "-c", APP,
         "-o", "app.o"],
        check=True, cwd=source,
    )  # fmt: skip
    subprocess.run(
        [compiler("gcc" if name == "g++" else name), "-std=c99", *STRICT, f"-I{source}",
         *source.glob("*.c"), "app.o", "-lm", "-o", program],
        check=True, cwd=source,
    )  # fmt: skip
    return program


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
    write(packaged(kind), "c", tmp_path / "small")
    trace, samples = Trace(kind), b""
    for number in range(4):
        label = number % kind.classes
        trace.x.append(kind.sample(number))
        trace.taught.append(Taught(label, 1))
        samples += bytes([label]) + trace.x[-1].tobytes()
    program = built(tmp_path / "small" / "src", language, f"-DUNIT={unit}")
    (tmp_path / "samples").write_bytes(samples)
    ran = subprocess.run([program, tmp_path / "samples"], capture_output=True, check=False)
    assert ran.stderr == b""
    weights = trace.replay(20)
    expected = outputs_of(kind, weights, trace.x[-1]).tobytes()
    assert ran.stdout == b"".join(weights[it] for it in stored(kind)) + expected


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("core", list(CORES))
def test_a_package_compiles_for_chips_without_a_warning(core: str, tmp_path: Path) -> None:
    write(packaged(Kind()), "c", tmp_path / "small")
    source = tmp_path / "small" / "src"
    for standard in ("c99", "gnu17"):
        subprocess.run(
            ["arm-none-eabi-gcc", *CORES[core], f"-std={standard}", "-Os", *STRICT, f"-I{source}",
             "-c", *source.glob("*.c")],
            check=True, cwd=tmp_path,
        )  # fmt: skip

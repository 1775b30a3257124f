"""Programs that learn with a package: in both languages, with each compiler."""

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import poet_host as poet
import pytest
from poet_host.card.weights import SavedWeights
from poet_host.data.facts import DataFacts
from poet_host.data.normalization import Normalization
from poet_host.firmware_build.image import read_elf
from poet_host.graph.autodiff import training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.optimisers import Adam
from poet_host.graph.weights import start_values
from poet_host.package.folder import write
from poet_host.package.packaged import Packaged, Raw
from poet_host.package.sizes import flash_bytes
from poet_host.resources import resource
from support.compiler import compiler
from support.learner_bench import Kind, packaged
from support.sim_helper import CORES, needs_compiler

APP = Path(__file__).parent / "app.c"
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic-errors"]
LANGUAGES = {
    "c99": ("gcc", "-xc", "-std=c99"),
    "clang": ("clang", "-xc", "-std=c99"),
    "c++11": ("g++", "-xc++", "-std=c++11"),
}
STEPS = 40


@cache
def trained_by_adam() -> Packaged:
    """A model with running statistics, masks and sums of gradients, solved for a board."""
    b = Builder("dropping", data=(3, 2, 1, 6))
    x = b.batchnorm2d(b.conv2d(b.data, 4, (1, 3), padding=(0, 1), name="conv"), name="bn")
    x = b.linear(b.flatten(b.dropout(b.relu(x), 0.5)), 3, name="fc")
    graph = training_graph(b.model(b.softmax_xent(x)), Adam(0.01), accumulate=3)
    problem = poet.problem(graph, "nano_33_iot", storage=False)
    schedule = poet.encode(graph, poet.solve(problem, time_limit_s=5))
    facts = DataFacts(normalization=Normalization((0.5,), (1.5,)))
    weights = SavedWeights(start_values(graph, 3), facts)
    return Packaged("small", schedule, weights, Raw("int8", 1 / 16), slots=3)


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


class Life:
    """A device whose power is cut now and then, and the trace of what it was taught."""

    def __init__(self, made: Packaged, program: Path, folder: Path, unit: int) -> None:
        self.program, self.folder, self.disk = program, folder, folder / "disk"
        blocks = re.search(r"_STORAGE_BLOCKS (\d+)", (program.parent / "small.h").read_text())
        assert blocks is not None
        self.disk.write_bytes((b"\xff" if unit else b"\0") * (512 * int(blocks[1])))
        rng = np.random.default_rng(5)
        count = 14
        self.y = rng.integers(0, made.classes, count)
        x = rng.normal(0, 20, (count, *made.sample_shape)).round().clip(-128, 127)
        self.x = x.astype(made.raw.dtype)
        self.next_step: list[int] = []

    def run(self, polls: int) -> list[bytes] | None:
        """Return the outputs for a sample and all tensors, or None if the power was cut."""
        done = len(self.next_step)
        rest = zip(self.y[done:], self.x[done:], strict=True)
        (self.folder / "samples").write_bytes(b"".join(bytes([y]) + x.tobytes() for y, x in rest))
        command = [self.program, self.disk, self.folder / "samples", str(STEPS), str(polls)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        lines = ran.stdout.splitlines()
        assert ran.returncode in (0, 3), ran.stderr
        if ran.returncode == 3:
            self.next_step += map(int, lines)
            return None
        left = len(self.x) - done
        self.next_step += map(int, lines[:left])
        return [bytes.fromhex(line) for line in lines[left:]]

    def trace(self) -> Path:
        path = self.folder / "trace.npz"
        np.savez(path, x=self.x, y=self.y, next_step=np.array(self.next_step))
        return path


@pytest.mark.parametrize(
    ("make", "unit", "language"),
    [
        (lambda: packaged(Kind()), 0, "c99"),
        (lambda: packaged(Kind(slots=2)), 1, "clang"),
        (lambda: packaged(Kind(pages=True)), 0, "c++11"),
        (lambda: packaged(Kind(autoencoder=True, raw="float32")), 4, "c99"),
        (trained_by_adam, 8, "c++11"),
    ],
    ids=["int16", "clang", "pages", "autoencoder", "adam"],
)
def test_replay_has_the_weights_of_a_device(
    make: Callable[[], Packaged], unit: int, language: str, tmp_path: Path
) -> None:
    made, folder = make(), tmp_path / "small"
    write(made, "c", folder)
    life = Life(made, built(folder / "src", language, f"-DUNIT={unit}"), tmp_path, unit)
    for polls in (70, 300, 0, 150):
        assert life.run(polls) is None
    found = life.run(-1)
    assert found is not None
    assert len(set(life.next_step)) > 3
    weights = poet.replay(folder, life.trace(), steps=STEPS)
    assert [weights[name].tobytes() for name in made.tensors] == found[1:]
    ones = np.frombuffer(b"\1" * made.sample_bytes, made.raw.dtype)
    samples = made.raw.floats(ones.reshape(1, *made.sample_shape))
    outputs = poet.predict(made.schedule, samples, weights=weights).outputs
    assert outputs.astype("<f4").tobytes() == found[0]


TWO = """
#include "small.h"
#include "other.h"
static struct poet_learner one, two;
static uint64_t first[small_MEMORY_BYTES_WITHOUT_STORAGE / 8];
static uint64_t second[other_MEMORY_BYTES_WITHOUT_STORAGE / 8];
static uint32_t now_us(void *context) { return (uint32_t)(context != 0); }
int main(void) {
  const struct poet_device device = {.micros = now_us};
  return poet_learner_open(&one, &small_package, &device, first, sizeof first) ||
         poet_learner_open(&two, &other_package, &device, second, sizeof second);
}
"""


def test_two_packages_share_the_whole_library(tmp_path: Path) -> None:
    """As docs/reference/learner.md says."""
    small, other = packaged(Kind()), replace(trained_by_adam(), name="other")
    for made in (small, other):
        write(made, "c", tmp_path / made.name)
    (tmp_path / "two.c").write_text(TWO)
    sources = [*resource("firmware/src").glob("*.c"), *resource("firmware/kernels").rglob("*.c")]
    sources += tmp_path.rglob("*_package.c")
    include = [resource("firmware/include"), resource("firmware/src"), *tmp_path.glob("*/src")]
    subprocess.run(
        [compiler("gcc"), "-std=c99", *STRICT[:3], *(f"-I{it}" for it in include), *sources,
         tmp_path / "two.c", "-lm", "-o", tmp_path / "two"],
        check=True,
    )  # fmt: skip
    subprocess.run([tmp_path / "two"], check=True)


MAIN = """
#include "small.h"
static struct poet_learner learner;
static const struct poet_device device;
static uint64_t memory[small_MEMORY_BYTES / 8];
static volatile int result;
int main(void) {
  float outputs[small_OUTPUTS];
  uint8_t sample[small_SAMPLE_BYTES] = {0};
  result = poet_learner_open(&learner, &small_package, &device, memory, sizeof memory);
  result = poet_learner_teach(&learner, sample, 0);
  result = poet_learner_learn(&learner, 1);
  result = poet_learner_poll(&learner, 0);
  result = poet_learner_save(&learner);
  result = poet_learner_infer(&learner, sample, outputs);
  return *poet_learner_text(result);
}
"""


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("core", "chip"), [("m0plus", "samd21"), ("m4f", "nrf52840")])
@pytest.mark.parametrize("make", [lambda: packaged(Kind()), trained_by_adam], ids=["sgd", "adam"])
def test_a_package_compiles_for_chips_without_a_warning(
    make: Callable[[], Packaged], core: str, chip: str, tmp_path: Path
) -> None:
    made = make()
    write(made, "c", tmp_path / "small")
    source, image = tmp_path / "small" / "src", tmp_path / "image.elf"
    (tmp_path / "main.c").write_text(MAIN)
    options = ["-mthumb", *CORES[core], "-std=c99", "-Os", *STRICT, f"-I{source}"]
    subprocess.run(
        ["arm-none-eabi-gcc", *options, "-ffunction-sections", "-fdata-sections", "-c",
         *source.glob("*.c"), tmp_path / "main.c"],
        check=True, cwd=tmp_path,
    )  # fmt: skip
    subprocess.run(
        ["arm-none-eabi-gcc", *options[:-1], "-Wl,--gc-sections", "--specs=nano.specs",
         "--specs=nosys.specs", *tmp_path.glob("*.o"), "-lm", "-o", image],
        check=True, capture_output=True,
    )  # fmt: skip
    built, estimated = len(read_elf(image).flash()[1]), flash_bytes(made, chip)
    assert estimated is not None
    assert abs(estimated - built) < 0.1 * built

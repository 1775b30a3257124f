"""Float operations and sums of products of the two cores: the bits of the host, also on QEMU."""

import io
from pathlib import Path

import pytest
from support.floats import ASSEMBLY, PARTS, expected, mutate, on_qemu, program, ran
from support.sim_helper import needs_compiler, needs_qemu

pytestmark = needs_compiler
BATCHES = {
    "operations": 600,
    "sums": 400,
    "special sums": 60,
    "polynomials": 600,
    "comparisons": 120,
    "chains": 300,
    "tiles": 400,
    "strips": 1000,
    "special tiles": 1,
    "transfers": 400,
}
assert set(BATCHES) == set(PARTS)


@needs_qemu
@pytest.mark.parametrize("part", list(PARTS))
def test_assembly_has_the_bits_of_the_host(part: str, tmp_path: Path) -> None:
    """Over a million operations and a million terms."""
    elf = program(part, BATCHES[part], 11, tmp_path)
    wanted = expected(part, BATCHES[part], 11, tmp_path)
    assert on_qemu(part, elf) == wanted
    assert ran(part, elf).lines == [*wanted, "exit"]


@pytest.mark.parametrize("part", [part for part in PARTS if part != "transfers"])
def test_without_assembly_the_bits_are_the_same(part: str, tmp_path: Path) -> None:
    batches = min(20, BATCHES[part])
    elf = program(part, batches, 12, tmp_path, "-DPOET_PORTABLE")
    assert ran(part, elf).lines == [*expected(part, batches, 12, tmp_path), "exit"]


@pytest.mark.parametrize("core", list(ASSEMBLY))
def test_every_changed_instruction_is_found(core: str) -> None:
    """A part of the mutants, in fewer batches: `make mutants` tries all."""
    output = io.StringIO()
    every = {"m0plus": 9, "m4f": 29}[core]
    assert mutate(output, ASSEMBLY[core], every, batches=150) == []
    table, _, _ = output.getvalue().partition("\n\n")
    rows = [line.split() for line in table.splitlines()[1:]]
    assert {row[0] for row in rows} == {*ASSEMBLY[core]}
    assert sum(int(row[-4]) for row in rows) > 60

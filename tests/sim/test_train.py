"""The command line trains on simulated chips as on the native board, to the same bits."""

from pathlib import Path

import poet_host as poet
import pytest
from poet_host.resources import resource
from support import whole_runs as runs
from support.command import Command
from support.in_place import in_place_schedule
from support.sim_helper import needs_compiler

EXAMPLE = resource("schedules") / "resnet-digits-mkr1000.poet"


@needs_compiler
@pytest.mark.slow
def test_every_board_gives_the_same_weights(tmp_path: Path, poet_host: Command) -> None:
    weights = {}
    planned = poet_host("show", EXAMPLE, "--json").json["plan"]["peak_bytes"]
    for port in ("native", "sim:mkr1000", "sim:nrf52840_dk"):
        path = tmp_path / f"{port[4:]}.safetensors"
        result = poet_host(
            "train", EXAMPLE, "--port", port, "--data", "digits", "--steps", 2,
            "--save-weights", path, "--json",
        )  # fmt: skip
        assert result.code == 0, result.err
        assert result.json["peak_bytes"] == planned <= 24576
        weights[port] = path.read_bytes()
    assert len(set(weights.values())) == 1


@needs_compiler
@pytest.mark.parametrize("part_ram_bytes", [None, 4096], ids=["in one call", "part by part"])
@pytest.mark.parametrize("chip", ["mkr1000", "nrf52840_dk"])
def test_a_chip_overwrites_inputs_as_a_choice(chip: str, part_ram_bytes: int | None) -> None:
    graph = runs.digits()
    schedule, used = in_place_schedule(graph, None, part_ram_bytes)
    assert used == {"batchnorm"}
    with poet.connect(f"sim:{chip}") as board:
        run = poet.train(schedule, board, "digits", steps=1)
    assert runs.same(run, runs.train(runs.schedule(graph), steps=1))

"""`poet-host train`: the whole path from a profile to weights, and what it prints."""

import json
from pathlib import Path

import pytest
from poet_host import api
from poet_host.run.run import weights_sha256
from safetensors.numpy import load_file
from support import whole_runs as runs
from support.command import Command


@pytest.mark.slow
def test_the_whole_path_by_hand(poet_host: Command, tmp_path: Path) -> None:
    card, measured, schedule, weights, run_path = (
        tmp_path / name
        for name in ("card.img", "profile.json", "digits.poet", "w.safetensors", "run.json")
    )
    assert poet_host("storage", "prepare", card, "--size", "64MiB", "--json").json[
        "size_bytes"
    ] == (64 * runs.MIB)
    profiled = poet_host("profile", "resnet-digits", "-p", "native", "-o", measured, "--json")
    assert profiled.json["board"] == "native"
    solved = poet_host(
        "solve", "resnet-digits", "--profile", measured, "--ram", "60%", "--deadline", "3x",
        "--gap", "0.1", "-o", schedule, "--json",
    )  # fmt: skip
    assert solved.code == 0
    shown = poet_host("show", schedule, "--json").json
    assert shown["plan_bytes"] < 700
    assert shown["graph"]["name"] == "resnet-digits"
    train = (
        "train", schedule, "--port", "native", "--storage", card, "--data", "digits",
        "--save-weights", weights, "--run", run_path, "--json",
    )  # fmt: skip
    first = poet_host(*train, "--steps", 4)
    assert first.code == 0
    assert first.json["steps"] == 4
    assert first.json["peak_bytes"] <= solved.json["ram_bytes"]
    assert 0 <= first.json["accuracy"] <= 1
    resumed = poet_host(*train, "--steps", 6, "--resume")
    assert [step["step"] for step in json.loads(run_path.read_text())["steps"]] == [5, 6]
    graph = api.load_graph("resnet-digits")
    straight = runs.train(runs.schedule(graph), steps=6)
    assert resumed.json["weights_sha256"] == weights_sha256(straight.weights)
    named = load_file(weights)
    assert {"conv1.weight", "bn1.running_mean", "bn1.running_var", "fc.bias"} <= named.keys()
    more = ("--steps", 1, "--load-weights", weights, "--seed", 5)
    before = card.read_bytes()
    poet_host(*train, *more).fails(2)
    assert card.read_bytes() == before
    again = poet_host(*train, *more, "--erase-card")
    assert again.code == 0
    assert again.json["loss_first"] != first.json["loss_first"]


def test_without_json_training_prints_a_table(poet_host: Command, tmp_path: Path) -> None:
    schedule = tmp_path / "digits.poet"
    runs.schedule(runs.digits()).save(schedule)
    result = poet_host(
        "train", schedule, "-p", "native", "--data", "digits", "--steps", 2,
        "--save-weights", tmp_path / "w.safetensors",
    )  # fmt: skip
    assert result.code == 0
    assert "accuracy on held-out data" in result.out
    assert "high-water mark" in result.out
    assert "wrote" in result.err

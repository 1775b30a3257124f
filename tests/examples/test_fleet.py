"""The example fleet: devices that learn by themselves take part over a pipe, to the same bits."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import poet_host as poet
import pytest
from poet_host.graph.weights import Weights, start_values
from support.compiler import compiler
from support.example import EXAMPLES

STEPS, SAMPLES = 5, 12


def test_devices_give_the_bits_of_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "fleet"))
    gateway = import_module("gateway")
    graph = poet.load("resnet-digits", batch=4, optimizer="momentum")
    assert isinstance(graph, poet.Graph)
    plan = poet.solve(poet.problem(graph, "native", ram="48KiB"), work_limit=2_000, gap=0.5)
    schedule = poet.encode(graph, plan)
    poet.write_package(schedule, tmp_path / "package", name="digits")
    sources = sorted((tmp_path / "package" / "src").glob("*.c"))
    program = tmp_path / "device"
    command = [compiler("cc"), "-std=c99", "-I", tmp_path / "package" / "src", *sources]
    command += [EXAMPLES / "fleet" / "device.c", "-lm", "-o", program]
    subprocess.run(command, check=True, timeout=300)

    values = start_values(graph, seed=7)
    sent = {name: values[name] for name in values if ":" not in name}
    poet.write_package(schedule, tmp_path / "sent", name="digits", weights=sent)
    data = poet.load_data("digits")
    answers: list[Weights] = []
    for board in range(2):
        x, y = (array[board * SAMPLES : (board + 1) * SAMPLES] for array in (data.x, data.y))
        with (tmp_path / "samples").open("wb") as file:
            for sample, label in zip(x.astype("<f4"), y.astype("<u4"), strict=True):
                file.write(label.tobytes() + sample.tobytes())
        trace = tmp_path / "trace.npz"
        np.savez(trace, x=x.astype("f4"), y=y, next_step=np.ones(SAMPLES, np.int64))
        with gateway.Device([program, tmp_path / "samples"], tmp_path / "package") as device:
            answers.append(gateway.train_round(device, sent, STEPS))
            again = gateway.train_round(device, sent, STEPS)  # other samples: the steps go on
            assert poet.weights_sha256(again) != poet.weights_sha256(answers[-1])
            momentum = device.weights()["conv1.weight:momentum"]
            device.adopt(sent)
            found = device.weights()
            assert poet.weights_sha256({name: found[name] for name in sent}) == (
                poet.weights_sha256(sent)
            )
            assert momentum.any()
            assert not found["conv1.weight:momentum"].any()
        wanted = poet.replay(tmp_path / "sent", trace, steps=STEPS)
        assert poet.weights_sha256(answers[-1]) == poet.weights_sha256(
            {name: wanted[name] for name in sent}
        )
    assert poet.weights_sha256(answers[0]) != poet.weights_sha256(answers[1])
    with (
        gateway.Device([sys.executable, "-c", ""], tmp_path / "package") as device,
        pytest.raises(poet.LinkBroken, match="ended"),
    ):
        device.learn(1)

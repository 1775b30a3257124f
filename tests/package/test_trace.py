"""Traces: the steps that they repeat, and those that no device can have had."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host.data.taught import Taught
from poet_host.package.folder import write
from support.command import Command
from support.learner_bench import Kind, Trace, packaged, stored

KIND = Kind()
COUNT = 6


def arrays() -> dict[str, Any]:
    return {
        "x": np.stack([KIND.sample(number) for number in range(COUNT)]),
        "y": np.arange(COUNT) % 3,
        "next_step": np.array([1, 1, 3, 4, 9, 30]),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(packaged(KIND), "c", tmp_path / "small")
    return tmp_path / "small"


def test_the_command_repeats_the_steps_of_a_device(
    folder: Path, tmp_path: Path, poet_host: Command
) -> None:
    given = arrays()
    np.savez(tmp_path / "trace.npz", **given)
    out = tmp_path / "out.safetensors"
    replay = ("replay", folder, "--trace", tmp_path / "trace.npz", "--save-weights", out)
    stated = poet_host(*replay, "--steps", 12, "--json").json
    pairs = zip(given["y"].tolist(), given["next_step"].tolist(), strict=True)
    wanted = Trace(KIND, [*given["x"]], [Taught(*pair) for pair in pairs]).replay(12)
    found = poet.load_weights(out, KIND.graph)
    assert {name: found[name].tobytes() for name in stored(KIND)} == wanted
    assert found.normalization == KIND.normalization
    assert poet.step_of_weights(out) == stated["step"] == 12
    assert stated["sha256"] == poet.weights_sha256(found)

    before = hashlib.sha256(out.read_bytes()).digest()
    poet_host(*replay, "--steps", -1).fails(2, "--steps")
    (folder / "extras" / "small.poet").write_bytes(b"")
    poet_host(*replay, "--steps", 12).fails(2, "small.poet")
    poet_host("replay", tmp_path, *replay[2:], "--steps", 12).fails(2, tmp_path)
    assert hashlib.sha256(out.read_bytes()).digest() == before


def test_a_device_may_have_fewer_samples_than_a_batch(folder: Path, tmp_path: Path) -> None:
    given = {name: value[:1] for name, value in arrays().items()}
    np.savez(tmp_path / "trace.npz", **given)
    found = poet.replay(folder, tmp_path / "trace.npz", steps=3)
    wanted = Trace(KIND, [*given["x"]], [Taught(int(given["y"][0]), 1)]).replay(3)
    assert {name: found[name].tobytes() for name in stored(KIND)} == wanted


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"x": np.zeros((COUNT, 2, 1, 6), np.float32)}, "float32"),
        ({"x": np.zeros((COUNT, 5), np.int16)}, "12 values"),
        ({"x": np.zeros((0, 12), np.int16), "y": np.zeros(0, int)}, "x holds"),
        ({"y": np.zeros(COUNT + 1, int)}, "y holds"),
        ({"y": np.zeros(COUNT)}, "y holds"),
        ({"y": np.array([0, 1, 2, 3, 0, 1])}, "sample 3"),
        ({"next_step": np.arange(COUNT)}, "sample 0"),
        ({"next_step": np.full(COUNT, 5)}, "step 1,"),
        ({"next_step": np.ones((COUNT, 1), int)}, "next_step holds"),
        ({"next_step": None}, "next_step"),
        ({"x": None}, "x"),
    ],
    ids=str,
)
def test_wrong_traces_are_refused(
    changes: dict[str, Any], word: str, folder: Path, tmp_path: Path
) -> None:
    given = {name: value for name, value in (arrays() | changes).items() if value is not None}
    np.savez(tmp_path / "trace.npz", **given)
    with pytest.raises(poet.BadInput, match=word):
        poet.replay(folder, tmp_path / "trace.npz", steps=3)


def test_a_file_with_other_contents_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "trace.npz").write_bytes(b"no trace")
    with pytest.raises(poet.BadInput, match=r"trace\.npz"):
        poet.replay(folder, tmp_path / "trace.npz", steps=3)

"""An .onnx model on the command line: solve, train, resume from a file, export."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from poet_host.data.datasets import load_data
from safetensors.numpy import load_file
from support.command import Command, Result
from support.onnx_models import Residual, legacy, one_node


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "mine.onnx"
    path.write_bytes(legacy(Residual(), torch.zeros(1, 1, 8, 8)))
    return path


def solved(poet_host: Command, model: Path, *options: Any) -> Path:
    schedule = model.with_suffix(".poet")
    result = poet_host(
        "solve", model, "--board", "native", "--ram", "80%", "--gap", 0.1, "--batch", 4,
        "--optimizer", "momentum", "--lr", 0.02, "-o", schedule, *options,
    )  # fmt: skip
    assert result.code == 0, result.err
    return schedule


def test_a_model_is_trained_and_exported(poet_host: Command, mine: Path, tmp_path: Path) -> None:
    schedule, weights = solved(poet_host, mine), tmp_path / "w.safetensors"
    mine.unlink()  # the schedule holds what training and export need
    train = ("train", schedule, "--port", "native", "--data", "digits", "--save-weights", weights)
    trained = poet_host(*train, "--steps", 6, "--json")
    assert trained.code == 0, trained.err
    result = poet_host("export", schedule, "-w", weights, "-o", tmp_path / "new.onnx", "--json")
    assert result.code == 0, result.err
    assert result.json["model"] == "mine"

    onnx.checker.check_model(str(tmp_path / "new.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "new.onnx"))
    data = load_data("digits")
    assert data.x_test is not None
    assert data.y_test is not None
    name = session.get_inputs()[0].name
    answers = [session.run(None, {name: x[None]})[0].argmax() for x in data.x_test]
    accuracy = np.mean(np.array(answers) == data.y_test)
    assert accuracy == pytest.approx(trained.json["accuracy"], abs=1.5 / len(answers))


@pytest.mark.slow
def test_a_run_resumes_from_its_file(poet_host: Command, mine: Path, tmp_path: Path) -> None:
    schedule = solved(poet_host, mine)
    train = ("train", schedule, "--port", "native", "--data", "digits", "--save-weights")
    first, second, whole = (tmp_path / f"{name}.safetensors" for name in ("a", "b", "c"))
    for path, more in (
        (first, ("--steps", 2)),
        (second, ("--steps", 5, "--resume", "--load-weights", first)),
        (whole, ("--steps", 5)),
    ):
        result = poet_host(*train, path, *more)
        assert result.code == 0, result.err
    assert load_file(first).keys() == load_file(whole).keys()
    assert second.read_bytes() == whole.read_bytes()

    again = poet_host(*train, first, "--steps", 5, "--resume", "--load-weights", whole)
    assert again.code == 0, again.err  # nothing is left to do
    assert first.read_bytes() == whole.read_bytes()


def test_a_file_without_a_step_cannot_be_resumed(
    poet_host: Command, mine: Path, tmp_path: Path
) -> None:
    from safetensors.numpy import save_file

    schedule, bare = solved(poet_host, mine), tmp_path / "bare.safetensors"
    save_file({"conv1.weight": np.zeros((4, 1, 3, 3), np.float32)}, bare)
    result = poet_host(
        "train", schedule, "--port", "native", "--data", "digits", "--save-weights",
        tmp_path / "w.safetensors", "--resume", "--load-weights", bare,
    )  # fmt: skip
    result.fails(2, bare, "steps")


@pytest.mark.slow
def test_data_may_be_a_table_normalised_and_split(poet_host: Command, tmp_path: Path) -> None:
    model, weights = tmp_path / "line.onnx", tmp_path / "w.safetensors"
    values = {"weight": np.zeros((2, 4), np.float32), "bias": np.zeros(2, np.float32)}
    model.write_bytes(one_node("Gemm", ("n", 4), values, transB=1))
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 100, (60, 4))
    kind = np.where(rows[:, 0] > rows[:, 1], "more", "less")
    table = tmp_path / "t.csv"
    table.write_text(
        "".join(f"{a},{b},{c},{d},{k}\n" for (a, b, c, d), k in zip(rows, kind, strict=True))
    )
    schedule = solved(poet_host, model, "--lr", 0.5)
    train = ("train", schedule, "--port", "native", "--data", table, "--save-weights", weights)
    result = poet_host(
        *train, "--normalize", "standard", "--test-split", 0.2, "--no-shuffle", "--epochs", 8,
        "--json",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "classes: 0 less, 1 more" in result.err
    assert result.json["accuracy"] > 0.8

    poet_host(*train, "--normalize", "most").fails(2, "none, scale, standard")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--sequence-length", 3), "input"),
        (("--train", "nothing*"), "parameter of mine"),
        (("--loss", "mean"), "--loss"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(
    poet_host: Command, mine: Path, options: tuple[Any, ...], named: str
) -> None:
    poet_host("solve", mine, "--board", "native", "--ram", "100%", *options).fails(2, named)


def test_files_that_are_not_models_are_refused(poet_host: Command, tmp_path: Path) -> None:
    def solve(name: str, *more: object) -> Result:
        return poet_host("solve", tmp_path / name, "--board", "native", "--ram", "100%", *more)

    solve("none.onnx").fails(2, "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no protobuf")
    solve("bad.onnx").fails(2, "bad.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    solve("empty.onnx").fails(2, "empty.onnx", "operators")
    solve("resnet-9").fails(2, "resnet-9", ".onnx")
    (tmp_path / "folder.onnx").mkdir()
    solve("folder.onnx").fails(2, "folder.onnx", "folder")
    model = onnx.load_model_from_string(one_node("Gemm", ("n", 4), {"w": np.ones((4, 3), "f4")}))
    onnx.save(
        model, tmp_path / "apart.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    assert solve("apart.onnx", "--method", "keep-everything").code == 0
    (tmp_path / "w").unlink()
    solve("apart.onnx").fails(2, "apart.onnx", "file")


def test_built_in_models_have_their_own_loss_and_no_file(
    poet_host: Command, tmp_path: Path
) -> None:
    solve = ("solve", "linear", "--board", "native", "--ram", "100%")
    poet_host(*solve, "--loss", "mse").fails(2, "--loss")
    result = poet_host(*solve, "--gap", 0.2, "-o", tmp_path / "l.poet")
    assert result.code == 0, result.err
    out = tmp_path / "l.txt"
    poet_host("export", tmp_path / "l.poet", "-w", "none", "-o", out).fails(2, out, ".onnx")

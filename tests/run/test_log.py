"""Training logs: JSON lines that survive whatever ends the run."""

import json
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host.errors import BadInput
from poet_host.profile.profile import board_power
from poet_host.run.log import Log
from poet_host.run.run import Step
from poet_host.run.session import Files, Session
from support import whole_runs as runs

POWER = board_power(poet.load_board("native"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


@pytest.fixture
def train(train: Any, tmp_path: Path, log: Path, card: Path) -> Any:
    """Trains with a log. Without the poet plan, since three steps are enough here."""
    schedule = tmp_path / "digits.poet"
    runs.schedule(runs.digits()).save(schedule)
    return partial(train, schedule, "--storage", card, "--json", "--log", log)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_step_is_a_line_and_a_resumed_run_appends(
    train: Any, log: Path, tmp_path: Path
) -> None:
    first = train("--steps", 2, "--run", tmp_path / "run.json").json
    begin, *steps, end = rows(log)
    run = json.loads((tmp_path / "run.json").read_text())
    assert (begin["format"], begin["event"], begin["from_step"]) == ("poet-log", "begin", 0)
    assert (begin["model"], begin["board"], begin["to_step"]) == ("resnet-digits", "native", 2)
    assert begin["steps_per_epoch"] == 1437 // 4
    for row, step in zip(steps, run["steps"], strict=True):
        assert row.pop("event") == "step"
        assert row.pop("epoch") == 1
        assert 0 < row.pop("energy_uj") < row.pop("total_energy_uj")
        assert row == step
    assert (end["event"], end["ended"]) == ("end", "done")
    assert end["weights_sha256"] == run["weights_sha256"]
    assert end["accuracy"] == first["accuracy"]
    before = log.read_bytes()
    log.write_bytes(before + b'{"event": "st')  # as a power cut leaves it
    assert train("--steps", 4, "--resume").code == 0
    assert log.read_bytes().startswith(before)
    begin, *steps, end = rows(log)[4:]
    assert begin["from_step"] == 2
    assert [row["step"] for row in steps] == [3, 4]
    assert train("--steps", 4, "--resume").json["steps"] == 4  # done already
    # Without --resume it is another run's.
    assert train("--steps", 1, "--erase-card").code == 0
    assert [row["event"] for row in rows(log)] == ["begin", "step", "end"]


def test_an_error_is_the_last_line(log: Path) -> None:
    def run() -> None:
        with Log(log) as one:
            one.begin({}, 0, 1, POWER)
            raise BadInput("the cat pulled the plug")

    with pytest.raises(BadInput):
        run()
    assert rows(log)[-1]["ended"] == "failed"
    assert rows(log)[-1]["error"] == "the cat pulled the plug"


def test_impossible_logs_are_refused_before_training(train: Any, log: Path, tmp_path: Path) -> None:
    for data in (b"x,y\n1,2\n", b'{"loss": 1}\n', b"[]\n", b"\xff\xfe\n"):
        log.write_bytes(data)
        refused = train("--steps", 1, "--resume")
        assert refused.code == 2
        assert "run.jsonl" in refused.err
        assert log.read_bytes() == data
    train("--steps", 1)
    for name in (tmp_path / "none" / "run.jsonl", tmp_path, tmp_path / "digits.poet"):
        assert train("--log", name).code == 2
    assert len(rows(log)) == 3


def test_a_refused_training_leaves_the_log_as_it_was(train: Any, log: Path, tmp_path: Path) -> None:
    train("--steps", 1)
    before, small = log.read_bytes(), tmp_path / "small.img"
    poet.prepare_storage(small, 17 << 20)
    assert train("--steps", 1, "--storage", small).code == 2
    assert log.read_bytes() == before
    runs.schedule(runs.mixed()).save(tmp_path / "digits.poet")
    np.savez(tmp_path / "d.npz", x=np.ones((2, 3, 8, 8)), y=np.ones((2, 4)))
    refused = train("--steps", 2, "--resume", data=tmp_path / "d.npz")
    refused.fails(2, "the card holds weights of")
    assert log.read_bytes() == before


def test_training_continues_after_a_log_fails(
    train: Any, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Any, line: Any) -> None:
        raise OSError(28, "No space left on device")

    def begin(self: Log, *about: Any) -> None:
        start(self, *about)
        monkeypatch.setattr("poet_host.run.log.write_all", full)

    start = Log.begin
    monkeypatch.setattr(Log, "begin", begin)
    result = train("--steps", 2)
    result.fails(1, "run.jsonl", "no space left on device", "weights are saved")
    found = result.json  # one object, with the error and the facts of the run
    assert "weights are saved" in found["error"]
    assert (found["exit_code"], found["steps"], found["ended"]) == (1, 2, "done")
    assert poet.step_of_weights(tmp_path / "w.safetensors") == 2
    assert len(rows(log)) == 1


def test_a_full_disk_leaves_whole_lines_and_old_logs(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(file: Any, line: bytes) -> None:
        file.write(line[: len(line) // 2])
        raise OSError(28, "No space left on device")

    with Log(log) as one:
        one.begin({}, 0, 1, POWER)
        monkeypatch.setattr("poet_host.run.log.write_all", half)
        one.end(ended="done")
        assert one.broken
    assert [row["event"] for row in rows(log)] == ["begin"]
    before = log.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda file: half(open(os.devnull, "wb"), b""))  # noqa: SIM115
    with Log(log) as one, pytest.raises(BadInput):
        one.begin({}, 0, 1, POWER)
    assert log.read_bytes() == before
    assert sorted(path.name for path in log.parent.iterdir()) == [log.name]


def test_a_log_may_be_a_pipe_but_not_a_full_disk(train: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert train("--steps", 2, "--log", pipe).code == 0
    lines = os.read(reader, 1 << 16).splitlines()
    os.close(reader)
    assert [json.loads(line)["event"] for line in lines] == ["begin", "step", "step", "end"]
    (tmp_path / "w.safetensors").unlink()
    train("--steps", 2, "--erase-card", "--log", "/dev/full").fails(2, "/dev/full", "no space left")
    assert not (tmp_path / "w.safetensors").exists()


def test_the_mean_loss_of_an_epoch_has_each_step_once() -> None:
    done: list[Step] = []
    training: Any = SimpleNamespace(committed=0, done=done, data=SimpleNamespace(steps_per_epoch=2))
    logged, words = Log(None), []
    logged.begin({}, 0, 2, POWER)
    session = Session(training, logged, Files())
    session.report = lambda _done, _total, word="", _is_line=False: words.append(word)
    for number, loss in ((1, 8.0), (1, 4.0), (2, 2.0)):  # the board loses the first step once
        done[number - 1 :] = [Step(number, loss, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
        session.on_step(done[-1], 2)
    assert words[-1] == "epoch 1, mean loss 3.0000"

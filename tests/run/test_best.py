"""Early stopping: a training ends when its held-out samples find no better weights."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import poet_host as poet
import pytest
from poet_host.cli.train import TrainOptions
from poet_host.run.run import Run, weights_sha256
from poet_host.run.validate import patience_for
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs

PER_EPOCH = 3  # steps


def schedule() -> Schedule:
    """Of a training whose validation loss soon grows."""
    return runs.schedule(runs.digits(learning_rate=0.3))


def few() -> poet.Dataset:
    data = poet.load_data("digits")
    return poet.Dataset("few", data.x[:12], data.y[:12], data.x[50:90], data.y[50:90])


def trained(card: Path, best: Path, **options: Any) -> Run:
    with poet.connect("native", storage=card, arena_bytes=runs.MIB) as board:
        return poet.train(schedule(), board, few(), epochs=40, best_weights=best, **options)


def in_file(folder: Path) -> Path:
    data, path = few(), folder / "few.npz"
    np.savez(path, x=data.x, y=data.y, x_test=data.x_test, y_test=data.y_test)
    return path


def expected_end(losses: list[float], patience: int) -> int:
    """Return the number of the epoch after which training must stop."""
    for epoch in range(patience, len(losses) + 1):
        if epoch - 1 - int(np.argmin(losses[:epoch])) >= patience:
            return epoch
    raise AssertionError(f"the losses {losses} always fell")


@pytest.mark.parametrize("stop", [4, 6])
def test_a_resumed_training_stops_at_the_same_step(
    stop: int, train: Any, card: Path, tmp_path: Path
) -> None:
    """`stop`: a step within an epoch, and the end of an epoch that nobody has validated."""
    given = ("--epochs", 40, "--patience", 2, "--json")
    straight = train(schedule(), *given, data=in_file(tmp_path)).json
    losses = [row["loss"] for row in straight["validation"]]
    assert straight["ended"] == "no_improvement"
    assert straight["steps"] == PER_EPOCH * expected_end(losses, 2)
    assert straight["best"]["loss"] == min(losses)

    best = tmp_path / "best.safetensors"
    with poet.connect("native", storage=card, arena_bytes=runs.MIB) as board:
        poet.train(schedule(), board, few(), steps=5, best_weights=best)
    if stop == 6:
        with poet.connect("native", storage=card, arena_bytes=runs.MIB) as board:
            poet.train(schedule(), board, few(), steps=6, resume=True)
    run = trained(card, best, patience=2, resume=True)
    assert (run.ended, run.last_step) == ("no_improvement", straight["steps"])
    assert weights_sha256(run.weights) == straight["weights_sha256"]
    assert best.read_bytes() == (tmp_path / "w.best.safetensors").read_bytes()
    again = trained(card, best, patience=2, resume=True)
    assert (again.ended, again.steps) == ("no_improvement", ())


def test_a_run_from_trained_weights_keeps_better_ones(card: Path, tmp_path: Path) -> None:
    best = tmp_path / "best.safetensors"
    first = runs.train(schedule(), few(), storage=card, epochs=2, best_weights=best)
    kept = best.read_bytes()
    runs.train(
        schedule(), few(), storage=card, epochs=3, best_weights=best, learning_rate=30.0,
        weights=first.weights, first_step=first.last_step,
    )  # fmt: skip
    assert best.read_bytes() == kept


def test_best_weights_of_another_run_are_not_those_of_this_run(card: Path, tmp_path: Path) -> None:
    """Those of a later step do not count, and a new run removes those that it finds."""
    best, made = tmp_path / "best.safetensors", schedule()
    runs.train(made, few(), epochs=3, best_weights=best)
    poet.save_weights(best, made.graph, poet.load_weights(best, made.graph), 999)
    runs.train(made, few(), storage=card, steps=5)
    runs.train(made, few(), storage=card, epochs=3, resume=True, best_weights=best)
    assert poet.step_of_weights(best) in (6, 9)
    with pytest.raises(poet.BadInput, match="delete"):
        runs.train(made, few(), steps=2, best_weights=best, weights=str(best))
    assert best.exists()
    runs.train(made, few(), steps=2, best_weights=best)
    assert not best.exists()


def test_a_dot_in_a_name_begins_no_suffix() -> None:
    """The best weights of the runs lr0.1 and lr0.01 have files of their own."""

    def best(name: str) -> str:
        given = SimpleNamespace(save_weights=Path("runs", name), validated=True, patience=None)
        return str(cast(Any, TrainOptions.best).fget(given))

    assert best("lr0.1") == "runs/lr0.1.best.safetensors"
    assert best("lr0.01.safetensors") == "runs/lr0.01.best.safetensors"


def test_a_missed_deadline_fails_a_run_that_ends_early(train: Any, tmp_path: Path) -> None:
    made = schedule()
    made = replace(made, meta={**made.meta, "plan": {**made.meta["plan"], "deadline_us": 1.0}})
    given = ("--epochs", 40, "--patience", 1, "--strict-deadline", "--json")
    result = train(made, *given, data=in_file(tmp_path))
    assert (result.code, result.json["ended"]) == (1, "no_improvement")


def test_accuracy_may_decide(card: Path, tmp_path: Path) -> None:
    best = tmp_path / "best.safetensors"
    run = trained(card, best, patience="2:accuracy")
    assert run.ended == "no_improvement"
    assert run.last_step == poet.step_of_weights(best) + 2 * PER_EPOCH


def test_several_outputs_have_no_accuracy_to_wait_for() -> None:
    labels = np.zeros(4, [("mask", "<i4", (2,)), ("box", "<f4", (4,))])
    data = poet.Dataset("boxes", np.zeros((4, 3)), labels, np.zeros((4, 3)), labels)
    with pytest.raises(poet.BadInput, match=r"write 2$"):
        patience_for(data, "2:accuracy")
    assert patience_for(data, 2).by == "loss"


@pytest.mark.parametrize("patience", ["0", "x", "3:auc", ""])
def test_a_wrong_patience_is_refused(patience: str, train: Any) -> None:
    train(schedule(), "--patience", patience).fails(2, "patience")

"""The verbs of the Python package: the path from a model to trained weights."""

import warnings
from importlib.metadata import version
from pathlib import Path

import poet_host as poet
import pytest
from poet_host import api
from poet_host.api.session import check_training
from poet_host.data.fitted import fit_half
from poet_host.errors import PoetWarning
from poet_host.plan.keepall import keep_everything
from poet_host.plan.plan import plan_from_json
from poet_host.plan.pricing import cost_graph
from poet_host.run.run import weights_sha256
from poet_host.schedule.recover import graph_of
from support import whole_runs as runs
from support.calls import count_calls
from support.command import Command
from support.fake_board import FakeBoard


def test_the_package_offers_the_same_verbs() -> None:
    assert set(dir(poet)) == {*api.__all__, "__version__"}
    folders = {path.stem for path in Path(poet.__file__).parent.iterdir()}
    assert not folders & set(api.__all__)  # their import would hide the verb
    assert poet.load.__wrapped__ is api.load
    assert poet.__version__ == version("poet-host")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = poet.nothing


@pytest.mark.parametrize(
    ("priced_s", "left_s"), [(0.0, 60.0), (20.0, 40.0), (59.5, 1.0), (90.0, 1.0)]
)
def test_pricing_counts_towards_the_time_limit(priced_s: float, left_s: float) -> None:
    assert api.search_limit_s(60.0, priced_s) == left_s
    assert api.search_limit_s(0.1, priced_s) == 0.1


def test_the_verbs_of_the_documentation_work(tmp_path: Path) -> None:
    graph = poet.load("resnet-digits")
    with poet.connect("native") as board:
        profile = board.profile(graph)
    plan = poet.solve(graph, profile, ram="60%", deadline="3x", gap=0.1)
    schedule = poet.encode(graph, profile, plan)
    schedule.save(tmp_path / "digits.poet")
    again = poet.Schedule.load(tmp_path / "digits.poet")
    with poet.connect("native", arena_bytes=plan.ram_bytes // 4 * 4) as board:
        run = poet.train(again, board, "digits", steps=2)
    poet.save_weights(tmp_path / "trained.safetensors", graph, run.weights)
    back = poet.load_weights(tmp_path / "trained.safetensors", graph)
    assert weights_sha256(back) == weights_sha256(run.weights)


@pytest.mark.parametrize(("mib", "warns"), [(0, False), (4, False), (8, True), (64, True)])
def test_a_connection_warns_of_a_card_with_large_allocation_units(mib: int, warns: bool) -> None:
    with FakeBoard() as board:
        fields = board.hello_fields() | {"board": b"mkr1000", "allocation_mib": mib}
        board.handlers["hello"] = lambda: {"hello": fields}
        with warnings.catch_warnings(record=True) as seen, poet.connect(board.port):
            pass
    assert [warning.category for warning in seen] == [PoetWarning] * warns
    assert all(f"({mib} MiB)" in str(warning.message) for warning in seen)
    assert all(warning.filename == __file__ for warning in seen)


def test_a_plan_that_does_not_exist_cannot_be_encoded() -> None:
    graph = runs.digits()
    refused = poet.solve(graph, runs.profile(), ram="1KiB")
    with pytest.raises(poet.PoetError, match="smallest budget that works is") as caught:
        poet.encode(graph, runs.profile(), refused)
    assert caught.value.exit_code == 5


# Problems.


def test_a_problem_is_its_costs_and_its_limits() -> None:
    problem = poet.problem(runs.digits(), "native", ram="50%", deadline="1.5x")
    keep = problem.keep_everything
    assert keep is not None
    assert problem.graph == poet.costs_of(runs.digits(), "native")
    assert problem.ram_bytes == (keep.peak_bytes or 0) // 2
    assert problem.deadline_us == pytest.approx(1.5 * (keep.time_us or 0))
    assert keep == poet.keep_everything(problem.graph)
    assert poet.encode(runs.digits(), keep) == poet.encode(runs.digits(), "native", keep)


@pytest.mark.slow
def test_a_problem_and_its_parts_are_solved_alike() -> None:
    graph, limits = runs.digits(), {"ram": "60%", "deadline": "3x"}
    plan = poet.solve(poet.problem(graph, "native", **limits), method="dtr")
    assert plan.statements == poet.solve(graph, "native", **limits, method="dtr").statements
    schedule = poet.encode(graph, plan, about={"seed": 3})
    assert schedule == poet.encode(graph, "native", plan, {"seed": 3})


def test_a_file_does_not_hold_the_problem() -> None:
    plan = poet.problem(runs.digits(), "native", ram="100%").keep_everything
    assert plan is not None
    text = plan.to_json()
    again = plan_from_json(text)
    assert again == plan
    assert again.problem is None
    with pytest.raises(poet.BadInput, match="problem"):
        plan_from_json({**text, "problem": None})
    with pytest.raises(poet.BadInput, match="profile"):
        poet.encode(runs.digits(), again)
    costs = poet.costs_of(runs.digits(), "native")
    assert poet.encode(costs, again).plan_part == poet.encode(costs, plan).plan_part


def test_a_plan_without_storage_gives_a_schedule_without_storage() -> None:
    problem = poet.problem(runs.digits(), "nrf52840_dk", ram="100%", storage=False)
    plan = poet.solve(problem, method="keep-everything")
    for own in (plan, plan_from_json(plan.to_json())):
        assert not poet.encode(runs.digits(), "nrf52840_dk", own).model.storage


def test_a_plan_of_another_graph_is_refused() -> None:
    plan = poet.solve(runs.digits(), "native", ram="100%", method="keep-everything")
    for other in (runs.mixed(), poet.costs_of(runs.mixed(), "native")):
        with pytest.raises(poet.BadInput, match=other.name):
            poet.encode(other, plan)


@pytest.mark.parametrize("limit", [{"ram": "50%"}, {"deadline": 1}, {"profile": "native"}])
def test_a_problem_has_its_limits_already(limit: dict[str, object]) -> None:
    problem = poet.problem(runs.digits(), "native", ram="100%")
    with pytest.raises(poet.BadInput, match="problem"):
        poet.solve(problem, **limit)


def test_solve_prices_the_graph_and_keeps_everything_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    priced, kept = (count_calls(monkeypatch, item) for item in (cost_graph, keep_everything))
    result = Command(capsys)(
        "solve", "resnet-digits", "--board", "native", "--ram", "80%", "--deadline", "3x",
        "--gap", 0.5, "-o", tmp_path / "x.poet",
    )  # fmt: skip
    assert result.code == 0
    assert (len(priced), len(kept)) == (2, 1)  # a step and an inference


def test_train_recovers_the_graph_and_fits_the_data_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs.schedule(runs.digits()).save(tmp_path / "m.poet")
    counted = graph_of, fit_half, check_training
    recovered, fitted, checked = (count_calls(monkeypatch, item) for item in counted)
    result = Command(capsys)(
        "train", tmp_path / "m.poet", "--port", "native", "--data", "digits", "--steps", 2,
        "--save-weights", tmp_path / "w.safetensors",
    )  # fmt: skip
    assert result.code == 0
    # The graphs of a step and of an inference, and the two halves of the data.
    assert (len(recovered), len(fitted), len(checked)) == (2, 2, 1)

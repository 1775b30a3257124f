"""A fleet: its weights do not depend on boards, plans and order of arrival; no answer is lost."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from onnx import helper
from poet_host import flower
from poet_host.card.weights import SavedWeights
from poet_host.data.classes import Classes
from poet_host.data.facts import DataFacts
from poet_host.data.normalization import Normalization
from poet_host.errors import BadInput, PoetError
from poet_host.flower import Fleet, client_app, server_app, train_round, travelling
from poet_host.graph.weights import Weights, start_values, weight_nodes
from poet_host.plan.intervals import intervals
from poet_host.schedule.encode import encode
from support.fake_flower import Array, Grid, Message, answer, failed, fake_flower as fake_flower
from support.onnx_models import model

BOARDS, STEPS = 3, 4


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Three native boards; the first has the plan of another one, with less RAM."""
    paths = []
    for ram in ("24KiB", "48KiB"):
        graph = poet.load("resnet-digits", batch=4)
        problem = poet.problem(graph, "mkr1000", ram=ram)
        plan = poet.solve(problem, work_limit=2_000, gap=0.5)
        paths.append(tmp_path_factory.mktemp("fleet") / f"{ram}.poet")
        poet.encode(graph, plan).save(paths[-1])
    assert paths[0].read_bytes() != paths[1].read_bytes()
    return [
        {"board": i, "port": "native", "schedule": str(paths[min(i, 1)])} for i in range(BOARDS)
    ]


def samples(node: Mapping[str, Any]) -> poet.Dataset:
    data = poet.load_data("digits")
    own = data.y % BOARDS == node["board"]
    return poet.Dataset("digits", data.x[own], data.y[own], data.x_test, data.y_test)


def sent() -> Weights:
    graph = poet.load("resnet-digits")
    assert isinstance(graph, poet.Graph)
    first = start_values(graph, seed=0)
    return {name: first[name] for name in travelling(graph)}


def settings(turn: int) -> dict[str, Any]:
    return {"server-round": turn, "local-steps": STEPS, "seed": 0}


class Recorder(Grid):
    """One board that answers with the first weights. `configs`: what it was asked with."""

    def __init__(self) -> None:
        super().__init__([], [10])
        self.configs: list[dict[str, Any]] = []

    def send_and_receive(self, messages: list[Message], *, timeout: float) -> list[Message]:
        self.configs.append(messages[0].content["config"])
        return [answer(10, 0, {name: Array(array) for name, array in sent().items()})]


def fleet(grid: Grid, least: int | None = None) -> Fleet:
    return Fleet(grid, BOARDS, least, 1.0, 0.0)


def messages(nodes: Iterable[int] = (10, 11, 12)) -> list[Message]:
    return [Message("weights", node) for node in nodes]


def mean(answers: Iterable[Message]) -> str:
    """FedAvg of Flower 1.42: sums in the order of the answers."""
    contents = [message.content for message in answers]
    total = sum(content["metrics"]["num-examples"] for content in contents)
    found: dict[str, Any] = {}
    for content in contents:
        share = content["metrics"]["num-examples"] / total
        for name, array in content["arrays"].items():
            found[name] = found[name] + array * share if name in found else array * share
    return poet.weights_sha256(found)


def test_weights_depend_on_answers_alone(nodes: list[dict[str, Any]]) -> None:
    answers = [train_round(node, samples, sent(), settings(1)) for node in nodes]
    replies = [
        answer(10 + i, i, found, int(metrics["num-examples"]))
        for i, (found, _, metrics) in enumerate(answers)
    ]
    orders = list(itertools.permutations(replies))
    hashes = {mean(fleet(Grid([list(order)])).send_and_receive(messages())) for order in orders}
    assert len(hashes) == 1
    assert len({mean(order) for order in orders}) > 1  # so the order matters
    # The first board gives the same bits with the plan of the others, and a round again does.
    again = train_round(
        {**nodes[0], "schedule": nodes[1]["schedule"]}, samples, sent(), settings(1)
    )
    assert poet.weights_sha256(again[0]) == poet.weights_sha256(answers[0][0])
    later = train_round(nodes[0], samples, sent(), settings(2))
    assert poet.weights_sha256(later[0]) != poet.weights_sha256(answers[0][0])  # other samples
    kinds, metrics = answers[0][1:]
    assert kinds == "native"
    assert metrics["accuracy"] == poet.accuracy(
        poet.Schedule.load(nodes[0]["schedule"]).graph, {**sent(), **answers[0][0]},
        *(poet.load_data("digits").x_test, poet.load_data("digits").y_test),
    )  # fmt: skip


def test_fedprox_pulls_to_the_weights_that_were_sent(
    nodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    graph = poet.load("resnet-digits", batch=4, proximal=0.1)
    hashes = []
    for ram in ("28KiB", "64KiB"):
        plan = poet.solve(poet.problem(graph, "mkr1000", ram=ram), work_limit=2_000, gap=0.5)
        node = {**nodes[0], "schedule": str(tmp_path / "proximal.poet")}
        poet.encode(graph, plan).save(node["schedule"])
        for mu in (0.0, 0.5):
            found = train_round(node, samples, sent(), {**settings(2), "proximal-mu": mu})[0]
            hashes.append(poet.weights_sha256(found))
    assert hashes[:2] == hashes[2:]  # the plan does not matter, but mu does
    plain = train_round(nodes[0], samples, sent(), settings(2))[0]
    assert hashes[0] == poet.weights_sha256(plain) != hashes[1]
    with pytest.raises(BadInput, match="--proximal"):
        train_round(nodes[0], samples, sent(), {**settings(1), "proximal-mu": 0.5})


def test_a_round_ends_with_an_update(nodes: list[dict[str, Any]], tmp_path: Path) -> None:
    """Sums of gradients stay on the board, so that others do not see them."""
    graph = poet.load("resnet-digits", batch=4, accumulate=2)
    plan = poet.solve(graph, "mkr1000", ram="100%", method="keep-everything")
    node = {**nodes[0], "schedule": str(tmp_path / "sums.poet"), "storage": tmp_path / "card.img"}
    poet.encode(graph, poet.estimate_profile("mkr1000"), plan).save(node["schedule"])
    poet.prepare_storage(node["storage"], "64MiB")
    with pytest.raises(BadInput, match="`local-steps` is 3, but"):
        train_round(node, samples, sent(), {**settings(1), "local-steps": 3})
    train_round(node, samples, sent(), settings(1))
    second = train_round(node, samples, sent(), settings(2))[0]
    other = {**node, "storage": None}  # it has not trained before
    assert second.keys() == sent().keys()
    assert poet.weights_sha256(second) == poet.weights_sha256(
        train_round(other, samples, sent(), settings(2))[0]
    )


def test_written_bytes_are_those_of_the_plan(nodes: list[dict[str, Any]]) -> None:
    graph = poet.load("resnet-digits", batch=4)
    for ram, every in (("24KiB", 1), ("48KiB", 2)):
        problem = poet.problem(graph, "mkr1000", ram=ram, commit_every=every)
        plan = poet.solve(problem, work_limit=2_000, gap=0.5)
        schedule = poet.encode(graph, plan)
        step = intervals(plan, problem.graph, None)[0].written_bytes
        run = SimpleNamespace(steps=[SimpleNamespace(step=i + 1) for i in range(10)])
        assert flower.written_bytes(schedule, run) == 10 * step
        last = SimpleNamespace(steps=[SimpleNamespace(step=11)])  # the run ends with a commit
        assert (
            flower.written_bytes(schedule, last)
            == intervals(plan, replace(problem.graph, commit_every=1), None)[0].written_bytes
        )


def test_a_lost_answer_is_asked_for_again(capsys: pytest.CaptureFixture[str]) -> None:
    # The node 11 is gone: its board 1 has started again, as the node 13.
    lost = failed(1, 5, "Error: Node Unavailable")
    grid = Grid([[answer(12, 2), lost, answer(10, 0)], [answer(13, 1)]], nodes=(10, 12, 13))
    found = fleet(grid).send_and_receive(messages())
    assert [it.content["metrics"]["board"] for it in found] == [0, 1, 2]
    assert grid.asked == [[10, 11, 12], [13]]
    printed = capsys.readouterr().out
    assert "board 1" in printed
    assert "512 bytes written" in printed
    # No answer at all is the same.
    grid = Grid([[answer(12, 2)], [answer(10, 0)], [answer(11, 1)]])
    assert len(fleet(grid).send_and_receive(messages())) == BOARDS
    assert grid.asked == [[10, 11, 12], [10, 11], [11]]


def test_only_boards_of_the_round_answer(capsys: pytest.CaptureFixture[str]) -> None:
    # The strategy chose the nodes 11 and 12 of three. The answer of 11 is lost.
    grid = Grid([[answer(12, 2)], [answer(11, 1)]])
    sampling = fleet(grid, least=2)
    assert sampling.get_node_ids() == [10, 11, 12]
    found = sampling.send_and_receive(messages([11, 12]))
    assert [it.content["metrics"]["board"] for it in found] == [1, 2]
    assert grid.asked == [[11, 12], [11]]
    assert "board 0" not in capsys.readouterr().out  # it was not asked


def test_a_board_that_started_again_is_not_counted_twice() -> None:
    # Board 0 has answered, and is the node 5 now. Board 1 is asked first, at its own node.
    grid = Grid([[answer(10, 0), answer(12, 2)], [answer(11, 1)]], nodes=(5, 11, 12))
    assert len(fleet(grid).send_and_receive(messages())) == BOARDS
    assert grid.asked == [[10, 11, 12], [11]]
    # Board 1 has started again, too, as the node 13.
    rounds = [[answer(10, 0), answer(12, 2)], [answer(5, 0)], [answer(13, 1)]]
    grid = Grid(rounds, nodes=(5, 12, 13))
    assert len(fleet(grid).send_and_receive(messages())) == BOARDS
    assert grid.asked == [[10, 11, 12], [5], [13]]


def test_a_board_that_fails_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    replies = [answer(12, 2), failed(11, 2, "board 1 at /dev/ttyACM0: no card"), answer(10, 0)]
    grid = Grid([replies, replies])
    with pytest.raises(PoetError, match="board 1 at /dev/ttyACM0: no card"):
        fleet(grid).send_and_receive(messages())
    assert len(grid.asked) == 1
    found = fleet(grid, least=2).send_and_receive(messages())
    assert [it.content["metrics"]["board"] for it in found] == [0, 2]
    assert "board 1 at /dev/ttyACM0: no card" in capsys.readouterr().out
    with pytest.raises(PoetError, match="board 1"):  # one that never answers is, too
        fleet(Grid([[answer(12, 2), answer(10, 0)], [], []])).send_and_receive(messages())
    with pytest.raises(PoetError, match="0 of 3"):  # all fail: an error, with any `least`
        fleet(Grid([[failed(i, 2, "broken") for i in (10, 11, 12)]]), 1).send_and_receive(
            messages()
        )
    with pytest.raises(BadInput, match="number 2"):
        fleet(Grid([[answer(12, 2), answer(11, 2)]])).send_and_receive(messages())


def test_both_apps_train_a_model(
    nodes: list[dict[str, Any]], fake_flower: None, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    config = {"rounds": 2, "local-steps": STEPS, "boards": BOARDS, "log-to": str(tmp_path / "log")}
    client = client_app(data=samples)

    class Direct(Grid):
        def send_and_receive(self, messages: list[Message], *, timeout: float) -> list[Message]:
            """Return the answers, the last one first."""
            contexts = [
                SimpleNamespace(node_config=nodes[it.metadata.dst_node_id - 10], run_config=config)
                for it in messages
            ]
            found = [client.call(it, to) for it, to in zip(messages, contexts, strict=True)]
            return found[::-1]

    graph = poet.load("resnet-digits", train="last:1")
    server = server_app(graph, data="digits", save_to=tmp_path / "global.safetensors")
    server.call(Direct([]), SimpleNamespace(run_config=config))
    rows = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert [row["board"] for row in rows[-1]["boards"]] == [0, 1, 2]
    assert f"round 2: accuracy {rows[-1]['accuracy']:.1%}" in capsys.readouterr().out
    found = poet.load_weights(tmp_path / "global.safetensors", graph)
    trained = {node.name for node in graph.trainable}
    changed = {name for name in sent() if not np.array_equal(found[name], sent()[name])}
    assert changed == trained  # what the server does not train keeps its bits

    nodes = [nodes[0], {**nodes[1], "port": str(tmp_path / "no board")}, nodes[2]]
    kept = (tmp_path / "global.safetensors").read_bytes()
    with pytest.raises(PoetError, match=r"board 1 .*no board"):
        server.call(Direct([]), SimpleNamespace(run_config=config))
    assert (tmp_path / "global.safetensors").read_bytes() == kept  # of the last whole round
    with pytest.raises(BadInput, match="`log-to`: none/log cannot be written"):
        server.call(Direct([]), SimpleNamespace(run_config=config | {"log-to": "none/log"}))
    with pytest.raises(BadInput, match=r"`save-to`: .* cannot be written.*directory"):
        server.call(Direct([]), SimpleNamespace(run_config=config | {"save-to": str(tmp_path)}))
    server.call(Direct([]), SimpleNamespace(run_config={**config, "rounds": 1, "least": 2}))
    for wrong in ({}, {"rounds": 0}, {**config, "local-steps": "many"}):
        with pytest.raises(BadInput, match="steps" if "boards" in wrong else "rounds"):
            server.call(Direct([]), SimpleNamespace(run_config=wrong))


def test_what_changes_parameters_keeps_running_statistics(
    fake_flower: None, tmp_path: Path
) -> None:
    """A variance that a strategy or a modifier changes could become negative."""

    def trained(node: Mapping[str, Any], arrays: Weights, config: Mapping[str, Any]) -> Any:
        metrics = answer(0, node["board"]).content["metrics"]
        return {name: array + node["board"] for name, array in arrays.items()}, "own", metrics

    class Direct(Grid):
        def send_and_receive(self, messages: list[Message], *, timeout: float) -> list[Message]:
            replies = []
            for board in range(len(messages)):
                context = SimpleNamespace(node_config={"board": board}, run_config={})
                replies.append(client.call(messages[0], context))
                for array in replies[-1].content["arrays"].values():
                    array.value = array.value * 0  # as a modifier for privacy could
            return replies

    client = client_app(answer=trained)
    graph, path = poet.load("resnet-digits"), tmp_path / "w.safetensors"
    server = server_app(graph, rounds=1, local_steps=1, boards=BOARDS, save_to=path)
    server.call(Direct([]), SimpleNamespace(run_config={}))
    assert isinstance(graph, poet.Graph)
    found, first = poet.load_weights(path, graph), start_values(graph, seed=0)
    for node in graph.trainable:
        mean = first[node.name] + 1 if node.name.endswith("running") else 0  # of 0, 1 and 2
        assert node.start == "zeros" or np.allclose(found[node.name], mean, atol=1e-6)


def test_a_model_with_a_constant_is_judged(fake_flower: None, tmp_path: Path) -> None:
    """The constant does not travel."""
    nodes = [
        helper.make_node("Constant", [], ["c"], value_floats=[2.0, 2.0, 2.0]),
        helper.make_node("Mul", ["x", "c"], ["more"]),
        helper.make_node("MatMul", ["more", "w"], ["y"]),
    ]
    path, log = tmp_path / "m.onnx", tmp_path / "log"
    path.write_bytes(model(nodes, (4, 3), {"w": np.eye(3, 2, dtype=np.float32)}))
    graph = poet.load(path)
    assert isinstance(graph, poet.Graph)
    assert travelling(graph) == ["w"] != [node.name for node in weight_nodes(graph)]
    x, y = np.eye(3, dtype=np.float32)[[0, 1, 0, 1]], np.array([0, 1, 0, 1])
    data = poet.Dataset("eye", x, y, x, y)
    grid = Grid([[answer(10, 0, {"w": Array(np.eye(2, 3, dtype=np.float32))})]], [10])
    server = server_app(path, data=data, rounds=1, local_steps=1, boards=1, log_to=log)
    server.call(grid, SimpleNamespace(run_config={}))
    assert [json.loads(line)["accuracy"] for line in log.read_text().splitlines()] == [1, 1]


def test_the_normalisation_of_the_first_weights_travels(
    nodes: list[dict[str, Any]], fake_flower: None, tmp_path: Path
) -> None:
    normalization, recorder = Normalization((3.0,), (5.0,)), Recorder()
    graph, log = poet.load("resnet-digits", momentum=0.9), tmp_path / "log"
    assert isinstance(graph, poet.Graph)
    values = {name: it + (":" in name) for name, it in start_values(graph, seed=3).items()}
    first, out = SavedWeights(values, DataFacts(normalization=normalization)), tmp_path / "w"
    server = server_app(graph, data="digits", weights=first, save_to=out, log_to=log)
    config = {"rounds": 1, "local-steps": STEPS, "boards": 1}
    server.call(recorder, SimpleNamespace(run_config=config))
    assert (saved := poet.load_weights(out, graph)).normalization == normalization
    assert not any(it.any() for name, it in saved.items() if ":" in name)  # states do not travel
    own = samples(nodes[0])
    assert own.x_test is not None
    assert own.y_test is not None
    x, x_test = (normalization.apply("", it.astype(np.float32)) for it in (own.x, own.x_test))
    row = json.loads(log.read_text().splitlines()[0])
    assert row["accuracy"] == poet.accuracy(graph, first, x_test, own.y_test)
    weights = {name: first[name] for name in travelling(graph)}
    by_hand = replace(own, x=x, x_test=x_test)
    found = train_round(nodes[0], own, weights, {**settings(1), **recorder.configs[0]})
    right = train_round(nodes[0], by_hand, weights, settings(1))
    assert poet.weights_sha256(found[0]) == poet.weights_sha256(right[0])
    assert found[2]["accuracy"] == right[2]["accuracy"]


def test_the_facts_of_the_servers_data_travel(fake_flower: None, tmp_path: Path) -> None:
    """The weights of the fleet keep them, if they begin as random numbers."""

    recorder, names = Recorder(), tuple(f"digit {i}" for i in range(10))
    data = poet.load_data("digits", normalize="standard")
    data = replace(data, classes=Classes(names))
    graph, out = poet.load("resnet-digits"), tmp_path / "w"
    assert isinstance(graph, poet.Graph)
    server = server_app(graph, rounds=1, local_steps=1, boards=1, data=data, save_to=out)
    server.call(recorder, SimpleNamespace(run_config={}))
    facts = DataFacts.from_json(json.loads(recorder.configs[0]["facts"]))
    assert facts == DataFacts(Classes(names), data.normalization)
    saved = poet.load_weights(out, graph)
    assert (tuple(saved.classes), saved.normalization) == (names, data.normalization)


def test_samples_that_the_fleet_cannot_normalise_alike_are_refused(
    nodes: list[dict[str, Any]],
) -> None:
    own = poet.load_data("digits", normalize="standard")
    with pytest.raises(BadInput, match="Pass `data` or `weights` to server_app"):
        train_round(nodes[0], own, sent(), settings(1))
    assert own.normalization is not None
    facts = DataFacts(normalization=own.normalization)
    train_round(nodes[0], own, sent(), {**settings(1), "facts": json.dumps(facts.to_json())})


def test_a_board_without_a_card_is_connected_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = poet.load("resnet-digits", batch=4)
    problem = poet.problem(graph, "native", ram="100%", storage=False)
    plan = poet.solve(problem, method="keep-everything")
    encode(graph, plan, storage=False).save(path := tmp_path / "small.poet")
    given: list[Any] = []
    monkeypatch.setattr(flower, "connect", lambda *_, card, **__: given.append(card) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_round({"board": 0, "port": "native", "schedule": path}, samples, sent(), settings(1))
    assert given == [False]


def test_weights_that_name_fewer_classes_than_outputs_train(nodes: list[dict[str, Any]]) -> None:
    facts = DataFacts(Classes(("none", "one", "two")))
    config = {**settings(1), "facts": json.dumps(facts.to_json())}
    own = samples(nodes[0])
    named = poet.Dataset("named", own.x, own.y % 3, classes=Classes(("two", "none", "one")))
    by_hand = poet.Dataset("by hand", own.x, (own.y % 3 - 1) % 3)
    found = [train_round(nodes[0], data, sent(), config)[0] for data in (named, by_hand)]
    assert poet.weights_sha256(found[0]) == poet.weights_sha256(found[1])


def test_nothing_waits_without_limit() -> None:
    with pytest.raises(PoetError, match="1 of 3"):
        fleet(Grid([], nodes=[10])).get_node_ids()
    few = fleet(Grid([], nodes=[10, 11]), least=2)
    with pytest.raises(PoetError, match="min_available_nodes"):  # of a strategy that wants three
        all(few.get_node_ids() == [10, 11] for _ in range(100))
    with pytest.raises(BadInput, match="least"):
        fleet(Grid([]), least=4)
    evaluation = [Message("weights", 10, "evaluate")]  # no board has an answer to it
    assert fleet(Grid([])).send_and_receive(evaluation) == []


def test_another_model_is_refused(nodes: list[dict[str, Any]]) -> None:
    weights = {**sent(), "other.weight": np.zeros(3, np.float32)}
    with pytest.raises(BadInput, match=r"other\.weight"):
        train_round(nodes[0], samples, weights, settings(1))
    with pytest.raises(BadInput, match="local-steps"):
        train_round(nodes[0], samples, sent(), {"server-round": 1})


def test_the_card_of_an_earlier_fleet_is_used_again(
    nodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    node = {**nodes[0], "storage": str(tmp_path / "card.img")}
    poet.prepare_storage(node["storage"], "64MiB")
    first = train_round(node, samples, sent(), settings(1))
    again = train_round(node, samples, sent(), settings(1))  # the card holds trained weights
    assert poet.weights_sha256(again[0]) == poet.weights_sha256(first[0])


def test_without_flower_a_command_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    for make in (client_app, lambda: server_app("resnet-digits")):
        with pytest.raises(BadInput, match=r"pip install 'poet-host\[fleet\]'"):
            make()
    code = "import sys, poet_host.api, poet_host.flower; sys.exit('flwr' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""A fleet of boards that trains one model by federated learning, on Flower (extra `fleet`).

`client_app` is the part of a computer with a board, `server_app` the part that averages. Flower
carries the messages, and its strategies average. Parameters and running statistics travel. Samples
stay, and so do the states of optimisers, which are zero when a round begins: an answer depends only
on the weights that were sent, the round and the board. So a lost answer can be asked for again.

For the same answers, the weights after a round have the same bits, in whatever order the answers
arrive, and whatever the boards and their plans are.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from errno import EISDIR
from math import nan
from os import strerror
from pathlib import Path
from typing import Any

import numpy as np

from .api.connection import arena_for, connect
from .api.inputs import Data, as_schedule, as_weights, fitted
from .api.models import load
from .api.training import train
from .card.card import check_replaceable
from .card.weights import SavedWeights, facts_of_weights, save_weights
from .data.classes import Classes
from .data.facts import DataFacts
from .data.fitted import adapted
from .errors import BadInput, LinkBroken, NoDevice, PoetError
from .files import is_stream, target, try_to_write
from .fleet import FAILED, LOST, Fleet, line
from .graph.graph import Graph
from .graph.weights import Weights, is_constant, starting_values, weight_nodes
from .plan.effects import effects_of
from .run.evaluate import held_out_accuracy
from .run.run import Run, weights_sha256
from .schedule.decode import Wait, decode
from .schedule.rates import with_rates
from .schedule.schedule import Schedule
from .schedule.times import costs_of_schedule

ROUND_S = 3600.0  # default of the longest wait for the answers of a round
NODES_S = 120.0  # default of the longest wait for boards that are not connected
Answer = tuple[Weights, str, dict[str, int | float]]  # new weights, kind of board, metrics


def client_app(
    *,
    data: Data | Callable[[Mapping[str, Any]], Data] | None = None,
    answer: Callable[[Mapping[str, Any], Weights, Mapping[str, Any]], Answer] | None = None,
    mods: Iterable[Any] = (),
    **defaults: str | int | float,
) -> Any:
    """Return a ClientApp of Flower that trains on the board of a SuperNode.

    The SuperNode's `--node-config` names the `board` (its number, from 0 on, another one for each
    SuperNode), its `port` (see connect), the `schedule` (a .poet file), the `data` (see load_data),
    and optionally the `storage` of a board that runs on this computer. `defaults` are used where it
    names none. `data` may also be a function of these values. `answer` trains in place of
    train_round, for a device that is not a board of poet-host: a function of `node`, `arrays` and
    `settings`, which returns what train_round returns, with the same metrics. `mods`: see Flower.

    Each training message must contain the arrays, and `local-steps` in its config or in the run's.
    Raises BadInput if Flower is not installed.
    """
    flwr = _flower()
    app = flwr.clientapp.ClientApp(mods=list(mods))

    @app.train()  # type: ignore[untyped-decorator]
    def train_on_board(message: Any, context: Any) -> Any:
        node = {"port": "native", **defaults, **context.node_config}
        try:
            arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
            settings = {"statistics": [], **context.run_config, **message.content["config"]}
            found, kind, metrics = (
                answer(node, arrays, settings)
                if answer
                else train_round(node, data, arrays, settings)
            )
        except (PoetError, OSError) as error:
            text = f"board {node.get('board', '?')} at {node['port']}: {error}"
            code = LOST if isinstance(error, LinkBroken | NoDevice) else FAILED
            return flwr.app.Message(flwr.app.Error(code, text), reply_to=message)
        # Modifiers clip what is in `arrays` and add noise to it.
        statistics = {
            name: np.asarray(found[name], "<f4").tobytes() for name in settings["statistics"]
        }
        content = {
            "arrays": flwr.app.ArrayRecord({k: flwr.app.Array(v) for k, v in found.items()}),
            "metrics": flwr.app.MetricRecord(metrics),
            "about": flwr.app.ConfigRecord({"kind": kind}),
            "statistics": flwr.app.ConfigRecord(statistics),
        }
        return flwr.app.Message(flwr.app.RecordDict(content), reply_to=message)

    return app


def server_app(
    model: str | Path | Graph,
    *,
    rounds: int | None = None,
    local_steps: int | None = None,
    boards: int | None = None,
    least: int | None = None,
    strategy: Any = None,
    weights: Weights | str | Path | None = None,
    data: Data | None = None,
    seed: int = 0,
    round_s: float = ROUND_S,
    nodes_s: float = NODES_S,
    save_to: str | Path | None = None,
    log_to: str | Path | None = None,
) -> Any:
    """Return a ServerApp of Flower that trains `model` on a fleet of `boards`.

    In each of `rounds`, every board trains `local_steps` steps. `least`: how many boards must
    answer, so that a round goes on without the others (None: all of them). `strategy`: one of
    Flower's strategies (None: FedAvg). `weights`: the first weights (None: those of the model's
    file, or random ones of `seed`). `data`: its held-out samples judge the weights of each round.

    `round_s`: the longest wait for answers, of which a round has up to three. `nodes_s`: the
    longest wait for boards that are not connected. The weights after each round are written to
    `save_to`, and what each round prints is appended to `log_to`, as a line of JSON. The config of
    Flower's run may name `rounds`, `local-steps`, `boards`, `least`, `save-to` and `log-to`, too,
    and comes first. A run that fails raises PoetError, which names the boards. Raises BadInput if
    Flower is not installed.
    """
    flwr = _flower()
    app = flwr.serverapp.ServerApp()
    options: dict[str, Any] = {
        "rounds": rounds, "local-steps": local_steps, "boards": boards, "least": least,
        "save-to": save_to, "log-to": log_to,
    }  # fmt: skip

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        asked = {name: context.run_config.get(name, value) for name, value in options.items()}
        for name in ("rounds", "local-steps", "boards"):
            if not isinstance(asked[name], int) or asked[name] < 1:
                raise BadInput(f"`{name}` is {asked[name]!r}: name a number from 1 on for the run")
        for name in ("save-to", "log-to"):
            if asked[name]:
                _check_writable(name, Path(asked[name]))
        graph = model if isinstance(model, Graph) else load(model)
        if not isinstance(graph, Graph):
            raise BadInput(f"model {model}: a cost graph cannot be trained: name a model")
        fleet = Fleet(grid, asked["boards"], asked["least"], round_s, nodes_s)
        given = None if weights is None else as_weights(weights, graph)
        facts = facts_of_weights(given)
        judged = None
        if data is not None:
            judged = adapted(fitted(data, graph), facts, is_trained=given is not None)
            facts = judged.facts if given is None else facts
        start = starting_values(graph, seed, given, is_new=True)
        sent = {name: flwr.app.Array(start[name]) for name in travelling(graph)}
        few = replace(facts, classes=Classes(facts.classes))  # without examples: messages are short
        config = {
            "local-steps": asked["local-steps"], "seed": seed, "facts": json.dumps(few.to_json()),
            "statistics": [
                node.name for node in graph.trainable
                if node.name in sent and node.role != "parameter"
            ],
        }  # fmt: skip
        frozen = sent.keys() - {node.name for node in graph.trainable}

        def after_round(number: int, arrays: Any) -> Any:
            for name in frozen:  # a mean of equal numbers may differ from them in the last bit
                arrays[name] = sent[name]
            for name, values in fleet.statistics.items():  # which a strategy may have changed
                arrays[name] = flwr.app.Array(values.reshape(start[name].shape))
            found = {name: array.numpy() for name, array in arrays.items()}
            whole = SavedWeights({**start, **found}, facts)
            right = None if judged is None else held_out_accuracy(graph, whole, judged)
            row = {"round": number, "accuracy": right, "sha256": weights_sha256(found)}
            print(line(row), flush=True)
            if asked["save-to"] and number:  # before round 1, it may hold an earlier run's weights
                step = number * asked["local-steps"]
                save_weights(asked["save-to"], graph, whole, step)
            if asked["log-to"]:
                with Path(asked["log-to"]).open("a", encoding="utf-8") as log:
                    log.write(json.dumps({**row, "boards": fleet.rows}) + "\n")

        by = strategy or flwr.serverapp.strategy.FedAvg(
            fraction_evaluate=0.0, min_train_nodes=fleet.least, min_available_nodes=fleet.least
        )
        by.start(
            fleet, flwr.app.ArrayRecord(sent), num_rounds=asked["rounds"], timeout=round_s,
            train_config=flwr.app.ConfigRecord(config), evaluate_fn=after_round,
        )  # fmt: skip

    return app


def _check_writable(name: str, path: Path) -> None:
    try:
        if path.is_dir():
            raise IsADirectoryError(EISDIR, strerror(EISDIR))
        if name == "log-to":
            path.open("a").close()
        elif not is_stream(path):
            try_to_write(target(path).parent)
    except OSError as error:
        raise BadInput(
            f"`{name}`: {path} cannot be written ({error.strerror}): name a file in a folder that "
            "exists and that you may write to"
        ) from error


def travelling(graph: Graph) -> list[str]:
    """Return the names of parameters and running statistics, which a fleet averages."""
    return [
        node.name
        for node in weight_nodes(graph)
        if node.role == "parameter" or (node.start != "zeros" and not is_constant(graph, node))
    ]


def train_round(
    node: Mapping[str, Any], data: Any, arrays: Weights, settings: Mapping[str, Any]
) -> Answer:
    """Train one round on a board.

    `node`: see client_app. `arrays`: the weights that the server sent. `settings`: `server-round`
    (from 1 on), `local-steps`, `seed`, which selects the samples with the board's number, `facts`
    (JSON of the classes and the normalisation that the first weights keep), and `proximal-mu` of
    FedProx, for which the schedule must be solved with `--proximal`.
    """
    for name in ("board", "schedule", "server-round", "local-steps"):
        if name not in {**node, **settings}:
            raise BadInput(f"`{name}` is missing in the config of the node, or of the run")
    schedule = as_schedule(str(node["schedule"]))
    if "proximal-mu" in settings:  # FedProx
        schedule = with_rates(schedule, proximal=float(settings["proximal-mu"]))
    graph = schedule.graph
    _check_same(graph, arrays)
    facts = DataFacts.from_json(json.loads(settings.get("facts", "{}")))
    own = fitted(data(node) if callable(data) else node.get("data", data), graph)
    if own.normalization is not None and facts.normalization is None:
        raise BadInput(
            f"data {own.name}: its samples are normalised ({own.normalization}), but the weights "
            "of the fleet do not say how. Pass `data` or `weights` to server_app"
        )
    samples = adapted(own, facts)
    turn, steps = int(settings["server-round"]), int(settings["local-steps"])
    if steps % graph.batches_per_update:  # sums of gradients do not travel
        raise BadInput(
            f"`local-steps` is {steps}, but the schedule updates weights after every "
            f"{graph.batches_per_update} batches: let each round train a multiple of them"
        )
    number, storage = int(node["board"]), node.get("storage")
    # Adam corrects its averages for the steps since they were zero: these steps are the round's.
    counts_again = any(it.op == "average" for it in graph)
    first = 0 if counts_again else (turn - 1) * steps
    order = f"{settings.get('seed', 0)} {number} {turn * counts_again}"
    arena_bytes = arena_for(schedule, str(node["port"]), Path(storage) if storage else None)
    card = schedule.model.storage
    with connect(str(node["port"]), storage=storage, arena_bytes=arena_bytes, card=card) as board:
        replaced = check_replaceable(board.device, schedule, first_step=1)  # refuse other models
        if replaced is not None:
            board.written = (int(board.device.info.committed_model), replaced)
        run = train(
            schedule, board, samples, weights=SavedWeights(arrays, facts), first_step=first,
            steps=first + steps, seed=zlib.crc32(order.encode()),
        )  # fmt: skip
    right = held_out_accuracy(graph, run.weights, samples)
    metrics: dict[str, int | float] = {
        "board": number,
        "num-examples": len(samples.x),
        "loss": run.steps[-1].loss,
        "accuracy": nan if right is None else right,
        "energy-mj": (run.total_energy_uj or 0.0) * len(run.steps) / 1000,
        "message-bytes": 2 * sum(array.nbytes for array in arrays.values()),
        "written-bytes": written_bytes(schedule, run),
        "peak-bytes": run.peak_bytes,
    }
    return {name: run.weights[name] for name in arrays}, board.board.name, metrics


def written_bytes(schedule: Schedule, run: Run) -> int:
    """Return the bytes of tensors that steps and commits of a run wrote to the card or flash."""
    costs, every = costs_of_schedule(schedule), schedule.header.commit_every
    renewed = {i: node.bytes for i, node in enumerate(costs.nodes) if node.keep and node.once}
    if not schedule.model.storage:
        return len(run.commits) * sum(renewed.values())
    effects = effects_of(costs, [it for it in decode(schedule) if not isinstance(it, Wait)])
    in_step = sum(effect.moved_out_bytes for effect in effects)
    stored = {i for effect in effects for i in effect.stores}
    at_commit = sum(size_bytes for i, size_bytes in renewed.items() if i not in stored)
    commits = {-(-step.step // every) for step in run.steps}
    return len(run.steps) * in_step + len(commits) * at_commit


def _check_same(graph: Graph, arrays: Weights) -> None:
    """Raise BadInput if the schedule's model has other tensors than those that were sent."""
    own = {name: graph[name].shape for name in travelling(graph)}
    given = {name: array.shape for name, array in arrays.items()}
    for name in sorted(own.keys() | given.keys()):
        if own.get(name) != given.get(name):
            raise BadInput(
                f"the schedule is not for the model of the fleet: its tensor {name} has the shape "
                f"{own.get(name)}, and that of the fleet {given.get(name)}. Solve the same model"
            )


def _flower() -> Any:
    try:
        import flwr.app
        import flwr.clientapp
        import flwr.serverapp.strategy
    except ImportError as error:
        raise BadInput(
            f"Flower is missing ({error}): run `pip install 'poet-host[fleet]'`"
        ) from error
    return flwr

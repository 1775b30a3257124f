"""What a training graph trains, as a table of layers: for people, before they plan and train."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from .graph import Graph, Node
from .work import work_of

LOSS_NAMES = {"softmax_xent": "cross-entropy", "mse": "mse"}


@dataclass(frozen=True)
class Layer:
    """One operator of the forward pass."""

    name: str
    kind: str  # its kernel
    shape: tuple[int, ...]  # of its output, the batch first
    parameters: int  # numbers that it reads and no layer before it
    macs: int  # multiply-accumulates of the forward pass, of one sample
    trained: str  # "yes", "no", "partly"; empty without parameters
    frozen: tuple[str, ...]  # names of the parameters that do not learn
    statistics: str  # batchnorm's: "by the batch", "frozen"; empty elsewhere


@dataclass(frozen=True)
class Summary:
    """A model with its training options."""

    layers: tuple[Layer, ...]
    parameters: int
    trained_parameters: int
    macs: int  # of the forward pass, of one sample
    training_macs: int  # of the whole step, of one sample
    loss: str
    optimizer: str
    rates: Mapping[str, float]  # learning_rate, momentum, ...
    batch: int
    data_shape: tuple[int, ...]  # of one sample

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summary_of(graph: Graph) -> Summary:
    """The layers of `graph` and what is trained of them."""
    renewed = {node.name for node in graph.trainable}
    stored = {node.name: node for node in graph if node.role in ("parameter", "state")}
    seen: set[str] = set()
    layers = []
    for node in graph:
        if node.phase == "forward" and node.name != graph.loss and ":" not in node.name:
            own = [stored[n] for n in dict.fromkeys(node.inputs) if n in stored and n not in seen]
            seen |= {item.name for item in own}
            layers.append(_layer(graph, node, own, renewed))
    parameters = [node for node in graph if node.role == "parameter"]
    macs = {node.name: work_of(node, graph).macs for node in graph}
    name, rates = _optimiser(graph)
    return Summary(
        tuple(layers),
        parameters=sum(map(_count, parameters)),
        trained_parameters=sum(
            _count(parameter) for parameter in parameters if parameter.name in renewed
        ),
        macs=sum(macs[node.name] for node in graph if node.phase == "forward") // graph.batch,
        training_macs=sum(macs.values()) // graph.batch,
        loss=LOSS_NAMES.get(graph[graph.loss].op, graph[graph.loss].op),
        optimizer=name,
        rates=rates,
        batch=graph.batch,
        data_shape=graph[graph.data].shape[1:],
    )


def _count(node: Node) -> int:
    return prod(node.shape)


def _layer(graph: Graph, node: Node, own: list[Node], renewed: set[str]) -> Layer:
    parameters = [item for item in own if item.role == "parameter"]
    learn = {parameter.name in renewed for parameter in parameters}
    frozen = tuple(parameter.name for parameter in parameters if parameter.name not in renewed)
    statistics = ""
    if node.op == "batchnorm":  # of the batch, or the running ones, which are stored
        statistics = "frozen" if graph[node.inputs[1]].stored else "by the batch"
    return Layer(
        node.name,
        node.op,
        node.shape,
        sum(map(_count, parameters)),
        work_of(node, graph).macs // graph.batch,
        "" if not learn else "partly" if len(learn) == 2 else "no" if frozen else "yes",
        frozen,
        statistics,
    )


def _optimiser(graph: Graph) -> tuple[str, dict[str, float]]:
    """Its name, of optimisers.OPTIMISERS, and its rates, from the nodes that it has in a step."""
    nodes = {key: node for node in graph for key in (node.op, node.sink)}
    rates: dict[str, float] = {}

    def rate(key: str, name: str, field: str) -> None:
        rates[name] = float(nodes[key].attrs.get(field, 0))

    if "adam_step" in nodes:
        rate("adam_step", "learning_rate", "learning_rate")
        rate("average", "beta1", "beta")
        rate("average_square", "beta2", "beta")
        rate("adam_step", "epsilon", "epsilon")
        rate("average", "weight_decay", "weight_decay")
        return "adam", rates
    if "momentum_step" in nodes:
        rate("momentum_step", "learning_rate", "learning_rate")
        rate("momentum", "momentum", "momentum")
        rate("momentum", "weight_decay", "weight_decay")
        return "momentum", rates
    rate("sgd", "learning_rate", "learning_rate")
    rate("sgd", "weight_decay", "weight_decay")
    return "sgd", rates

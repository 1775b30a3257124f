"""Summary of a training graph: its layers, its trained parameters and its optimiser."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from .autodiff import ACCUMULATED, AHEAD, DECAY, PULL
from .clipping import clipping_of
from .graph import Graph, Node
from .losses import loss_text
from .work import work_of


@dataclass(frozen=True)
class Layer:
    """One operator of the forward pass."""

    name: str
    kind: str  # its kernel
    shape: tuple[int, ...]  # shape of the layer's output, the batch first
    parameters: int  # number of weights, except those that an earlier layer also reads
    macs: int  # multiply-accumulates of the layer's forward pass, for one sample
    trained: str  # "yes", "no" or "partly"; empty if the layer has no parameters
    frozen: tuple[str, ...]  # names of the parameters that are not trained
    statistics: str  # for batchnorm: "by the batch" or "frozen"; empty for other layers


@dataclass(frozen=True)
class Summary:
    """A model with its training options."""

    layers: tuple[Layer, ...]
    parameters: int
    trained_parameters: int
    macs: int  # multiply-accumulates of the forward pass, for one sample
    training_macs: int  # multiply-accumulates of the whole training step, for one sample
    loss: str
    optimizer: str
    rates: Mapping[str, float]  # learning_rate, momentum, ...
    batch: int
    data_shape: tuple[int, ...]  # of one sample
    waiting_bytes: int = 0  # of gradients that wait for their limit
    accumulated_bytes: int = 0  # of the sums of gradients until the next update

    def __repr__(self) -> str:
        return f"<Summary: {len(self.layers):,} layers, {self.parameters:,} parameters>"


def summary(graph: Graph) -> Summary:
    """Return the summary of a training graph."""
    trainable = {node.name for node in graph.trainable}
    stored = {node.name: node for node in graph if node.role in ("parameter", "state")}
    seen: set[str] = set()
    layers = []
    for node in graph:
        read = [stored[n] for n in dict.fromkeys(node.inputs) if n in stored]
        is_part = ":" in node.name and not read  # such as the statistics of a norm
        if node.phase == "forward" and node.name != graph.loss and not is_part:
            own = [tensor for tensor in read if tensor.name not in seen]
            seen |= {tensor.name for tensor in own}
            layers.append(_layer(graph, node, own, trainable))
    parameters = [node for node in graph if node.role == "parameter"]
    sums = [node for node in graph if node.name.endswith(ACCUMULATED)]
    macs = {node.name: work_of(node, graph).macs for node in graph}
    name, rates = _optimiser(graph)
    return Summary(
        tuple(layers),
        parameters=sum(map(_count, parameters)),
        trained_parameters=sum(_count(node) for node in parameters if node.name in trainable),
        macs=sum(macs[node.name] for node in graph if node.phase == "forward") // graph.batch,
        training_macs=sum(macs.values()) // graph.batch,
        loss=loss_text(graph),
        optimizer=name,
        rates=rates,
        batch=graph.batch,
        data_shape=graph[graph.data].shape[1:],
        waiting_bytes=clipping_of(graph)[1],
        accumulated_bytes=sum(node.size_bytes for node in sums),
    )


def _count(node: Node) -> int:
    return prod(node.shape)


def _layer(graph: Graph, node: Node, own: list[Node], trainable: set[str]) -> Layer:
    parameters = [tensor for tensor in own if tensor.role == "parameter"]
    learn = {tensor.name in trainable for tensor in parameters}
    frozen = tuple(tensor.name for tensor in parameters if tensor.name not in trainable)
    statistics = ""
    # If the statistics are a stored node, they are running statistics, so batchnorm is frozen.
    if node.op == "batchnorm":
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
    """Read the optimiser's name (one of OPTIMISERS) and its rates from the nodes of the step."""
    nodes = {key: node for node in graph for key in (node.op, node.sink)}
    pull = _factor(graph, PULL)
    rates: dict[str, float] = {"proximal": pull} if pull else {}
    limits = vars(clipping_of(graph)[0])
    rates |= {f"clip_{name}": float(limit) for name, limit in limits.items() if limit}
    batches = graph.batches_per_update
    rates |= {"accumulate": float(batches)} if batches > 1 else {}

    def rate(key: str, name: str, field: str) -> None:
        rates[name] = float(nodes[key].attrs.get(field, 0))

    if "adam_step" in nodes:
        rate("adam_step", "learning_rate", "learning_rate")
        if "average" in nodes:
            rate("average", "beta1", "beta")
        rate("average_square", "beta2", "beta")
        rate("adam_step", "epsilon", "epsilon")
        rate("average_square", "weight_decay", "weight_decay")
        late = float(nodes["adam_step"].attrs.get("weight_decay", 0))
        if late:
            rates["weight_decay"] = late
        elif "average" not in nodes:
            rates["weight_decay"] = _factor(graph, DECAY)
        return "adamw" if late else "adam" if "average" in nodes else "rmsprop", rates
    if "momentum_step" in nodes:
        rate("momentum_step", "learning_rate", "learning_rate")
        rate("momentum", "momentum", "momentum")
        rate("momentum", "weight_decay", "weight_decay")
        return "nesterov" if _factor(graph, AHEAD) else "momentum", rates
    rate("sgd", "learning_rate", "learning_rate")
    rate("sgd", "weight_decay", "weight_decay")
    return "sgd", rates


def _factor(graph: Graph, ending: str) -> float:
    """Return the factor of the nodes with the name of a weight and this suffix, or 0."""
    names = {f"{node.name}:{ending}" for node in graph if node.stored}
    return next((float(node.attrs["factor"]) for node in graph if node.name in names), 0.0)

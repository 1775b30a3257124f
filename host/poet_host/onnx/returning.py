"""Find trained weights that cannot be loaded back into the PyTorch module of a model.

Exporters compute tensors from several parameters (weight normalisation), fold batchnorm into the
layer before it, and use numbers as names of tensors. A module may compute a weight by operators
that cannot be trained through. Training changes these tensors, but the module
does not have them: `load_state_dict` with strict=False ignores them without a message.
"""

from dataclasses import replace

from ..errors import listed
from ..graph.graph import Graph
from ..graph.lora import added
from ..graph.source import source_of
from ..graph.weights import is_constant, weight_nodes
from .model import OnnxModel, needed_for
from .names import is_folded, is_made_up

MOST_NAMES = 20  # in one message


def with_returning(graph: Graph, model: OnnxModel) -> Graph:
    """Return the graph with its fields `lost` and `made_up`, two lists of names.

    `lost`: parameters of the module that the trained weights will not contain, or that are trained
    without something that the module computes from them. `made_up`: trained
    tensors that an exporter computed, folded or renamed, so that the module cannot load them.
    """
    folded = {name for node in model.proto.graph.node if is_folded(node) for name in node.input[1:]}
    known = model.trained | model.frozen
    saved: set[str] = set()
    made_up: list[str] = []
    updated = {node.updates for node in graph}
    of_adapters = added(graph)
    for node in weight_nodes(graph):
        if ":" in node.name or is_constant(graph, node):
            continue
        source = source_of(graph, node)
        saved |= set(source.names)
        if node.name in updated and node.name not in of_adapters:
            made_up += [
                name
                for name in source.names
                if (name not in known if known else source.computed or is_made_up(name))
                or name in folded
            ]
    kept = {name for node in needed_for(model.kept, model.nodes) for name in node.inputs}
    lost = [name for name in model.constants if name in model.trained - (saved - kept)]
    return replace(graph, lost=tuple(lost), made_up=tuple(made_up))


def notice(graph: Graph) -> str:
    """Return a warning about weights that cannot be loaded into the module, or an empty text."""
    lost, made_up = (listed(names, MOST_NAMES) for names in (graph.lost, graph.made_up))
    if lost:
        instead = (
            f" The graph trains these tensors instead: {made_up}."
            if made_up
            else " What the module computes from them alone stays as it is."
        )
        return (
            f"{graph.name}: these parameters of the module are not trained, or not as in PyTorch: "
            f"{lost}.{instead} Convert the module's parameters to plain ones before poet.load, as "
            "torch.nn.utils.parametrize.remove_parametrizations does (docs/how-to/own-model.md)"
        )
    if made_up:
        return (
            f"{graph.name}: an exporter computed or folded these trained tensors, so a PyTorch "
            f"module does not have them: {made_up}. load_state_dict will not restore "
            "them. Export with dynamo=True and optimize=False (docs/how-to/own-model.md)"
        )
    return ""

"""The training graph: gradients against PyTorch, and the laws that make it exact."""

import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from poet_host import isa
from poet_host.errors import BadInput
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder, Model
from poet_host.graph.graph import Graph, Node
from poet_host.graph.trained import trained_parameters
from poet_host.graph.weights import from_named, start_values, starting_values, to_named
from poet_host.reference.step import run_step
from support.random_models import parameters_of, random_models
from support.torch_model import (
    check_gradients,
    frozen_layers,
    random_batch,
    random_values,
    torch_forward,
    torch_values,
)

TRAIN = st.sampled_from(("all", "last:1", "last:2", "*.weight,!conv*", "conv2d*", "*.bias"))
OPTIMISERS = (Sgd(0.1), Sgd(0.1, weight_decay=0.01), Sgd(0.1, 0.9), Sgd(0.1, 0.9, 0.01))


def repeatable(examples: int) -> settings:
    """The same examples in every run."""
    slow = [HealthCheck.too_slow]
    return settings(
        max_examples=examples, derandomize=True, deadline=None, suppress_health_check=slow
    )


def chosen(model: Model, train: str) -> str:
    """`train`, or "all" where the model has nothing of that kind."""
    try:
        trained_parameters(model, train)
    except BadInput:
        return "all"
    return train


def small(name: str = "small", batch: int = 2) -> Builder:
    return Builder(name, data=(batch, 2, 4, 4))


def readers(graph: Graph) -> Counter[str]:
    return Counter(name for node in graph for name in node.inputs)


def overwritable(node: Node) -> list[str]:
    """The inputs that the kernel may overwrite, by isa.def."""
    rules = isa.kernels()[node.op].rules
    places = (int(rule[-1]) - 1 for rule in rules if rule.startswith("MAY_"))
    return [node.inputs[i] for i in places]


def dies_in(graph: Graph, name: str, node: Node) -> bool:
    """Does nothing after `node` need `name`, of the size of `node`?"""
    after = graph.nodes[graph.nodes.index(node) + 1 :]
    lost = {other.name for other in graph if name in other.inputs} - {node.name}
    lost = {other for other in lost if graph[other].size_bytes >= node.size_bytes}
    for other in graph:
        if other.phase == "forward" and lost & {*other.inputs}:
            lost.add(other.name)
    return (
        not graph[name].stored
        and graph[name].size_bytes == node.size_bytes
        and node.inputs.count(name) == 1
        and not any({name, *lost} & {*other.inputs} for other in after)
    )


def check_laws(model: Model, train: str, optimiser: Sgd) -> Graph:
    """Every law of the training graph, from the outside."""
    graph = training_graph(model, optimiser, train)
    trained = trained_parameters(model, train)
    place = {node.name: i for i, node in enumerate(graph)}
    read = readers(graph)

    # Renewed are exactly the trained parameters, their momenta, and running statistics that
    # a batchnorm with a trained parameter gathers.
    frozen = frozen_layers(model, train)
    gathered = {
        layer.parameters["running"].name
        for layer in model.layers
        if layer.kind == "batchnorm2d" and layer.name not in frozen
    }
    momenta = {f"{name}:momentum" for name in trained if optimiser.momentum}
    renewed = [node.updates for node in graph if node.updates]
    assert sorted(renewed) == sorted(trained | momenta | gathered)

    # Nobody reads a stored tensor after the node that renews it, which works in its memory.
    for node in graph:
        if node.updates:
            assert node.overwrites == node.updates
            users = [place[other.name] for other in graph if node.updates in other.inputs]
            assert max(users) == place[node.name]

    # Nothing is computed in vain: forward nodes lead to the loss, backward nodes to an update.
    goals = {node.name for node in graph if node.updates}
    leads = {graph.loss: {"loss"}} | {name: {"update"} for name in goals}
    for node in reversed(graph.nodes):
        for name in node.inputs:
            leads[name] = leads.get(name, set()) | leads[node.name]
    for node in graph:
        wanted = {"forward": "loss", "backward": "update", "update": "update"}
        if not node.stored:
            assert wanted[node.phase] in leads[node.name], node.name
        elif node.role != "data":
            assert read[node.name], node.name
    assert not any(node.name.startswith(("data:", "label:")) for node in graph)

    # An output takes the memory of an input only if the kernel may, and if no later node reads the
    # input or, forward, what earlier readers made of it. Then it does.
    for node in graph:
        if node.sink == "accumulate":
            assert node.overwrites == node.inputs[-1]
            assert graph[node.overwrites].sink in ("store", "accumulate")
            assert read[node.overwrites] == 1
        elif not node.stored and not node.updates:
            free = [name for name in overwritable(node) if dies_in(graph, name, node)]
            assert node.overwrites == (free[0] if free else None)
    fields = {node.name: isa.attributes(node.op, node.sink) for node in graph if not node.stored}
    assert all(sorted(graph[name].attrs) == sorted(fields[name]) for name in fields)
    return graph


@pytest.mark.slow
@repeatable(120)
@given(random_models(), TRAIN, st.integers(0, 3))
def test_random_models_have_the_gradients_of_pytorch(model: Model, train: str, seed: int) -> None:
    check_gradients(model, chosen(model, train), seed=seed, step=seed, tolerance=1e-4)


@pytest.mark.slow
@repeatable(150)
@given(random_models(), TRAIN, st.sampled_from(OPTIMISERS))
def test_random_models_obey_the_laws(model: Model, train: str, optimiser: Sgd) -> None:
    check_laws(model, chosen(model, train), optimiser)


def follow_pytorch(
    model: Model, sgd: Sgd, graph: Graph, values: dict[str, np.ndarray], steps: int, train: str
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Every tensor after `steps` steps of the graph, and of torch.optim.SGD."""
    values, wanted = dict(values), torch_values(model, values)
    optimiser = torch.optim.SGD(
        [wanted[name] for name in sorted(trained_parameters(model, train))],
        lr=sgd.learning_rate,
        momentum=sgd.momentum,
        weight_decay=sgd.weight_decay,
    )
    for step in range(steps):
        x, label = random_batch(model, step)
        found = run_step(graph, {**values, graph.data: x, graph.label: label}, step)
        values |= {node.updates: found[node.name] for node in graph if node.updates}
        optimiser.zero_grad()
        outputs = torch_forward(model, wanted, x, label, frozen=frozen_layers(model, train))
        outputs[graph.loss].backward()
        optimiser.step()
    return {name: (values[name], value.detach().numpy()) for name, value in wanted.items()}


@repeatable(25)
@given(random_models(), st.sampled_from(OPTIMISERS), TRAIN)
def test_steps_follow_the_optimiser_of_pytorch(model: Model, sgd: Sgd, train: str) -> None:
    train = chosen(model, train)
    graph = check_laws(model, train, sgd)
    steps = 0 if any(layer.kind == "dropout" for layer in model.layers) else 3
    ended = follow_pytorch(model, sgd, graph, random_values(graph, 0), steps, train)
    for name, (found, wanted) in ended.items():
        scale = float(np.abs(wanted).max()) + 1.0
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * scale, err_msg=name)


def test_momentum_and_weight_decay_against_pytorch() -> None:
    b = small()
    x = b.relu(b.batchnorm2d(b.conv2d(b.data, 3, 3, padding=1, name="conv"), name="bn"))
    model = b.model(b.softmax_xent(b.linear(b.flatten(x), 5, name="fc")))
    for sgd in OPTIMISERS:
        graph = training_graph(model, sgd)
        ended = follow_pytorch(model, sgd, graph, dict(start_values(graph, 1)), 6, "all")
        for found, wanted in ended.values():
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_weight_decay_is_an_input_of_momentum_only_where_it_counts() -> None:
    b = small()
    model = b.model(b.mse(b.linear(b.flatten(b.data), 3, name="fc")))
    plain = training_graph(model, Sgd(0.1, 0.9))["fc.weight:momentum:new"]
    assert plain.inputs == ("data", "fc:grad", "fc.weight:momentum")
    decayed = training_graph(model, Sgd(0.1, 0.9, 0.01))["fc.weight:momentum:new"]
    assert decayed.inputs == ("data", "fc:grad", "fc.weight:momentum", "fc.weight")
    assert plain.overwrites == plain.updates == "fc.weight:momentum"
    step = training_graph(model, Sgd(0.1, 0.9))["fc.weight:new"]
    assert (step.op, step.inputs) == ("momentum_step", ("fc.weight", "fc.weight:momentum:new"))
    assert step.attrs["learning_rate"] == 0.1


def test_batchnorm_is_three_nodes_and_its_running_statistics_are_renewed_once() -> None:
    b = small()
    x = b.batchnorm2d(b.conv2d(b.data, 3, 1, name="conv"), name="bn", momentum=0.25)
    graph = training_graph(b.model(b.mse(b.flatten(x))), Sgd(0.1, momentum=0.9))
    rows = [(node.op, node.inputs) for node in graph if node.name.startswith("bn")][3:]
    assert [row for row in rows if row[0] in ("batchnorm_stats", "batchnorm_running")] == [
        ("batchnorm_stats", ("conv",)),
        ("batchnorm_running", ("bn:stats", "bn.running")),
    ]
    running = graph["bn.running:new"]
    assert running.overwrites == running.updates == "bn.running"
    assert running.attrs["update_rate"] == 0.25
    assert graph["bn.weight:momentum:new"].attrs["momentum"] == 0.9
    assert graph["bn.weight:momentum:new"].attrs["variant"] == 1
    assert graph["bn.bias:momentum:new"].attrs["variant"] == 0


def test_frozen_layers_compute_nothing_for_themselves() -> None:
    b = small()
    x = b.relu(b.batchnorm2d(b.conv2d(b.data, 3, 3, name="conv1"), name="bn1"), name="relu1")
    x = b.relu(b.batchnorm2d(b.conv2d(x, 3, 1, name="conv2"), name="bn2"), name="relu2")
    model = b.model(b.mse(b.linear(b.flatten(x), 3, name="fc")))
    last = check_laws(model, "last:1", Sgd(0.1))
    assert [node.name for node in last if node.phase == "backward"] == ["fc:grad"]
    assert not any(node.op == "batchnorm_stats" for node in last)
    assert last["bn1"].inputs == ("conv1", "bn1.running", "bn1.weight", "bn1.bias")
    some = check_laws(model, "conv2.*", Sgd(0.1))
    backward = [node.op for node in some if node.phase != "forward" and not node.stored]
    assert backward == [
        "mse_grad",
        "linear_grad_input",
        "relu_grad",
        "batchnorm_grad_input_frozen",
        "conv2d_grad_weight",
        "grad_bias",
    ]
    early = check_laws(model, "conv1.bias", Sgd(0.1))
    assert [node.name for node in early if node.updates] == ["conv1.bias:new"]
    assert not any(node.op == "conv2d_grad_weight" for node in early)


def test_sums_of_gradients_spare_what_others_read() -> None:
    b = small()
    x = b.conv2d(b.data, 2, 1, name="x")
    y = b.conv2d(x, 2, 1, name="y")
    total = b.add(b.add(x, y, name="s1"), x, name="s2")
    graph = check_laws(b.model(b.mse(b.flatten(total))), "all", Sgd(0.1))
    sums = {node.name: node for node in graph if node.op == "add" and node.phase == "backward"}
    # The gradient of s2 passes on to x twice and to y: only the convolution's own may go.
    assert {name: node.inputs for name, node in sums.items()} == {
        "x:grad2": ("s2:grad", "s2:grad"),
        "x:grad": ("x:grad2", "x:grad:y"),
    }
    assert sums["x:grad2"].overwrites is None
    assert sums["x:grad"].overwrites == "x:grad2"


def test_a_tensor_added_to_itself_and_used_elsewhere_gets_every_gradient() -> None:
    b = small()
    x = b.conv2d(b.data, 2, 1, name="x")
    y = b.add(b.add(x, x, name="twice"), b.relu(x, name="relu"), name="total")
    model = b.model(b.mse(b.flatten(y)))
    graph = check_laws(model, "all", Sgd(0.1))
    sums = [node.name for node in graph if node.op == "add" and node.phase == "backward"]
    assert sums == ["x:grad2", "x:grad"]
    check_gradients(model)


def test_shared_parameters_accumulate_in_order_and_are_updated_after_every_use() -> None:
    b = small()
    x = b.conv2d(b.data, 2, 3, padding=1, name="one")
    for name in ("two", "three"):
        x = b.conv2d(b.relu(x), 2, 3, padding=1, name=name, parameters=parameters_of(b, "one"))
    model = b.model(b.mse(b.flatten(x)))
    graph = check_laws(model, "all", Sgd(0.1, weight_decay=0.1))
    weight = [
        (node.name, node.sink, node.overwrites)
        for node in graph
        if node.name.startswith("one.weight:")
    ]
    assert weight == [
        ("one.weight:grad:three", "store", None),
        ("one.weight:grad:two", "accumulate", "one.weight:grad:three"),
        ("one.weight:grad:one", "accumulate", "one.weight:grad:two"),
        ("one.weight:new", "sgd", "one.weight"),
    ]
    assert graph["one.weight:new"].op == "apply_gradient"
    check_gradients(model)


def test_updates_come_as_early_as_the_last_use_allows() -> None:
    b = small()
    x = b.conv2d(b.data, 2, 1, name="first")
    x = b.conv2d(x, 2, 1, name="second")
    graph = training_graph(b.model(b.mse(b.flatten(x))), Sgd(0.1))
    after_loss = [node.name for node in graph if not node.stored and node.phase != "forward"]
    assert after_loss == [
        "second:grad",
        "second.bias:new",
        "first:grad",
        "second.weight:new",
        "first.weight:new",
        "first.bias:new",
    ]


def test_dropout_uses_one_mask_forward_and_backward_and_another_each_step() -> None:
    b = Builder("drop", data=(2, 6))
    x = b.dropout(b.linear(b.data, 8, name="fc1"), 0.5, name="drop1")
    x = b.dropout(b.linear(x, 8, name="fc2"), 0.5, name="drop2")
    model = b.model(b.mse(x))
    graph = training_graph(model, Sgd(0.1))
    assert graph["drop1"].attrs == graph["fc1:grad"].attrs
    assert graph["drop1"].attrs["key"] != graph["drop2"].attrs["key"]
    for step in range(3):
        check_gradients(model, step=step)


def test_flatten_emits_nothing() -> None:
    b = small()
    x = b.flatten(b.conv2d(b.data, 2, 1, name="conv"))
    assert (x.name, x.shape) == ("conv", (2, 32))
    graph = training_graph(b.model(b.mse(b.linear(x, 3, name="fc"))), Sgd(0.1))
    assert graph["fc"].inputs[0] == "conv"
    assert graph["conv:grad"].shape == (2, 2, 4, 4)


@pytest.mark.parametrize("train", ["last:0", "last:3", "last:", "last:x", "conv9*", ""])
def test_train_that_chooses_nothing_is_refused(train: str) -> None:
    b = small()
    x = b.flatten(b.conv2d(b.data, 2, 1, name="conv"))
    model = b.model(b.mse(b.linear(x, 3, name="fc")))
    message = f"`train` is {re.escape(repr(train))}.*(conv.weight|last:1 to last:2|with commas)"
    with pytest.raises(BadInput, match=message):
        training_graph(model, Sgd(0.1), train)


def test_a_model_without_parameters_cannot_be_trained() -> None:
    b = small()
    with pytest.raises(BadInput, match="model small has no parameters"):
        training_graph(b.model(b.mse(b.relu(b.data))), Sgd(0.1))


def test_train_last_counts_layers_that_own_parameters() -> None:
    b = small()
    x = b.conv2d(b.data, 2, 1, name="one")
    x = b.conv2d(b.relu(x), 2, 1, name="two", parameters=parameters_of(b, "one"))
    model = b.model(b.mse(b.linear(b.flatten(x), 3, name="fc")))
    assert trained_parameters(model, "last:1") == {"fc.weight", "fc.bias"}
    assert trained_parameters(model, "last:2") == trained_parameters(model, "all")


def test_parts_to_train_are_joined_and_left_out() -> None:
    b = small()
    x = b.conv2d(b.relu(b.conv2d(b.data, 2, 1, name="one")), 2, 1, name="two")
    model = b.model(b.mse(b.linear(b.flatten(x), 3, name="fc")))
    biases = {"one.bias", "two.bias", "fc.bias"}
    assert trained_parameters(model, "*.bias") == biases
    assert trained_parameters(model, "!*.weight") == biases
    assert trained_parameters(model, "*.bias, last:1") == {*biases, "fc.weight"}
    assert trained_parameters(model, "last:2,one.*,!*.bias,!two.*") == {"one.weight", "fc.weight"}
    for wrong, message in (
        ("one.*,", "with commas between"), ("!", "with commas between"),
        ("last:1,three.*", "matches no parameter"), ("all,!three", "matches no parameter"),
        ("fc.*,!last:1", "leaves out all"), ("last:9,fc.*", "from last:1 to last:3"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=message):
            trained_parameters(model, wrong)


@pytest.mark.parametrize("wrong", [{"learning_rate": -1.0}, {"momentum": float("nan")}])
def test_optimiser_numbers_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Sgd(**{"learning_rate": 0.1, **wrong})


@pytest.mark.parametrize("optimiser", [Sgd(0.1), Sgd(0.1, 0.9), Sgd(0.1, 0.9, nesterov=True)])
def test_the_proximal_term_is_added_to_each_gradient(optimiser: Sgd) -> None:
    b = Builder("prox", data=(2, 3))
    model = b.model(b.mse(b.linear(b.data, 2, name="fc")))
    plain, pulled = (training_graph(model, optimiser, proximal=mu) for mu in (0.0, 0.5))
    rng = np.random.default_rng(0)
    values = {node.name: rng.normal(size=node.shape).astype(np.float32) for node in pulled
              if node.stored}  # fmt: skip
    found, without = run_step(pulled, values, 1), run_step(plain, values, 1)
    for name in ("fc.weight", "fc.bias"):
        pull = np.float32(0.5) * (values[name] - values[f"{name}:anchor"])
        steps = 1.9 if optimiser.nesterov else 1.0
        wanted = without[f"{name}:new"] - 0.1 * steps * pull
        np.testing.assert_allclose(found[f"{name}:new"], wanted, rtol=1e-5)
        assert not any(node.updates == f"{name}:anchor" for node in pulled)
    first = starting_values(pulled, 0, {"fc.bias": np.ones(2, np.float32)})
    assert np.array_equal(first["fc.bias:anchor"], np.ones(2))
    assert np.array_equal(first["fc.weight:anchor"], first["fc.weight"])
    named = to_named(pulled, first, constants=False)
    assert "anchor" not in str(list(named))
    assert all(
        np.array_equal(value, first[name]) for name, value in from_named(pulled, named).items()
    )

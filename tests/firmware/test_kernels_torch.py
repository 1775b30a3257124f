"""Every operator and gradient of the C kernels against PyTorch, the outside judge."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from support.kernel_cases import Case, make
from torch.nn import functional

Attrs = Mapping[str, int | float]


def run(op: str, attrs: Attrs, inputs: Sequence[np.ndarray], like: np.ndarray) -> np.ndarray:
    """A kernel in C, its gradient (if it is one) stored, in the shape of `like`."""
    sink = "store" if op.endswith(("weight", "bias", "param")) else "none"
    return Case(op, attrs, list(inputs), like.shape, sink).c()


def normal(seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def judge(
    function: Callable[..., torch.Tensor], inputs: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """PyTorch's output, a random gradient of it, and the gradients of the inputs."""
    leaves = [torch.tensor(array, requires_grad=True) for array in inputs]
    y = function(*leaves)
    dy = torch.tensor(normal(99, tuple(y.shape))[0]) if y.ndim else torch.tensor(1.0)
    y.backward(dy)
    return y.detach().numpy(), dy.numpy(), [leaf.grad.numpy() for leaf in leaves]


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted.reshape(found.shape), rtol=2e-5, atol=2e-5)


CONVOLUTIONS = [  # n, c, h, w, k, kernel, stride, padding, groups
    (1, 1, 5, 5, 1, (3, 3), (1, 1), (0, 0), 1),
    (2, 3, 8, 8, 4, (3, 3), (1, 1), (1, 1), 1),
    (3, 4, 7, 9, 6, (3, 2), (2, 1), (1, 0), 2),
    (2, 6, 8, 7, 6, (3, 3), (2, 2), (1, 1), 6),  # depthwise
    (1, 3, 6, 6, 9, (5, 5), (3, 2), (2, 2), 3),
    (2, 8, 4, 4, 5, (1, 1), (1, 1), (0, 0), 1),
    (1, 2, 9, 5, 2, (1, 1), (2, 3), (0, 0), 1),
    (1, 2, 3, 3, 2, (2, 2), (1, 1), (3, 3), 1),  # windows that see padding only
    (1, 2, 4, 5, 3, (4, 5), (1, 1), (0, 0), 1),
    (2, 3, 8, 7, 4, (3, 3), (2, 2), ((0, 1), (1, 0)), 1),  # one-sided
    (1, 4, 6, 5, 4, (2, 4), (1, 3), ((0, 1), (1, 2)), 2),
]


def sides(padding: tuple) -> list[int]:
    """What is before and after the width, then the height, as PyTorch pads."""
    pairs = [side if isinstance(side, tuple) else (side, side) for side in padding]
    return [*pairs[1], *pairs[0]]


def window(
    kernel: tuple[int, int], stride: tuple[int, int], padding: tuple, y: np.ndarray
) -> dict[str, int]:
    left, _, top, _ = sides(padding)
    fields = {"oh": y.shape[2], "ow": y.shape[3]}
    for name, pair in (("kernel", kernel), ("stride", stride), ("pad", (top, left))):
        fields |= {f"{name}_h": pair[0], f"{name}_w": pair[1]}
    return fields


@pytest.mark.parametrize("geometry", CONVOLUTIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_conv2d(geometry: tuple, bias: bool) -> None:
    n, c, h, w, k, kernel, stride, padding, groups = geometry
    x, weight, b = normal(1, (n, c, h, w), (k, c // groups, *kernel), (k,))
    inputs = [x, weight, b] if bias else [x, weight]
    y, dy, grads = judge(
        lambda x, *a: functional.conv2d(
            functional.pad(x, sides(padding)), *a, stride=stride, groups=groups
        ),
        inputs,
    )
    attrs = {"n": n, "c": c, "h": h, "w": w, "k": k, "groups": groups}
    attrs |= window(kernel, stride, padding, y)
    close(run("conv2d", attrs, inputs, y), y)
    close(run("conv2d_grad_input", attrs, [dy, weight], x), grads[0])
    close(run("conv2d_grad_weight", attrs, [x, dy], weight), grads[1])
    if bias:
        close(run("grad_bias", attrs, [dy], b), grads[2])


@pytest.mark.parametrize(("n", "c", "k"), [(1, 1, 1), (1, 7, 3), (5, 12, 10), (3, 64, 10)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(n: int, c: int, k: int, bias: bool) -> None:
    x, weight, b = normal(2, (n, c), (k, c), (k,))
    inputs = [x, weight, b] if bias else [x, weight]
    y, dy, grads = judge(functional.linear, inputs)
    attrs = {"n": n, "c": c, "h": 1, "w": 1, "k": k, "oh": 1, "ow": 1}
    close(run("linear", attrs, inputs, y), y)
    close(run("linear_grad_input", attrs, [dy, weight], x), grads[0])
    close(run("linear_grad_weight", attrs, [x, dy], weight), grads[1])
    if bias:
        close(run("grad_bias", attrs, [dy], b), grads[2])


BATCHNORMS = [(1, 1, 2, 2), (2, 3, 4, 5), (8, 4, 1, 1), (3, 2, 7, 3)]


@pytest.mark.parametrize("shape", BATCHNORMS)
def test_batchnorm_in_training(shape: tuple[int, int, int, int]) -> None:
    n, c, h, w = shape
    x, gamma, beta, mean, variance = normal(3, shape, (c,), (c,), (c,), (c,))
    running = np.stack([mean, np.abs(variance) + 0.1])
    layer_mean, layer_variance = (torch.tensor(row) for row in running)
    y, dy, grads = judge(
        lambda x, g, b: functional.batch_norm(x, layer_mean, layer_variance, g, b, True, 0.2, 1e-3),
        [x, gamma, beta],
    )
    attrs = {"n": n, "c": c, "h": h, "w": w, "epsilon": 1e-3}
    stats = run("batchnorm_stats", attrs, [x], running)
    close(stats[1], x.var(axis=(0, 2, 3)))
    close(run("batchnorm", attrs, [x, stats, gamma, beta], y), y)
    renewed = run("batchnorm_running", attrs | {"update_rate": 0.2}, [stats, running], running)
    close(renewed, np.stack([layer_mean.numpy(), layer_variance.numpy()]))
    sums = run("batchnorm_sums", attrs, [x, stats, dy], running)
    close(run("batchnorm_grad_input", attrs, [x, stats, gamma, dy, sums], x), grads[0])
    close(run("batchnorm_grad_param", attrs | {"variant": 1}, [sums], gamma), grads[1])
    close(run("batchnorm_grad_param", attrs | {"variant": 0}, [sums], beta), grads[2])


@pytest.mark.parametrize("shape", [*BATCHNORMS, (1, 3, 1, 1)])
def test_batchnorm_frozen(shape: tuple[int, int, int, int]) -> None:
    n, c, h, w = shape
    x, gamma, beta, mean, variance = normal(4, shape, (c,), (c,), (c,), (c,))
    running = np.stack([mean, np.abs(variance) + 0.1])
    y, dy, grads = judge(
        lambda x, g, b: functional.batch_norm(
            x, *map(torch.tensor, running), g, b, False, 0.1, 1e-5
        ),
        [x, gamma, beta],
    )
    attrs = {"n": n, "c": c, "h": h, "w": w, "epsilon": 1e-5}
    close(run("batchnorm", attrs, [x, running, gamma, beta], y), y)
    close(run("batchnorm_grad_input_frozen", attrs, [running, gamma, dy], x), grads[0])
    sums = run("batchnorm_sums", attrs, [x, running, dy], running)
    close(run("batchnorm_grad_param", attrs | {"variant": 1}, [sums], gamma), grads[1])
    close(run("batchnorm_grad_param", attrs | {"variant": 0}, [sums], beta), grads[2])


def test_running_statistics_over_several_steps() -> None:
    layer = torch.nn.BatchNorm2d(3, momentum=0.3)
    running = np.array([[0, 0, 0], [1, 1, 1]], np.float32)
    attrs = {"n": 4, "c": 3, "h": 5, "w": 2, "update_rate": 0.3}
    for seed in range(5):
        x = normal(seed, (4, 3, 5, 2))[0] * 2 + 1
        layer(torch.tensor(x))
        stats = run("batchnorm_stats", attrs, [x], running)
        running = run("batchnorm_running", attrs, [stats, running], running)
    close(running, np.stack([layer.running_mean.numpy(), layer.running_var.numpy()]))


@pytest.mark.parametrize("op", ["relu", "relu6"])
def test_activation(op: str) -> None:
    x = normal(5, (2, 3, 4, 5))[0] * 5
    x.reshape(-1)[:4] = [0, 6, -0.0, 6.0001]
    y, dy, grads = judge(getattr(functional, op), [x])
    attrs = {"n": 2, "c": 3, "h": 4, "w": 5}
    mine = run(op, attrs, [x], y)
    assert np.array_equal(mine, y)
    assert np.array_equal(run(f"{op}_grad", attrs, [mine, dy], x), grads[0])


POOLS = [  # h, w, kernel, stride, padding
    (4, 4, (2, 2), (2, 2), (0, 0)),
    (7, 5, (3, 2), (2, 1), (1, 1)),  # windows overlap
    (8, 9, (3, 3), (1, 1), (1, 1)),
    (7, 7, (2, 2), (3, 3), (0, 0)),  # pixels that no window sees
    (5, 6, (5, 6), (1, 1), (0, 0)),
    (3, 3, (4, 4), (2, 2), (2, 2)),
    (8, 7, (3, 3), (2, 2), ((0, 1), (1, 2))),  # one-sided
    (5, 6, (2, 3), (1, 2), ((1, 0), (0, 2))),
]


@pytest.mark.parametrize("geometry", POOLS)
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pool(geometry: tuple, kind: str) -> None:
    h, w, kernel, stride, padding = geometry
    x = np.round(normal(6, (2, 3, h, w))[0] * 2)  # many ties
    pool = {"max": functional.max_pool2d, "avg": functional.avg_pool2d}[kind]
    filling = -np.inf if kind == "max" else 0
    y, dy, grads = judge(
        lambda x: pool(functional.pad(x, sides(padding), value=filling), kernel, stride), [x]
    )
    attrs = {"n": 2, "c": 3, "h": h, "w": w} | window(kernel, stride, padding, y)
    close(run(f"{kind}pool2d", attrs, [x], y), y)
    inputs = [x, dy] if kind == "max" else [dy]
    close(run(f"{kind}pool2d_grad", attrs, inputs, x), grads[0])


def test_global_average_pool() -> None:
    (x,) = normal(7, (2, 3, 5, 4))
    y, dy, grads = judge(lambda x: functional.adaptive_avg_pool2d(x, 1).flatten(1), [x])
    attrs = {"n": 2, "c": 3, "h": 5, "w": 4}
    close(run("global_avgpool", attrs, [x], y), y)
    close(run("global_avgpool_grad", attrs, [dy], x), grads[0])


def test_add() -> None:
    a, b = normal(8, (2, 3, 4, 5), (2, 3, 4, 5))
    assert np.array_equal(run("add", {"n": 2, "c": 3, "h": 4, "w": 5}, [a, b], a), a + b)


@pytest.mark.parametrize("scale", [1.0, 50.0])
@pytest.mark.parametrize(("n", "c"), [(1, 2), (1, 10), (6, 10), (3, 1)])
def test_softmax_cross_entropy(n: int, c: int, scale: float) -> None:
    x = normal(9, (n, c))[0] * np.float32(scale)
    labels = np.random.default_rng(9).integers(0, c, n, dtype=np.int32)
    y, _, grads = judge(lambda x: functional.cross_entropy(x, torch.tensor(labels).long()), [x])
    attrs = {"n": n, "c": c}
    close(run("softmax_xent", attrs, [x, labels], y.reshape(1)), y)
    close(run("softmax_xent_grad", attrs, [x, labels], x), grads[0])


def test_mean_squared_error() -> None:
    x, target = normal(10, (3, 7), (3, 7))
    y, _, grads = judge(lambda x: functional.mse_loss(x, torch.tensor(target)), [x])
    attrs = {"n": 3, "c": 7, "h": 1, "w": 1}
    close(run("mse", attrs, [x, target], y.reshape(1)), y)
    close(run("mse_grad", attrs, [x, target], x), grads[0])


@pytest.mark.parametrize(
    ("shape", "probability", "step"), [((4, 30, 1, 1), 0.4, 0), ((2, 3, 50, 50), 0.3, 11)]
)
def test_dropout_gradient(shape: tuple[int, ...], probability: float, step: int) -> None:
    """The gradient is linear in the mask and scale that the forward pass drew."""
    (x,) = normal(11, shape)
    attrs = dict(zip("nchw", shape, strict=True)) | {"probability": probability, "seed": 3}

    def dropout(values: np.ndarray) -> np.ndarray:
        return Case("dropout", attrs | {"key": 8}, [values], shape, step=step).c()

    y = dropout(x)
    assert 0 < np.mean(y == 0) < 1
    factor = torch.tensor(np.where(y != 0, np.float32(1 / (1 - probability)), np.float32(0)))
    wanted, dy, grads = judge(lambda x: x * factor, [x])
    close(y, wanted)
    close(dropout(dy), grads[0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("kernel", ["conv2d_grad_weight", "apply_gradient"])
def test_sgd(momentum: float, decay: float, kernel: str) -> None:
    """Five updates, fused into the gradient's kernel or not, against torch.optim.SGD."""
    attrs: dict[str, int | float] = {"n": 2, "c": 4, "h": 6, "w": 6}
    attrs |= {
        "k": 4,
        "oh": 3,
        "ow": 3,
        "groups": 2,
        "kernel_h": 3,
        "kernel_w": 3,
        "stride_h": 2,
        "stride_w": 2,
        "pad_h": 1,
        "pad_w": 1,
    }
    (w,) = normal(12, (4, 2, 3, 3))
    if kernel == "apply_gradient":
        attrs = {"n": w.size, "c": 1, "h": 1, "w": 1}
    attrs |= {"learning_rate": 0.1, "momentum": momentum, "weight_decay": decay}
    v = np.zeros_like(w)
    theirs = torch.nn.Parameter(torch.tensor(w))
    optimiser = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, weight_decay=decay)
    for seed in range(5):
        if kernel == "apply_gradient":
            inputs = normal(seed, w.shape)
            gradient = inputs[0]
        else:
            inputs = make(kernel, attrs, seed).inputs
            gradient = run(kernel, attrs, inputs, w)
        theirs.grad = torch.tensor(gradient)
        optimiser.step()
        own = len(inputs)
        if momentum:
            extra = [v, w] if decay else [v]
            v = Case(kernel, attrs, [*inputs, *extra], w.shape, "momentum", own).c()
            flat = {"n": w.size, "c": 1, "h": 1, "w": 1, "learning_rate": 0.1}
            w = Case("momentum_step", flat, [w, v], w.shape, overwrites=0).c()
        else:
            w = Case(kernel, attrs, [*inputs, w], w.shape, "sgd", own).c()
        close(w, theirs.detach().numpy())


def test_accumulated_gradients_are_their_sum() -> None:
    (weight,) = normal(13, (5, 6))
    xs = normal(14, (3, 6), (3, 6))
    dys = normal(15, (3, 5), (3, 5))
    leaf = torch.tensor(weight, requires_grad=True)
    for x, dy in zip(xs, dys, strict=True):
        functional.linear(torch.tensor(x), leaf).backward(torch.tensor(dy))
    attrs = {"n": 3, "c": 6, "h": 1, "w": 1, "k": 5}
    total = run("linear_grad_weight", attrs, [xs[0], dys[0]], weight)
    inputs = [xs[1], dys[1], total]
    total = Case("linear_grad_weight", attrs, inputs, weight.shape, "accumulate", 2).c()
    close(total, leaf.grad.numpy())

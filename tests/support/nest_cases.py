"""Calls of kernels with cuts of their tensors, and a nest that renews a weight in six pieces."""

from dataclasses import replace

from poet_host.graph.cuts import Cut
from poet_host.plan.nests import Loop, Nest, Ring
from support.kernel_cases import make

CONV = {"n": 2, "c": 6, "h": 5, "w": 5, "k": 8, "oh": 5, "ow": 5, "groups": 1}
CONV |= {"kernel_h": 3, "kernel_w": 3, "stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1}
FORWARD = make("conv2d", CONV, 1, bias=False)
UPDATE = make("conv2d_grad_weight", CONV, 1, sink="sgd")
BIAS = make("grad_bias", CONV, 1, sink="store")
RELU = replace(make("relu", CONV, 1), overwrites=0)
X, Y = Cut(100, (1, 2, 6), (1, 1, 2)), Cut(100, (1, 2, 8), (1, 1, 4))
W = Cut(36, (1, 8, 6), (1, 4, 2))
N, K, C = Loop("n", 1), Loop("k", 4), Loop("c", 2)
RENEW = Nest((K, C, N), (Ring(2, 3), Ring(1, 3), Ring(2, 2), Ring(2, 2)))

"""All kernels of isa.def in NumPy. `KERNELS` maps their names to functions.

A kernel takes an `Op` and its inputs, which have the shapes of isa.def. Each sum adds its terms in
the order that firmware/include/poet/kernel.h defines. So one vector operation adds one term to all
elements of the output. If a kernel computes a parameter's gradient, it returns the gradient;
`step.run_kernel` applies the sink.
"""

# Importing these files registers their kernels in `KERNELS`.
from . import dense, elementwise, loss, norm, recurrent, windows  # noqa: F401
from .op import KERNELS as KERNELS, Op as Op

"""All kernels of isa.def in NumPy, by name in `KERNELS`.

A kernel takes an `Op` and its inputs in the shapes of their letters in isa.def. Each sum
adds its terms in the order that firmware/include/poet/kernel.h defines: one vector
operation per term, over all elements of the output at once. A kernel of a parameter's
gradient returns the gradient; `step.run_kernel` applies the sink.
"""

# Importing a file enters its kernels.
from . import dense, elementwise, loss, norm, windows  # noqa: F401
from .op import KERNELS as KERNELS, Op as Op

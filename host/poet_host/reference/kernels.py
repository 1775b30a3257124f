"""All kernels of isa.def in NumPy, by name in `KERNELS`.

A kernel takes an `Op` and its inputs in the shapes of their letters in isa.def. Each sum
adds its terms in the order that firmware/include/poet/kernel.h defines: one vector
operation per term, over all elements of the output at once. A kernel of a parameter's
gradient returns the gradient; `step.run_kernel` applies the sink.
"""

from . import dense as _dense  # noqa: F401 (importing a file enters its kernels)
from . import elementwise as _elementwise  # noqa: F401
from . import loss as _loss  # noqa: F401
from . import norm as _norm  # noqa: F401
from . import windows as _windows  # noqa: F401
from .op import KERNELS as KERNELS
from .op import Op as Op

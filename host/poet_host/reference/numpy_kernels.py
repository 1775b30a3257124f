"""Every kernel of isa.def in NumPy, under its name in `KERNELS`.

Sums run over their terms in the order that firmware/include/poet/kernel.h defines, one
vector operation a term, over all elements of the output at once. Shapes and formulas are
documented there too. A kernel of a parameter's gradient returns the complete gradient; the
sink is the caller's.
"""

from . import numpy_dense as _dense  # noqa: F401 (each enters its kernels into the table)
from . import numpy_elementwise as _elementwise  # noqa: F401
from . import numpy_loss as _loss  # noqa: F401
from . import numpy_norm as _norm  # noqa: F401
from . import numpy_windows as _windows  # noqa: F401
from .numpy_op import KERNELS as KERNELS
from .numpy_op import Op as Op

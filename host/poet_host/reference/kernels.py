"""Every kernel of isa.def in NumPy, under its name in `KERNELS`.

Sums run over their terms in the order that firmware/include/poet/kernel.h defines, one
vector operation a term, over all elements of the output at once. Shapes and formulas are
documented there too. A kernel of a parameter's gradient returns the complete gradient; the
sink is the caller's.
"""

from . import dense as _dense  # noqa: F401 (each enters its kernels into the table)
from . import elementwise as _elementwise  # noqa: F401
from . import loss as _loss  # noqa: F401
from . import norm as _norm  # noqa: F401
from . import windows as _windows  # noqa: F401
from .op import KERNELS as KERNELS
from .op import Op as Op

"""Train neural networks on microcontrollers within a RAM budget, without approximations.

`import poet_host as poet` provides the names of poet_host.api. They are loaded on first use, so
that the import of one module, such as poet_host.isa, needs neither the solver nor pyserial. The
functions check their arguments: a wrong type raises BadInput.
"""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from inspect import isfunction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import *  # noqa: F403

    __version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("poet-host")
    # A module is not part of the API: its import must not import the API.
    if not name.startswith("__") and find_spec(f".{name}", __name__) is None:
        api = import_module(".api", __name__)
        if name in api.__all__:
            value = getattr(api, name)
            checked = import_module(".api.inputs", __name__).checked
            return checked(value, name) if isfunction(value) else value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*import_module(".api", __name__).__all__, "__version__"])

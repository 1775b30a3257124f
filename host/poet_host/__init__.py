"""Train neural networks on microcontrollers within a RAM budget, without approximations.

`import poet_host as poet` provides the names of poet_host.api. They are loaded on first use, so
that the import of one module, such as poet_host.isa, needs neither the solver nor pyserial. The
functions check their arguments: a wrong type raises BadInput.
"""

from importlib import import_module
from importlib.metadata import version
from inspect import isfunction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import *  # noqa: F403

    __version__: str

# The names in api.__all__. An import of api here would be a circular import.
_VERBS = frozenset(
    {
        "MODELS", "BadInput", "BoardError", "Card", "CardReport", "Connection", "CostGraph",
        "Damaged", "Dataset", "Diverged", "Evaluation", "Graph", "Infeasible", "JobState",
        "LinkBroken", "NoDevice", "OutOfTime", "Package", "Plan", "PoetError", "PoetWarning",
        "Prediction", "Problem", "Profile", "Run", "Schedule", "accuracy", "begin_training",
        "board_names", "build", "check_board", "check_card", "check_computer", "compare_methods",
        "connect", "costs_of", "draw", "encode", "estimate_profile", "evaluate", "export",
        "export_card", "flash", "keep_everything", "load", "load_board", "load_data",
        "load_package", "load_samples", "load_weights", "open_card", "ports", "predict",
        "prepare_storage", "problem", "read_card", "read_learner", "replay", "save_samples",
        "save_weights", "solve", "start_board", "step_of_weights", "summary", "train", "verify",
        "weights_sha256", "write_card", "write_learner", "write_package",
    }
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("poet-host")
    if name not in _VERBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(".api", __name__), name)
    checked = import_module(".api.inputs", __name__).checked
    return checked(value) if isfunction(value) else value


def __dir__() -> list[str]:
    return sorted(_VERBS | {"__version__"})

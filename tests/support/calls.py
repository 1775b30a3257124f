"""Counting the calls of a function of the package."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest


def count_calls(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> list[Any]:
    """The results of all calls of `function` from now on, whichever module imported it."""
    results: list[Any] = []

    @wraps(function)
    def counted(*arguments: Any, **options: Any) -> Any:
        results.append(function(*arguments, **options))
        return results[-1]

    for name, module in list(sys.modules.items()):
        if name.startswith("poet_host") and vars(module).get(function.__name__) is function:
            monkeypatch.setattr(module, function.__name__, counted)
    return results

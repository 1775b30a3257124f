"""The fit of estimates, and profiles of other models."""

from dataclasses import replace

import poet_host as poet
import pytest
from poet_host.device.board import StatementCosts
from poet_host.profile.profile import Measured

from bench.predict import CALIBRATING, CASES, FITTED, MODELS, fitted, of_others


def test_factors_are_what_the_rates_do_not_explain() -> None:
    """Two kernels of the same work, of which one takes three times as long."""
    operators = {
        f"{kernel} none inputs=1 n={n}": Measured(factor * n, 0, 100 * n, 80 * n, 1)
        for kernel, factor in (("relu", 1.0), ("dropout", 3.0))
        for n in (10, 100, 1000)
    }
    rates, factors = fitted(operators, 0.0, {})
    assert rates.us_per_loop == 0.0
    assert factors["dropout"] / factors["relu"] == pytest.approx(3.0)
    for name, it in operators.items():
        kernel = name.split()[0]
        assert factors[kernel] * rates.time_us(it.work) == pytest.approx(it.time_us, rel=0.01)
    # Where loops take longer, the factor is smaller.
    assert fitted(operators, 0.0, {"dropout": 1.0})[1]["dropout"] < factors["dropout"]


def test_a_profile_of_others_has_nothing_of_the_model() -> None:
    base = replace(poet.estimate_profile("mkr1000"), kind="measured")
    plain = {
        name: replace(base, operators={f"relu none n={i}": Measured(1.0, 0, 0, i)})
        for i, name in enumerate("abc", 1)
    }
    better = {
        name: replace(it, statements=StatementCosts(compute_us=10.0**i))
        for i, (name, it) in enumerate(plain.items(), 1)
    }
    found = of_others(plain, better, "b")
    assert set(found.operators) == {"relu none n=1", "relu none n=3"}
    assert found.statements.compute_us == (10.0 + 1000.0) / 2


def test_models_are_held_out() -> None:
    assert set(CALIBRATING) < set(FITTED)
    assert {model for _, model, *_ in CASES} == set(MODELS)
    assert set(MODELS) - set(FITTED)

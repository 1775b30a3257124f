"""`make bench-predict`: how well time and energy of a step are predicted on the simulated boards.

Each case is planned twice, runs, and is compared with the prediction of its plan: once by the
estimates of board.toml, once by a profile of the other MODELS, with the mean of their calibrations.
Prints a table and writes RESULTS-predict.md. Times and energies are simulated.

`--fit` prints, instead, what board.toml is made of: the rates and factors that fit the operators of
FITTED best, the costs of transfers, and what each of their schedules shows of statements and
writes. Other models are held out: no figure of theirs is in board.toml.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from statistics import median

import numpy as np
import poet_host as poet
from poet_host import api
from poet_host.data.fitted import example, fit
from poet_host.device.board import Rates
from poet_host.files import write_whole
from poet_host.plan.pricing import cost_graph
from poet_host.profile import fit as regression
from poet_host.profile.fit import family
from poet_host.profile.profile import Measured
from poet_host.run.calibrate import Validation, averaged, observe, validation
from poet_host.run.train import Training

from .report import about, filled, percent, table

RESULTS = Path(__file__).with_name("RESULTS-predict.md")
BOARDS = ("mkr1000", "nrf52840_dk")
FITTED = ("resnet-digits", "dscnn-speech", "resnet18-cifar")
CALIBRATING = FITTED[:2]  # those whose schedules run, since a step of resnet18-cifar takes minutes
MODELS = ("resnet-digits", "resnet8-cifar", "dscnn-speech", "autoencoder-toyadmos")
KIB = 1024
CASES = (  # the last number is N, the interval of commits
    ("mkr1000", "resnet-digits", 24 * KIB, 1),
    ("mkr1000", "resnet-digits", 16 * KIB, 1),
    ("mkr1000", "resnet8-cifar", 24 * KIB, 1),
    ("mkr1000", "dscnn-speech", 24 * KIB, 1),
    ("mkr1000", "autoencoder-toyadmos", 24 * KIB, 1),
    ("nrf52840_dk", "resnet-digits", 220 * KIB, 1),
    ("nrf52840_dk", "resnet-digits", 220 * KIB, 10),
    ("nrf52840_dk", "resnet-digits", 24 * KIB, 1),
    ("nrf52840_dk", "resnet8-cifar", 220 * KIB, 1),
    ("nrf52840_dk", "resnet8-cifar", 24 * KIB, 1),
    ("nrf52840_dk", "dscnn-speech", 220 * KIB, 1),
    ("nrf52840_dk", "dscnn-speech", 24 * KIB, 1),
    ("nrf52840_dk", "autoencoder-toyadmos", 220 * KIB, 1),
)
# Chosen, not fitted: more makes streamed steps too long, less makes small convolutions too short.
LOOP_US = {"mkr1000": 0.2, "nrf52840_dk": 0.1}
SOLVE_WORK, GAP = 10_000, 0.05
WEIGHT_POWER = 0.25  # of an operator's time: between the relative (0) and the absolute error (1)


@contextmanager
def board(name: str) -> Iterator[poet.Connection]:
    with poet.connect(f"sim:{name}") as connection:
        yield connection


def profiled(name: str, model: str) -> poet.Profile:
    with board(name) as connection:
        return connection.profile(api.load_graph(model))


def calibration(name: str, model: str, profile: poet.Profile) -> poet.Profile:
    with board(name) as connection:
        return connection.validate(api.load_graph(model), profile)[0]


def of_others(
    plain: Mapping[str, poet.Profile], better: Mapping[str, poet.Profile], model: str
) -> poet.Profile:
    """Return a profile that was made on all other models: their operators and calibrations."""
    merged = reduce(poet.Profile.merged, (it for name, it in plain.items() if name != model))
    mean = averaged([it for name, it in better.items() if name != model])
    return replace(mean, operators=merged.operators)


def judged(name: str, model: str, ram_bytes: int, every: int, profile: poet.Profile) -> Validation:
    """Plan a step with a profile, run it, and compare."""
    graph = api.load_graph(model)
    wanted = poet.problem(graph, profile, ram=ram_bytes, commit_every=every)
    plan = poet.solve(wanted, work_limit=SOLVE_WORK, gap=GAP)
    schedule = poet.encode(graph, plan)
    costs = plan.problem.graph if plan.problem else cost_graph(graph, profile)
    with board(name) as connection:
        data = fit(poet.Dataset("example", *example(graph)), schedule.graph)
        observed = observe(Training(connection.device, schedule, data))
    return validation(graph, profile, costs, plan, observed)


def report(rows: Sequence[tuple[str, int, Validation, Validation]]) -> str:
    head = ["model on board", "RAM bytes", "N", "step ms", "time %", "energy %", "time %, profile",
            "energy %, profile"]  # fmt: skip
    errors = [
        [case, f"{one.ram_bytes:,}", str(every), f"{one.time_us / 1e3:,.1f}",
         *(percent(error, 1) for it in (one, other) for error in (it.time_error, it.energy_error))]
        for case, every, one, other in rows
    ]  # fmt: skip
    return filled(
        "predict",
        about=about("highspy", "numpy"),
        fitted=", ".join(FITTED),
        errors=table(head, errors),
    )


def fitted(
    operators: Mapping[str, Measured], loop_us: float, loops: Mapping[str, float]
) -> tuple[Rates, dict[str, float]]:
    """Return the rates that fit all operators best, except `loop_us`, and factors by family.

    `loops`: what `loop_us` is for some families instead.
    """
    kinds = [family(name) for name in operators]
    shares = np.array([kinds.count(kind) for kind in kinds]) ** -0.5
    times_us = np.array([it.time_us for it in operators.values()])
    rates = regression.fit_rates(
        [(it.work, it.time_us) for it in operators.values()],
        tuple(shares * times_us**WEIGHT_POWER),
    )
    rates = replace(rates, us_per_loop=loop_us)
    factors = {}
    for kind in sorted(set(kinds)):
        mine = [it for one, it in zip(kinds, operators.values(), strict=True) if one == kind]
        own = replace(rates, us_per_loop=loops.get(kind, loop_us))
        logs = np.log([it.time_us / own.time_us(it.work) for it in mine])
        factors[kind] = float(np.exp(np.average(logs, weights=[it.time_us**0.5 for it in mine])))
    return rates, factors


def print_fit(name: str) -> None:
    plain = {model: profiled(name, model) for model in FITTED}
    merged = reduce(poet.Profile.merged, plain.values())
    rates, factors = fitted(merged.operators, LOOP_US[name], poet.load_board(name).estimate.loops)
    print(f"{name}\n{rates}\npage in {merged.page_in}\npage out {merged.page_out}")
    print("\n".join(f"{kind} = {factor:.2f}" for kind, factor in factors.items()))
    for model in CALIBRATING:
        found = calibration(name, model, plain[model])
        print(f"{model}: {found.statements}")
        print(f"turns {found.page_turn_us:.0f} and {found.renewed_turn_us:.0f} us, "
              f"commit {plain[model].commit_us:.0f} us")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.predict", description=__doc__)
    parser.add_argument("--fit", action="store_true", help="print the figures of board.toml")
    if parser.parse_args().fit:
        for name in BOARDS:
            print_fit(name)
        return
    plain = {name: {model: profiled(name, model) for model in MODELS} for name in BOARDS}
    better = {
        name: {model: calibration(name, model, it) for model, it in known.items()}
        for name, known in plain.items()
    }
    rows = []
    for name, model, ram_bytes, every in CASES:
        both = (poet.estimate_profile(name), of_others(plain[name], better[name], model))
        one, other = (judged(name, model, ram_bytes, every, profile) for profile in both)
        rows.append((f"{model} on {name}", every, one, other))
        print(f"{model} on {name} in {ram_bytes:,}: {one.time_error:+.1%} {one.energy_error:+.1%}, "
              f"{other.time_error:+.1%} {other.energy_error:+.1%}", flush=True)  # fmt: skip
    text = report(rows)
    print(text)
    middle = median(abs(other.time_error) for *_, other in rows)
    print(f"half of the times are predicted within {middle:.1%} by profiles of other models")
    write_whole(RESULTS, text)


if __name__ == "__main__":
    main()

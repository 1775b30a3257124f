"""The command `demo`: runs examples/demo.py, then prints a table."""

import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import click

from .. import api
from ..resources import resource
from ..view.listing import counted
from .console import Answer, progress, say, show_table, show_text
from .declared import option, takes

PORTS = ("sim:mkr1000", "sim:nrf52840_dk", "native")


@click.command()
@takes
def demo(
    port: str = option(type=click.Choice(PORTS), default=PORTS[0]),
    out: Path = option(type=click.Path(file_okay=False, path_type=Path), default=Path("poet-demo")),
) -> Answer:
    """Train a small network in 24 KiB of RAM on a simulated board.

    Shows the whole workflow, from a model to trained weights. Compares the trained weights with
    the result of training in unlimited memory. Takes about two minutes.

    --port  Board to train on: `sim:BOARD` (a simulated chip) or `native` (a process on this
        computer).
    --out DIR  Write the profile, plan, schedule, measurements and weights to this folder.
    """
    started_s = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    example = load_example()
    made = example.run(out, port, example.Steps(progress, say))
    found = facts(made)
    more = {"seconds": time.monotonic() - started_s, "folder": str(out)}
    return Answer({**found, **more}, lambda: _show(made, found, out))


def _show(made: Any, found: dict[str, Any], out: Path) -> None:
    show_table(("", ">24 KiB", ">keeping everything"), _rows(made, found))
    if not found["keep_all_measured"]:
        show_text(
            f"The costs of keeping everything on {made.run.board} are predicted from its profile. "
            "The weights come from a native board."
        )
    show_text(
        "The trained weights are bit for bit those of unlimited memory: sha256 "
        f"{found['weights_sha256'][:16]}..., {len(made.graph.trainable)} tensors, all of them "
        f"changed by training.\nAll files are in {out}. To list the schedule: poet-host show "
        f"{out}/{made.graph.name}.poet"
    )


def load_example() -> Any:
    """Return the module examples/demo.py, which lies outside of the package in a checkout."""
    spec = spec_from_file_location("demo", resource("examples") / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def facts(made: Any) -> dict[str, Any]:
    """Return the JSON object that --json prints. Costs of a step include its commit."""
    run, counts = made.run, made.run.counts()
    sha256, kept_sha256 = (_sha256(made.graph, each) for each in (run, made.keep))
    measured = run.board == made.keep.board
    time_us, energy_uj, total_uj = (
        (made.keep.time_us, made.keep.energy_uj, made.keep.total_energy_uj)
        if measured
        else _predicted(made.keep_schedule)
    )
    return {
        "model": made.graph.name,
        "board": run.board,
        "batch": made.graph.batch,
        "samples": run.last_step * made.graph.batch,
        "training_macs_per_sample": api.summary(made.graph).training_macs,
        "ram_bytes": made.plan.ram_bytes,
        "peak_bytes": run.peak_bytes,
        "keep_all_bytes": made.keep_schedule.meta["plan"]["peak_bytes"],
        "steps": run.last_step,
        "loss_first": run.loss("first"),
        "loss_last": run.loss("last"),
        "accuracy_before": made.accuracy_before,
        "accuracy_after": made.accuracy_after,
        "energy_uj_per_step": run.energy_uj,
        "keep_all_energy_uj_per_step": energy_uj,
        "total_energy_uj_per_step": run.total_energy_uj,
        "keep_all_total_energy_uj_per_step": total_uj,
        "time_us_per_step": run.time_us,
        "keep_all_time_us_per_step": time_us,
        "keep_all_measured": measured,
        "schedule_bytes": len(made.schedule.plan_part),
        "model_table_bytes": len(made.schedule.model_part),
        "status": made.plan.status,
        "gap": made.plan.gap,
        "solve_s": made.plan.solve_s,
        "activations_recomputed": counts["activation_recomputes"],
        "activations_paged_out": counts["activation_page_outs"],
        "activations_paged_in": counts["activation_page_ins"],
        "weights_sha256": sha256,
        "keep_all_weights_sha256": kept_sha256,
        "bit_identical": sha256 == kept_sha256,
    }


def _sha256(graph: api.Graph, run: api.Run) -> str:
    return api.weights_sha256({node.name: run.weights[node.name] for node in graph.trainable})


def _predicted(schedule: api.Schedule) -> tuple[float, float, float]:
    """Return time, energy above the sleeping board, and energy of a step with its commit."""
    plan, commit = schedule.meta["plan"], schedule.meta["commit"]
    sleeping_uj = schedule.meta["costs"].get("base_power_uw", 0.0) * commit["time_us"] / 1e6
    return (
        plan["time_us"] + commit["time_us"],
        plan["energy_uj"] + commit["energy_uj"],
        plan["total_energy_uj"] + commit["energy_uj"] + sleeping_uj,
    )


def _rows(made: Any, found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return rows of the final table: name, value within 24 KiB, value in unlimited memory."""

    def row(name: str, key: str, scale: float, unit: str, digits: int) -> tuple[str, str, str]:
        ours, kept = found[key], found[f"keep_all_{key}"]
        ratio = f"{ours / kept:.2f}x" if ours and kept else "?"
        text = f"{ours / scale:,.{digits}f} {unit} ({ratio})"
        return name, text, f"{kept / scale:,.{digits}f} {unit}"

    mean = f"mean of {counted(found['steps'], 'step')}"
    return [
        ("RAM budget", f"{found['ram_bytes']:,} bytes", "unlimited"),
        ("arena's high-water mark", f"{found['peak_bytes']:,} bytes",
         f"{made.keep.peak_bytes:,} bytes"),
        row("energy above the sleeping board, estimated", "energy_uj_per_step", 1, "uJ", 0),
        row(f"time of a step, {mean}", "time_us_per_step", 1e3, "ms", 2),
        ("bytes of the schedule", str(found["schedule_bytes"]), ""),
        (
            "activations of a step recomputed, paged out, in",
            f"{found['activations_recomputed']}, {found['activations_paged_out']}, "
            f"{found['activations_paged_in']}",
            "0, 0, 0",
        ),
        ("accuracy on held-out digits, before", f"{found['accuracy_before']:.1%}", "the same"),
        ("accuracy on held-out digits, after", f"{found['accuracy_after']:.1%}", "the same"),
    ]  # fmt: skip

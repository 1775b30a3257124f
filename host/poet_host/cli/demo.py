"""The command `demo`: runs the steps of demo_steps.py, then prints a table."""

import time
from pathlib import Path
from typing import Any

import click

from .console import counted, emit, show_table, show_text
from .declared import option, takes
from .demo_steps import PORTS, Demo, run_demo
from .options import JSON


@click.command()
@takes
def demo(
    port: str = option(
        type=click.Choice(PORTS), default=PORTS[0], show_default=True,
        help="Board to train on: `sim:BOARD` (a simulated chip) or `native` (a process on this "
        "computer).",
    ),
    out: Path = option(
        type=click.Path(file_okay=False, path_type=Path), default=Path("poet-demo"),
        show_default=True, metavar="DIR",
        help="Write the profile, plan, schedule, measurements and weights to this folder.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Train a small network in 24 KiB of RAM on a simulated board.

    Shows the whole workflow, from a model to trained weights. Compares the trained weights with
    the result of training in unlimited memory. Takes about two minutes.
    """
    started_s = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    found = run_demo(out, port)
    if as_json:
        emit({**found.to_json(), "seconds": time.monotonic() - started_s, "folder": str(out)})
        return
    show_table(("", ">24 KiB", ">keeping everything"), _facts(found))
    trained = found.to_json()["weights_sha256"]
    if not found.keep_cost.measured:
        show_text(
            f"The costs of keeping everything on {found.run.board} are predicted from its profile. "
            "The weights come from a native board."
        )
    show_text(
        f"The trained weights are bit for bit those of unlimited memory: sha256 {trained[:16]}..., "
        f"{len(found.graph.trainable)} tensors, all of them changed by training.\n"
        f"All files are in {out}. To list the schedule: "
        f"poet-host show {out}/{found.graph.name}.poet"
    )


def _ratio(ours: float | None, kept: float | None) -> str:
    return f"{ours / kept:.2f}x" if ours and kept else "?"


def _facts(demo: Demo) -> list[tuple[str, str, str]]:
    """Return rows of the final table: name, value within 24 KiB, value in unlimited memory."""
    found: dict[str, Any] = demo.to_json()

    def row(name: str, key: str, scale: float, unit: str, digits: int) -> tuple[str, str, str]:
        ours, kept = found[key], found[f"keep_all_{key}"]
        text = f"{ours / scale:,.{digits}f} {unit} ({_ratio(ours, kept)})"
        return name, text, f"{kept / scale:,.{digits}f} {unit}"

    mean = f"mean of {counted(len(demo.run.steps), 'step')}"
    kept_bytes = f"{demo.keep.peak_bytes:,} bytes"
    return [
        ("RAM budget", f"{demo.plan.ram_bytes:,} bytes", "unlimited"),
        ("arena's high-water mark", f"{demo.run.peak_bytes:,} bytes", kept_bytes),
        row("energy above the sleeping board, estimated", "energy_uj_per_step", 1, "uJ", 0),
        row(f"time of a step, {mean}", "time_us_per_step", 1e3, "ms", 2),
        ("bytes of the schedule", str(found["schedule_bytes"]), ""),
        (
            "activations of a step recomputed, paged out, in",
            f"{found['activations_recomputed']}, {found['activations_paged_out']}, "
            f"{found['activations_paged_in']}",
            "0, 0, 0",
        ),
        ("accuracy on held-out digits, before", f"{demo.accuracy_before:.1%}", "the same"),
        ("accuracy on held-out digits, after", f"{demo.accuracy_after:.1%}", "the same"),
    ]  # fmt: skip

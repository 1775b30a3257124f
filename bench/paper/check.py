"""Check the plans of a folder with a table.csv: `python -m bench.paper.check schedules/paper`.

It verifies each plan of the folder on its graph, and compares the costs with those of its row.
"""

import csv
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from poet_host.errors import PoetError
from poet_host.files import read_json
from poet_host.plan.costgraph import load_cost_graph
from poet_host.plan.plan import plan_from_json
from poet_host.plan.problem import Problem
from poet_host.plan.verify import PlanError, verify


def check(folder: Path) -> int:
    """Return how many plans were verified. Raises PlanError or BadInput at the first wrong one."""
    with (folder / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["plan"]]
    there = [row for row in rows if (folder / row["plan"]).is_file()]
    for row in there:
        deadline_us = float(row["deadline_us"]) if row["deadline_us"] else None
        costs = load_cost_graph(folder / row["graph"])
        plan = plan_from_json(read_json(folder / row["plan"]), row["plan"])
        # Without the plan's own claims: the verifier's numbers are compared with the table.
        bare = replace(plan, energy_uj=None, time_us=None, peak_bytes=None, total_energy_uj=None)
        totals = verify(Problem(costs, int(row["ram_bytes"]), deadline_us), bare)
        found = (totals.energy_uj, totals.time_us, float(totals.peak_bytes))
        listed = tuple(float(row[key]) for key in ("energy_uj", "time_us", "peak_bytes"))
        if found != listed:
            raise PlanError("table", f"{row['plan']} takes {found}, its row says {listed}")
    return len(there)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        number = check(Path(arguments[0]))
    except (PoetError, OSError) as error:
        print(f"not sound: {error}", file=sys.stderr)
        return 1
    print(f"{number} plans verified: each obeys every law, and its row says what it costs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

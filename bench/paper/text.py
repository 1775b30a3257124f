"""The report's texts. Numbers that follow from the plans are in the report's tables."""

from ..report import percent
from .points import LESS_PEAK, RANKED, SHARES, STREAMED_PATIENCE, WHOLE_SHARES
from .second_look import ENOUGH

PAPER = (
    "Patil et al., *POET: Training Neural Networks on Tiny Devices with Integrated "
    "Rematerialization and Paging*, ICML 2022, arXiv 2207.07697."
)


def _listed(shares: tuple[float, ...]) -> str:
    return ", ".join(percent(share, 0) for share in shares)


HOW = (
    "*Its graphs* are those of the paper's repository (`bench/instances`): one gradient per layer, "
    "in one chain, without parameters. *Whole steps* are the training graphs that boards execute: "
    "with parameters, their gradients and updates, and the gradients of all branches, in the "
    "paper's sizes. *Its constants* are the `[paper]` figures of `boards/*/board.toml`; *realistic "
    "constants* are the `[estimate]` ones, each with its source. *Added energy* is that of the "
    "statements, above the sleeping board, which the paper minimises. *Whole board* adds the power "
    "of the sleeping board for the time of the step: all that a battery loses. With the paper's "
    "constants both are the same. Elsewhere each point is solved twice, once for each energy, and "
    "each energy is compared on the plans that were made for it.\n\n"
    "The verifier accepted every plan at the budget and deadline of its row, and computed its "
    "energy. `table.csv` has a row for each point. RAM budgets are shares of the way from the "
    "floor (below) to keeping everything: "
    f"{_listed(SHARES)} % for the paper's graphs, {_listed(WHOLE_SHARES)} % for whole steps. "
    "A plan of `poet-paging` or `poet-remat` is also a plan of `poet`. A plan for less RAM, an "
    "earlier deadline or the other energy is also valid. If such a plan of the same sweep is "
    "better than the plan that the search found in its time, the row has that plan, and its "
    "`note` names the origin. The search for a plan of `poet` may start from the plans of the "
    "methods that need no search (docs/explanation/planner.md), and takes nothing else from other "
    "authors' methods. "
    "`began_from` in `table.csv` names the method whose plan was better than the search's own "
    "plans when it started from it. That a method has *no plan* is counted only where it is proved."
)
BUSY = (
    "Other processes ran on the same cores. On an idle computer, solving takes less time and "
    "proves more."
)

OVERHEAD = (
    "### ResNet-18 on the Cortex-A72\n\n"
    "Energy above keeping everything, in per cent. POET's share is reproduced, except for the "
    "least RAM. With realistic constants a transfer takes more energy and computing less (the "
    "processor's power is counted above the sleeping board), so the same pages cost a larger "
    "share.\n\n"
    "Capuchin's share is not reproduced with the constants that the paper prints. With them, to "
    "page *every* result of the step out and in again takes {all_paged} % of the energy of "
    "computing it; with the repository's energy per FLOP, which is {ratio} times its power x its "
    "time on this board, {all_paged_repository} %. A plan that computes everything once cannot "
    "cost more, and Capuchin pages first. But the authors' code has two more settings: a platform "
    "`a72nocache`, whose page-outs have no cache ({uncached_us} us and {uncached_rate} bytes/us), "
    "and a factor for the power of transfers, of which an earlier version of their solver used 10. "
    "With both, Capuchin's overheads are in the paper's range up to the third budget, and "
    "POET's stay below 1 % from the third. Nothing published says which settings the figure had. "
    "The columns *waiting* show another possible explanation: the same plans, but transfers "
    "overlap with nothing, and the processor draws its power while it waits for them. With the "
    "printed constants this puts Capuchin in the paper's range at the first two budgets. But there "
    "POET's plans are then above 1 % too, because they are made for transfers that overlap.\n\n"
    "With the energy of the whole board, time counts: the sleeping board has most of this board's "
    "power. Whole steps cost more in the same share of RAM: parameters leave RAM and come back, "
    "which keeping everything does not need."
)
DTR = (
    "### DTR on the Jetson TX2\n\n"
    "Energy above keeping everything, in per cent, and how much less POET spends. The paper's "
    "number is reproduced for ResNet-18. `dtr` computes the same sequence as its authors' "
    "simulator, `dtr-eq` has the score of their PyTorch runtime. DTR "
    "recomputes each result when the program needs it, and pages nothing. In much RAM it finds "
    "nearly the best plan; in little RAM it recomputes the same results many times. So the claim "
    "depends on where the RAM axis ends: *up to* refers to the smallest budget in which DTR still "
    "has a plan. Rows in which both take the same energy, to 0.1 %, are left out. The repository "
    "has no rate for this board, and the operator times that the paper measured on it are not "
    "published."
)
ALONE = (
    "### Paging alone, rematerialisation alone\n\n"
    "How much less energy POET spends at most, in per cent, over all boards, budgets and "
    "deadlines, and how often the other method is proved to have no plan where POET has one. The "
    "cost of either "
    "method alone has no bound. Where pages are expensive (the latency of a transfer against "
    "operators of some microseconds, as in `linear`, or 330 mW of a card against 11 mW of a "
    "Cortex-M4F) paging alone takes several times the energy. In little RAM, rematerialisation "
    "alone computes the same results many times. For ResNet-18's whole step in the least RAM, its "
    "search found no plan on two boards in its time, which proves nothing. The last column is the "
    "value of mixing both: the saving against the better of the two on the same point, or against "
    "the one that has a plan. It is largest where RAM is scarce and pages are expensive: ResNet-18 "
    "and BERT in little RAM. VGG-16 has hardly "
    "anything to mix."
)
POFO = (
    "### POFO (Table 3)\n\n"
    "The paper's row is ResNet-18 on the TX2: POET has 8.3 % less peak memory and 13 % more "
    "throughput. That is reproduced on the paper's own graph, with POFO's branches merged into the "
    "links of a chain. POFO's peak memory is the least RAM in which it was found to have a plan, "
    "by bisection. This POFO may keep, offload or recompute the input of every link, and it counts "
    "memory in 500 units. It minimises its own time; its transfers are overlapped and its tensors "
    "placed as for all methods. Its published time in ms (82) and memory in kB (285,873) are a "
    "GPU's measurement with images of 224x224 pixels; the graph with such images is `ref-"
    "resnet18-224`, with the paper's rate of the processor.\n\n"
    "VGG-16 and `linear` are chains, so POFO applies as published. There its least RAM is just "
    f"above the floor, and no method can need {percent(1 - LESS_PEAK, 1)} % less. It loses "
    "throughput to recomputation: much for `linear`, whose pages take longer than its operators, "
    "and next to nothing for VGG-16, whose time is nearly all in convolutions that need not be "
    "computed twice."
)
DEADLINES = (
    "### Deadlines (Figure 4)\n\n"
    "The paper's figure is VGG-16 with deadlines of 0.5 to 0.9 ms. The processor's rate in it is "
    "not published, so the deadlines here are the same multiples of keep-everything's time: 1 to "
    "1.8. A deadline here bounds the time at which the last statement ends, with transfers that "
    "the processor waits for; the paper's equation 3 adds the times of computing alone. So a plan "
    "that meets a deadline here meets it there too."
)
CURRENT = (
    "### The card's current\n\n"
    "100 mA is what an SD card may draw at most, and the paper's figure; small cards draw about "
    "20 mA. The microcontrollers' points were solved for both, by " + ", ".join(RANKED) + ". POET "
    "needs no more energy than any of these, since its search may start from their plans. Of "
    "{compared} pairs of them, each on one graph, board and budget, {turned} change their order "
    "with the card: one of the two needs less energy at 100 mA, and the other one at 20 mA. Here "
    "they are, each with both energies. `poet-remat` pages nothing but parameters: on the paper's "
    "graphs, its energies differ only where a search did not end."
)
STREAMED = (
    "### Below the floor\n\n"
    "poet-host splits operators: their operands stream through small buffers (docs/explanation/"
    "planner.md). So whole steps have plans far below the floor. Here they are in multiples of "
    "keeping everything, which no such board could. Each has "
    f"{STREAMED_PATIENCE} times the time limit of other points. Moved: bytes read from the card "
    "and written to it, per step."
)
ORIGINS = (
    "### Whose plans POET began from\n\n"
    "How many of POET's plans come from a search that started from another method's plan, because "
    "that was better than its own plans until then. What the search then found is at least as "
    "good. `table.csv` has the origin of each plan."
)
SOLVING = (
    "### Time for solving\n\n"
    "The paper solves with Gurobi or CBC. This planner's stages and gaps make a much smaller "
    "program for HiGHS (docs/explanation/planner.md). "
    f"Plans that were not proved to {percent(ENOUGH, 0)} % in the "
    "first limit got the longer one; no point ran for ten minutes. `bench/RESULTS-solver.md` "
    "compares the planner with the paper's formulation."
)
BEATEN = (
    "Not all searches were completed. In these points another method's plan takes less energy than "
    "the best plan that this planner found in its time (energy above keeping everything, in per "
    "cent). The gap is the proved limit of how much less any plan could take. Heuristics soon "
    "finish steps of hundreds of nodes; a search on busy cores does not."
)
SIZES = (
    "### Size of a schedule\n\n"
    "The size of the plan part of a `.poet` file, which contains the statements with offsets and "
    "waits. The model part describes the operators, once for all plans. BERT-base's whole step has "
    "825 nodes and takes kilobytes."
)
FLOOR = (
    "Every schedule needs one operator with its inputs and its result in RAM at the same time, as "
    "long as operators are not split. POET has a plan in exactly that RAM, because everything else "
    "can be paged. A board's arena is the RAM that its firmware leaves for tensors. ResNet-18 "
    "needs 176 KiB (256 KiB in the paper's graph): five times the RAM of a Cortex-M0+, and "
    "within that of a Cortex-M4. VGG-16 and the transformers need 1 to 91 MiB. The paper's curves "
    "for these models on such boards are about activations in the abstract: no schedule reaches "
    "them without splitting operators, which this program does (above)."
)
METHODS = (
    "Table 1, with what each method did. Points: planned, proved infeasible, without answer, not "
    "applicable, and planned beyond the published method. Per plan: results recomputed and paged "
    "in. There are two extensions. Branches are merged into the links of a chain (Chen's methods, "
    "Revolve and POFO on ResNet-18 and transformers). Parameters may leave RAM between uses (all "
    "but POET, on whole steps). Each row of `table.csv` names its own in `note`."
)
FIGURES = (
    "The energy axis is linear up to 0.1 % and logarithmic above. Each method has one colour, "
    "marker and line in all figures. A method that is not visible is hidden by `poet`, or has no "
    "plan."
)
CHECKING = (
    "The plans that the claims name, and those at the floors, are in `plans/`, with their graphs "
    "in `graphs/`. This command verifies each, and compares the result with the table:\n\n"
    "    python -m bench.paper.check schedules/paper\n\n"
    "`make paper` computes all plans again, in `build/paper`, where the same command checks them "
    "with the `table.csv` there. An interrupted run continues. This command plans one point:\n\n"
    "    poet-host solve schedules/paper/graphs/NAME.graph.json --ram BYTES --method METHOD "
    "--plan plan.json"
)

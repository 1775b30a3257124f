"""The report's words; numbers that follow from the table are in its tables."""

from .paper_points import LESS_PEAK, SHARES, WHOLE_SHARES
from .report import percent
from .second_look import ENOUGH

PAPER = (
    "Patil et al., *POET: Training Neural Networks on Tiny Devices with Integrated "
    "Rematerialization and Paging*, ICML 2022, arXiv 2207.07697."
)


def _listed(shares: tuple[float, ...]) -> str:
    return ", ".join(percent(share, 0) for share in shares)


HOW = (
    "*Its graphs* are those of the paper's repository (`bench/instances`): one gradient a layer, "
    "in one chain, without parameters. *Whole steps* are the training graphs that boards execute, "
    "with parameters, their gradients and updates, and the gradients of all branches, at the "
    "paper's sizes. *Its constants* are the `[paper]` figures of `boards/*/board.toml`, *realistic "
    "constants* the `[estimate]` ones, each with its source. Energies are those of the statements, "
    "above the sleeping board.\n\n"
    "Every plan passed the verifier, at the budget and deadline of its row, and its energy is what "
    "the verifier computed. `table.csv` has a row for each point. RAM budgets are shares of the "
    "way from the floor (below) to keeping everything: "
    f"{_listed(SHARES)} % for the paper's graphs, {_listed(WHOLE_SHARES)} % for whole steps. "
    "A plan of `poet-paging` or `poet-remat` is one of `poet` too, and a plan for less RAM or an "
    "earlier deadline serves for more: where such a plan of the same sweep is better than the one "
    "that the search found in its time, it stands in the row, and the note says whose it is. "
    "The search for a plan of `poet` begins from the plans of the methods that need no search "
    "(docs/explanation/planner.md); nothing else is taken from other authors' methods."
)
BUSY = "Other jobs ran on the same cores: alone, solving takes less, and proves more."

OVERHEAD = (
    "### ResNet-18 on the Cortex-A72\n\n"
    "Energy above keeping everything, in per cent. POET's share is reproduced, but for the least "
    "RAM. With realistic constants a transfer takes more and computing less (the processor counts "
    "above the sleeping board), so that the same pages weigh more. Capuchin's share is not "
    "reproduced, and the constants say why: with the paper's, to page *every* result of the step "
    "out and in again takes {all_paged} % of the energy of computing it, and "
    "{all_paged_repository} % with the repository's energy per FLOP, which is {ratio} times its "
    "power x its time on this board. "
    "Whoever computes everything once cannot pay more, and Capuchin pages first. 73 to 141 per "
    "cent need another reckoning. The columns *waiting* have one: the same plans, with transfers "
    "that overlap with nothing, while the processor draws the power with which it computes. So "
    "reckoned, Capuchin's overheads reach the paper's range in little RAM, and those of POET's "
    "plans there are above 1 % too, as they are made for transfers that overlap.\n\n"
    "*Whole board* counts what the sleeping board draws besides, for as long as the step takes "
    "(the paper's constants have no such power). With realistic constants on this board that is "
    "most of the energy, so that time counts more than what statements take, and without a "
    "deadline the planner does not look at time. Whole steps cost more in the same share of RAM: "
    "parameters leave and come back, which keeping everything does not need."
)
DTR = (
    "### DTR on the Jetson TX2\n\n"
    "Energy above keeping everything, in per cent, and how much less POET spends: the paper's "
    "number, for ResNet-18 with any constants, on its graph and as a whole step. DTR recomputes "
    "whatever is gone, in the order in which the program asks, and pages nothing: in much RAM it "
    "finds nearly the best plan, in little RAM it computes the same again and again. So the claim "
    "depends on where the RAM axis ends: *up to* is the smallest budget in which DTR still has a "
    "plan. Rows in which both take the same to 0.1 % are left out. The repository has no rate for "
    "this board, and the operators' times that the paper measured on it are not published."
)
ALONE = (
    "### Paging alone, rematerialisation alone\n\n"
    "How much less energy POET spends at most, in per cent, over all boards, budgets and "
    "deadlines, and how often the other has no plan where POET has one. What one of the two costs "
    "alone has no bound: where pages are dear (the latency of a transfer against operators of some "
    "microseconds, as in `linear`, or 330 mW of a card against 11 mW of a Cortex-M4F) paging alone "
    "pays several times the energy, and in little RAM rematerialisation alone has no plan at all. "
    "The last column is what mixing them is worth: less than the better of the two on the same "
    "point, or than the one that has a plan. It is most where RAM is far from enough "
    "and pages are dear, on ResNet-18 and BERT in little RAM; VGG-16 has hardly anything to mix."
)
POFO = (
    "### POFO (Table 3)\n\n"
    "VGG-16 and `linear` are chains, so that POFO applies as published. Its peak memory is the "
    "least RAM in which it was found to have a plan, by bisection. That is just above the floor, "
    f"and nobody can take {percent(1 - LESS_PEAK, 1)} % less: this POFO may keep, offload or "
    "compute again the input of every link, counts memory in 500 units, and has its transfers "
    "overlapped and its tensors placed like all methods. A dynamic programme with coarser memory, "
    "or with more in RAM during a link's backward pass, ends earlier. Throughput is what POFO "
    "loses to computing again: much for `linear`, whose pages take longer than its operators, and "
    "next to nothing for VGG-16, of whose time convolutions are nearly all, and of these nothing "
    "needs to be computed twice. At the floor of VGG-16's whole step POET must page around every "
    "large operator, and is slower than POFO in the little more RAM that POFO has."
)
SOLVING = (
    "### Time for solving\n\n"
    "The paper solves with Gurobi or CBC. This planner's stages and gaps make a much smaller "
    "program for HiGHS (docs/explanation/planner.md). "
    f"What was not proved to {percent(ENOUGH, 0)} % in the "
    "first limit got the longer one; nothing ran for ten minutes. `bench/RESULTS-solver.md` has "
    "the planner measured by itself, beside the paper's formulation."
)
BEHIND = (
    "Solving did not end everywhere. Here another method's plan takes less than the best that this "
    "planner found in its time (energy above keeping everything, in per cent); the gap says how "
    "much less any plan could take, as far as it was proved. Heuristics are soon done with steps "
    "of hundreds of nodes; a search beside other jobs is not."
)
SIZES = (
    "### Size of a schedule\n\n"
    "The plan part of a `.poet` file, which holds the statements with offsets and waits; what "
    "operators do is in the model part, once for all plans. BERT-base's whole step has 825 nodes "
    "and takes kilobytes."
)
FLOOR = (
    "One operator with its inputs and its result must be in RAM together, whatever the schedule, "
    "as long as operators are not split. POET has a plan in exactly that RAM, because everything "
    "else can be paged. A board's arena is the RAM that its firmware leaves for tensors. ResNet-18 "
    "needs 192 KiB (256 KiB in the paper's graph): six times the RAM of a Cortex-M0+, and just "
    "within that of a Cortex-M4. VGG-16 and the transformers need 1 to 91 MiB. The paper's curves "
    "for these models on such boards are about activations in the abstract: no schedule reaches "
    "them without splitting operators."
)
METHODS = (
    "Table 1, with what each method really did. Points planned, proved infeasible, without answer, "
    "not applicable, and planned beyond the published method; results computed again and paged in, "
    "per plan. The extensions are merging branches into the links of a chain (Chen's methods, "
    "Revolve and POFO on ResNet-18 and transformers) and letting parameters leave RAM between "
    "uses (all but POET, on whole steps); each row of `table.csv` names its own in `note`."
)
FIGURES = (
    "The axis of energies is linear up to 0.1 % and logarithmic above. One colour, marker and line "
    "is one method in all figures; what cannot be seen lies under `poet`, or has no plan."
)
CHECKING = (
    "The plans that the claims name, and those at the floors, lie in `plans/` with their graphs in "
    "`graphs/`. This verifies each, and compares what the verifier says with the table:\n\n"
    "    python -m bench.paper_check schedules/paper\n\n"
    "`make paper` makes all plans again, in `build/paper`, where the same command checks them "
    "(with the `table.csv` there); interrupted, it goes on where it was. One point alone is\n\n"
    "    poet-host solve schedules/paper/graphs/NAME.graph.json --ram BYTES --method METHOD "
    "--plan plan.json"
)

"""A bound by a search over states in which more and more large tensors count.

It is strong where RAM holds few of the largest tensors. There, the stage model is weak: it does not
see how much RAM the recomputations of a stage need.
"""

from collections.abc import Callable, Iterator

from ..search import Task
from .abstract import LargeStates
from .states import MOST_TENSORS, StateSearch, library

SLICE = 50_000  # labels between two looks at the limits
FIRST = 8  # tensors that count first
GROWTH = 5  # then a share of one in so many is added
STORED_WEIGHT = 4  # a stored tensor counts as early as a computed one that is larger by this factor


def tensors_by_weight(task: Task) -> list[int]:
    """Return the tensors that may count, those first that fill most RAM.

    Stored ones come early: to read one again costs much, and they are few.
    """
    nodes, modes = task.padded.nodes, task.modes
    every = [*((i, m) for i, plain in enumerate(modes.plain) for m in plain), *modes.fused]
    read = {j for i, m in every for j in nodes[i].inputs_of(m)}
    weights = {i: nodes[i].bytes * (STORED_WEIGHT if nodes[i].stored else 1) for i in read}
    fitting = [i for i in sorted(read) if 0 < nodes[i].bytes <= task.padded_ram_bytes]
    return sorted(fitting, key=lambda i: -weights[i])


def counting(task: Task, most_sets: int) -> list[int]:
    """Return the first tensors of which at most so many sets fit RAM."""
    nodes, chosen = task.padded.nodes, list[int]()
    sets = {0: 1}  # number of sets by their bytes
    for i in tensors_by_weight(task)[:MOST_TENSORS]:
        more = dict(sets)
        for size, count in sets.items():
            if (larger := size + nodes[i].bytes) <= task.padded_ram_bytes:
                more[larger] = more.get(larger, 0) + count
        if sum(more.values()) > most_sets:
            break
        sets = more
        chosen.append(i)
    return chosen


def holds_few(task: Task) -> bool:
    """Return whether RAM holds few of the tensors that are most of the bytes of all."""
    if task.is_timed or not task.padded.storage or library() is None:
        return False
    nodes, policy = task.padded.nodes, task.policy
    sizes = [nodes[i].bytes for i in counting(task, policy.most_sets)]
    every = sum(nodes[i].bytes for i in tensors_by_weight(task))
    is_few = task.padded_ram_bytes * len(sizes) <= policy.most_fitting * sum(sizes)
    return is_few and sum(sizes) >= policy.least_listed_share * every > 0


def bounds(
    task: Task, upper: Callable[[], float], is_over: Callable[[], bool]
) -> Iterator[tuple[float, int]]:
    """Yield higher and higher bounds, each with the labels so far.

    `upper`: value of the best plan so far.
    """
    order = counting(task, task.policy.most_sets)
    listed = sorted(order)
    count, labels, coarser = min(FIRST, len(order)), 0, None
    while True:
        states = LargeStates(task, listed, frozenset(order[:count]))
        search = StateSearch(states.problem, coarser)
        result = "limit"
        while result == "limit" and search.labels < task.policy.most_state_labels:
            if is_over():
                return
            result = search.run(SLICE, upper() - states.constant)
            bound = min(search.bound + states.constant, upper())
            yield bound, labels + search.labels
        if result != "found" or count == len(order):
            return
        search.back_up()
        labels += search.labels
        coarser = search
        count = min(len(order), count + max(1, count // GROWTH))

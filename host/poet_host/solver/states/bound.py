"""A bound by a search over states in which more and more large tensors count.

It is strong where RAM holds few of the largest tensors. There, the stage model is weak: it does not
see how much RAM the recomputations of a stage need.
"""

from collections.abc import Callable, Iterator

from ..search import Task
from .abstract import LargeStates
from .states import MOST_TENSORS, StateSearch, library

SLICE = 50_000  # labels between two looks at the limits
STORED_WEIGHT = 4  # a stored tensor counts as early as a computed one that is larger by this factor


def tensors_by_weight(task: Task) -> list[list[int]]:
    """Return the tensors that may count, those first that fill most RAM, in groups of one weight.

    Stored ones come early: to read one again costs much, and they are few.
    """
    nodes, modes = task.padded.nodes, task.modes
    every = [*((i, m) for i, plain in enumerate(modes.plain) for m in plain), *modes.fused]
    read = {j for i, m in every for j in nodes[i].inputs_of(m)}
    groups: dict[int, list[int]] = {}
    for i in sorted(read):
        if 0 < nodes[i].bytes <= task.padded_ram_bytes:
            weight = nodes[i].bytes * (STORED_WEIGHT if nodes[i].stored else 1)
            groups.setdefault(weight, []).append(i)
    return [groups[weight] for weight in sorted(groups, reverse=True)]


def listed(task: Task) -> list[list[int]]:
    """Return the first groups. At most `most_sets` sets of their tensors fit RAM."""
    chosen: list[list[int]] = []
    sets = {0: 1}  # number of sets by their bytes
    for group in tensors_by_weight(task):
        for i in group:
            for size, count in list(sets.items()):
                if (larger := size + task.padded.nodes[i].bytes) <= task.padded_ram_bytes:
                    sets[larger] = sets.get(larger, 0) + count
        chosen.append(group)
        if sum(sets.values()) > task.policy.most_sets or sum(map(len, chosen)) > MOST_TENSORS:
            return chosen[:-1]
    return chosen


def holds_few(task: Task) -> bool:
    """Return whether RAM holds few of the tensors that are most of the bytes of all."""
    if task.is_timed or not task.padded.storage or library() is None:
        return False
    nodes, policy = task.padded.nodes, task.policy
    sizes = [nodes[i].bytes for group in listed(task) for i in group]
    every = sum(nodes[i].bytes for group in tensors_by_weight(task) for i in group)
    is_few = task.padded_ram_bytes * len(sizes) <= policy.most_fitting * sum(sizes)
    return is_few and sum(sizes) >= policy.least_listed_share * every > 0


def bounds(
    task: Task, upper: Callable[[], float], is_over: Callable[[], bool]
) -> Iterator[tuple[float, int]]:
    """Yield higher and higher bounds, each with the labels so far.

    `upper`: value of the best plan so far.
    """
    groups = listed(task)
    bits = sorted(i for group in groups for i in group)
    counted: frozenset[int] = frozenset()
    labels, coarser = 0, None
    for group in groups:
        counted |= frozenset(group)
        states = LargeStates(task, bits, counted)
        search = StateSearch(states.problem, coarser)
        result = "limit"
        while result == "limit" and search.labels < task.policy.most_state_labels:
            if is_over():
                return
            result = search.run(SLICE, upper() - states.constant)
            bound = min(search.bound + states.constant, upper())
            yield bound, labels + search.labels
        if result != "found":
            return
        search.back_up()
        labels += search.labels
        coarser = search

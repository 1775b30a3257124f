"""Ways to compute a node again."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """A way to compute a node again, so that its result is in RAM: the modes that stream the same
    inputs. Each cost is the least of these modes. A way may be a mode of an earlier node that
    computes the node too. Then each of its members bears the same share of the costs.
    """

    node: int  # the node that has the mode
    mode: int  # the one of least energy
    whole: tuple[int, ...]  # the inputs that must be in RAM
    streamed: tuple[int, ...]
    energy_uj: float
    processor_us: float
    transfers_us: float  # in which the transfer lane is occupied


def least_of(ways: Sequence[Way]) -> Way:
    """Return a way that is at least as good as each of these ways."""
    first = ways[0]
    if len(ways) == 1:
        return first
    return Way(
        first.node,
        first.mode,
        tuple(i for i in first.whole if all(i in way.whole for way in ways)),
        tuple(i for i in first.streamed if all(i in way.streamed for way in ways)),
        min(way.energy_uj for way in ways),
        min(way.processor_us for way in ways),
        min(way.transfers_us for way in ways),
    )

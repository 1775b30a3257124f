"""Choose how the tensors of a graph are cut, so that operators can stream them part by part.

Operators tie axes of tensors: the channels of a convolution's output are those of its batchnorm.
All axes that are tied form a class, with one *extent*: how many of its indices a part has. Extents
are as large as possible while no part of an activation or a gradient exceeds the wanted size. A
parameter with axes of two classes has parts of its own, which divide or repeat the extents.

Users may see the same elements as different axes. A *place* is an axis of some users that may be
several axes for others, such as the 128 columns of a matrix between two layers:

    linear     | 128 columns                         |     one axis
    attention  | head 0: 64 lanes | head 1: 64 lanes |     two axes: 2 heads x 64 lanes

An extent of this place divides 64 or is a multiple of it. A *matrix* has rows and columns that are
axes of weights. It is cut along both, so that a gradient of a weight needs few rows and columns of
the weight in RAM. If some users need whole rows of a matrix, each of its parts is within one row.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import gcd, prod
from operator import mul, or_
from typing import NamedTuple

from ..graph.cuts import AXES, BLOCK, Cut
from ..graph.graph import Graph
from ..graph.kept_slabs import most_used
from ..graph.operands import OperandAxis, operator_of

MOST_INDICES = 2**16 - 1  # of an axis in the record of a cut
ROW_PART_BYTES = 256  # least part of a row of a matrix: half a block of storage
TABLE_PART_BYTES = 1024  # about, of a table of which a step renews only some rows
LEAST_PIECE_BYTES = 64  # of statistics: each piece takes a block of storage or more


class Place(NamedTuple):
    """An axis of a tensor for some users, and perhaps several axes for others."""

    size: int  # its indices
    below: int  # elements below one index


Axes = list[tuple[int, OperandAxis]]  # axes of several indices, each with the elements below one
Member = tuple[str, int, int] | tuple[int, str]  # an axis of a tensor, or of an operator


@dataclass
class _Classes:
    """Sets of tied axes, by union-find."""

    parent: dict[Member, Member] = field(default_factory=dict)

    def find(self, member: Member) -> Member:
        self.parent.setdefault(member, member)
        while self.parent[member] != member:
            self.parent[member] = self.parent[self.parent[member]]
            member = self.parent[member]
        return member

    def tie(self, one: Member, other: Member) -> None:
        self.parent[self.find(one)] = self.find(other)


def choose_cuts(graph: Graph, part_bytes: int, table_slabs: int = 0) -> dict[str, Cut]:
    """Return the cuts of tensors, by node, for parts of at most `part_bytes` where possible.

    A tensor of at most `part_bytes` is whole, except for statistics along an axis that is cut. A
    tensor whose users agree on no axis is whole, too. A node that renews a stored tensor is not in
    the result: it has the cut of that tensor. `table_slabs`: see `most_used`. Tables of which
    the board keeps slabs have parts of few rows.
    """
    return _Cutting(graph, part_bytes, table_slabs).cuts()


class _Cutting:
    def __init__(self, graph: Graph, part_bytes: int, table_slabs: int) -> None:
        self.graph = graph
        self.part_bytes = part_bytes
        self.table_slabs = table_slabs
        self.renewals = {node.updates: node for node in graph if node.updates}
        self.classes = _Classes()
        self.places: dict[str, list[Place]] = {}  # what all users can cut, outermost first
        self.columns: dict[str, Place] = {}  # of matrices of which some users need whole rows
        # A place that is several axes for a user, and the product of some inner ones of them.
        self.inner: list[tuple[Member, int]] = []
        users: dict[str, list[tuple[int, Axes]]] = {}
        self.walks: set[int] = set()  # operators that walk along time: they read whole weights
        for number, node in enumerate(graph):
            if node.stored:
                continue
            operator = operator_of(node)
            self.walks |= {number} if operator.has_steps else set()
            for i, name in enumerate((*node.inputs, node.name)):
                axes = operator.operand(i)
                belows = [prod(a.size for a in axes[j + 1 :]) for j in range(len(axes))]
                placed = [(b, a) for a, b in zip(axes, belows, strict=True) if a.size > 1]
                users.setdefault(self._tensor(name), []).append((number, placed))
        tied = {name: self._tie(name, uses) for name, uses in users.items()}
        weighted = {
            self._of(name, place)
            for name, places in tied.items() if graph[name].role == "parameter"
            for place, is_whole in places if not is_whole
        }  # fmt: skip
        for name, places in tied.items():
            self.places[name] = [place for place, is_whole in places if not is_whole]
            for place, is_whole in places:
                if is_whole and self._of(name, place) in weighted:
                    self.columns[name] = place
        self.matrices = {
            name for name, places in self.places.items()
            if len(places) > 1 and places[-1].below == 1 and self._of(name, places[-1]) in weighted
        }  # fmt: skip
        self.extents: dict[Member, int] = {}

    def _tie(self, name: str, uses: list[tuple[int, Axes]]) -> list[tuple[Place, bool]]:
        """Return the places of a tensor, each with whether a user needs it whole. Tie their axes.

        Only the columns of a matrix may be needed whole: other places of this kind are left out.
        """
        total = self.graph[name].size_bytes // 4
        ends = {1, total}.union(*({below for below, _ in axes} for _, axes in uses))
        for _, axes in uses:
            ends &= {total, *(below for below, _ in axes)}
        places = []
        for below, above in reversed([*pairwise(sorted(ends))]):
            place = Place(above // below, below)
            runs = [[a for b, a in axes if below <= b < above] for _, axes in uses]
            single = [run[0] for run in runs if len(run) == 1]
            cut = [
                all(a.cut_by and a.per == 1 and not (a.window and run[1:]) for a in run)
                for run in runs
            ]
            is_column = below == 1 and len(ends) > 2 and any(a.cut_by for a in single)
            whole = [len(run) == 1 and run[0].cut_by is None for run in runs]
            if above == total:  # parts of the outermost axis are in the order of the memory
                walks = [number in self.walks for number, _ in uses]
                cut = [*map(or_, cut, walks)]
                whole = [needs and not walk for needs, walk in zip(whole, walks, strict=True)]
            if place.size > MOST_INDICES or not all(map(or_, cut, whole)):
                continue
            if any(whole) and not is_column:
                continue
            places.append((place, any(whole)))
            for (number, _), run in zip(uses, runs, strict=True):
                if len(run) == 1 and run[0].cut_by and not run[0].window:
                    self.classes.tie((name, *place), (number, run[0].cut_by))
                products = accumulate((a.size for a in reversed(run[1:])), mul)
                self.inner += [((name, *place), product) for product in products]
        return places

    def _tensor(self, name: str) -> str:
        return self.graph[name].updates or name

    def _of(self, name: str, place: Place) -> Member:
        return self.classes.find((name, *place))

    def cuts(self) -> dict[str, Cut]:
        large = [
            name for name in self.places
            if self.graph[name].size_bytes > self.part_bytes
            and (self.places[name] or name in self.columns)
        ]  # fmt: skip
        values = [name for name in large if self.graph[name].role in ("value", "data")]
        for name, places in self.places.items():
            for place in (*places, *filter(None, [self.columns.get(name)])):
                self.extents[self._of(name, place)] = place.size
        free = [name for name in values if name not in self.columns]
        self._narrow(free)
        self._shrink(free)
        tiles = self._tiles(free)
        cells: dict[Member, int] = {}
        chosen = {}
        divided = [name for name in values if self._is_divided(name)]
        values = [name for name in values if name not in divided]
        for name in (*values, *(name for name in self.places if name not in values)):
            groups = [self._of(name, place) for place in self.places[name]]
            parts = [self.extents[group] for group in groups]
            if name in values:
                for group, part in zip(groups, parts, strict=True):
                    # Part of a row is dense in memory, parts of several rows are not.
                    cells[group] = 1 if name in self.columns else gcd(cells.get(group, 0), part)
                parts = self._parts_of_rows(name, parts) if name in self.columns else parts
            elif name in large and name not in divided:
                parts = self._parameter(name, tiles)
            else:
                parts = [cells.get(*pair) for pair in zip(groups, parts, strict=True)]
                if not (self._is_divided(name) and parts[0] < self.places[name][0].size):
                    continue
            chosen[name] = self._cut(name, parts)
        return {name: cut for name in self.places if (cut := chosen.get(name)) is not None}

    def _fitting(self, group: Member, most: int) -> int:
        """Return the largest extent up to `most` that suits all axes of a place."""
        inner = [product for member, product in self.inner if self.classes.find(member) == group]
        return next(
            extent for extent in range(most, 0, -1)
            if all(product % extent == 0 or extent % product == 0 for product in inner)
        )  # fmt: skip

    def _narrow(self, values: Iterable[str]) -> None:
        """Lower the extents of columns where matrices have many rows, so that parts are squares."""
        side = 1 << ((self.part_bytes // 4).bit_length() - 1) // 2
        for name in self.matrices.intersection(values):
            place = self.places[name][-1]
            if self.graph[name].size_bytes // (4 * place.size) > side:
                group = self._of(name, place)
                self.extents[group] = self._fitting(group, min(self.extents[group], side))

    def _parts_of_rows(self, name: str, parts: list[int]) -> list[int]:
        """Return the parts of a matrix of which some users need whole rows.

        If a part is less than a row, the columns become one of the places.
        """
        place = self.columns[name]
        extent = self.extents[self._of(name, place)]
        columns = extent * -(-ROW_PART_BYTES // (4 * extent))
        if columns < place.size:
            self.places[name] = [*self.places[name], place]
            return [*(1 for _ in parts), columns]
        rest = self.graph[name].size_bytes // prod(place.size for place in self.places[name])
        for i, part in enumerate(parts):
            others = rest * prod(other for j, other in enumerate(parts) if j != i)
            most = max(1, self.part_bytes // others)
            parts[i] = max(d for d in range(1, min(part, most) + 1) if part % d == 0)
        return parts

    def _tiles(self, values: Iterable[str]) -> dict[Member, int]:
        """Return how many indices of each class fit in two parts, of the wanted size each."""
        tiles: dict[Member, int] = {}
        for name in values:
            groups = [self._of(name, place) for place in self.places[name]]
            part = self.graph[name].size_bytes // prod(place.size for place in self.places[name])
            part *= prod(self.extents[group] for group in groups)
            for group, place in zip(groups, self.places[name], strict=True):
                extent = self.extents[group]
                most = min(place.size, extent * max(1, 2 * self.part_bytes // part))
                tiles[group] = min(tiles.get(group, most), most)
        return tiles

    def _shrink(self, values: Iterable[str]) -> None:
        """Lower extents, those of outer axes first, until no part is too large."""
        changed = True
        while changed:
            changed = False
            for name in values:
                places = self.places[name]
                rest = self.graph[name].size_bytes // prod(place.size for place in places)
                for i, place in enumerate(places):
                    group = self._of(name, place)
                    others = prod(
                        self.extents[self._of(name, p)] for j, p in enumerate(places) if j != i
                    )
                    extent = self.extents[group]
                    if extent > 1 and extent * others * rest > self.part_bytes:
                        most = max(1, self.part_bytes // (others * rest))
                        count = -(-place.size // most)
                        self.extents[group] = self._fitting(
                            group, min(extent, -(-place.size // count))
                        )
                        changed = changed or self.extents[group] < extent

    def _parameter(self, name: str, tiles: Mapping[Member, int]) -> list[int]:
        """Return the parts of a parameter along its axes.

        `tiles`: by class, the most indices of a part. A part of a weight must be no larger than
        the tiles of activations that an operator has in RAM while it uses the part.
        """
        places = self.places[name]
        groups = [self._of(name, place) for place in places]
        parts = [min(self.extents[g], tiles.get(g, self.extents[g])) for g in groups]
        rest = self.graph[name].size_bytes // prod(place.size for place in places)
        for i, group in enumerate(groups):
            others = rest * prod(part for j, part in enumerate(parts) if j != i)
            most = max(1, self.part_bytes // others)
            if parts[i] > most:
                divisors = range(1, most + 1) if group in tiles else [most]
                parts[i] = max(d for d in divisors if group not in tiles or parts[i] % d == 0)
        outer = self.graph[name].size_bytes // (4 * places[0].size * places[0].below)
        for i, (group, place) in enumerate(zip(groups, places, strict=True)):
            others = rest * prod(part for j, part in enumerate(parts) if j != i)
            most = min(self.part_bytes // others, tiles.get(group, place.size), place.size)
            # Cells of fewer indices stay dense.
            dense = outer == 1 and all(part == 1 for part in parts[:i])
            if dense and most >= 2 * parts[i] and parts[i] >= self.extents[group]:
                parts[i] = place.size if most == place.size else parts[i] * (most // parts[i])
        return [self._rows_of_table(name, parts), *parts[1:]]

    def _rows_of_table(self, name: str, parts: list[int]) -> int:
        """Return the rows of a part. They are few for a table of which a board keeps slabs."""
        update, size = self.renewals.get(name), self.places[name][0].size
        if update is None or update.op != "embedding_grad":
            return parts[0]
        total = self.graph[name].size_bytes // prod(place.size for place in self.places[name])
        rest = total * prod(parts[1:])
        least = max(TABLE_PART_BYTES // rest, -(-size // max(1, self.table_slabs)))
        blocks = BLOCK // gcd(BLOCK, rest)  # rows of whole blocks
        rows = min(parts[0], -(-least // blocks) * blocks)
        return rows if most_used(operator_of(update), rows, self.table_slabs) else parts[0]

    def _is_divided(self, name: str) -> bool:
        """Return whether an axis that no operator can cut comes before all places."""
        return any(
            self.graph[name].size_bytes > 4 * size * below for size, below in self.places[name][:1]
        )

    def _cut(self, name: str, parts: list[int]) -> Cut | None:
        """Return the cut with these parts; None if a record cannot describe it."""
        axes: list[tuple[int, int]] = []  # size and part, the innermost first
        chosen = [
            (place, part) for place, part in zip(self.places[name], parts, strict=True)
            if part < place.size
        ]  # fmt: skip
        if not chosen:
            return None
        unit = below = chosen[-1][0].below
        for (size, under), part in reversed(chosen):
            if under > below:
                axes.append((under // below,) * 2)
            axes.append((size, part))
            below = under * size
        total = self.graph[name].size_bytes // 4
        if total > below:
            axes.append((total // below,) * 2)
        if len(axes) > AXES or max(size for size, _ in axes) > MOST_INDICES:
            return None
        axes += [(1, 1)] * (AXES - len(axes))
        sizes, indices = zip(*reversed(axes), strict=True)
        cut = Cut(4 * unit, sizes, indices)
        is_small = self.graph[name].size_bytes <= self.part_bytes
        if is_small or (self._is_divided(name) and cut.piece_sizes[0] < LEAST_PIECE_BYTES):
            return replace(cut, piece_parts=len(cut.piece_sizes))
        return cut

"""The boards of a fleet: what Flower's strategies see of them."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import BadInput, PoetError
from .graph.weights import Array, Weights

LOST, FAILED = 0, 2  # codes of Flower's errors that a client reports
_FINAL = (1, FAILED)  # codes after which an answer is not asked for again
_TRIES = 3  # how often an answer is asked for, if it is lost each time
_MOST_QUERIES = 5  # for nodes, before each round: a strategy that waits for more queries again
_POLL_S = 1.0


class Fleet:
    """Flower's grid, as its strategies see it: the answers of a round are in the boards' order.

    An answer that is lost is asked for again, of the same node, or of one that is new since then.
    `rows`: what the boards of the last round report. `statistics`: their running statistics, each
    averaged as FedAvg averages parameters.
    """

    def __init__(
        self, grid: Any, boards: int, least: int | None, round_s: float, nodes_s: float
    ) -> None:
        self.least = boards if least is None else least
        if not 1 <= self.least <= boards:
            raise BadInput(f"`least` is {least}: it must be from 1 to {boards}, that of the boards")
        self.rows: list[dict[str, Any]] = []
        self.statistics: Weights = {}
        self._grid, self._boards = grid, boards
        self._round_s, self._nodes_s = round_s, nodes_s
        self._round = self._queries = 0
        self._offered: list[int] = []  # nodes of which the strategy chooses those of a round

    def get_node_ids(self) -> list[int]:
        """Return the connected nodes. Wait for all boards at first, later for `least` of them."""
        self._offered = found = self._nodes(self.least if self._round else self._boards)
        self._queries += 1
        if len(found) < self.least or self._queries > _MOST_QUERIES:
            raise PoetError(
                f"{len(found)} of {self._boards} boards are connected after {self._nodes_s:g} s: "
                "start the others, or lower `least`, or min_available_nodes of your strategy"
            )
        return found

    def _nodes(self, wanted: int, but: Collection[int] = ()) -> list[int]:
        ends = time.monotonic() + self._nodes_s
        while True:
            found = sorted(set(self._grid.get_node_ids()) - set(but))
            if len(found) >= wanted or time.monotonic() > ends:
                return found
            time.sleep(_POLL_S)

    def send_and_receive(
        self, messages: Iterable[Any], *, timeout: float | None = None
    ) -> list[Any]:
        """Send messages, and return the answers in the order of the boards' numbers.

        Only messages that train are sent. Raises PoetError, which names the boards, if fewer than
        `least` answer.
        """
        waiting = [it for it in messages if it.metadata.message_type.startswith("train")]
        if not waiting:
            return []
        self._round, self._queries = self._round + 1, 0
        asked, message = {it.metadata.dst_node_id for it in waiting}, waiting[0]
        answers: dict[int, Any] = {}
        others = set(self._offered) - asked  # and those that have answered or failed
        failures: list[str] = []
        for _ in range(_TRIES):
            reasons = []
            for reply in self._grid.send_and_receive(waiting, timeout=self._round_s):
                node = reply.metadata.src_node_id
                if not reply.has_error():
                    number = int(reply.content["metrics"]["board"])
                    if number not in answers:
                        answers[number] = reply
                    elif node in asked:  # a new node may be a board that has answered before
                        raise BadInput(f"two boards have the number {number}: give each another")
                elif reply.error.code in _FINAL:
                    failures.append(str(reply.error.reason))
                else:
                    reasons.append(str(reply.error.reason))
                    continue
                others.add(node)
            lost = len(asked) - len(answers) - len(failures)
            if not lost:
                break
            absent = [str(number) for number in range(self._boards) if number not in answers]
            whose = f", of board {', '.join(absent)}" if len(asked) == self._boards else ""
            failure = "; ".join((f"{lost} without an answer{whose}", *reasons))
            print(f"round {self._round}: {failure}", flush=True)
            waiting = [
                type(message)(
                    content=message.content, dst_node_id=node,
                    message_type=message.metadata.message_type,
                )
                for node in sorted(self._nodes(lost, others), key=lambda it: it not in asked)[:lost]
            ]  # fmt: skip
            if not waiting:
                break
        failures += [failure] if lost else []
        if len(answers) < self.least:
            raise PoetError(
                f"round {self._round}: {len(answers)} of {len(asked)} boards answered, but "
                f"{self.least} must: {'; '.join(failures)}"
            )
        ordered = [answers[number] for number in sorted(answers)]
        self.rows = [
            {name: None if np.isnan(value) else value for name, value in it["metrics"].items()}
            | {"kind": it["about"]["kind"]}
            for it in (reply.content for reply in ordered)
        ]
        self.statistics = _mean_statistics([reply.content for reply in ordered])
        for text in (*failures, *map(line, self.rows)):
            print(f"round {self._round}: {text}", flush=True)
        return ordered


def _mean_statistics(answers: Sequence[Any]) -> Weights:
    """Return the mean of each running statistic, flat, weighted by the boards' samples.

    A client of another version may not send them apart: then those of the strategy count.
    """
    if any("statistics" not in answer for answer in answers):
        return {}
    counts = [answer["metrics"]["num-examples"] for answer in answers]
    means: dict[str, Array] = {}
    for answer, count in zip(answers, counts, strict=True):
        for name, raw in answer["statistics"].items():
            part = np.frombuffer(raw, "<f4") * (count / sum(counts))
            means[name] = means[name] + part if name in means else part
    return means


def line(row: Mapping[str, Any]) -> str:
    """Return what a round prints of a board, or of the new weights."""
    accuracy = "" if row["accuracy"] is None else f"accuracy {row['accuracy']:.1%}, "
    if "round" in row:
        return f"round {row['round']}: {accuracy}weights sha256 {row['sha256']}"
    return (
        f"board {row['board']} ({row['kind']}): {accuracy}loss {row['loss']:.4f}, "
        f"{row['energy-mj']:,.1f} mJ, {row['message-bytes']:,} bytes sent and received, "
        f"{row['written-bytes']:,} bytes written to storage, {row['peak-bytes']:,} bytes of RAM"
    )

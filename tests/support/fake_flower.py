"""What stands for Flower in tests: its messages, its grid, and both of its apps."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from poet_host import flower


class Message:
    """What Fleet reads of a message of Flower."""

    def __init__(self, content: Any, dst_node_id: int, message_type: str = "train") -> None:
        self.content = content
        self.metadata = SimpleNamespace(
            message_type=message_type, src_node_id=dst_node_id, dst_node_id=dst_node_id
        )
        self.error: Any = None

    def has_error(self) -> bool:
        return self.error is not None


def answer(node: int, board: int, weights: Any = None, count: int = 1) -> Message:
    metrics = {
        "board": board, "num-examples": count, "loss": 1.0, "accuracy": 0.5, "energy-mj": 2.0,
        "message-bytes": 8, "written-bytes": 512, "peak-bytes": 1024,
    }  # fmt: skip
    return Message({"metrics": metrics, "arrays": weights, "about": {"kind": "native"}}, node)


def failed(node: int, code: int, reason: str) -> Message:
    message = Message(None, node)
    message.error = SimpleNamespace(code=code, reason=reason)
    return message


class Grid:
    """Flower's grid. Each call of send_and_receive returns the next of `rounds`."""

    def __init__(self, rounds: Iterable[list[Message]], nodes: Iterable[int] = (10, 11, 12)):
        self.rounds, self.nodes = iter(rounds), list(nodes)
        self.asked: list[list[int]] = []

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def send_and_receive(self, messages: list[Message], *, timeout: float) -> list[Message]:
        self.asked.append([message.metadata.dst_node_id for message in messages])
        return next(self.rounds)


class Array:
    def __init__(self, value: Any) -> None:
        self.value = value

    def numpy(self) -> Any:
        return self.value


class App:
    """Both apps of Flower: they keep the function that they are given."""

    def __init__(self, mods: Any = None) -> None:
        self.call: Any = None

    def train(self) -> Any:
        return lambda function: setattr(self, "call", function)

    main = train


class Strategy:
    """FedAvg, without messages: it calls the clients' app directly."""

    clients: Any = None

    def __init__(self, **given: Any) -> None:
        self.given = given

    def start(self, grid: Any, arrays: Any, num_rounds: int, train_config: Any, evaluate_fn: Any,
              timeout: float) -> None:  # fmt: skip
        evaluate_fn(0, arrays)
        for turn in range(1, num_rounds + 1):
            content = {"arrays": arrays, "config": {**train_config, "server-round": turn}}
            nodes = grid.get_node_ids()
            replies = grid.send_and_receive([Message(content, node) for node in nodes])
            shares = [reply.content["metrics"]["num-examples"] for reply in replies]
            arrays = {
                name: Array(
                    sum(
                        reply.content["arrays"][name].numpy() * (share / sum(shares))
                        for reply, share in zip(replies, shares, strict=True)
                    )
                )
                for name in arrays
            }
            evaluate_fn(turn, arrays)


def reply_of(content: Any, reply_to: Any) -> Message:
    message = Message(content, reply_to.metadata.dst_node_id)
    message.error = None if isinstance(content, dict) else content
    return message


@pytest.fixture
def fake_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("ArrayRecord", "ConfigRecord", "MetricRecord", "RecordDict")
    app: Any = SimpleNamespace(**dict.fromkeys(names, dict))
    app.Array, app.Message = Array, reply_of
    app.Error = lambda code, reason: SimpleNamespace(code=code, reason=reason)
    fake = SimpleNamespace(
        app=app, clientapp=SimpleNamespace(ClientApp=App),
        serverapp=SimpleNamespace(ServerApp=App, strategy=SimpleNamespace(FedAvg=Strategy)),
    )  # fmt: skip
    monkeypatch.setattr(flower, "_flower", lambda: fake)

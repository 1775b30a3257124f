"""Ports at which no board answers, or a board stops to answer."""

import os
import threading
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host.device import device as devices
from poet_host.sim.native import NativeBoard

BAD, NO_DEVICE, LINK = 2, 3, 4


@pytest.mark.parametrize("port", ["/dev/ttyNothing7", "socket://127.0.0.1:9", "magic://x"])
def test_a_missing_port(train: Any, port: str) -> None:
    train(port=port).fails(NO_DEVICE, port)


def test_a_file_that_is_not_a_device(train: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert train(port=str(path)).code == NO_DEVICE


@pytest.mark.parametrize("port", ["native", "sim:mkr1000:usb"])
def test_boards_asks_no_board_that_runs_here(poet_host: Any, port: str) -> None:
    poet_host("boards", "--port", port).fails(BAD, f"doctor --port {port}")


def test_an_unknown_simulated_board(train: Any) -> None:
    train(port="sim:toaster").fails(BAD, "toaster")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "CONNECT_PATIENCE_S", 0.5)


@pytest.fixture
def stranger() -> Iterator[tuple[int, str]]:
    """A pty without a board: its other end, and its name."""
    master, slave = os.openpty()
    tty.setraw(slave)
    try:
        yield master, os.ttyname(slave)
    finally:
        os.close(slave)
        os.close(master)


@pytest.mark.usefixtures("patience")
def test_a_port_that_does_not_answer(train: Any, stranger: tuple[int, str]) -> None:
    train(port=stranger[1]).fails(NO_DEVICE, stranger[1])


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("how", ["echo", "noise", "text"])
def test_another_device_at_the_port(train: Any, stranger: tuple[int, str], how: str) -> None:
    master, port = stranger
    rng = np.random.default_rng(0)

    def talk() -> None:
        while True:
            try:
                request = os.read(master, 4096)
                answer = {"echo": request, "noise": rng.bytes(300), "text": b"\r\nlogin: "}[how]
                os.write(master, answer)
            except OSError:
                return

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    train(port=port).fails(NO_DEVICE, port)


def test_a_board_that_is_unplugged_during_training(
    train: Any, card: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NativeBoard(card, 64 * 1024) as board:
        before = poet.Connection.__init__

        def unplug_soon(self: Any, device: Any, *rest: Any) -> None:
            before(self, device, *rest)
            step = device.step

            def stepping(number: int, *window: int) -> Any:
                if number == 3:
                    board.kill()
                return step(number, *window)

            device.step = stepping

        monkeypatch.setattr(poet.Connection, "__init__", unplug_soon)
        result = train("--run", tmp_path / "run.json", port=board.port)
    result.fails(LINK, "step 2 or 3", "--resume")
    assert not list(tmp_path.glob("*.json"))

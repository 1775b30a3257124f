"""What all tests share: cards, and Ctrl-C, which a shell ignores in background processes."""

import signal
from pathlib import Path

import pytest
from poet_host.sim.native import create_storage

signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """An image of a 4 MiB card with a partition of ours, but no store in it."""
    create_storage(tmp_path / "card.img", 4 << 20)
    return tmp_path / "card.img"

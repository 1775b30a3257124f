"""Cards for the tests of simulated chips."""

from pathlib import Path

import pytest
from support.sd_card import BLOCK, SIZE, pattern


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "card.img"
    path.write_bytes(b"".join(pattern(k) for k in range(16)) + bytes(SIZE - 16 * BLOCK))
    return path

"""A computer to flash boards from."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from poet_host.device import ports
from poet_host.firmware_build import upload
from support.desk import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(tmp_path)
    (tmp_path / "bin").mkdir()
    for name in ("sh", "cp", "rm", "sleep"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PLATFORMIO_CORE_DIR", str(tmp_path))
    monkeypatch.setattr(ports.list_ports, "comports", made.comports)
    monkeypatch.setattr(upload, "TOUCH_WAIT_S", 0.3)
    monkeypatch.setattr(upload, "RETURN_WAIT_S", 0.5)
    yield made
    for end in made.ends:
        os.close(end)

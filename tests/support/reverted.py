"""The firmware with one of its precautions taken out, to show that a rule of the model needs it."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from poet_host import resources
from poet_host.firmware_build.bare_metal import build_firmware

Change = tuple[str, str]


def without(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    board: str,
    changes: Mapping[str, Sequence[Change]],
) -> Path:
    """Build the firmware after changes: by file of firmware/port, pairs of old and new text."""
    package = folder / "package"
    for name in ("firmware", "boards"):
        shutil.copytree(resources.resource(name), package / name)
    for file, pairs in changes.items():
        path = package / "firmware" / "port" / file
        text = path.read_text()
        for old, new in pairs:
            assert text.count(old) == 1, (file, old)
            text = text.replace(old, new)
        path.write_text(text)
    with monkeypatch.context() as patched:
        patched.setattr(resources, "_PACKAGE", package)
        return build_firmware(board)

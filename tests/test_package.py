"""What a user installs holds all that it needs: firmware, boards, schedules, examples."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's contents in a folder of their own, away from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT],
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def installed(unpacked: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    return subprocess.run(
        [sys.executable, "-P", "-m", "poet_host", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_page_lists_every_extra_with_its_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs/reference/install.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    extras = project["optional-dependencies"]
    assert rows.keys() == extras.keys()
    for name in extras.keys() - {"dev"}:
        wanted = [re.match(r"[\w-]+", it)[0] for it in extras[name]]  # type: ignore[index]
        assert rows[name].split(", ") == wanted


def tracked(folder: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(listed.stdout.split())


@pytest.mark.slow
def test_data_travels_with_the_package(unpacked: Path) -> None:
    for folder in ("firmware", "boards", "schedules", "examples"):
        for name in tracked(folder) - tracked("schedules/paper"):
            assert (unpacked / "poet_host" / name).is_file(), name
    assert not (unpacked / "poet_host" / "schedules" / "paper").exists()  # large, and for readers
    assert (unpacked / "poet_host" / "py.typed").is_file()
    for name in tracked("host/poet_host"):
        assert (unpacked / name.removeprefix("host/")).is_file(), name


@pytest.mark.slow
def test_an_installed_command_uses_its_own_files(unpacked: Path, tmp_path: Path) -> None:
    where = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "from poet_host.resources import resource as r;print(r('boards'))",
        ],
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()) == unpacked / "poet_host" / "boards"
    listed = installed(unpacked, tmp_path, "models")
    assert listed.returncode == 0
    assert "resnet18-cifar" in listed.stdout
    example = unpacked / "poet_host" / "schedules" / "resnet-digits-mkr1000.poet"
    shown = installed(unpacked, tmp_path, "show", str(example), "--html", "page.html")
    assert shown.returncode == 0, shown.stderr
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_the_demo_runs_from_a_wheel_in_an_empty_folder(unpacked: Path, tmp_path: Path) -> None:
    """With a shorter search."""
    example = unpacked / "poet_host" / "examples" / "demo.py"
    text, changed = re.subn(r"(?m)^SOLVING_S = .*$", "SOLVING_S = 5.0", example.read_text())
    assert changed == 1
    example.write_text(text)
    done = installed(unpacked, tmp_path, "demo", "--port", "native", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["weights_sha256"] == result["keep_all_weights_sha256"]
    assert result["accuracy_after"] - result["accuracy_before"] >= 0.20

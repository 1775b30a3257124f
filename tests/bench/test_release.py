"""What `make release` refuses, what it warns of, and what its archives contain."""

import json
import random
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from poet_host.package.kinds import library_json
from support.compiler import compiler
from support.repository import commit, git

from bench import artefacts, release
from bench.commits import ROOT, statement

REPORT = release.REPORT


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose HEAD is a release."""
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, "pyproject.toml", '[project]\nname = "p"\n')
    headings = "## 1.2.3 (2026-12-01)\n\n## 1.2.2 (2026-11-01)\n"
    commit(tmp_path, "CHANGELOG.md", f"# Changelog\n\n{headings}")
    for name in ("firmware/src/store.c", "boards/b/board.toml"):
        commit(tmp_path, name, "1")
    commit(tmp_path, "host/poet_host/solver/solve.py", "1")
    commit(tmp_path, REPORT, f"# Report\n\n{statement(tmp_path)}\n")
    git(tmp_path, "tag", "v1.2.3")
    return tmp_path


def tagged(root: Path) -> list[str]:
    """What is refused if HEAD has the tag."""
    git(root, "tag", "--force", "v1.2.3")
    return list(release.refusals(root))


def test_a_release_is_not_refused(root: Path) -> None:
    assert list(release.refusals(root)) == []
    commit(root, "README.md", "planner and boards stay as they are")
    assert tagged(root) == []


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("CHANGELOG.md", "# Changelog\n\n## 1.3.0 (2026-12-02)\n", ("v1.3.0",)),
        ("CHANGELOG.md", "# Changelog\n", ("CHANGELOG.md", "no heading")),
        ("CHANGELOG.md", "# C\n\n## Unreleased\n\n## 1.2.3 (2026-12-01)\n", ("Unreleased",)),
        (REPORT, "# Report\n", (REPORT, "make paper")),
        ("host/poet_host/plan/plan.py", "1", (REPORT, "planner")),
        ("boards/b/chip.toml", "1", (REPORT, "boards")),
    ],
)
def test_a_change_is_refused(root: Path, name: str, text: str, named: tuple[str, ...]) -> None:
    commit(root, name, text)
    git(root, "tag", "--force", "v1.2.2")
    found = tagged(root)
    assert all(word in found[0] for word in named), found
    assert len(found) == 1


def test_a_changed_file_is_refused(root: Path) -> None:
    (root / "notes.txt").write_text("not in git")
    (root / "pyproject.toml").open("a").write("# changed\n")
    (found,) = release.refusals(root)
    assert "pyproject.toml, notes.txt" in found


def test_a_missing_tag_is_refused(root: Path) -> None:
    git(root, "tag", "--delete", "v1.2.3")
    git(root, "tag", "1.2.3")
    (found,) = release.refusals(root)
    assert "v1.2.3" in found


def test_results_of_an_older_commit_are_a_warning(root: Path) -> None:
    before = git(root, "rev-parse", "HEAD")
    commit(root, "bench/RESULTS-tiny.md", f"Commit {before[:10]}. 2026-12-01")
    commit(root, "bench/RESULTS-kernels.md", f"2026-12-01, commit {before[:10]}, gcc")
    commit(root, "bench/RESULTS-board.md", "It ends with a commit and names none.")
    assert list(release.stale_results(root)) == []
    now = commit(root, "host/poet_host/solver/solve.py", "2")
    (found,) = release.stale_results(root)  # kernels do not depend on the solver
    assert "RESULTS-tiny.md" in found
    assert now in found
    commit(root, "bench/RESULTS-tiny.md", "Commit 0123456789, which this history does not have")
    assert len(list(release.stale_results(root))) == 1


def test_the_version_stands_in_the_changelog_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    source = project["tool"]["hatch"]["version"]
    found = re.search(source["pattern"], (ROOT / source["path"]).read_text(), re.MULTILINE)
    assert found is not None
    assert found["version"] == release.version_of()
    assert "version" not in json.loads((ROOT / "firmware/library.json").read_text())
    assert json.loads(library_json())["version"] == version("poet-host")


@pytest.mark.parametrize("size", [1, 256, 70_001])
def test_an_image_is_the_same_in_each_form(size: int, tmp_path: Path) -> None:
    start, image = 0x1F000, random.Random(size).randbytes(size)
    packed = artefacts.uf2(start, image, 0x68ED2B88)
    address, found, family = artefacts.read_uf2(packed)
    assert (address, family) == (start, 0x68ED2B88)
    assert found == image.ljust(-(-size // 256) * 256, b"\xff")
    for damaged in (packed[:-1], packed[:20] + b"\x07" + packed[21:], b""):
        with pytest.raises(ValueError, match="UF2"):
            artefacts.read_uf2(damaged)
    (file := tmp_path / "image.hex").write_text(artefacts.intel_hex(start, image))
    back = tmp_path / "image.bin"
    subprocess.run(
        [compiler("arm-none-eabi-objcopy"), "-I", "ihex", "-O", "binary", file, back], check=True
    )
    assert back.read_bytes() == image


def test_the_bill_of_materials_names_what_was_installed(tmp_path: Path) -> None:
    listed = subprocess.run([sys.executable, "-c", artefacts.LISTING], capture_output=True)
    names = ("click", "cobs", "poet-host", "pip")
    installed = [it for it in json.loads(listed.stdout) if it[0] in names]
    artefacts.write_bill(tmp_path, "1.2.3", installed)
    bill = json.loads((tmp_path / "poet-host-1.2.3.cdx.json").read_text())
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/poet-host@1.2.3"
    click, cobs = bill["components"]
    assert click["purl"] == f"pkg:pypi/click@{version('click')}"
    assert click["licenses"] == [{"expression": "BSD-3-Clause"}]
    assert cobs["licenses"] == [{"license": {"name": "MIT License"}}]


@pytest.mark.slow  # 10 s
def test_the_source_archive_has_all_that_is_in_git(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    archive = tmp_path / f"poet_host-{release.version_of()}.tar.gz"
    with tarfile.open(archive) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    listed = git(ROOT, "ls-files").splitlines()
    wanted = {name for name in listed if not name.startswith(".github/")}
    assert wanted - names == set()


@pytest.mark.slow  # 5 s
def test_the_library_is_compiled_from_its_archive(tmp_path: Path) -> None:
    archive = release.pack_library(tmp_path, "1.2.3")
    with tarfile.open(archive) as content:
        names = content.getnames()
    assert {"library.json", "LICENSE", "src/poet/poet.h", "src/poet_store.c"} <= set(names)
    assert "src/poet_server.c" in names
    release.try_library(archive)
    damaged = tmp_path / "damaged.tar.gz"
    with tarfile.open(archive) as content, tarfile.open(damaged, "w:gz") as other:
        for member in content.getmembers():
            if member.name != "src/poet/internal/runtime.h":
                other.addfile(member, content.extractfile(member))
    with pytest.raises(release.Failed, match=r"runtime\.h"):
        release.try_library(damaged)

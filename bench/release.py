"""`make release`: refuse what is not a release, or build and try in dist/ what users install.

The wheel and the source archive are installed in empty environments and run the demo there. The
C library for PlatformIO is compiled. dist/ then has both, the library, those of the examples, the
firmware, the site of the pages, a bill of materials, and SHA256SUMS.
"""

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poet_host.package.kinds import library_json
from poet_host.package.library import library_files

from .artefacts import LISTING, Failed, run, write_bill, write_images, write_libraries
from .commits import BOARDS, PLANNER, ROOT, boards_commit, git, last_commit, planner_commit, stated

REPORT = "schedules/paper/REPORT.md"
HEADING = re.compile(r"^## .*$", re.MULTILINE)
RELEASE = re.compile(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", re.MULTILINE)
NAMED_COMMIT = re.compile(r"\b[Cc]ommit `?([0-9a-f]{7,40})\b")
DEMO_WEIGHTS = "a559e0d761f41cd3"  # the first digits of the SHA-256 of the demo's weights
# What the results in bench/RESULTS-NAME.md depend on.
_FIRMWARE = tuple(f"firmware/{name}" for name in ("include", "kernels", "port", "src"))
_PROGRAM = (*PLANNER, *BOARDS, "host/poet_host/schedule", "host/poet_host/sim", *_FIRMWARE)
DEPENDENCIES = {
    "placement": ("host/poet_host/plan",),
    "solver": PLANNER,
    "host": _FIRMWARE,
    "kernels": (*_FIRMWARE, "host/poet_host/sim"),
    "kernel-shapes": (*_FIRMWARE, "host/poet_host/sim"),
}


def version_of(root: Path = ROOT) -> str:
    """Return the newest release that CHANGELOG.md names, as pyproject.toml does."""
    found = RELEASE.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    return found[1] if found else "unknown"


def refusals(root: Path = ROOT) -> Iterator[str]:
    """Yield a sentence for each reason why HEAD is not a release."""
    status = git(root, "status", "--porcelain").splitlines()
    if changed := [line.split(maxsplit=1)[1] for line in status]:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        yield f"Files are not as in HEAD: {', '.join(changed[:3])}{more}. Commit or remove them."
    heading = HEADING.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    top = heading[0] if heading else "no heading"
    if not RELEASE.fullmatch(top):
        yield f"CHANGELOG.md begins with `{top}`: write `## VERSION (DATE)`."
        return
    version = version_of(root)
    if f"v{version}" not in git(root, "tag", "--points-at", "HEAD").split():
        yield f"HEAD does not have the tag v{version}: run `git tag v{version}`."
    found = stated((root / REPORT).read_text(encoding="utf-8"))
    if found is None:
        yield f"{REPORT} does not state the commits of planner and boards: run `make paper`."
        return
    for what, of_report, of_head in zip(
        ("planner", "boards"), found, (planner_commit(root), boards_commit(root)), strict=True
    ):
        if of_report != of_head:
            yield (
                f"{REPORT} was made with the {what} of commit {of_report}, but HEAD has the {what} "
                f"of commit {of_head}: run `make paper`."
            )


def stale_results(root: Path = ROOT) -> Iterator[str]:
    """Yield a sentence for each page of results whose commit is older than what it depends on."""
    for page in sorted((root / "bench").glob("RESULTS-*.md")):
        named = NAMED_COMMIT.search(page.read_text(encoding="utf-8"))
        if named is None:
            continue
        folders = DEPENDENCIES.get(page.stem.removeprefix("RESULTS-"), _PROGRAM)
        needed = last_commit(folders, root).removesuffix("-dirty")
        if git(root, "merge-base", needed, named[1]) != git(root, "rev-parse", needed):
            yield f"bench/{page.name} is of commit {named[1]}, without commit {needed}."


def build(dist: Path) -> None:
    """Write all files of a release to the empty folder `dist`."""
    version = version_of()
    run([sys.executable, "-m", "build", "--outdir", dist, ROOT])
    pack_library(dist, version)
    write_images(dist, version)
    write_libraries(dist, version)
    shutil.rmtree(ROOT / "build" / "docs", ignore_errors=True)  # pages that no longer exist
    run(["make", "docs"])
    shutil.make_archive(str(dist / f"poet-host-docs-{version}"), "zip", ROOT / "build" / "docs")


def pack_library(dist: Path, version: str) -> Path:
    """Write the archive of the C library with all kernels, and return its path.

    It has the form that `pio pkg pack` gives it, which asks GitHub for the names of all licences.
    """
    archive = dist / f"poet-{version}.tar.gz"
    texts = {f"src/{name}": text for name, text in library_files().items()}
    texts |= {"library.json": library_json(), "LICENSE": (ROOT / "LICENSE").read_text("utf-8")}
    with tarfile.open(archive, "w:gz") as content:
        for name, text in sorted(texts.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            entry.mtime = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
            content.addfile(entry, io.BytesIO(text.encode()))
    return archive


def try_library(archive: Path) -> None:
    """Check that each file of the library compiles without options."""
    with tempfile.TemporaryDirectory() as folder:
        run(["tar", "-xf", archive, "-C", folder])
        sources = sorted(Path(folder).glob("src/*.c"))
        run(["cc", "-std=c99", "-fsyntax-only", "-Isrc", *sources], cwd=folder)


def try_package(package: Path) -> list[Any]:
    """Install a wheel or source archive in an empty environment, and run the demo there.

    Returns what LISTING prints there. Raises Failed if the trained weights are not those of the
    demo.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "env", with_pip=True)
        run([folder / "env/bin/pip", "install", "--quiet", package], cwd=folder)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environment = {**kept, "XDG_CACHE_HOME": str(folder / "cache")}
        command = folder / "env/bin/poet-host"
        installed = json.loads(run([folder / "env/bin/python", "-c", LISTING], cwd=folder))
        run([command, "doctor"], cwd=folder, env=environment)
        demo = [command, "demo", "--port", "native", "--json"]
        found = json.loads(run(demo, cwd=folder, env=environment))["weights_sha256"]
    if not found.startswith(DEMO_WEIGHTS):
        raise Failed(f"{package.name}: the demo's weights have the SHA-256 {found}")
    return list(installed)


def write_sums(dist: Path) -> None:
    """Write SHA256SUMS, which `sha256sum --check` reads."""
    files = sorted(path for path in dist.iterdir() if path.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (dist / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--try", dest="is_trial", action="store_true", help="build in any case")
    is_trial = parser.parse_args().is_trial
    problems = list(refusals())
    for warning in stale_results():
        print(f"warning: {warning}")
    for problem in problems:
        print(f"{'not yet' if is_trial else 'refused'}: {problem}", file=sys.stderr)
    if problems and not is_trial:
        return 1
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    os.environ["SOURCE_DATE_EPOCH"] = git(ROOT, "log", "-1", "--format=%ct")
    try:
        build(dist)
        version = version_of()
        for step, name in (
            (try_library, f"poet-{version}.tar.gz"),
            (try_package, f"poet_host-{version}.tar.gz"),
            (try_package, f"poet_host-{version}-py3-none-any.whl"),
        ):
            begin = time.monotonic()
            installed = step(dist / name)
            print(f"{name} works ({time.monotonic() - begin:.0f} s)")
        assert installed is not None
        write_bill(dist, version, installed)
    except Failed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    write_sums(dist)
    for path in sorted(dist.iterdir()):
        print(f"{path.stat().st_size:>12,} bytes  dist/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

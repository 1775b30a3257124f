"""Packages for PlatformIO: their manifest, and a program that this repository's platform builds."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from poet_host.package.folder import write
from support.command import Command
from support.learner_bench import Kind, packaged
from support.sim_helper import FIRMWARE, needs_compiler

MAIN = Path(__file__).parent / "main.c"
PIO = shutil.which("pio", path=str(Path(sys.executable).parent)) or shutil.which("pio")


def test_the_manifest_names_files_of_the_package(tmp_path: Path) -> None:
    write(packaged(Kind()), "platformio", tmp_path)
    manifest = json.loads((tmp_path / "library.json").read_text())
    assert (tmp_path / manifest["build"]["srcDir"] / manifest["headers"]).exists()
    assert (manifest["name"], manifest["license"]) == ("small", "MIT")
    assert "#include <small.h>" in (tmp_path / "examples" / "small" / "main.cpp").read_text()


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(PIO is None, reason="PlatformIO is missing")
def test_this_repositorys_platform_builds_an_application(
    tmp_path: Path, poet_host: Command
) -> None:
    write(packaged(Kind()), "platformio", tmp_path / "small")
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    shutil.copy(MAIN, project / "src")
    (project / "platformio.ini").write_text(
        "[platformio]\nplatforms_dir = .pio/platforms\n[env:nano_33_iot]\nboard = nano_33_iot\n"
        f"platform = symlink://{FIRMWARE / 'platform'}\nlib_deps = symlink://{tmp_path / 'small'}\n"
    )
    environment = {
        **os.environ, "PLATFORMIO_CORE_DIR": str(tmp_path / "core"), "PYTHONPATH": "",
        "PLATFORMIO_SETTING_ENABLE_TELEMETRY": "no", "PLATFORMIO_DISABLE_UPGRADE_CHECK": "true",
    }  # fmt: skip
    done = subprocess.run(
        [str(PIO), "run", "-d", str(project)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr
    image = project / ".pio" / "build" / "nano_33_iot" / "firmware.elf"
    ran = poet_host("simulate", "nano_33_iot", "--image", image, "--for", "3s")
    assert ran.code == 0
    assert "LED on" in ran.out

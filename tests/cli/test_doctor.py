"""`poet-host doctor` names what is missing; only what poet-host itself needs is a failure."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from poet_host.check import computer_check
from poet_host.device import ports
from poet_host.device.ports import SerialPort
from poet_host.plan.plan import Plan
from poet_host.sim import chip_library
from support.command import Command

MKR = SerialPort("/dev/ttyACM7", "2341:804e", "number", "an MKR1000")
OTHER = SerialPort("/dev/ttyS7", "", "", "")


def checks(poet_host: Command) -> tuple[int, dict[str, dict[str, Any]]]:
    result = poet_host("doctor", "--json")
    found = {check["check"]: check for check in result.json["checks"]}
    assert result.json["ok"] == all(check["ok"] for check in found.values() if check["essential"])
    assert result.code == (0 if result.json["ok"] else 1)
    return result.code, found


def without(names: set[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a PATH with the same programs, except `names`."""
    (folder / "bin").mkdir()
    for part in os.environ["PATH"].split(os.pathsep):
        for program in Path(part).iterdir() if Path(part).is_dir() else ():
            link = folder / "bin" / program.name
            if program.name not in names and not link.is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(folder / "bin"))


@pytest.mark.slow
def test_all_that_is_needed_is_found(poet_host: Command) -> None:
    code, found = checks(poet_host)
    assert code == 0
    needed = {name for name, check in found.items() if check["essential"]}
    assert needed == {
        "Python", "packages", "C compiler", "solver", "native board", "serial ports", "permissions",
    }  # fmt: skip
    optional = {"emulator", "cross compiler", "Linux boards", "flashing", "PlatformIO"}
    assert optional < found.keys() - needed
    assert "ok" in poet_host("doctor").out


def test_an_empty_path_fails(
    poet_host: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("HOME", str(tmp_path))  # PlatformIO's compiler is not on the PATH
    monkeypatch.delenv("CC", raising=False)
    # The doctor must not find the `pio` next to this Python. Workers still use sys.executable.
    monkeypatch.setattr(computer_check, "sys", SimpleNamespace(executable="/none/python"))
    code, found = checks(poet_host)
    assert code == 1
    missing = {name: check["found"] for name, check in found.items() if not check["ok"]}
    assert missing.keys() - {"emulator"} == {  # the emulator stays loaded
        "C compiler", "native board", "cross compiler", "Linux boards", "flashing", "PlatformIO",
    }  # fmt: skip
    assert "cc is not on the PATH" in missing["C compiler"]
    assert "apt install gcc'" in missing["native board"]
    assert "only needed for real boards" in missing["cross compiler"]
    assert "apt install gcc-arm-none-eabi" in missing["cross compiler"]
    assert "apt install gcc-aarch64-linux-gnu" in missing["Linux boards"]
    assert "bossac" in missing["flashing"]
    assert "pyocd" in missing["flashing"]
    assert "pip install platformio" in missing["PlatformIO"]
    text = poet_host("doctor").out
    assert "FAILED" in text
    assert "missing" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "check", "named"),
    [
        ({"arm-none-eabi-gcc"}, "cross compiler", "apt install gcc-arm-none-eabi"),
        ({"qemu-aarch64", "qemu-aarch64-static"}, "Linux boards", "apt install qemu-user"),
        ({"bossac"}, "flashing", "bossac"),
    ],
)
def test_a_missing_optional_program_is_not_a_failure(
    poet_host: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    names: set[str], check: str, named: str,
) -> None:  # fmt: skip
    if check == "Linux boards" and shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("aarch64-linux-gnu-gcc is missing")
    without(names, tmp_path, monkeypatch)
    monkeypatch.setenv("PLATFORMIO_CORE_DIR", str(tmp_path))
    code, found = checks(poet_host)
    assert code == 0
    assert not found[check]["ok"]
    assert found[check]["found"].startswith("only needed for")
    assert named in found[check]["found"]


@pytest.mark.parametrize(
    ("script", "named"),
    [("exit 1", "start"), ("echo ${1#-print-file-name=}", "library")],
)
def test_an_incomplete_cross_compiler_is_reported(
    poet_host: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, named: str
) -> None:
    compiler = tmp_path / "arm-none-eabi-gcc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    code, found = checks(poet_host)
    assert code == 0
    assert not found["cross compiler"]["ok"]
    for text in (str(compiler), named, "apt install --reinstall"):
        assert text in found["cross compiler"]["found"]


@pytest.mark.parametrize(
    ("module", "content", "package"),
    [
        ("highspy", 'raise ImportError("libhighs.so is not there")', "highspy"),
        (
            "serial",
            'raise ModuleNotFoundError("No module named serial", name="serial")',
            "pyserial",
        ),
    ],
)
def test_a_package_that_cannot_be_imported_is_one_line(
    tmp_path: Path, module: str, content: str, package: str
) -> None:
    (tmp_path / f"{module}.py").write_text(content)
    done = subprocess.run(
        [sys.executable, "-m", "poet_host", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == json.loads(done.stdout)["exit_code"] == 1
    assert f"`pip install --force-reinstall {package}`" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_emulator_is_reported(
    poet_host: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = chip_library.importlib.util.find_spec
    monkeypatch.setattr(
        chip_library, "importlib",
        SimpleNamespace(util=SimpleNamespace(
            find_spec=lambda name: None if name == "unicorn" else find(name)
        )),
    )  # fmt: skip
    code, found = checks(poet_host)
    assert code == 0
    assert not found["emulator"]["ok"]
    assert "pip install poet-host[sim]" in found["emulator"]["found"]


def test_a_missing_package_is_reported(poet_host: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computer_check, "PACKAGES", (*computer_check.PACKAGES, "no-such-package"))
    code, found = checks(poet_host)
    assert code == 1
    assert found["packages"]["found"].endswith("`pip install no-such-package`")


def test_a_solver_that_does_not_solve_fails(
    poet_host: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_by = computer_check.plan_by

    def unknown(*given: Any, **options: Any) -> Plan:
        return replace(plan_by(*given, **options), status="unknown")

    monkeypatch.setattr(computer_check, "plan_by", unknown)
    code, found = checks(poet_host)
    assert code == 1
    assert "--force-reinstall highspy" in found["solver"]["found"]


# Ports and permissions. These tests may run as root, who has all permissions.


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: "/dev/tty" not in str(path) and real(path, mode)
    )


def test_a_board_without_permission_fails(
    poet_host: Command, monkeypatch: pytest.MonkeyPatch, closed: None
) -> None:
    monkeypatch.setattr(computer_check, "serial_ports", lambda: [MKR, OTHER])
    monkeypatch.setattr(ports, "serial_ports", lambda: [MKR, OTHER])
    code, found = checks(poet_host)
    assert code == 1
    assert found["serial ports"]["found"] == "/dev/ttyACM7 (mkr1000), /dev/ttyS7"
    advice = found["permissions"]["found"]
    assert "/dev/ttyACM7" in advice
    assert 'ATTRS{idVendor}=="2341"' in advice
    assert "ttyS7" not in advice


def test_another_port_without_permission_is_not_a_failure(
    poet_host: Command, monkeypatch: pytest.MonkeyPatch, closed: None
) -> None:
    monkeypatch.setattr(computer_check, "serial_ports", lambda: [OTHER])
    code, found = checks(poet_host)
    assert code == 0
    assert "/dev/ttyS7" in found["permissions"]["found"]


@pytest.mark.parametrize(("groups", "is_advised"), [([], True), ([20], False)])
def test_without_a_port_the_group_is_checked(
    poet_host: Command, monkeypatch: pytest.MonkeyPatch, groups: list[int], is_advised: bool
) -> None:
    monkeypatch.setattr(computer_check, "serial_ports", list)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getgroups", lambda: groups)
    monkeypatch.setattr(
        ports, "grp", SimpleNamespace(getgrnam=lambda name: SimpleNamespace(gr_gid=20))
    )
    code, found = checks(poet_host)
    assert code == 0
    assert found["serial ports"]["found"].startswith("none")
    assert ("sudo usermod -aG dialout $USER" in found["permissions"]["found"]) == is_advised

"""The program of Linux boards on a phone: QEMU runs it as an app's process, like those of Termux.

No phone takes part. What Android does to an app's processes is checked from QEMU's list of the
program's system calls: Android ends a process at a call that its filter does not allow, and
leaves an app little more than one folder. Termux's `proot` answers such calls with ENOSYS, and
makes `accept4` of `accept`. Sources: bionic's libc/SYSCALLS.TXT and SECCOMP_*.TXT, and
src/tracee/seccomp.c of termux/proot.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import poet_host as poet
import pytest
from poet_host.firmware_build.native import build_native
from support import whole_runs as runs

STEPS = 3
NOBODY = 65534
# Calls that bionic makes on arm64, so that Android allows them to apps.
ALLOWED = {
    "bind", "brk", "clock_gettime", "clock_nanosleep", "clone", "close", "exit", "exit_group",
    "fcntl", "fdatasync", "flock", "fstat", "fsync", "ftruncate", "futex", "getpid", "getppid",
    "getrandom", "getsockname", "gettid", "listen", "lseek", "madvise", "mmap", "mprotect",
    "munmap", "nanosleep", "newfstatat", "openat", "ppoll", "pread64", "prlimit64", "pwrite64",
    "read", "readlinkat", "recvfrom", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sendto",
    "set_tid_address", "setsockopt", "shutdown", "sigaltstack", "socket", "tgkill", "write",
    "writev",
}  # fmt: skip
# Calls of glibc that bionic does not make: Android ends a program at the first one.
NEEDS_PROOT = {"set_robust_list", "rseq", "accept"}
RSEQ = "Unknown syscall 293"  # QEMU does not know its name
CALL = re.compile(r"^\d+ (\w+)\(", re.MULTILINE)

pytestmark = pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-gcc") is None or shutil.which("qemu-aarch64") is None,
    reason="aarch64-linux-gnu-gcc or qemu-aarch64 is missing",
)


@dataclass(frozen=True)
class App:
    home: Path
    calls: Path  # QEMU's list of system calls
    port: str


@pytest.fixture
def app() -> Iterator[App]:
    """The program, as a user with little but its home, which is not below the home of pytest."""
    with TemporaryDirectory(prefix="poet-phone-") as folder:
        home = Path(folder) / "data" / "data" / "com.termux" / "files" / "home"
        home.mkdir(parents=True)
        shutil.copy(build_native(target="aarch64-linux-gnu"), home / "poet-native")
        poet.prepare_storage(home / "phone.img", 64 * runs.MIB)
        is_root = os.geteuid() == 0
        if is_root:
            Path(folder).chmod(0o711)
            for path in (home, *home.iterdir()):
                os.chown(path, NOBODY, NOBODY)
        calls = home / "calls.txt"
        qemu = [shutil.which("qemu-aarch64") or "", "-strace", "-D", calls]
        command = ["./poet-native", "--storage", "phone.img", "--arena", "67108864"]
        with subprocess.Popen(
            [*qemu, *command, "--board", "rpi4b", "--listen", "0"],
            cwd=home,
            env={"HOME": str(home), "PREFIX": str(home.parent / "usr")},  # no TMPDIR, no PATH
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **({"user": NOBODY, "group": NOBODY, "extra_groups": []} if is_root else {}),
        ) as process:
            assert process.stdout is not None
            try:
                yield App(home, calls, process.stdout.readline().strip())
            finally:
                process.kill()


def test_an_apps_process_trains_to_the_same_bits(app: App) -> None:
    """About 5 s."""
    assert re.fullmatch(r"socket://[0-9a-f]{32}@127\.0\.0\.1:\d+", app.port)
    schedule = runs.small()
    with poet.connect(app.port) as phone:
        found = poet.train(schedule, phone, "digits", steps=STEPS)
    assert found.board == "rpi4b"
    assert runs.same(found, runs.train(schedule, steps=STEPS))

    text = app.calls.read_text().replace(RSEQ, "rseq()")
    calls = set(CALL.findall(text))
    assert "Unknown" not in text
    assert calls - ALLOWED == NEEDS_PROOT
    assert {"accept", "clone", "pwrite64"} <= calls  # the list is whole
    missing = re.findall(r"set_robust_list\(.*?\) = (.*)", text)
    assert missing
    assert all("errno=38" in answer for answer in missing)  # ENOSYS, as proot answers
    assert set(re.findall(r'openat\([^,]*,"([^"]*)"', text)) == {"phone.img", "/dev/urandom"}

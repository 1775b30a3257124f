"""The USB drivers of Linux (hub, cdc_acm, tty) on the simulated boards, in a virtual machine.

Runs where QEMU is, and where POET_LINUX names a folder in which Debian's arm64 packages
linux-image-*-unsigned and busybox-static have been unpacked (`dpkg-deb -x`). Half a minute a board.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from poet_host.device import wire
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.sim.simulated_chip import SimulatedChip
from support.usb_redirect import Redirected

FOLDER = Path(os.environ.get("POET_LINUX", "/nonexistent"))
QEMU = "qemu-system-aarch64"
DRIVERS = ("common/usb-common", "core/usbcore", "class/cdc-acm", "host/xhci-hcd", "host/xhci-pci")
REPLY_BYTES = 90  # of HELLO: 88, stuffed, and a zero
PATIENCE_S = 240
DIRECTORY, FILE, DEVICE = 0o40755, 0o100755, 0o20600
SCRIPT = f"""#!/bin/busybox sh
PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for m in {" ".join(path.split("/")[1] for path in DRIVERS)}; do insmod /m/$m.ko; done
for i in $(seq 60); do [ -e /dev/ttyACM0 ] && break; sleep 1; done
cd /sys/bus/usb/devices/1-1 && for f in idVendor idProduct manufacturer product serial speed; do
echo "$f=$(cat $f)"; done
stty -F /dev/ttyACM0 raw -echo 1000000
exec 3<>/dev/ttyACM0
cat /hello >&3
echo "reply=$(timeout 20 dd bs=1 count={REPLY_BYTES} <&3 2>/dev/null | hexdump -v -e '1/1 "%02x"')"
exec 3>&-
sleep 1
poweroff -f
"""

pytestmark = pytest.mark.skipif(
    not (FOLDER / "boot").is_dir() or shutil.which(QEMU) is None,
    reason="needs QEMU, and a Linux kernel in POET_LINUX",
)


def archive(entries: list[tuple[str, int, bytes]]) -> bytes:
    """An initial file system, in the format of cpio that Linux calls newc."""
    out = bytearray()
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        device = (5, 1) if mode == DEVICE else (0, 0)
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0)
        out += b"070701" + b"".join(b"%08x" % value for value in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4)
        out += data
        out += bytes(-len(out) % 4)
    return bytes(out)


def initial_files(request: bytes) -> bytes:
    (modules,) = FOLDER.glob("lib/modules/*/kernel/drivers/usb")
    busybox = (FOLDER / "bin" / "busybox").read_bytes()
    entries = [(name, DIRECTORY, b"") for name in ("bin", "proc", "sys", "dev", "m")]
    entries += [("dev/console", DEVICE, b""), ("bin/busybox", FILE, busybox)]
    entries += [("init", FILE, SCRIPT.encode()), ("hello", FILE, request)]
    for path in DRIVERS:
        module = modules / f"{path}.ko"
        entries.append((f"m/{module.name}", FILE, module.read_bytes()))
    return archive(entries)


@pytest.mark.parametrize("name", ["mkr1000", "nrf52840_dk"])
def test_linux_finds_a_serial_port_and_talks_to_it(name: str, tmp_path: Path) -> None:
    chip = SimulatedChip(name, build_firmware(name), None, usb=True)
    board = Redirected(chip, str(tmp_path / "usb"))
    hello = wire.messages()["hello"]
    (tmp_path / "initrd").write_bytes(initial_files(b"\0" + wire.frame(7, hello.code, b"")))
    (kernel,) = FOLDER.glob("boot/vmlinuz*")
    command = [QEMU, "-M", "virt", "-cpu", "cortex-a53", "-m", "512", "-nographic"]
    command += ["-monitor", "none", "-serial", "stdio", "-net", "none", "-kernel", str(kernel)]
    command += ["-initrd", str(tmp_path / "initrd"), "-append", "console=ttyAMA0 quiet"]
    command += ["-chardev", f"socket,id=usb,path={tmp_path / 'usb'}", "-device", "qemu-xhci"]
    command += ["-device", "usb-redir,chardev=usb"]
    with (
        (tmp_path / "console").open("w") as console,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console) as guest,
    ):
        try:
            board.serve(guest, PATIENCE_S)
            guest.wait(60)
        finally:
            guest.kill()
    lines = (tmp_path / "console").read_text(errors="replace").splitlines()
    said = dict(line.split("=", 1) for line in lines if "=" in line)
    serial = said.pop("serial")
    reply = bytes.fromhex(said.pop("reply"))
    assert said == {
        "idVendor": "1209",
        "idProduct": "0001",
        "manufacturer": "poet-host",
        "product": name,
        "speed": "12",
    }
    sequence, code, payload = wire.unframe(reply.strip(b"\0"))
    assert (sequence, code) == (7, hello.code | wire.REPLY)
    status, _, rest = wire.unpack_status(payload)
    assert status == 0
    assert wire.unpack(hello.reply, rest)["hello"].unique_id == serial
    asked = [setup for setup, _ in board.requests]
    read = [setup[4:8] for setup in asked if setup.startswith("8006")]
    assert read[-10:] == [
        *("0001", "0006", "0006", "0006"),  # device, and its qualifier: it has none
        *("0002", "0002", "0003", "0203", "0103", "0303"),  # configuration, strings
    ]
    assert all((result >= 0) == (setup[4:8] != "0006") for setup, result in board.requests)
    port = [setup for setup in asked if setup.startswith("21")]
    assert port[0] == "2120000000000700", "at first the driver sets the line coding"
    assert port[1] == "2122030000000000", "who opens the port raises DTR and RTS"
    assert port[-1] == "2122000000000000", "who closes it drops them"

"""The firmware's USB device, compiled for this computer: requests, bytes, hostile hosts.

About twenty seconds, most of them for compiling.
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.usb_layer import COMMON, FIRMWARE, LINUX, SANITIZE, STALLED, Plugged, compile_layer

GET, SET, SET_CLASS, GET_CLASS = 0x80, 0x00, 0x21, 0xA1
CLOSED = "2122000000000000"  # a program closes the port


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("usb") / "layer.so"
    compile_layer(target, "-fPIC", "-shared", host=True)
    return target


@pytest.fixture
def device(library: Path, tmp_path: Path) -> Plugged:
    made = Plugged(library, tmp_path)
    made.enumerate()
    return made


@pytest.fixture
def opened(device: Plugged) -> Plugged:
    device.open()
    return device


def text_of(descriptor: bytes) -> str:
    assert descriptor[:2] == bytes([len(descriptor), 3])
    return descriptor[2:].decode("utf-16-le")


def descriptors(data: bytes) -> list[bytes]:
    found = []
    while data:
        found.append(data[: data[0]])
        data = data[data[0] :]
    return found


# -- enumeration --


@pytest.mark.parametrize("reports_status", [True, False])
def test_linux_enumerates_it_and_opens_it(
    library: Path, tmp_path: Path, reports_status: bool
) -> None:
    device = Plugged(library, tmp_path, reports_status=reports_status)
    device.enumerate()
    device.open()
    device.open(False)
    found = [(asked.address, asked.setup, asked.result) for asked in device.requests]
    assert found == [*LINUX, (5, CLOSED, 0)]
    assert not device.run(1_000_000), "an idle bus has no events"


def test_its_descriptors_describe_a_serial_port(device: Plugged) -> None:
    header = (COMMON / "usb.h").read_text()
    ids = [
        int(re.findall(rf"#define USB_{name}_ID 0x(\w+)", header)[0], 16)
        for name in ("VENDOR", "PRODUCT")
    ]
    asked = device.requests
    about = asked[2].data
    assert about[:8] == bytes([18, 1, 0x00, 0x02, 2, 0, 0, 64])
    assert [int.from_bytes(about[at : at + 2], "little") for at in (8, 10)] == ids
    assert [text_of(asked[at].data) for at in (9, 10, 11)] == [
        "mkr1000",
        "poet-host",
        "0123456789abcdef",
    ]
    assert asked[8].data == bytes([4, 3, 9, 4])
    parts = descriptors(asked[7].data)
    assert sum(map(len, parts)) == int.from_bytes(parts[0][2:4], "little") == 67
    assert parts[0][4:] == bytes([2, 1, 0, 0x80, 250])
    assert [part[5:8] for part in parts if part[1] == 4] == [bytes([2, 2, 0]), bytes([10, 0, 0])]
    assert [part[2:4] for part in parts if part[1] == 5] == [b"\x81\x03", b"\x02\x02", b"\x82\x02"]
    assert [part[2] for part in parts if part[1] == 0x24] == [0, 1, 2, 6]


@pytest.mark.parametrize("size", [1, 8, 9, 63, 64, 65, 66, 67, 68, 255, 0xFFFF])
def test_a_descriptor_has_the_requested_length(device: Plugged, size: int) -> None:
    whole = device.requests[7].data
    assert device.ask(GET, 6, 0x0200, 0, size) == whole[:size]


def test_a_descriptor_of_a_full_packet_ends_with_an_empty_one(
    library: Path, tmp_path: Path
) -> None:
    device = Plugged(library, tmp_path, b"a" * 31, b"b" * 40)
    device.enumerate()
    assert [text_of(request.data) for request in device.requests[9:12]] == [
        "a" * 31,
        "poet-host",
        "b" * 31,
    ]
    assert len(device.requests[9].data) == 64
    assert device.ask(GET, 6, 0x0302, 0x409, 64) == device.requests[9].data


# -- chapter 9, in every state in which a host may ask --

NOT_CONFIGURED = [
    ((0x80, 0, 0, 0, 2), b"\0\0"),  # status of the device: powered by the bus
    ((0x81, 0, 0, 0, 2), STALLED),
    ((0x82, 0, 0, 0x80, 2), b"\0\0"),
    ((0x82, 0, 0, 0x82, 2), STALLED),
    ((0x02, 1, 0, 0x00, 0), b""),
    ((0x02, 3, 0, 0x82, 0), STALLED),
    ((0x80, 8, 0, 0, 1), b"\0"),
    ((0x81, 10, 0, 0, 1), STALLED),
    ((0x01, 11, 0, 0, 0), STALLED),
    ((0x21, 0x20, 0, 0, 7), STALLED),
    ((0xA1, 0x21, 0, 0, 7), STALLED),
    ((0x21, 0x22, 3, 0, 0), STALLED),
]
CONFIGURED = [
    ((0x81, 0, 0, 0, 2), b"\0\0"),
    ((0x81, 0, 0, 1, 2), b"\0\0"),
    ((0x81, 0, 0, 2, 2), STALLED),
    ((0x82, 0, 0, 0x81, 2), b"\0\0"),
    ((0x82, 0, 0, 0x83, 2), STALLED),
    ((0x00, 1, 1, 0, 0), STALLED),  # it has no remote wake-up
    ((0x00, 3, 2, 0, 0), STALLED),  # and no test modes
    ((0x02, 3, 0, 0x00, 0), STALLED),
    ((0x02, 3, 1, 0x82, 0), STALLED),
    ((0x02, 3, 0, 0x83, 0), STALLED),
    ((0x80, 8, 0, 0, 1), b"\1"),
    ((0x81, 10, 0, 1, 1), b"\0"),
    ((0x81, 10, 0, 2, 1), STALLED),
    ((0x01, 11, 0, 1, 0), b""),
    ((0x01, 11, 1, 1, 0), STALLED),
    ((0x01, 11, 0, 2, 0), STALLED),
    ((0x00, 9, 2, 0, 0), STALLED),
    ((0x00, 5, 128, 0, 0), STALLED),
    ((0x80, 6, 0x0300 + 4, 0x409, 255), STALLED),
    ((0x80, 6, 0x0600, 0, 10), STALLED),  # a high-speed device would have one
    ((0x80, 6, 0x0F00, 0, 5), STALLED),
    ((0x80, 6, 0x0101, 0, 18), STALLED),
    ((0x80, 6, 0x0201, 0, 9), STALLED),
    ((0x82, 12, 0, 0x81, 2), STALLED),  # only isochronous endpoints have frames
    ((0x00, 7, 0x0100, 0, 18), STALLED),  # descriptors cannot be set
    ((0x00, 9, 1, 0, 3), STALLED),  # it has no data
    ((0x80, 6, 0x0100, 0, 0), b""),  # no bytes are requested
    ((0x21, 0x23, 0, 0, 0), STALLED),  # SEND_BREAK, which the descriptors do not offer
    ((0xC0, 1, 0, 4, 16), STALLED),  # Microsoft's
]


@pytest.mark.parametrize(
    ("configuration", "request_", "answer"),
    [*((0, *row) for row in NOT_CONFIGURED), *((1, *row) for row in CONFIGURED)],
)
def test_requests_with_and_without_a_configuration(
    device: Plugged, configuration: int, request_: tuple[int, ...], answer: bytes | int
) -> None:
    assert configuration or device.ask(SET, 9, 0, 0, 0) == b""
    assert device.ask(*request_) == answer
    assert device.ask(GET, 8, 0, 0, 1) == bytes([configuration]), "the device works on"


def test_the_line_coding_is_stored(device: Plugged) -> None:
    assert device.ask(GET_CLASS, 0x21, 0, 0, 7) == (9600).to_bytes(4, "little") + b"\0\0\x08"
    coding = (57600).to_bytes(4, "little") + bytes([2, 1, 7])
    assert device.ask(SET_CLASS, 0x20, 0, 0, 7, coding) == coding
    assert device.ask(GET_CLASS, 0x21, 0, 0, 7) == coding
    for length in (0, 6, 8, 64, 512):
        assert device.ask(SET_CLASS, 0x20, 0, 0, length, bytes(length)) == STALLED
    assert device.ask(GET_CLASS, 0x21, 0, 0, 7) == coding


# -- bytes --


@pytest.mark.parametrize("size", [1, 63, 64, 65, 127, 128, 129, 192, 1000, 5000])
def test_any_number_of_bytes_arrives(opened: Plugged, size: int) -> None:
    data = bytes(i * 7 % 256 for i in range(size))
    opened.device_sends(data)
    assert opened.host_reads() == data, "an empty packet ends full packets"
    opened.host_writes(data)
    assert opened.device_reads_all() == data
    assert max(opened.packets) <= 64
    assert not opened.run(1_000)


def test_an_empty_packet_follows_a_last_full_one(opened: Plugged) -> None:
    opened.device_sends(bytes(64))
    opened.run(5_000)
    opened.device_sends(bytes(10))
    opened.run(5_000)
    assert opened.packets == [64, 0, 10]


def test_a_host_that_writes_too_much_waits(opened: Plugged) -> None:
    data = bytes(range(1, 256)) * 3  # no zero, after which a frame would end
    opened.host_writes(data)
    assert not opened.run(1_000_000), "two packets are in; the third is refused until one is read"
    assert opened.device_reads(5) == data[:5]
    assert not opened.run(1_000_000)
    assert opened.device_reads() == data[5:64]
    assert opened.device_reads_all() == data[64:]


def test_the_bus_carries_nineteen_packets_a_frame(opened: Plugged) -> None:
    began = opened.time_us
    opened.device_sends(bytes(19 * 64 * 20))
    frames = (opened.time_us - began) / 1000
    assert 19 <= frames <= 22


def test_a_closed_port_transfers_nothing(device: Plugged) -> None:
    device.device_sends(b"lost")
    device.open()
    assert device.host_reads() == b""
    device.host_writes(b"unread")
    device.run(5_000)
    device.open(False)
    assert device.device_reads() == b""
    device.open()
    device.device_sends(b"received")
    assert device.host_reads() == b"received"


def test_bytes_to_a_host_that_fetches_nothing_are_dropped(opened: Plugged) -> None:
    """The port is open, but the host's buffers are full: after a second, bytes are dropped."""
    for _ in range(8):
        opened.device_sends(bytes(8192))
        opened.run(1_000)
    before = opened.time_us
    opened.device_sends(bytes(8192))
    assert 1e6 <= opened.time_us - before < 1.1e6
    before = opened.time_us
    opened.device_sends(bytes(8192))
    assert opened.time_us - before < 1000, "it waits only once"
    read = len(opened.host_reads())
    assert 65536 - 256 <= read <= 65536
    opened.run(5_000)
    opened.host_reads()
    opened.device_sends(b"again")
    assert opened.host_reads().endswith(b"again")


def test_halted_endpoints_continue_where_they_were(device: Plugged) -> None:
    data = bytes(range(200))
    for endpoint in (0x82, 0x02):
        assert device.ask(0x02, 3, 0, endpoint, 0) == b""
    device.host_writes(data)
    device.open()  # both endpoints stall
    device.device_sends(data[:100])
    got = device.device_reads_all()
    assert (got, device.host_reads()) == (data, data[:100])
    cleared = [asked.setup for asked in device.requests if asked.setup.startswith("0201")]
    assert cleared == ["0201000082000000", "0201000002000000"]


def test_an_endpoint_reports_that_it_is_halted(device: Plugged) -> None:
    assert device.ask(0x02, 3, 0, 0x82, 0) == b""
    assert [device.ask(0x82, 0, 0, at, 2) for at in (0x82, 0x02)] == [b"\1\0", b"\0\0"]
    assert device.ask(0x02, 1, 0, 0x82, 0) == b""
    assert device.ask(0x82, 0, 0, 0x82, 2) == b"\0\0"


# -- suspend, reset, and the cable --


def test_nothing_is_sent_to_a_suspended_bus(opened: Plugged) -> None:
    lib, machine = opened.lib, opened.machine
    lib.machine_usb_suspend(machine, True)
    opened.run(10_000)
    before = opened.time_us
    opened.device_sends(bytes(1000))
    assert opened.time_us == before, "usb_send does not wait for it"
    lib.machine_usb_suspend(machine, False)
    opened.run(30_000)
    opened.device_sends(b"awake")
    assert opened.host_reads() == b"awake"


@pytest.mark.parametrize("within_us", [0, 10, 100, 1000, 60_000, 115_000, 200_000])
def test_a_reset_at_any_time_starts_over(library: Path, tmp_path: Path, within_us: int) -> None:
    device = Plugged(library, tmp_path)
    device.lib.machine_usb_open(device.machine, True, 115200)
    device.run(within_us)
    device.lib.machine_usb_reset(device.machine)
    device.host_writes(b"early")
    device.run(1_000_000)
    assert device.lib.machine_usb_is_open(device.machine)
    assert device.device_reads_all() == b"early"
    session = device.lib.usb_session()
    device.device_sends(b"1" * 100)
    device.lib.machine_usb_reset(device.machine)
    device.run(1_000_000)
    assert device.lib.usb_session() == session + 2, "closed by the reset, and opened"
    device.host_reads()
    device.device_sends(b"2" * 100)
    assert device.host_reads() == b"2" * 100


def test_the_cable_out_and_in(opened: Plugged) -> None:
    opened.host_writes(b"half a frame")
    opened.run(2_000)
    opened.lib.machine_usb_plug(opened.machine, False)
    assert opened.lib.machine_usb_state(opened.machine) == opened.lib.USB_ABSENT
    assert not opened.lib.usb_waiting()
    opened.device_sends(b"nobody")
    opened.lib.machine_usb_plug(opened.machine, True)
    opened.enumerate()
    opened.open()
    opened.device_sends(b"back")
    assert opened.host_reads() == b"back"


def test_only_the_1200_baud_touch_leads_to_the_boot_loader(device: Plugged) -> None:
    device.open(baud=9600)
    device.open(False)
    assert device.lib.plugged_touches() == 0
    device.open(baud=1200)
    assert device.lib.plugged_touches() == 0, "only closing the port counts"
    device.open(False, baud=1200)
    assert device.lib.plugged_touches() == 1
    assert device.requests[-1].setup == CLOSED
    assert device.requests[-1].result == 0, "the host gets its answer first"
    assert device.ask(SET_CLASS, 0x22, 0, 0, 0) == b""
    assert device.lib.plugged_touches() == 1, "a closed port cannot be closed"


# -- the link: USB or UART --


def link_gets(device: Plugged) -> bytes:
    data = device.ffi.new("uint8_t[]", 256)
    size = device.lib.link_receive(data, 256)
    return bytes(data)[:size]


def uart_got(device: Plugged) -> bytes:
    data = device.ffi.new("uint8_t[4096]")
    size = device.lib.plugged_uart_take(data)
    return bytes(data)[:size]


def test_the_first_port_with_input_is_the_link(opened: Plugged) -> None:
    assert not opened.lib.link_waiting()
    opened.host_writes(b"usb")
    opened.run(2_000)
    assert link_gets(opened) == b"usb"
    opened.lib.plugged_uart_give(b"noise", 5)
    assert not opened.lib.link_waiting()
    assert link_gets(opened) == b""
    opened.lib.link_send(b"reply", 5)
    assert opened.host_reads() == b"reply"
    assert uart_got(opened) == b""


def test_a_uart_with_the_first_input_is_the_link_until_usb_is_opened(device: Plugged) -> None:
    device.lib.plugged_uart_give(b"uart", 4)
    assert link_gets(device) == b"uart"
    device.lib.link_send(b"reply", 5)
    assert uart_got(device) == b"reply"
    device.open()
    device.lib.plugged_uart_give(b"again", 5)
    assert link_gets(device) == b"again"
    device.host_writes(b"late")
    device.run(2_000)
    assert link_gets(device) == b""
    device.open(False)
    device.open()
    device.host_writes(b"first")
    device.run(2_000)
    assert link_gets(device) == b"first"
    device.lib.link_send(b"reply", 5)
    assert (device.host_reads(), uart_got(device)) == (b"reply", b"")


@pytest.mark.parametrize(
    "leave",
    [
        lambda device: device.open(False),
        lambda device: device.lib.machine_usb_plug(device.machine, False),
        lambda device: device.lib.machine_usb_reset(device.machine),
        lambda device: device.lib.machine_usb_suspend(device.machine, True),
    ],
    ids=["closed", "unplugged", "reset", "suspended"],
)
def test_the_uart_may_speak_once_usb_is_gone(
    opened: Plugged, leave: Callable[[Plugged], None]
) -> None:
    opened.host_writes(b"usb")
    opened.run(2_000)
    assert link_gets(opened) == b"usb"
    leave(opened)
    opened.run(200_000)
    opened.lib.plugged_uart_give(b"uart", 4)
    assert link_gets(opened) == b"uart"
    opened.lib.link_send(b"reply", 5)
    assert uart_got(opened) == b"reply"


def test_last_words_need_no_interrupts(opened: Plugged) -> None:
    text = b"poet: fault 03 at 00000000, from 00000000\r\n"
    opened.device_sends(b"x" * 100)
    opened.lib.usb_last_words(text)
    assert opened.host_reads() == b"x" * 100 + text


# -- hostile hosts --


def fuzz(program: Path, rounds: int) -> subprocess.CompletedProcess[str]:
    command = [program, "1", str(rounds)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_no_sequence_of_events_leaves_the_buffers_or_hangs(tmp_path: Path) -> None:
    """2,000 rounds of 300 events each, sanitizers on; `make fuzz-usb` goes on for longer."""
    program = tmp_path / "fuzz"
    compile_layer(program, *SANITIZE, host=False)
    done = fuzz(program, 2000)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = dict(line.split() for line in done.stdout.splitlines())
    assert counts.pop("rounds") == "2000"
    assert all(int(count) > 1000 for count in counts.values()), counts


@pytest.mark.parametrize(
    ("file", "rule"),
    [
        ("usb_serial.c", " && size <= USB_PACKET"),
        ("usb_serial.c", "  port.out_read = port.out_given;\n"),
        ("usb.c", "  usb_serial_configure(false);\n"),
    ],
)
def test_the_fuzzer_sees_a_device_that_forgets_a_rule(tmp_path: Path, file: str, rule: str) -> None:
    for path in (*COMMON.glob("*.h"), *(COMMON / name for name in FIRMWARE)):
        text = path.read_text()
        if path.name == file:
            assert rule in text
            text = text.replace(rule, "", 1)
        (tmp_path / path.name).write_text(text)
    program = tmp_path / "fuzz"
    compile_layer(program, host=False, common=tmp_path)
    assert "a rule of usb.h is broken" in fuzz(program, 200).stderr

"""Boards of the suite: both simulated ones, or the real one that the options name.

    pytest tests/hardware
    pytest tests/hardware --board mkr1000 --port /dev/ttyACM0 -x

Files are numbered in the order of bringing a board up; the first thing that fails is the one to
fix. On a real board the firmware is built and written first (--no-flash: it is there already),
and what the card's poet partition holds is lost.
"""

from collections.abc import Iterator

import pytest
from poet_host.device.device import Device
from support.sim_helper import needs_compiler

from tests.hardware.rig import Rig, look, simulated_rig


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hardware", "a real board")
    group.addoption("--board", help="Name of the board, as in boards/.")
    group.addoption("--port", help="Serial port where its firmware answers.")
    group.addoption("--upload-port", help="Serial port of its loader, if that is another.")
    group.addoption("--no-flash", action="store_true", help="The right firmware is there already.")


def pytest_configure(config: pytest.Config) -> None:
    if bool(config.getoption("board", None)) != bool(config.getoption("port", None)):
        raise pytest.UsageError("--board and --port belong together: give both, or neither")


def _real(config: pytest.Config) -> Rig | None:
    board = config.getoption("board", None)  # unknown where the suite is a part of a larger one
    if not board:
        return None
    named = (config.getoption(name) for name in ("port", "upload_port", "no_flash"))
    return Rig(board, *named)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "rig" not in metafunc.fixturenames:
        return
    real = _real(metafunc.config)
    simulated = [pytest.param(name, marks=needs_compiler) for name in ("mkr1000", "nrf52840_dk")]
    metafunc.parametrize("rig", [real] if real else simulated, indirect=True, scope="session",
                         ids=[real.board] if real else None)  # fmt: skip


@pytest.fixture(scope="session")
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if isinstance(request.param, Rig):
        yield request.param
        return
    with simulated_rig(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.fixture
def device(rig: Rig) -> Iterator[Device]:
    with look(f"what test_2_hello says of {rig.port}"):
        opened = rig.connect()
    with opened:
        yield opened

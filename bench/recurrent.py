"""`make bench-recurrent`: networks over time train on the nRF52840.

Each step is planned for the arena of the board. The trained weights are compared with those of a
native board that keeps everything in RAM. Prints a table and writes RESULTS-recurrent.md. Times and
energies are simulated, so other processes do not change them.
"""

from pathlib import Path

import poet_host as poet
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder, Tensor

from .streaming import Case, run_cases
from .tiny import report_of

RESULTS = Path(__file__).with_name("RESULTS-recurrent.md")
BOARD, STEPS = "nrf52840_dk", 2


def _trained(b: Builder, last: Tensor, classes: int) -> poet.Graph:
    return training_graph(b.model(b.softmax_xent(b.linear(last, classes))), Sgd(0.05))


def keyword_gru() -> poet.Graph:
    """Spectra of 49 times and 10 features, as in MLPerf Tiny, 64 units, 12 words."""
    b = Builder("keyword_gru", data=(1, 49, 10))
    x = b.gru(b.linear(b.reshape(b.data, (49, 1, 10)), 3 * 64))
    return _trained(b, b.reshape(b.slice(x, 0, 48, 49), (1, 64)), 12)


def deep_conv_lstm(units: int = 128) -> poet.Graph:
    """Ordonez and Roggen (2016): windows of 24 times, here of 9 channels and 6 classes."""
    b = Builder("deep_conv_lstm", data=(1, 1, 24, 9))
    x = b.data
    for _ in range(4):
        x = b.relu(b.conv2d(x, 64, (5, 1)))
    x = b.reshape(b.transpose(x, (2, 0, 1, 3)), (8, 1, 64 * 9))
    for _ in range(2):
        x = b.lstm(b.linear(x, 4 * units))
    return _trained(b, b.reshape(b.slice(x, 0, 7, 8), (1, units)), 6)


def deep_conv_lstm_of_96() -> poet.Graph:
    """The same with so many units that the RAM can hold the recurrent weight."""
    return deep_conv_lstm(96)


RAM_BYTES = poet.load_board(BOARD).arena_bytes
CASES = [
    Case(keyword_gru, "synthetic:49x10:12", BOARD, RAM_BYTES),
    Case(keyword_gru, "synthetic:49x10:12", BOARD, RAM_BYTES, commit_every=10),
    Case(keyword_gru, "synthetic:49x10:12", BOARD, RAM_BYTES, commit_every=100),
    Case(deep_conv_lstm, "synthetic:1x24x9:6", BOARD, RAM_BYTES),
    Case(deep_conv_lstm_of_96, "synthetic:1x24x9:6", BOARD, RAM_BYTES),
    Case(deep_conv_lstm_of_96, "synthetic:1x24x9:6", BOARD, RAM_BYTES, commit_every=10),
]


if __name__ == "__main__":
    run_cases("bench.recurrent", __doc__, CASES, STEPS, report_of("recurrent", STEPS), RESULTS)

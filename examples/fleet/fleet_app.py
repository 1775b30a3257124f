"""Four boards learn the digits together: each has the samples of its own classes alone.

The README says how to run it. `client` runs on the computer of each board, `server` on one computer
that never receives a sample.
"""

from collections.abc import Mapping

import numpy as np
import poet_host as poet
from poet_host.flower import client_app, server_app

BOARDS = 4


def samples_of(node: Mapping[str, object]) -> poet.Dataset:
    """Return the digits of one board: samples of its own classes, and the common held-out ones."""
    data = poet.load_data("digits")
    own = np.array_split(np.arange(10), BOARDS)[int(str(node["board"]))]
    chosen = np.isin(data.y, own)
    name = f"digits {own.min()}-{own.max()}"
    return poet.Dataset(name, data.x[chosen], data.y[chosen], data.x_test, data.y_test)


client = client_app(data=samples_of)
server = server_app("resnet-digits", boards=BOARDS, data="digits")

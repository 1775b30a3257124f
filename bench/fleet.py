"""`make fleet`: four boards of three kinds learn the digits together, by Flower on this computer.

A SuperLink and four SuperNodes run examples/fleet, each with a board: native in 32 KiB, a simulated
MKR1000 in 24 KiB, a simulated nRF52840 in 40 KiB, and native in 48 KiB. One SuperNode is killed in
the middle of a round, and started again. After each round, the weights must have the bits of four
native boards, and of averaging by hand in this process. FedProx, too. Writes RESULTS-fleet.md.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from shutil import copytree
from typing import Any

import poet_host as poet
from poet_host.errors import PoetError
from poet_host.files import read_text, write_whole
from poet_host.flower import train_round, travelling
from poet_host.graph.weights import Weights, start_values

from .report import about, filled, number, percent, table

RESULTS = Path(__file__).with_name("RESULTS-fleet.md")
SERVER = 'server_app("resnet-digits", '  # in the example
EXAMPLE = Path(__file__).parents[1] / "examples" / "fleet"
BIN = Path(sys.executable).parent
MODEL, BATCH, LOCAL_STEPS = "resnet-digits", 4, 20
MIXED = (("native", "32KiB"), ("mkr1000", "24KiB"), ("nrf52840_dk", "40KiB"), ("native", "48KiB"))
ROUNDS, PROX_ROUNDS, MU = 10, 3, 0.1
# The board whose SuperNode is killed, so many rounds and seconds after the start.
KILLED, KILLED_AFTER, KILLED_S = 1, 2, 4.0
SOLVE_WORK = 5_000  # any plan is good enough here
ENGINE_S = 60.0  # longest wait for the SuperLink
FLEET_S = 3600.0  # longest time of a run
# Without these variables, Flower sends messages to its makers' server.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def schedules(folder: Path, proximal: float | None = None) -> list[dict[str, Any]]:
    """Solve the model for each kind of board; return the configs of the mixed fleet's nodes."""
    folder.mkdir()
    nodes = []
    for board, (kind, ram) in enumerate(MIXED):
        path = folder / f"{kind}-{ram}.poet"
        graph = poet.load(MODEL, batch=BATCH, proximal=proximal)
        plan = poet.solve(poet.problem(graph, kind, ram=ram), work_limit=SOLVE_WORK, gap=0.5)
        poet.encode(graph, plan).save(path)
        port = kind if kind == "native" else f"sim:{kind}"
        nodes.append({"board": board, "port": port, "schedule": str(path)})
    return nodes


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Deployment:
    """A SuperLink and its SuperNodes, as processes on this computer."""

    def __init__(self, home: Path) -> None:
        self._home, self._link = home, free_port()
        self._running: list[subprocess.Popen[bytes]] = []
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | QUIET | {
            "FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}",
        }  # fmt: skip
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "loop"\n[superlink.loop]\naddress = "127.0.0.1:{self._link}"\n'
            "insecure = true\n"
        )
        self._start(
            "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self._link),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        ends = time.monotonic() + ENGINE_S
        while not self._answers():
            if time.monotonic() > ends:
                raise PoetError(f"the SuperLink does not answer: see the logs in {home}")
            time.sleep(0.5)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._link)) == 0

    def _start(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        log = (self._home / f"{len(self._running)}-{program}.log").open("w")
        process = subprocess.Popen(
            [BIN / program, *words], env=self._environment, stdout=log, stderr=log, cwd=self._home,
            start_new_session=True,
        )  # fmt: skip
        self._running.append(process)
        return process

    def start_node(self, node: Mapping[str, Any]) -> None:
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in node.items())
        self.nodes[node["board"]] = self._start(
            "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self._link}",
            "--port", str(free_port()), "--node-config", config,
        )  # fmt: skip

    def run(self, app: Path, **config: object) -> subprocess.Popen[bytes]:
        """Start a run, and return the process that ends with it."""
        words = [f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in config.items()]
        return self._start(
            "flwr", "run", str(app), "loop", "--stream", "--run-config", " ".join(words)
        )

    def close(self) -> None:
        for kind in (signal.SIGTERM, signal.SIGKILL):
            for process in self._running:
                try:
                    os.killpg(process.pid, kind)
                except ProcessLookupError:
                    continue
            time.sleep(2)
        for process in self._running:
            process.wait(10)


def by_flower(
    nodes: Sequence[Mapping[str, Any]], rounds: int, app: Path = EXAMPLE, killed: int | None = None
) -> tuple[list[dict[str, Any]], float]:
    """Train a fleet by Flower: return what each round logs, and the seconds of a round."""
    home = Path(tempfile.mkdtemp(prefix="fleet-"))
    print(f"logs of Flower: {home}", flush=True)
    log = home / "rounds.jsonl"
    engine = Deployment(home)
    try:
        for node in nodes:
            engine.start_node(node)
        began = time.monotonic()
        run = engine.run(
            app, rounds=rounds, local_steps=LOCAL_STEPS, log_to=str(log),
            save_to=str(home / "global.safetensors"),
        )  # fmt: skip
        while True:
            done = read_text(log).splitlines() if log.exists() else []
            if len(done) > rounds:  # round 0 has the first weights
                return [json.loads(line) for line in done], (time.monotonic() - began) / rounds
            if run.poll() is not None or time.monotonic() > began + FLEET_S:
                raise PoetError(f"the fleet has stopped after {len(done) - 1} rounds: see {home}")
            if killed is not None and len(done) > KILLED_AFTER:
                time.sleep(KILLED_S)  # the round has begun
                os.killpg(engine.nodes[killed].pid, signal.SIGKILL)
                engine.start_node(nodes[killed])
                killed = None
            time.sleep(0.5)
    finally:
        engine.close()


def by_hand(nodes: Sequence[Mapping[str, Any]], rounds: int, **more: float) -> list[str]:
    """Average in this process, in the order of the boards; return the hash after each round."""
    sys.path.insert(0, str(EXAMPLE))
    samples_of = import_module("fleet_app").samples_of

    graph = poet.load(MODEL)
    assert isinstance(graph, poet.Graph)
    first = start_values(graph, seed=0)
    weights: Weights = {name: first[name] for name in travelling(graph)}
    hashes = [poet.weights_sha256(weights)]
    for turn in range(1, rounds + 1):
        settings = {"server-round": turn, "local-steps": LOCAL_STEPS, "seed": 0, **more}
        answers = [train_round(node, samples_of, weights, settings) for node in nodes]
        counts = [metrics["num-examples"] for _, _, metrics in answers]
        shares = [count / sum(counts) for count in counts]
        total = {name: answers[0][0][name] * shares[0] for name in weights}
        for (found, _, _), share in zip(answers[1:], shares[1:], strict=True):
            for name in total:
                total[name] = total[name] + found[name] * share
        weights = total
        hashes.append(poet.weights_sha256(weights))
    return hashes


def fedprox(folder: Path) -> Path:
    """Return a copy of the example whose strategy is FedProx."""
    copytree(EXAMPLE, folder)
    app = folder / "fleet_app.py"
    text = read_text(app)
    assert text.count(SERVER) == 1
    strategy = f"FedProx(proximal_mu={MU}, fraction_evaluate=0.0)"
    text = text.replace(SERVER, f"{SERVER}strategy={strategy}, ")
    app.write_text(f"from flwr.serverapp.strategy import FedProx\n{text}")
    return folder


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        mixed = schedules(folder / "fedavg")
        pulled = schedules(folder / "fedprox", MU)
        native, pulled_native = (
            [{**of[0], "board": i} for i in range(4)] for of in (mixed, pulled)
        )
        hand, hand_prox = (
            by_hand(native, ROUNDS),
            by_hand(pulled_native, PROX_ROUNDS, **{"proximal-mu": MU}),
        )
        rows, round_s = by_flower(mixed, ROUNDS, killed=KILLED)
        others, other_s = by_flower(native, ROUNDS)
        prox, _ = by_flower(pulled_native, PROX_ROUNDS, fedprox(folder / "app"))
        sha = [[row["sha256"] for row in of] for of in (rows, others, prox)]
        write_whole(
            RESULTS,
            filled(
                "fleet",
                about=about("numpy", "flwr"),
                rounds=table(
                    ["round", "accuracy, %", "weights after it", "four native boards", "by hand"],
                    [
                        [
                            str(row["round"]),
                            percent(row["accuracy"], 1),
                            row["sha256"][:12],
                            *(
                                "the same" if row["sha256"] == it else it[:12]
                                for it in (four, plain)
                            ),
                        ]
                        for row, four, plain in zip(rows, sha[1], hand, strict=True)
                    ],
                ),
                boards=table(
                    [
                        "board",
                        "RAM",
                        "peak, bytes",
                        "mJ",
                        "bytes sent and received",
                        "bytes written",
                    ],
                    [
                        [
                            f"{row['board']}: {kind}",
                            ram,
                            f"{row['peak-bytes']:,}",
                            number(row["energy-mj"], 1),
                            f"{row['message-bytes']:,}",
                            f"{row['written-bytes']:,}",
                        ]
                        for row, (kind, ram) in zip(rows[-1]["boards"], MIXED, strict=True)
                    ],
                ),
                same="the same" if sha[0] == sha[1] == hand else "NOT the same",
                killed=KILLED,
                killed_round=KILLED_AFTER + 1,
                local_steps=LOCAL_STEPS,
                mu=MU,
                prox="has" if sha[2] == hand_prox else "does NOT have",
                prox_rounds=PROX_ROUNDS,
                prox_sha=sha[2][-1][:12],
                round_s=number(round_s, 1),
                other_s=number(other_s, 1),
            ).encode(),
        )
        if not (sha[0] == sha[1] == hand and sha[2] == hand_prox):
            raise SystemExit(f"weights differ: see {RESULTS}")


if __name__ == "__main__":
    main()

"""The formats: for each a valid file, ways to change it, and how the product uses what it reads."""

import contextlib
import io
import json
import struct
import zipfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from poet_host import api, isa
from poet_host.card.job import make_job
from poet_host.card.weights import SavedWeights, load_weights, save_weights, step_of_weights
from poet_host.cli.main import run as command
from poet_host.data.classes import Classes
from poet_host.data.datasets import Dataset, load_data
from poet_host.data.facts import DataFacts
from poet_host.data.fitted import example, fit, fit_samples
from poet_host.data.normalization import Normalization
from poet_host.device.board import parse_board
from poet_host.errors import BadInput
from poet_host.files import read_json, read_text
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values, to_named
from poet_host.graph.work import work_of
from poet_host.plan.costgraph import dump_cost_graph, load_cost_graph
from poet_host.plan.plan import plan_from_json
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.plan.verify import verify
from poet_host.profile import meter
from poet_host.profile.profile import Profile, estimate_profile, signature
from poet_host.resources import resource
from poet_host.run.run import Run
from poet_host.schedule.decode import decode
from poet_host.schedule.model import with_crc
from poet_host.schedule.schedule import Schedule, file_of
from poet_host.schedule.times import costs_of_schedule
from poet_host.sim.chipfile import parse_chip
from poet_host.view.comparison import compare_run
from poet_host.view.lanes import planned, recorded, views_of
from poet_host.view.listing import listing
from poet_host.view.page import page
from poet_host.view.perfetto import chrome_trace
from support.parts import plan_of_model
from support.whole_runs import profile, schedule, texts, train

from .mutate import changed, damaged, json_bytes, toml_bytes

SHOWN = ((), ("--html", "o.html"), ("--trace", "o.json"), ("--json",))


class Format:
    """One format. `write` puts a case's file at a path, unchanged if `valid`; `use` reads it."""

    suffix = ""
    exit_codes: tuple[int, ...] = (2,)  # of errors that may be raised

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        raise NotImplementedError

    def use(self, path: Path, rng: Random) -> None:
        raise NotImplementedError

    def show(self, rng: Random, *arguments: object) -> None:
        """`poet-host show`, in this process."""
        more = (self.folder / word if word.startswith("o.") else word for word in rng.choice(SHOWN))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command(["show", *map(str, arguments), *map(str, more)])
        if code == 2:
            raise BadInput(err.getvalue().strip())
        if code:
            raise AssertionError(f"exit code {code}: {err.getvalue()}")


class JsonFormat(Format):
    """A format of plain JSON; `value` is a valid one."""

    suffix = ".json"
    value: Any

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        if valid:
            path.write_text(json.dumps(self.value))
        else:
            path.write_bytes(json_bytes(changed(self.value, rng), rng))


@cache
def linear() -> Graph:
    return api.load_graph("linear")


@cache
def lenet() -> Graph:
    return api.load("lenet-digits", batch=2, momentum=0.9)


@cache
def costs() -> CostGraph:
    """A small graph of costs."""
    pages = {"page_in_us": 9.0, "page_in_uj": 3.0, "page_out_us": 9.0, "page_out_uj": 3.0}
    nodes = [
        CostNode(
            f"n{i}", () if i < 2 else (i - 1, i - 2), 64 * (i + 1), time_us=3.0 + i, energy_uj=2.0,
            **pages, stored=i < 2, keep=i == 6, workspace_bytes=4 * (i == 4),
        )
        for i in range(7)
    ]  # fmt: skip
    return CostGraph("tiny", tuple(nodes))


class PoetFile(Format):
    suffix = ".poet"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        keeping = api.solve(costs(), ram="100%", method="keep-everything")
        self.bases = [schedule(linear()), schedule(lenet()), schedule(texts())]
        self.bases += [api.encode(costs(), None, keeping)]
        self.bases += [Schedule.load(path) for path in resource("schedules").glob("*.poet")]
        self.weights = [1 / len(schedule.to_bytes()) for schedule in self.bases]
        graphs = [schedule.graph for schedule in self.bases if schedule.model.operators[0].kernel]
        self.data = {g.name: fit(Dataset("example", *example(g)), g) for g in graphs}

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        # The small ones more often, as they are read in a fraction of the time.
        (base,), how = rng.choices(self.bases, self.weights), rng.random()
        if valid or how < 0.1:
            data = base.to_bytes()
            path.write_bytes(data if valid else damaged(data, rng))
            return
        head = isa.record_size("poet_model"), isa.record_size("poet_plan_header")
        model, plan, meta = base.model_part, base.plan_part, json.dumps(base.meta).encode()
        if how < 0.7:
            meta = json_bytes(changed(base.meta, rng), rng)
        elif how < 0.85:
            plan = plan[: head[1]] + damaged(plan[head[1] :], rng)
        else:
            rest = damaged(model[head[0] :], rng)
            model = model[: head[0]] + (rest + bytes(len(model)))[: len(model) - head[0]]
        model = with_crc(model)
        plan = plan_of_model(plan, model, bit_bytes=len(plan) - head[1])
        path.write_bytes(file_of({1: model, 2: plan, 3: meta}))

    def use(self, path: Path, rng: Random) -> None:
        how = rng.random()
        if how < 0.05:
            self.show(rng, path)
            return
        found = Schedule.load(path)
        if how < 0.4:
            listing(found)
        elif how < 0.5:
            chrome_trace(found, views_of(found))
        elif how < 0.55:
            page(found, views_of(found))
        elif found.model.operators and found.model.operators[0].kernel:
            graph = found.graph
            to_named(graph, start_values(graph, 0), constants=False)
            if graph.name in self.data:
                make_job(found, fit(self.data[graph.name], graph), 0, 0, 2)


class BoardFile(Format):
    suffix = ".toml"
    texts = tuple(read_text(resource("boards") / name / "board.toml") for name in api.board_names())

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        text = rng.choice(self.texts)
        path.write_bytes(text.encode() if valid else toml_bytes(text, rng))

    def use(self, path: Path, rng: Random) -> None:
        board = parse_board("native", read_text(path), str(path))
        json.dumps(estimate_profile(board).to_json(), allow_nan=False)
        graph = linear()
        for kind in ("estimate", "paper") if board.paper else ("estimate",):
            costs = api.costs_of(graph, estimate_profile(board, kind))
            json.dumps(dump_cost_graph(costs), allow_nan=False)


class ChipFile(BoardFile):
    texts = tuple(read_text(path) for path in sorted(resource("boards").glob("*/chip.toml")))

    def use(self, path: Path, rng: Random) -> None:
        parse_chip(read_text(path), str(path))


class ProfileFile(JsonFormat):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        found = profile()
        nodes = [node for node in lenet() if not node.stored]
        measured = api.estimate_profile(api.load_board("mkr1000"))
        self.value = json.loads(json.dumps(found.to_json()))
        for node in nodes:
            done = work_of(node, lenet())
            self.value["operators"][signature(node)] = {
                "time_us": measured.rates.time_us(done), **vars(done)
            }  # fmt: skip

    def use(self, path: Path, rng: Random) -> None:
        found = Profile.load(path)
        json.dumps(found.merged(found).to_json(), allow_nan=False)
        graph = rng.choice((linear(), lenet()))
        json.dumps(dump_cost_graph(api.costs_of(graph, found)), allow_nan=False)


class PlanFile(JsonFormat):
    exit_codes = (1, 2)  # 1: it breaks a law of plans

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        plan = api.solve(costs(), ram="100%", method="keep-everything")
        self.value = json.loads(json.dumps(plan.to_json()))
        self.problem = Problem(costs(), 10**9)

    def use(self, path: Path, rng: Random) -> None:
        plan = plan_from_json(read_json(path), str(path))
        json.dumps(plan.to_json(), allow_nan=False)
        verify(self.problem, plan)


class CostGraphFile(JsonFormat):
    exit_codes = (2, 5)  # 5: its limits cannot be kept

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.value = json.loads(json.dumps(dump_cost_graph(costs())))

    def use(self, path: Path, rng: Random) -> None:
        graph = load_cost_graph(path)
        json.dumps(dump_cost_graph(graph), allow_nan=False)
        plan = api.solve(graph, ram="100%", method="keep-everything")
        json.dumps(plan.to_json(), allow_nan=False)


class RunFile(JsonFormat):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.schedule = schedule(lenet())
        self.poet = folder / "base.poet"
        self.schedule.save(self.poet)
        self.value = json.loads(json.dumps(train(self.schedule, steps=3).to_json()))
        self.statements = decode(self.schedule)
        self.costs = costs_of_schedule(self.schedule)
        self.planned = planned(self.costs, self.statements)

    def use(self, path: Path, rng: Random) -> None:
        how = rng.random()
        if how < 0.02:
            self.show(rng, self.poet, "--run", path)
            return
        run = Run.load(path)
        json.dumps(run.to_json(), allow_nan=False)
        views = [self.planned, recorded(self.costs, self.statements, run, str(path))]
        compare_run(self.schedule, self.planned, run)
        if how < 0.05:
            page(self.schedule, views, run)
        elif how < 0.1:
            json.dumps(chrome_trace(self.schedule, views), allow_nan=False)


FACTS = DataFacts(
    Classes(("circle", "square", "star"), {0x1234: 0, 0xFEDC: 2}),
    Normalization((0.5, 2.0), (0.25, 3.0)),
)


class WeightsFile(Format):
    suffix = ".safetensors"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        path = folder / "base.safetensors"
        save_weights(path, lenet(), SavedWeights(start_values(lenet(), 0), FACTS), step=3)
        self.base = path.read_bytes()
        size = struct.unpack("<Q", self.base[:8])[0]
        self.head, self.body = json.loads(self.base[8 : 8 + size]), self.base[8 + size :]

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        how = rng.random()
        if valid or how < 0.3:
            path.write_bytes(self.base if valid else damaged(self.base, rng))
            return
        head: Any = dict(self.head)
        if how < 0.5:
            names = {"model": "lenet-digits", "step": 3, **FACTS.to_json()}
            about = changed(names, rng)
            text = rng.choice((json_bytes(about, rng), b"[" * 100_000, b"9" * 5000, b"1", b"null"))
            head["__metadata__"] = {"poet-host": text.decode("utf-8", "replace")}
        else:
            head = changed(head, rng)
        text = json_bytes(head, rng)
        size = len(text) if rng.random() < 0.95 else rng.choice((10**12, 0, 2**63))
        body = self.body if rng.random() < 0.8 else damaged(self.body, rng)
        path.write_bytes(struct.pack("<Q", size) + text + body)

    def use(self, path: Path, rng: Random) -> None:
        if rng.random() < 0.4:
            step_of_weights(path)
        else:
            weights = load_weights(path, lenet())
            to_named(lenet(), weights, constants=False)
            if weights.normalization:
                weights.normalization.apply("x", np.ones((2, 1, 8, 8), np.float32))


_SHAPES = (
    "1000000000000,", "10**12,", "-1,", "6, 1, 8, 8", "0,", "2147483648, 2147483648", "", "6," * 40,
    "True,", "1e3,", "9" * 30 + ",", "200000, 200000", "9" * 5000 + ",", "(1,),",
)  # fmt: skip
_TYPES = (
    "'|O'", "'<U1000000000'", "[('a','<f4')]", "'<M8[s]'", "'|V8'", "'<c16'", "'>f8'", "'|b1'",
    "'<f2'", "'<i8'", "'|S3'", "'" + "x" * 500 + "'", "(" * 300, "None", "{}",
)  # fmt: skip


class NpzFile(Format):
    suffix = ".npz"
    names = ("x.npy", "y.npy", "x_test.npy", "y_test.npy", "../../x.npy", "z.txt", "x", "a\nb.npy")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.x = np.random.default_rng(0).random((6, 1, 8, 8)).astype("f4")
        self.y = np.arange(6) % 10

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        kept = valid or rng.random() < 0.6
        names = ["x.npy", "y.npy"] if kept else rng.sample(self.names, rng.randrange(1, 5))
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", rng.choice((0, 8))) as archive:
            for name in names:
                archive.writestr(name, self.member(self.x if "x" in name else self.y, rng, valid))
        data = file.getvalue()
        path.write_bytes(data if valid or rng.random() < 0.7 else damaged(data, rng))

    def member(self, array: Any, rng: Random, valid: bool) -> bytes:
        how = rng.random()
        if 0.6 < how < 0.8 and not valid:
            return _odd_npy(rng)
        if how > 0.8 and not valid:
            array = rng.choice(
                (
                    array.astype("f8") * float("nan"), array[:3], array.reshape(-1), np.array(3.0),
                    array[:0], array.astype("U"), array.astype("c8"), array > 0,
                    array.astype(">i2"), array * -1e300,
                )
            )  # fmt: skip
        file = io.BytesIO()
        np.save(file, array)
        return damaged(file.getvalue(), rng) if 0.3 < how < 0.6 and not valid else file.getvalue()

    def use(self, path: Path, rng: Random) -> None:
        kind, split = rng.choice(("none", "scale", "standard")), rng.choice((0.0, 0.3))
        if rng.random() < 0.3:  # as `predict` reads it
            data = load_data(path, normalize=kind, graph=lenet(), labels=False)
            fit_samples(data, "", data.x, lenet())
            return
        fit(load_data(path, normalize=kind, test_split=split), lenet())


def _odd_npy(rng: Random) -> bytes:
    shape, kind = "6,", "'<f4'"
    if rng.random() < 0.5:
        shape = rng.choice(_SHAPES)
    else:
        kind = rng.choice(_TYPES)
    head = f"{{'descr': {kind}, 'fortran_order': False, 'shape': ({shape}), }}".encode()
    head += b" " * (63 - (len(head) + 10) % 64) + b"\n"
    rest = rng.randbytes(rng.choice((0, 24, 4096)))
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + rest


class NpyFolder(NpzFile):
    suffix = ""

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        path.mkdir(exist_ok=True)
        for name, array in (("x", self.x), ("y", self.y)):
            (path / f"{name}.npy").write_bytes(self.member(array, rng, valid))


class PowerLog(Format):
    suffix = ".csv"
    cells = ("nan", "1e15", "1e300", "-5", "", "x", "1e12", "99999999999", "0", "1e9", "9" * 5000)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        held = (("compute", 800.0, 5000), ("write", 900.0, 9000), ("read", 1000.0, 7000))
        self.states = [
            meter.State(name, 1e3 * ms, 0.0 if name == "compute" else 1e3 * ms, 300.0 * ms)
            for name, ms, _ in held
        ]
        spans = [(500.0, 100)]
        for _, ms, current_ua in held:
            spans += [(ms, current_ua), (500.0, 100)]
        time_ms, self.rows = 0.0, list[str]()
        for ms, current_ua in spans:
            for _ in range(int(ms / 5)):
                self.rows.append(f"{time_ms:.1f},{current_ua}")
                time_ms += 5.0

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        rows, head = list(self.rows), "Timestamp(ms),Current(uA)"
        for _ in range(0 if valid else rng.choice((1, 2, 5))):
            number, how = rng.randrange(len(rows)), rng.random()
            first, _, second = rows[number].partition(",")
            if how < 0.3:
                rows[number] = f"{rng.choice(self.cells)},{second}"
            elif how < 0.6:
                rows[number] = f"{first},{rng.choice(self.cells)}"
            else:
                rows[number] = rng.choice((first, f"{rows[number]},0,1", ""))
        if not valid and rng.random() < 0.3:
            rows.append(f"{rng.choice(self.cells)},100")
        if not valid and rng.random() < 0.05:
            head = rng.choice(self.cells)
        data = "\n".join([head, *rows]).encode()
        path.write_bytes(data if valid or rng.random() < 0.8 else damaged(data, rng))

    def use(self, path: Path, rng: Random) -> None:
        found = meter.powers(*meter.read_log(path), self.states, 3300.0)
        json.dumps(vars(found), allow_nan=False)


FORMATS: dict[str, type[Format]] = {
    "poet": PoetFile, "board.toml": BoardFile, "chip.toml": ChipFile, "profile.json": ProfileFile,
    "plan.json": PlanFile, "cost-graph": CostGraphFile, "run.json": RunFile,
    "safetensors": WeightsFile, "npz": NpzFile, "npy": NpyFolder, "power-log": PowerLog,
}  # fmt: skip

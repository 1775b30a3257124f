"""The Python API: functions that do what the commands of poet-host do. An example:

import poet_host as poet

graph = poet.load("resnet-digits")
with poet.connect("native") as board:
    profile = board.profile(graph)
    problem = poet.problem(graph, profile, ram="24KiB", deadline="1.2x")
    schedule = poet.encode(graph, poet.solve(problem))
    run = poet.train(schedule, board, "digits", epochs=1)
poet.save_weights("trained.safetensors", graph, run.weights)
"""

from ..card.card_file import Damaged, committed_step as committed_step
from ..card.card_report import CardReport
from ..card.job import JobState
from ..card.weights import load_weights, save_weights, step_of_weights
from ..check.computer_check import check_computer
from ..check.port_query import ports
from ..data.datasets import Dataset, load_data
from ..device.board import load_board, names as board_names
from ..errors import (
    BadInput,
    BoardError,
    Infeasible,
    LinkBroken,
    NoDevice,
    OutOfTime,
    PoetError,
    PoetWarning,
)
from ..firmware_build.flash import build, flash
from ..graph.graph import Graph
from ..graph.models import MODELS
from ..graph.summary import summary
from ..package.folder import load as load_package, package_files as package_files
from ..package.kinds import KINDS as KINDS, fact_rows as fact_rows
from ..package.packaged import SLOTS as SLOTS
from ..plan.keepall import keep_everything
from ..plan.plan import Plan
from ..plan.problem import CostGraph, Problem
from ..plan.verify import verify
from ..profile.profile import Profile, estimate_profile
from ..run.evaluate import Evaluation, Half as Half, accuracy, half_of as half_of
from ..run.metrics import Metrics as Metrics
from ..run.predict import Prediction, check_prediction_file as check_prediction_file
from ..run.run import Run, weights_sha256
from ..run.train import Diverged
from ..run.validate import patience_for as patience_for
from ..schedule.homes import check_interval as check_interval
from ..schedule.schedule import Schedule
from ..sim.start_board import new_storage as new_storage, prepare_storage, start_board
from ..view.picture import draw
from .checking import check_board
from .comparing import cluster as cluster, compare_methods
from .connection import (
    Card,
    Connection,
    arena_for as arena_for,
    connect,
    open_card,
    ports_here as ports_here,
    runs_here as runs_here,
)

# Names that are imported as `name as name` are for the command line, not for users of the API.
from .models import export, load, load_graph as load_graph
from .packaging import (
    Package,
    load_samples,
    read_learner,
    replay,
    save_samples,
    write_learner,
    write_package,
)
from .planning import (
    ALL_METHODS as ALL_METHODS,
    costs_of,
    encode,
    problem,
    search_limit_s as search_limit_s,
    smallest_ram_bytes as smallest_ram_bytes,
    solve,
    step_without_search as step_without_search,
    uses_modes as uses_modes,
    why_no_plan as why_no_plan,
)
from .session import (
    Task as Task,
    commit_interval as commit_interval,
    last_step as last_step,
    run_training as run_training,
    task_of as task_of,
    training_session as training_session,
)
from .training import (
    begin_training,
    card_image_bytes as card_image_bytes,
    check_card,
    evaluate,
    export_card,
    predict,
    read_card,
    train,
    write_card,
)

__all__ = [
    "MODELS", "BadInput", "BoardError", "Card", "CardReport", "Connection", "CostGraph", "Damaged",
    "Dataset", "Diverged", "Evaluation", "Graph", "Infeasible", "JobState", "LinkBroken",
    "NoDevice", "OutOfTime", "Package", "Plan", "PoetError", "PoetWarning", "Prediction", "Problem",
    "Profile", "Run", "Schedule", "accuracy", "begin_training", "board_names", "build",
    "check_board", "check_card", "check_computer", "compare_methods", "connect", "costs_of", "draw",
    "encode", "estimate_profile", "evaluate", "export", "export_card", "flash", "keep_everything",
    "load", "load_board", "load_data", "load_package", "load_samples", "load_weights", "open_card",
    "ports", "predict", "prepare_storage", "problem", "read_card", "read_learner", "replay",
    "save_samples", "save_weights", "solve", "start_board", "step_of_weights", "summary", "train",
    "verify", "weights_sha256", "write_card", "write_learner", "write_package",
]  # fmt: skip

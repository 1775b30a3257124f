"""Transformers train on simulated chips to the bits of the native board and unlimited memory."""

import poet_host as poet
import pytest
from poet_host import api
from poet_host.run.run import Run
from support import whole_runs as runs
from support.sim_helper import needs_compiler

RAM_BYTES = 208 * 1024


@needs_compiler
@pytest.mark.parametrize("board", ["mkr1000", "nrf52840_dk"])
def test_attention_and_adam_have_the_same_bits_on_every_core(board: str) -> None:
    schedule, data = runs.schedule(runs.texts()), "tokens:12:40:40"
    with poet.connect(f"sim:{board}") as connection:
        found = poet.train(schedule, connection, data, steps=2)
    assert runs.same(found, runs.train(schedule, data, steps=2))


@needs_compiler
@pytest.mark.slow
def test_bert_micro_trains_on_a_board_of_256_kb() -> None:
    """About twenty seconds, most of them the simulated board's."""
    graph = api.load_graph("bert-micro")
    profile = api.estimate_profile(api.load_board("nrf52840_dk"))

    def trained(port: str, ram: int | str, method: str, steps: int) -> Run:
        plan = api.solve(graph, profile, ram=ram, method=method, gap=0.2, work_limit=30_000)
        schedule = api.encode(graph, profile, plan)
        arena_bytes = plan.ram_bytes // 4 * 4 if port == "native" else None
        with poet.connect(port, arena_bytes=arena_bytes) as connection:
            return poet.train(schedule, connection, "tokens:64:512:10", steps=steps)

    free = trained("native", "100%", "keep-everything", 1)
    board = trained("sim:nrf52840_dk", RAM_BYTES, "poet-paging", 1)
    assert board.steps[0].peak_bytes <= RAM_BYTES < free.steps[0].peak_bytes
    assert board.steps[0].loss == free.steps[0].loss
    assert board.weights.keys() == free.weights.keys()
    for name, value in free.weights.items():
        assert board.weights[name].tobytes() == value.tobytes(), name

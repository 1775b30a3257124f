"""Profiles: estimated and measured costs, fits, and the checks of files."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from poet_host.device.board import Rates, load_board, names
from poet_host.errors import BadInput
from poet_host.graph import models
from poet_host.graph.work import Work, work_of
from poet_host.plan.pricing import commit_costs, cost_graph, with_cached_records
from poet_host.profile.fit import family, fit_plane, fit_rates
from poet_host.profile.profile import (
    Measured,
    Profile,
    StatementCosts,
    estimate_profile,
    profile_from_json,
    signature,
)
from poet_host.profile.transfer import Lane, shared_blocks
from poet_host.schedule.layout import model_of_graph
from poet_host.schedule.model import NEXT, SHARED
from support import whole_runs as runs
from support.plans import plan_of

GRAPH = models.load("resnet-digits")
BOARD = load_board("mkr1000")

# Fits.


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.floats(0.01, 10)] * 4),
    st.lists(st.tuples(*[st.integers(1, 10_000)] * 3), min_size=12, max_size=20, unique=True),
)
def test_exact_rates_are_found(rates: tuple[float, ...], loads: list[tuple[int, int, int]]) -> None:
    true = Rates(*rates)
    points = [(Work(*load), true.time_us(Work(*load))) for load in loads]
    found = fit_rates(points)
    for load, time_us in points:
        assert found.time_us(load) == pytest.approx(time_us, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(0, 10**6)] * 3, st.floats(0.01, 1e7)), min_size=1, max_size=12)
)
def test_rates_are_never_negative(points: list[tuple[int, int, int, float]]) -> None:
    found = fit_rates([(Work(*point[:3]), point[3]) for point in points])
    assert all(
        rate >= 0 and math.isfinite(rate)
        for rate in (found.base_us, found.us_per_mac, found.us_per_flop, found.us_per_byte)
    )


def test_one_point_scales_with_the_work() -> None:
    found = fit_rates([(Work(1000, 10, 64), 5.0)])
    assert found == Rates(0.0, 0.005, 0.0, 0.0)
    assert fit_rates([(Work(0, 0, 64), 6.4)]) == Rates(0.0, 0.0, 0.0, 0.1)


NOISE = (1.01, 0.99, 1.0, 1.01, 0.99, 1.0)


def test_loops_come_before_operations_that_are_proportional_to_them() -> None:
    """So a part that ends no sums, and so has no operations but loops, is not too cheap."""
    sums = [(terms, number) for terms in (1, 4, 8) for number in (40, 1000)]
    whole = [Work(terms * number, 2 * number, 0, number) for terms, number in sums]
    times_us = [
        (2.0 * it.macs + 5.0 * it.loops) * noise for it, noise in zip(whole, NOISE, strict=True)
    ]
    found = fit_rates(list(zip(whole, times_us, strict=True)))
    assert found.time_us(Work(300, 0, 0, 300)) == pytest.approx(2100, rel=0.02)


def test_planes() -> None:
    points = [(512.0 * n, rest) for n in (1, 2, 4, 8) for rest in (4.0, 504.0)]
    found = fit_plane(points, [100 + 2 * moved + 0.5 * rest for moved, rest in points])
    assert found == pytest.approx((100, 2, 0.5))
    assert fit_plane([(512, 0)], [3.0]) in ((3.0, 0.0, 0.0), (0.0, 3.0 / 512, 0.0))


# Costs.


def test_energy_is_time_times_power_above_sleep() -> None:
    profile = replace(estimate_profile(BOARD), statements=StatementCosts())
    conv = GRAPH["conv1"]
    time_us, energy_uj = profile.cost(conv, GRAPH)
    rates, done = BOARD.estimate, work_of(conv, GRAPH)
    assert rates.kernels["conv2d"] != 1.0
    assert time_us == rates.kernels["conv2d"] * (
        rates.base_us
        + rates.us_per_mac * done.macs
        + rates.us_per_flop * done.other_flops
        + rates.us_per_byte * done.bytes
        + rates.us_per_loop * done.loops
    )
    active, sleep = BOARD.power.processor_active_uw, BOARD.power.processor_sleep_uw
    assert energy_uj == time_us * (active - sleep) / 1e6
    assert profile.power.base_uw == BOARD.base_power_uw
    costs = BOARD.statements
    assert costs.compute_us > 0 < costs.free_us
    around_us = costs.compute_us + costs.free_us
    assert estimate_profile(BOARD).cost(conv, GRAPH)[0] == time_us + around_us


def test_estimates_of_kernels_have_factors() -> None:
    profile = replace(estimate_profile(BOARD), statements=StatementCosts(), kernels={"relu": 3.0})
    plain = replace(profile, kernels={})
    conv, relu = GRAPH["conv1"], next(node for node in GRAPH if node.op == "relu")
    assert profile.cost(relu, GRAPH)[0] == pytest.approx(3 * plain.cost(relu, GRAPH)[0])
    assert profile.cost(conv, GRAPH) == plain.cost(conv, GRAPH)
    loop_us = 2 * plain.rates.us_per_loop
    slower = replace(plain, loops={"conv2d": loop_us})
    more_us = (loop_us - plain.rates.us_per_loop) * work_of(conv, GRAPH).loops
    assert slower.cost(conv, GRAPH)[0] == pytest.approx(plain.cost(conv, GRAPH)[0] + more_us)
    assert slower.cost(relu, GRAPH) == plain.cost(relu, GRAPH)


def test_convolutions_with_groups_are_a_family_of_their_own() -> None:
    graph = runs.mixed()
    names = {family(signature(node)) for node in graph if not node.stored}
    assert {"conv2d", "conv2d in groups", "conv2d_grad_weight in groups", "linear"} <= names
    # A convolution with groups costs more: the fit of other convolutions does not follow it.
    nodes = {node.name: node for node in graph}
    conv, grouped = nodes["conv"], nodes["depthwise"]
    rows = {
        signature(node): Measured(us_per_mac * work.macs, **asdict(work))
        for node, us_per_mac in ((conv, 1.0), (grouped, 9.0))
        for work in [work_of(node, graph)]
    }
    profile = replace(estimate_profile(BOARD), kind="measured", operators=rows)
    assert profile.fitted["conv2d"].time_us(Work(macs=1000)) == pytest.approx(1000)
    assert profile.fitted["conv2d in groups"].time_us(Work(macs=1000)) == pytest.approx(9000)


def test_transfers_move_whole_blocks() -> None:
    profile = replace(estimate_profile(BOARD), statements=StatementCosts())
    rates = BOARD.estimate
    one = profile.transfer(4)
    assert profile.transfer(504) == one
    assert one.page_in_us == rates.page_in_us + 512 / rates.page_in_bytes_per_us
    two = profile.transfer(508)  # its trailer needs a block of its own
    assert two.page_out_us == rates.page_out_us + 1024 * (1 / rates.page_out_bytes_per_us)
    assert two.page_in_cpu_us == rates.page_in_cpu_us + 1024 * rates.page_in_cpu_us_per_byte
    stored_uj = two.page_out_us * BOARD.power.storage_write_uw / 1e6
    awake_uj = two.page_out_cpu_us * profile.power.compute_uw / 1e6
    assert two.page_out_uj == pytest.approx(stored_uj + awake_uj, rel=1e-12)
    slow = replace(profile, page_in=Lane(1.0, 0.0, 5.0, 0.0))
    assert slow.transfer(4).page_in_cpu_us == 5.0  # it may be longer than the lane's


def test_bytes_after_the_last_whole_block_have_costs_of_their_own() -> None:
    profile = replace(estimate_profile(BOARD), page_in=Lane(100.0, 1.0, 10.0, 0.1, 0.5, 0.2))
    small, full = profile.transfer(4), profile.transfer(504)
    assert full.page_in_us - small.page_in_us == pytest.approx(250)
    assert full.page_in_cpu_us - small.page_in_cpu_us == pytest.approx(100)
    # One whole block more, followed by the trailer's block only.
    assert profile.transfer(512).page_in_us == 100 + 1024


def test_statements_cost_more_than_kernels_and_transfers() -> None:
    none = StatementCosts()
    plain = replace(estimate_profile(BOARD), statements=none, page_turn_us=0.0, renewed_turn_us=0.0)
    costs = StatementCosts(80.0, 30.0, 20.0, 0.25)
    costly = replace(plain, statements=costs, page_turn_us=1000.0, renewed_turn_us=400.0)
    power, conv = plain.power, GRAPH["conv1"]
    around_uw = 0.75 * power.compute_uw + 0.25 * power.page_in_uw
    (time_us, energy_uj), (more_us, more_uj) = plain.cost(conv, GRAPH), costly.cost(conv, GRAPH)
    assert more_us == pytest.approx(time_us + 100, rel=1e-12)
    assert more_uj == pytest.approx(energy_uj + 100 * around_uw / 1e6, rel=1e-12)
    moved, around = plain.transfer(4), costly.transfer(4)
    assert around.page_in_us == moved.page_in_us  # the lane does not wait for the processor
    assert around.page_in_cpu_us == moved.page_in_cpu_us + 30
    assert around.page_in_uj == pytest.approx(moved.page_in_uj + 30 * around_uw / 1e6, rel=1e-12)
    page = costly.transfer(4, "page")
    assert page.page_out_us == around.page_out_us + 1000
    assert costly.transfer(2048, "renewed").page_out_us == (
        plain.transfer(2048, "renewed").page_out_us + 400
    )
    assert page.page_in_us == around.page_in_us
    turn_uj = 1000 * power.page_out_uw / 1e6
    assert page.page_out_uj == pytest.approx(around.page_out_uj + turn_uj, rel=1e-12)


def test_a_commit_reads_trailers_back_as_often_as_the_step_allows() -> None:
    profile = estimate_profile("native")
    block_us, cpu_us = profile.page_in.times_us(504)
    power = profile.power
    block_uj = (block_us * power.page_in_uw + cpu_us * power.compute_uw) / 1e6
    record_uj = profile.commit_us * power.page_out_uw / 1e6
    # The blocks of ten tensors take this share of a step. The board allows 1 %.
    for percent, every in ((0.5, 1), (1.5, 2), (3.5, 4)):
        time_us, energy_uj = profile.commit([252] * 10, 10 * block_us * 100 / percent)
        assert time_us == pytest.approx(profile.commit_us + 10 * block_us / every)
        assert energy_uj == pytest.approx(record_uj + 10 * block_uj / every)


def test_a_step_that_takes_no_time_has_a_commit() -> None:
    profile = estimate_profile("native")
    shortest_us, _ = profile.commit([252] * 10, 0.0)
    assert profile.commit_us < shortest_us <= profile.commit([252] * 10, 1e6)[0]


def test_a_commit_writes_what_small_tensors_share() -> None:
    profile = replace(estimate_profile("native"), statements=StatementCosts(80.0, 30.0, 20.0))
    assert profile.transfer(248, "renewed").page_out_us == 0
    assert profile.transfer(248, "renewed").page_out_cpu_us == 30
    assert profile.transfer(248, "renewed").page_in_us == profile.transfer(248).page_in_us
    assert profile.transfer(252, "renewed") == profile.transfer(252)
    (read_us, _), (write_us, _) = (
        lane.times_us(504) for lane in (profile.page_in, profile.page_out)
    )
    some_us, _ = profile.commit([1000], 1e9)
    more_us, _ = profile.commit([1000, 16, 248, 240, 300], 1e9)  # two blocks are shared
    assert more_us == pytest.approx(some_us + read_us + 2 * (2 * read_us + write_us))


def test_a_tensor_stays_if_its_commits_take_less_energy_than_its_transfers() -> None:
    profile = estimate_profile("nrf52840_dk")
    sizes, often = (16, 248, 252, 100_000), range(1, 4)
    gains = {n: [profile.gains_if_it_stays(size, n) for size in sizes] for n in often}
    # To read back block by block takes more energy than one page-in of all blocks.
    assert gains[1] == [True, True, False, False]
    assert all(gains[2] + gains[3])
    for size in sizes[2:]:  # those that share no block
        moved, step_us = profile.transfer(size, "renewed"), 1e9
        _, with_home_uj = profile.commit([size], step_us, [size])
        home_uj = with_home_uj - profile.commit([size], step_us)[1] + moved.page_out_uj
        for n in often:
            paged_uj = moved.page_in_uj + moved.page_out_uj
            assert profile.gains_if_it_stays(size, n) == (paged_uj > home_uj / n)


@pytest.mark.parametrize("name", ["resnet-digits", "resnet18-cifar", "bert-micro"])
def test_the_profile_and_the_layout_count_the_same_shared_blocks(name: str) -> None:
    tensors = [t for t in model_of_graph(models.load(name)).tensors if t.place == NEXT]
    blocks = {tensor.block for tensor in tensors if tensor.flags & SHARED}
    assert shared_blocks([tensor.size_bytes for tensor in tensors]) == len(blocks) > 0


def test_measured_operators_come_first_and_others_are_fitted() -> None:
    estimate = replace(estimate_profile(BOARD), statements=StatementCosts())
    conv, other = GRAPH["conv1"], GRAPH["conv2"]
    load = work_of(conv, GRAPH)
    known = Measured(1000.0, **asdict(load))
    profile = replace(estimate, kind="measured", operators={signature(conv): known})
    assert profile.cost(conv, GRAPH)[0] == 1000.0
    fitted = profile.cost(other, GRAPH)[0]
    assert fitted == pytest.approx(1000.0 * work_of(other, GRAPH).macs / load.macs)
    # A kernel that was not measured has the estimate of board.toml, times how much slower than
    # their estimates the measured kernels are.
    relu = GRAPH["relu1"]
    estimates = [estimate.cost(node, GRAPH)[0] for node in (conv, relu)]
    assert profile.cost(relu, GRAPH)[0] == pytest.approx(1000.0 * estimates[1] / estimates[0])
    # Where board.toml says nothing of the kernel, it is fitted to the other kernels.
    vague = replace(profile, kernels={})
    assert vague.cost(relu, GRAPH)[0] == vague.fitted[""].time_us(work_of(relu, GRAPH))


def test_signatures_differ_where_times_may() -> None:
    found: dict[str, set[tuple[object, ...]]] = {}
    for node in GRAPH:
        if not node.stored:
            shapes = tuple(GRAPH[name].shape for name in node.inputs)
            found.setdefault(signature(node), set()).add((node.op, node.sink, node.shape, shapes))
    assert all(len(alike) == 1 for alike in found.values())
    conv = GRAPH["conv1"]
    assert signature(conv) == signature(replace(conv, name="elsewhere"))
    wider = replace(conv, attrs={**conv.attrs, "k": 99})
    assert signature(wider) != signature(conv)
    assert signature(replace(conv, sink="sgd")) != signature(conv)
    decayed = replace(conv, attrs={**conv.attrs, "weight_decay": 0.1, "learning_rate": 0.5})
    assert signature(decayed) == signature(conv) + " decay"


def test_the_paper_s_own_figures() -> None:
    """The paper's repository computes 2,770.75 us and 914.35 uJ for 12,288 bytes."""
    profile = estimate_profile(load_board("nrf52840_dk"), "paper")
    into = profile.page_in
    assert into.base_us + 12_288 * into.us_per_byte == pytest.approx(2770.750976386925)
    assert profile.power.page_in_uw * 2770.750976386925 / 1e6 == pytest.approx(914.3478222)
    relu = profile.rates.time_us(Work(0, 65_536, 0))
    assert relu == pytest.approx(10_288.371, rel=1e-3)
    assert relu * profile.power.compute_uw / 1e6 == pytest.approx(112.991, rel=1e-3)
    assert profile.power.base_uw == 0
    with pytest.raises(BadInput, match="native"):
        estimate_profile(load_board("native"), "paper")


def test_records_that_fit_the_cache_are_not_read() -> None:
    large = models.load("dscnn-speech")
    for name, cached in (("nrf52840_dk", True), ("mkr1000", False)):
        profile = estimate_profile(load_board(name))
        assert profile.statements.reading > 0
        assert (with_cached_records(profile, GRAPH).statements.reading == 0) == cached
        assert with_cached_records(profile, large) == profile


@pytest.mark.parametrize("name", names())
def test_cost_graphs_follow_the_graph(name: str) -> None:
    profile = with_cached_records(estimate_profile(load_board(name)), GRAPH)
    costs = cost_graph(GRAPH, profile)
    assert [node.name for node in costs.nodes] == [node.name for node in GRAPH]
    assert costs.storage
    assert costs.base_power_uw == load_board(name).base_power_uw
    updates = {node.updates: node.name for node in GRAPH if node.updates}
    assert updates
    for node, cost in zip(GRAPH, costs.nodes, strict=True):
        assert cost.bytes == node.size_bytes
        assert cost.stored == node.stored
        assert cost.keep == cost.once == (node.name in updates.values())
        assert [costs.nodes[i].name for i in cost.inputs] == list(dict.fromkeys(node.inputs))
        if node.overwrites:
            assert cost.overwrites is not None
            assert costs.nodes[cost.overwrites].name == node.overwrites
        if node.stored:
            assert (cost.time_us, cost.energy_uj) == (0.0, 0.0)
        else:
            assert (cost.time_us, cost.energy_uj) == profile.cost(node, GRAPH)
            assert cost.time_us > 0
        assert cost.page_in_uj == profile.transfer(node.size_bytes).page_in_uj
    assert not cost_graph(GRAPH, profile, storage=False).storage


def test_parameters_and_state_may_stay_and_commits_are_shared_by_n_steps() -> None:
    profile = estimate_profile(load_board("nrf52840_dk"))
    costs, plain = cost_graph(GRAPH, profile, commit_every=10), cost_graph(GRAPH, profile)
    staying = [node.name for node in costs.nodes if node.stays]
    assert staying == [node.name for node in GRAPH if node.role in ("parameter", "state")]
    assert {node.name for node in costs.nodes if node.given} == {GRAPH.data, GRAPH.label}
    for i, heir in costs.heirs.items():
        assert GRAPH[costs.nodes[heir].name].updates == costs.nodes[i].name
    ten_steps = ((plain, 1e5), (costs, 1e4))  # with one commit each
    one, shared = (
        commit_costs(profile, it, plan_of((), time_us=time_us)) for it, time_us in ten_steps
    )
    assert shared == pytest.approx([cost / 10 for cost in one])
    assert not plain.starting
    assert not cost_graph(GRAPH, profile, storage=False, commit_every=10).starting


def test_what_is_not_renewed_in_its_place_does_not_stay() -> None:
    name = next(node.updates for node in GRAPH if node.updates)
    nodes = [replace(node, overwrites=None) if node.updates == name else node for node in GRAPH]
    costs = cost_graph(
        replace(GRAPH, nodes=tuple(nodes)), estimate_profile(load_board("nrf52840_dk")),
        commit_every=1,
    )  # fmt: skip
    assert not costs.nodes[costs.index[name or ""]].stays


# Files.


def measured() -> Profile:
    conv = GRAPH["conv1"]
    return replace(
        estimate_profile(BOARD),
        kind="measured",
        unique_id="abc",
        operators={signature(conv): Measured(12.5, 1000, 10, 64)},
    )


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    for profile in (measured(), estimate_profile(BOARD), estimate_profile(BOARD, "paper")):
        profile.save(path)
        assert Profile.load(path) == profile
    assert list(tmp_path.iterdir()) == [path]


def test_merged_profiles_have_the_operators_of_both() -> None:
    one, relu = measured(), GRAPH["relu1"]
    other = replace(one, operators={signature(relu): Measured(1.0, 0, 5, 64)}, commit_us=7.0)
    both = one.merged(other)
    assert set(both.operators) == {*one.operators, *other.operators}
    assert both.commit_us == 7.0
    with pytest.raises(BadInput, match="mkr1000"):
        one.merged(estimate_profile(BOARD))


@pytest.mark.parametrize("name", names())
def test_a_board_without_a_card_spends_nothing_on_a_card(name: str) -> None:
    board = load_board(name)
    idle_uw = board.power.storage_idle_uw
    hungry = replace(
        board,
        power=replace(
            board.power, storage_read_uw=9e9, storage_write_uw=9e9, storage_idle_uw=idle_uw + 5e8
        ),
    )
    costs, same = (
        cost_graph(GRAPH, estimate_profile(facts), storage=False) for facts in (board, hungry)
    )
    assert costs.base_power_uw == board.base_power_uw - idle_uw
    assert same.base_power_uw == pytest.approx(costs.base_power_uw)
    assert [node.energy_uj for node in costs.nodes] == [node.energy_uj for node in same.nodes]
    awake_uw = board.power.processor_active_uw - board.power.processor_sleep_uw
    for node, with_card in zip(costs.nodes, cost_graph(GRAPH, estimate_profile(board)).nodes,
                               strict=True):  # fmt: skip
        assert node.energy_uj == pytest.approx(node.time_us * awake_uw / 1e6)
        assert node.energy_uj <= with_card.energy_uj
        assert node.time_us <= with_card.time_us


def test_the_card_is_taken_out_of_a_profile_once(tmp_path: Path) -> None:
    alone = measured().without_card()
    assert alone.power.base_uw == BOARD.power.processor_sleep_uw + BOARD.power.other_uw
    assert alone.without_card() == alone
    assert measured().merged(alone) == alone
    assert replace(measured(), metered=True).merged(alone).power == alone.power
    assert alone.merged(measured()) == measured()
    costs = cost_graph(GRAPH, alone)
    assert costs == cost_graph(GRAPH, measured(), storage=False)
    alone.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == alone


def test_files_of_earlier_versions_contain_the_idle_card() -> None:
    """They have it in their base power, with and without a card."""
    value = broken(lambda v: v["power"].pop("idle_card_uw"))
    assert profile_from_json(value) == measured()
    assert profile_from_json({**value, "storage": False}) == measured().without_card()
    paper = estimate_profile("nrf52840_dk", "paper").to_json()
    del paper["power"]["idle_card_uw"]
    assert profile_from_json(paper) == estimate_profile("nrf52840_dk", "paper")


def broken(change: Any) -> Any:
    value = json.loads(json.dumps(measured().to_json()))
    change(value)
    return value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(format="poet-plan"), "poet-profile"),
        (lambda v: v.update(version=1), "version 1"),
        (lambda v: v.pop("commit_us"), "commit_us"),
        (lambda v: v.update(extra=1), "extra"),
        (lambda v: v.update(board=1), "board"),
        (lambda v: v.update(kind="guess"), "guess"),
        (lambda v: v.update(commit_us=-1), r"\.commit_us: "),
        (lambda v: v.update(commit_us=True), r"\.commit_us: "),
        (lambda v: v["power"].update(base_uw=math.nan), r"power\.base_uw: "),
        (lambda v: v.update(metered=1), r"\.metered: "),
        (lambda v: v.update(transfer_queue=0), r"\.transfer_queue: "),
        (lambda v: v.update(page_turn_us=None), r"\.page_turn_us: "),
        (lambda v: v["statements"].pop("free_us"), r"\.statements\.free_us: "),
        (lambda v: v["rates"].pop("base_us"), r"\.rates\.base_us: "),
        (lambda v: v.update(page_in=[]), r"\.page_in: "),
        (lambda v: v.update(operators=[]), r"\.operators: "),
        (lambda v: v["operators"].update(x={"time_us": 1}), r'operator "x"'),
        (lambda v: next(iter(v["operators"].values())).update(macs="7"), r"\.macs: "),
    ],
)
def test_an_error_names_the_wrong_key(change: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        profile_from_json(broken(change), "p.json")
    assert str(caught.value).startswith("p.json")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for text in ("", "[1, 2", "[]", "3", "nonsense"):
        path.write_text(text)
        with pytest.raises(BadInput, match=r"p\.json"):
            Profile.load(path)
    with pytest.raises(BadInput, match=r"gone\.json"):
        Profile.load(tmp_path / "gone.json")

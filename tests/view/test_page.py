"""The page of a schedule, in a real headless browser, with a real mouse and real keys."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from poet_host import api
from poet_host.plan.keepall import keep_everything
from poet_host.plan.problem import CostGraph, CostNode
from poet_host.schedule.decode import decode
from poet_host.schedule.schedule import Schedule
from poet_host.schedule.times import costs_of_schedule
from poet_host.view.absences import absences
from poet_host.view.lanes import Box, View, views_of
from poet_host.view.listing import rows
from poet_host.view.page import page
from support import whole_runs as runs
from support.browser import CHROMIUM, Browser, Page, browser
from support.schedule_page import EXAMPLE, place


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        missing = "no browser: apt-get install chromium"
        assert "POET_ALL_TESTS" not in os.environ, missing
        pytest.skip(missing)
    with browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.fixture(scope="module")
def tab(running: Browser) -> Page:
    return running.page()


@pytest.fixture(autouse=True)
def silent(tab: Page) -> Iterator[None]:
    """Nothing is written to the console, thrown, or fetched."""
    tab.said.clear()
    yield
    assert tab.said == []


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Schedule, View]:
    schedule = Schedule.load(EXAMPLE)
    views = views_of(schedule)
    path = tmp_path_factory.mktemp("page") / "example.html"
    path.write_text(page(schedule, views))
    return path, schedule, views[0]


def see(tab: Page, x: float, y: float) -> None:
    """Move the mouse there."""
    tab.mouse("mouseMoved", x, y)


def colour(tab: Page, x: float, y: float) -> list[int]:
    """Red, green and blue of the chart under a point of the window, after a redraw."""
    return tab.run(
        f"""(() => {{
          poet.draw();
          const chart = document.getElementById("chart"), at = chart.getBoundingClientRect();
          const read = {{willReadFrequently: true}};
          const one = document.createElement("canvas").getContext("2d", read);
          one.drawImage(chart, Math.round(at.left - {x}), Math.round(at.top - {y}));
          return [...one.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }})()"""
    )


def nearest_kind(tab: Page, seen: list[int]) -> str:
    """The kind with the most similar colour in the legend."""
    kinds: dict[str, list[int]] = tab.run(
        """Object.fromEntries([...document.querySelectorAll("#legend li")].map(one => [
          one.textContent,
          getComputedStyle(one.firstChild).backgroundColor.match(/\\d+/g).map(Number)]))"""
    )
    return min(
        kinds, key=lambda kind: sum(abs(a - b) for a, b in zip(kinds[kind], seen, strict=True))
    )


def large(view: View, kind: str) -> list[Box]:
    """The three largest boxes of a kind: their middles are hit for sure."""
    found = [box for box in view.boxes if box.kind == kind and not box.workspace]
    return sorted(found, key=lambda box: (box.end_us - box.begin_us) * box.size_bytes)[-3:]


def text(tab: Page, selector: str) -> str:
    return tab.run(f"document.querySelector({selector!r}).textContent")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_boxes_are_drawn_where_the_plan_has_them(
    tab: Page, example: tuple[Path, Schedule, View], dark: bool
) -> None:
    path, _, view = example
    tab.open(path, width=1400 if dark else 800, height=1400, dark=dark)
    words = {"forward": "computed", "again": "computed again", "page_in": "paged in"}
    for kind, word in words.items():
        for box in large(view, kind):
            x, y = place(tab, 0, box, view.end_us)
            edge = place(tab, 0, box, view.end_us, 0.92)
            assert nearest_kind(tab, colour(tab, *edge)) == word
            see(tab, x, y)
            assert text(tab, "#tip h3") == box.node
            tip = text(tab, "#tip")
            assert word in tip
            assert f"bytes{box.size_bytes:,}" in tip
            assert f"offset{box.offset:,} to {box.offset + box.size_bytes:,}" in tip
            assert f"statement{box.statement}: " in tip
    paper = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") is not dark


def test_the_tip_says_why_a_tensor_left(tab: Page, example: tuple[Path, Schedule, View]) -> None:
    path, schedule, view = example
    tab.open(path, height=1400)
    costs, statements = costs_of_schedule(schedule), decode(schedule)
    away = {(gap.node, gap.back): gap for gap in absences(costs, statements, view)}
    box = large(view, "again")[-1]
    one = away[box.node, box.statement]
    see(tab, *place(tab, 0, box, view.end_us))
    tip = text(tab, "#tip")
    assert one.instead
    assert f"Computing {box.node} again costs {one.spent.energy_uj:,.1f} µJ" in tip
    assert f"paging it would cost {one.instead.energy_uj:,.1f} µJ" in tip
    assert f"{one.without_bytes:,} bytes would have been in use" in tip
    cells = tab.run(
        """[...document.querySelectorAll("#why tbody tr")].map(
          row => [Number(row.dataset.statement), Number(row.cells[10].dataset.value)])"""
    )
    assert cells == [[gap.back, gap.without_bytes] for gap in away.values()]
    see(tab, 2, 2)
    assert tab.run("document.getElementById('tip').hidden")


def test_totals_stand_at_the_top(tab: Page, example: tuple[Path, Schedule, View]) -> None:
    path, schedule, _ = example
    tab.open(path)
    cards, plan, keep = text(tab, "#cards"), schedule.meta["plan"], schedule.meta["keep_everything"]
    assert text(tab, "h1") == "resnet-digits"
    assert f"{plan['energy_uj']:,.1f} µJ" in cards
    assert f"{plan['energy_uj'] / keep['energy_uj']:.2f} × keeping everything" in cards
    assert f"height of the arena{plan['peak_bytes']:,} bytes" in cards
    most_bytes = max(row.ram_bytes or 0 for row in rows(schedule))
    assert f"fullest moment: {most_bytes:,} bytes in use" in cards
    assert f"budget {plan['ram_bytes']:,} bytes" in cards
    assert f"gap {100 * plan['gap']:.1f} %" in cards
    listed = tab.run(
        """[...document.querySelectorAll("#listing tbody tr")].map(
          row => [...row.cells].map(cell => cell.textContent))"""
    )
    found = rows(schedule)
    assert [row[0] for row in listed] == [str(row.index) for row in found]
    assert [row[4] for row in listed] == [row.tensor for row in found]
    assert [row[-1] for row in listed] == [row.what for row in found]
    begins = ["" if row.begin_us is None else f"{row.begin_us / 1e3:,.3f}" for row in found]
    assert [row[1] for row in listed] == begins
    assert f"time of a step{plan['time_us'] / 1e3:,.3f} ms" in cards  # as `solve` reports it
    tab.run("document.getElementById('listing').scrollIntoView()")
    heads, cells = (
        tab.run(
            f"""[...document.querySelectorAll("#listing {selector}")].map(cell => {{
              const at = cell.getBoundingClientRect();
              return [at.left, at.right, cell.scrollWidth <= cell.clientWidth];
            }})"""
        )
        for selector in ("th", "tr[data-statement='7'] td")
    )
    assert heads == cells  # columns are under their headings, and nothing is cut off
    assert all(fits for _, _, fits in heads)
    assert heads[-2][1] < 1400


def test_search_marks_boxes_and_rows(tab: Page, example: tuple[Path, Schedule, View]) -> None:
    path, schedule, view = example
    tab.open(path, height=1400)
    box, other = large(view, "again")[-1], large(view, "forward")[-1]
    spots = [place(tab, 0, shown, view.end_us, 0.92) for shown in (box, other)]
    before = [colour(tab, *spot) for spot in spots]
    tab.press("/")
    tab.type(box.node)
    found = {name for name in schedule.names if box.node in name}
    assert text(tab, "#count").startswith(f"{len(found)} tensor")
    after = [colour(tab, *spot) for spot in spots]
    assert after[0] == before[0]
    assert sum(after[1]) > sum(before[1]) + 150  # faded towards white
    names = tab.run(
        """[...document.querySelectorAll("#listing tr.hit")].map(row => row.cells[4].textContent)"""
    )
    assert set(names) == found
    first = next(row for row in rows(schedule) if row.tensor in found)
    tab.press("Enter")
    assert tab.run("document.querySelector('#listing tr.chosen').dataset.statement") == str(
        first.index
    )
    assert text(tab, "#detail h3").startswith(first.tensor)
    tab.press("Escape")
    assert tab.run("document.querySelectorAll('tr.hit, tr.dim, tr.chosen').length") == 0
    tab.type("batchnorm_stats")
    names = tab.run(
        """[...document.querySelectorAll("#listing tr.hit")].map(row => row.cells[4].textContent)"""
    )
    assert set(names) == {name for name in schedule.names if name.endswith(":stats")}


def test_time_moves_by_keys_wheel_and_drag(tab: Page, example: tuple[Path, Schedule, View]) -> None:
    path, _, view = example
    tab.open(path, height=1400)

    def shown() -> tuple[float, float]:
        t0, t1 = tab.run("[poet.at.t0, poet.at.t1]")
        return t0 / view.end_us, t1 / view.end_us

    tab.run("document.getElementById('chart').focus()")
    assert shown() == (0, 1)
    tab.press("+")
    assert shown() == pytest.approx((0.25, 0.75))
    tab.press("ArrowRight")
    assert shown() == pytest.approx((0.35, 0.85))
    tab.press("End")
    assert shown() == pytest.approx((0.5, 1))
    frame = tab.run("poet.panel(0)")
    x, y = frame["left"] + frame["width"] / 2, frame["top"] + 20
    tab.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    tab.mouse("mouseMoved", x + frame["width"] / 5, y, button="left", buttons=1)
    tab.mouse("mouseReleased", x, y, button="left", clickCount=1)
    assert shown() == pytest.approx((0.4, 0.9))
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-60, modifiers=2)
    t0, t1 = shown()
    assert (t0 + t1) / 2 == pytest.approx(0.65, abs=0.001)  # where the mouse is
    assert 0.25 < t1 - t0 < 0.45
    tab.press("0")
    assert shown() == (0, 1)
    tab.press("ArrowDown")
    tab.press("ArrowDown")
    assert tab.run("document.querySelector('#listing tr.chosen').dataset.statement") == "1"
    assert tab.run("document.activeElement.id") == "chart"
    box = large(view, "again")[-1]
    tab.click(*place(tab, 0, box, view.end_us))
    assert tab.run("document.querySelector('#listing tr.chosen').dataset.statement") == str(
        box.statement
    )
    tab.press("Escape")
    assert tab.run("document.getElementById('detail').hidden")


def test_a_recorded_run_lies_below_the_plan(tab: Page, tmp_path: Path) -> None:
    schedule = runs.schedule(runs.digits())
    run = runs.train(schedule, steps=3)
    views = views_of(schedule, run)
    path = tmp_path / "run.html"
    path.write_text(page(schedule, views, run))
    tab.open(path, height=1600)
    end_us = max(view.end_us for view in views)
    for number, view in enumerate(views):
        box = large(view, "forward")[-1]
        see(tab, *place(tab, number, box, end_us))
        assert text(tab, "#tip h3") == box.node
        assert f"computed, {view.name}" in text(tab, "#tip")
    lanes = tab.run("[0, 1].map(i => poet.panel(i).processor)")
    for number, view in enumerate(views):
        bar = max(
            (bar for bar in view.bars if bar.kind == "forward"),
            key=lambda bar: bar.end_us - bar.begin_us,
        )
        frame = tab.run(f"poet.panel({number})")
        x = frame["left"] + frame["width"] * (bar.begin_us + bar.end_us) / 2 / end_us
        see(tab, x, lanes[number] + 10)
        assert text(tab, "#tip h3") == bar.node
    comparison = text(tab, "#comparison")
    assert "conv2d" in comparison
    assert "between statements" in comparison
    took = tab.run(
        """[...document.querySelectorAll("#listing tbody tr")].map(
          row => row.cells[3].textContent)"""
    )
    name = text(tab, "#listing th:nth-child(4)")
    unit_us = {"took µs": 1.0, "took ms": 1e3}[name]
    assert (unit_us == 1.0) == (views[0].end_us < 1e4)
    assert [float(text.replace(",", "")) * unit_us for text in took] == pytest.approx(
        [traced.time_us for traced in run.trace], abs=0.6 if unit_us > 1 else 0.06
    )
    assert f"{run.steps[-1].loss:.4f} at the last" in text(tab, "#learning")
    assert tab.run("document.querySelectorAll('#curve polyline').length") == 1
    assert "%" in comparison
    assert "://" not in path.read_text()  # it names no other place, and fetches nothing

    elsewhere = replace(run, board="mkr1000")  # drawn as long as the plan, with its own times
    path.write_text(page(schedule, views, elsewhere))
    tab.open(path, height=1600)
    assert "%" not in text(tab, "#comparison")
    assert "stretched" in text(tab, "#comparison")
    assert "which is for native, not for mkr1000" in text(tab, "#comparison")
    box = large(views[1], "forward")[-1]
    see(tab, *place(tab, 1, box, views[1].end_us))
    assert text(tab, "#tip h3") == box.node
    begin, unit = text(tab, "#tip").split("in RAM")[1].split(" to ")[0].split()
    one_us = {"µs": 1, "ms": 1e3, "s": 1e6}[unit]
    assert float(begin.replace(",", "")) * one_us == pytest.approx(box.begin_us, abs=0.06 * one_us)


@pytest.mark.slow
def test_thousands_of_statements_and_names_that_look_like_html(tab: Page, tmp_path: Path) -> None:
    ends, template = "</script><script>throw 1</script>", "{{SCRIPT}} {{DATA}}"
    odd = (ends, "<!--<b>größe</b>", template, "a\\u003cb")
    nodes = [CostNode(name, (), 8, 1.0, 1.0) for name in odd]
    nodes.append(CostNode("n" * 300, (0,), 8, 1.0, 1.0))
    for i in range(1000):
        nodes.append(CostNode(f"n{i}", (len(nodes) - 1, i % 4), 64 + 4 * (i % 9), 5.0, 1.0))
    graph = CostGraph("<i>long</i> {{STYLE}}", tuple(nodes))
    schedule = api.encode(graph, None, keep_everything(graph))
    path = tmp_path / "long.html"
    path.write_text(page(schedule, views_of(schedule)))
    tab.open(path)
    count: Any = tab.run("document.querySelectorAll('#listing tbody tr').length")
    assert count == schedule.header.statement_count > 2000
    assert text(tab, "h1") == "<i>long</i> {{STYLE}}"
    assert set(odd) <= set(tab.run("poet.data.tensors.map(tensor => tensor[0])"))
    assert tab.run("document.querySelectorAll('i i, b b, #listing b').length") == 0
    assert "No tensor leaves RAM" in text(tab, "#why")
    row = f"document.querySelectorAll('#listing tbody tr')[{len(odd)}]"
    assert tab.run(f"{row}.querySelector('.name').title") == "n" * 300
    widths = f"[...{row}.cells].map(cell => cell.getBoundingClientRect().right)"
    assert tab.run(widths)[-2] < 1400  # the name, cut off, leaves the others in sight
    for name in odd:
        tab.run("document.getElementById('search').value = ''")
        tab.run("document.getElementById('search').focus()")
        tab.type(name)
        assert text(tab, "#count").startswith("1 tensor")

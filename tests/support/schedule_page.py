"""The web page of a schedule: its views, where its boxes are, and a picture for the documentation.

    PYTHONPATH=tests python -m support.schedule_page docs/how-to/show.png

The picture needs Chromium. It shows the example schedule, a run of a simulated MKR1000, and facts
about one tensor.
"""

import base64
import sys
import tempfile
from pathlib import Path

import poet_host as poet
from poet_host.files import write_whole
from poet_host.resources import resource
from poet_host.schedule.schedule import Schedule
from poet_host.view.lanes import Box, views_of
from poet_host.view.page import page
from support.browser import CHROMIUM, Page, browser

EXAMPLE = resource("schedules") / "resnet-digits-mkr1000.poet"
STEPS = 36  # more than are needed to trace each statement
WIDTH, HEIGHT = 1280, 1010


def place(tab: Page, panel: int, box: Box, end_us: float, part: float = 0.5) -> tuple[float, float]:
    """Where the plan has the middle of a box, on an axis from 0 to `end_us`.

    Another `part` of its time and bytes than the middle has no label.
    """
    frame = tab.run(f"poet.panel({panel})")
    time_us = box.begin_us + (box.end_us - box.begin_us) * part
    height = (box.offset + box.size_bytes * part) / frame["bytes"]
    x = frame["left"] + frame["width"] * time_us / end_us
    return x, frame["top"] + frame["height"] * (1 - height)


def picture() -> bytes:
    """Return the picture as PNG. The mouse is over the largest tensor that is computed again."""
    schedule = Schedule.load(EXAMPLE)
    with poet.connect("sim:mkr1000") as board:
        run = poet.train(schedule, board, "digits", steps=STEPS)
    views = views_of(schedule, run)
    end_us = max(view.end_us for view in views)
    again = [box for box in views[0].boxes if box.kind == "again"]
    box = max(again, key=lambda one: one.size_bytes * (one.end_us - one.begin_us))
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "profile") as running:
        file = Path(folder) / "page.html"
        file.write_text(page(schedule, views, run), encoding="utf-8")
        tab = running.page()
        tab.open(file, width=WIDTH, height=HEIGHT)
        tab.mouse("mouseMoved", *place(tab, 0, box, end_us))
        return base64.b64decode(tab.call("Page.captureScreenshot", format="png")["data"])


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.exit("no browser: try 'apt install chromium'")
    write_whole(Path(sys.argv[1]), picture())

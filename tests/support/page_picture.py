"""Take a picture of the web page of the example schedule and of a run, with facts about one tensor.

    PYTHONPATH=tests python -m support.page_picture docs/how-to/show.png

The run is of a simulated MKR1000. The picture needs Chromium.
"""

import base64
import sys
import tempfile
from pathlib import Path

import poet_host as poet
from poet_host.files import write_whole
from poet_host.resources import resource
from poet_host.schedule.decode import decode
from poet_host.schedule.schedule import Schedule
from poet_host.schedule.times import costs_of_schedule
from poet_host.view.lanes import planned, recorded
from poet_host.view.page import page
from support.browser import CHROMIUM, browser

STEPS = 12
WIDTH, HEIGHT = 1280, 1010


def picture() -> bytes:
    """Return the picture as PNG. The mouse is over the largest tensor that is computed again."""
    schedule = Schedule.load(resource("schedules") / "resnet-digits-mkr1000.poet")
    with poet.connect("sim:mkr1000") as board:
        run = poet.train(schedule, board, "digits", steps=STEPS)
    costs, statements = costs_of_schedule(schedule), decode(schedule)
    views = [planned(costs, statements), recorded(costs, statements, run)]
    end_us = max(view.end_us for view in views)
    again = [box for box in views[0].boxes if box.kind == "again"]
    box = max(again, key=lambda one: one.size_bytes * (one.end_us - one.begin_us))
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "profile") as running:
        file = Path(folder) / "page.html"
        file.write_text(page(schedule, views, run), encoding="utf-8")
        tab = running.page()
        tab.open(file, width=WIDTH, height=HEIGHT)
        frame = tab.run("poet.panel(0)")
        middle_us = (box.begin_us + box.end_us) / 2
        height = (box.offset + box.size_bytes / 2) / frame["bytes"]
        tab.mouse(
            "mouseMoved",
            frame["left"] + frame["width"] * middle_us / end_us,
            frame["top"] + frame["height"] * (1 - height),
        )
        return base64.b64decode(tab.call("Page.captureScreenshot", format="png")["data"])


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.exit("no browser: try 'apt install chromium'")
    write_whole(Path(sys.argv[1]), picture())

"""A headless Chromium, driven through the DevTools protocol on a pair of pipes.

https://chromedevtools.github.io/devtools-protocol: JSON objects, each followed by a zero byte;
the browser reads them from its file descriptor 3 and writes to 4 (--remote-debugging-pipe).
"""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import F_DUPFD_CLOEXEC, fcntl
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE_S = 60.0
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """One page of the browser."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self.browser, self.session = browser, session
        self.said: list[str] = []  # console output, exceptions, and fetches of other files
        browser.pages[session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        return self.browser.call(method, parameters, self.session)

    def open(self, path: Path, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + PATIENCE_S
        while self.run("document.readyState") != "complete" or not self.run("Boolean(window.poet)"):
            assert time.monotonic() < until, f"{path} does not load: {self.said}"
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of an expression, awaited. An exception fails the test."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A real event: mouseMoved, mousePressed, mouseReleased, mouseWheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", buttons=1, clickCount=1)

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def received(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.said.append(f"{event['type']}: {event['args']}")
        elif method == "Runtime.exceptionThrown":
            self.said.append(str(event["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.said.append(str(event["entry"]))
        elif method == "Network.requestWillBeSent":
            url = event["request"]["url"]
            if not url.startswith(("file:", "data:")):
                self.said.append(f"fetches {url}")


class Browser:
    def __init__(self, to: int, back: int) -> None:
        self.to, self.back = to, back
        self.buffer = b""
        self.number = 0
        self.pages: dict[str, Page] = {}

    def page(self) -> Page:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        return Page(self, attached["sessionId"])

    def call(self, method: str, parameters: dict[str, Any], session: str | None = None) -> Any:
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            page = self.pages.get(answer.get("sessionId", ""))
            if page and "method" in answer:
                page.received(answer["method"], answer["params"])

    def read(self) -> Any:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.back], [], [], PATIENCE_S)
            assert ready, "the browser does not answer"
            data = os.read(self.back, 1 << 20)
            assert data, "the browser has ended"
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)


def _moved(end: int) -> int:
    moved = fcntl(end, F_DUPFD_CLOEXEC, 10)
    os.close(end)
    return moved


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a new profile in `folder`; it ends with the context."""
    assert CHROMIUM
    # The shell moves the pipes to descriptors 3 and 4; both ends have higher numbers before.
    read_by_it, to = map(_moved, os.pipe())
    back, written_by_it = map(_moved, os.pipe())
    script = f'exec "$0" "$@" 3<&{read_by_it} 4>&{written_by_it}'
    process = subprocess.Popen(
        ["bash", "-c", script, CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=(read_by_it, written_by_it),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in (read_by_it, written_by_it):
        os.close(end)
    running = Browser(to, back)
    try:
        yield running
    finally:
        try:
            running.call("Browser.close", {})
            process.wait(timeout=20)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        for end in (to, back):
            os.close(end)

"""Chromium without a window, for tests: driven over a pipe in its own protocol, no driver needed.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_S = 60.0


def program() -> str | None:
    """Where a Chromium is; None: nowhere."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@dataclass
class Visit:
    """A page that was opened, and what came of it."""

    browser: Browser
    requests: list[str] = field(default_factory=list)
    """Addresses that it asked for, its own included."""
    complaints: list[str] = field(default_factory=list)
    """Errors, warnings, refusals by its policy, dialogs."""
    load_s: float = 0.0

    def ask(self, expression: str) -> Any:
        """What a JavaScript expression gives in the page."""
        found = self.browser.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write the page, or the window's part of it, as PNG."""
        found = self.browser.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole
        )
        path.write_bytes(base64.b64decode(found["data"]))


class Browser:
    """A running Chromium with one tab."""

    def __init__(self, folder: Path) -> None:
        name = program()
        assert name is not None
        read_end, self._to = os.pipe()
        self._from, write_end = os.pipe()

        def connect() -> None:  # Chromium reads from 3 and writes to 4
            ends = os.dup(read_end), os.dup(write_end)  # the lower one first, so none is lost
            for end, number in zip(ends, (3, 4), strict=True):
                os.dup2(end, number)
                os.set_inheritable(number, True)

        command = [
            name, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={folder}",
            "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
            "--disable-component-update", "--disable-extensions", "--no-first-run",
            "--hide-scrollbars", "--force-color-profile=srgb",
            # Its own sandbox needs privileges that containers lack; the pages are ours.
            "--no-sandbox", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, close_fds=False, preexec_fn=connect,  # noqa: PLW1509  # two dup2 calls
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_end)
        os.close(write_end)
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        try:
            self._open_tab()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def _open_tab(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events meanwhile are kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._count:
                assert "error" not in found, (method, found["error"])
                return dict(found["result"])
            self._events.append(found)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._from, 1 << 16)
            if not data:
                raise EOFError("the browser ended")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def visit(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False,
              media: str = "screen") -> Visit:  # fmt: skip
        """Open a file in a window of that many pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self._events.clear()
        begun = time.monotonic()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self._events):
            self._events.append(self._next())
        visit = Visit(self, load_s=time.monotonic() - begun)
        visit.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        for event in self._events:
            _note(visit, event["method"], event.get("params", {}))
        return visit

    def complaints(self) -> list[str]:
        """What was complained of since the page was opened."""
        visit = Visit(self)
        self.call("Runtime.evaluate", expression="0")
        for event in self._events:
            _note(visit, event["method"], event.get("params", {}))
        return visit.complaints

    def close(self) -> None:
        """End it."""
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (EOFError, OSError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)


def _note(visit: Visit, method: str, params: dict[str, Any]) -> None:
    if method == "Network.requestWillBeSent":
        visit.requests.append(params["request"]["url"])
    elif method == "Log.entryAdded":
        visit.complaints.append(params["entry"]["text"])
    elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown",
                    "Page.javascriptDialogOpening"):  # fmt: skip
        visit.complaints.append(json.dumps(params)[:500])


@contextmanager
def running() -> Iterator[Browser]:
    """A browser with a profile of its own, which goes with it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(Path(folder))
        try:
            yield browser
        finally:
            browser.close()

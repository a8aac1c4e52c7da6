"""A headless Chromium, told what to do over two pipes in its DevTools protocol; no package is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60  # seconds until a silent browser is given up

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root in a container
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--hide-scrollbars",
)
# The protocol is spoken on the descriptors 3 and 4, which bash can put there whatever their numbers are here.
_START = 'exec "${@:3}" 3<&"$1" 4>&"$2"'


class Chromium:
    """One tab; `with Chromium(folder) as browser:` ends the process."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        words = [PROGRAM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", _START, "bash", str(to_read), str(to_write), *words],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._pending = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Chromium:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(PATIENCE)
        os.close(self._to)
        os.close(self._from)

    # ---- the page ----

    def open(self, page: Path, anchor: str = "") -> None:
        """Show a page from disk, and wait until its script says that it can be used."""
        self.events.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=page.as_uri() + anchor)
        self.until("performance.getEntriesByName('msprobe-interactive').length > 0")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < end, f"{condition} did not come true; {self.complaints()}"
            time.sleep(0.01)

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def screen(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def complaints(self) -> list[str]:
        """What the browser wrote to its console since the page was opened: errors, refused sources."""
        found = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"]["exception"].get("description", "?"))
            elif event["method"] == "Log.entryAdded":
                found.append(event["params"]["entry"]["text"])
        return found

    def requested(self) -> list[str]:
        """The addresses that it asked for since the page was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    # ---- the protocol ----

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: dict[str, Any] = answer["result"]
                return found
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._from], [], [], PATIENCE)
            assert ready, "the browser does not answer"
            some = os.read(self._from, 1 << 20)
            assert some, "the browser has ended"
            self._pending += some
        line, _, self._pending = self._pending.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

"""Chromium, told what to do through its DevTools protocol over two pipes: no driver, and nothing to download."""

from __future__ import annotations

import base64
import json
import os
import select
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.waiting import Deadline, eventually

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_END = b"\0"
_FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--no-first-run", "--disable-gpu"),
    *("--disable-dev-shm-usage", "--disable-background-networking", "--force-color-profile=srgb", "about:blank"),
)

_CODES = {"Escape": 27}  # without it, a dialog stays open


class Screen(NamedTuple):
    width: int
    height: int
    scheme: Literal["light", "dark"] = "light"


DESK = Screen(1440, 900)


class Page:
    """The only page of a browser. complaints: errors and broken policies since it was opened."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._last, self._rest = 0, b""
        self._session: str | None = None
        self.complaints: list[str] = []
        pages = self._ask("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in pages if each["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def open(self, url: str, screen: Screen = DESK) -> None:
        self.show(screen)
        self.complaints.clear()
        self._ask("Page.navigate", url=url)
        eventually(lambda: self.run("document.readyState"), lambda state: state == "complete")

    def show(self, screen: Screen) -> None:
        size = {"width": screen.width, "height": screen.height}
        self._ask("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=2, mobile=screen.width < 600)
        scheme = {"name": "prefers-color-scheme", "value": screen.scheme}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        found = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str) -> str | None:
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText")  # type: ignore[no-any-return]

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, text: str) -> None:
        """As one types it: the page hears of it."""
        field = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{field}.value = {json.dumps(text)}; {field}.dispatchEvent(new Event('input', {{bubbles: true}}))")

    def texts(self, selector: str) -> list[str]:
        return self.run(  # type: ignore[no-any-return]
            f"[...document.querySelectorAll({json.dumps(selector)})].map(each => each.innerText)"
        )

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_CODES.get(key, 0))

    def photograph(self, file: Path) -> None:
        """All of the page, also what one would scroll to."""
        image = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(image))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        os.write(
            self._send, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + _END
        )
        while True:
            answer = self._hear()
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]  # type: ignore[no-any-return]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(told["entry"]["text"])

    def _hear(self) -> dict[str, Any]:
        deadline = Deadline()
        while _END not in self._rest:
            deadline.check("the browser says nothing")
            if select.select([self._receive], [], [], 1.0)[0]:
                self._rest += os.read(self._receive, 1 << 20)
        message, _, self._rest = self._rest.partition(_END)
        return json.loads(message)  # type: ignore[no-any-return]


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    assert FOUND is not None
    its_in, our_out = os.pipe()
    our_in, its_out = os.pipe()
    command = shlex.join([FOUND, *_FLAGS, f"--user-data-dir={profile}"])
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"exec {command} 3</dev/fd/{its_in} 4>/dev/fd/{its_out}"],
        pass_fds=(its_in, its_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        os.close(its_in)
        os.close(its_out)
        yield Page(our_out, our_in)
    finally:
        process.kill()
        process.wait()
        os.close(our_out)
        os.close(our_in)

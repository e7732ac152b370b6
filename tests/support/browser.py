"""A browser for tests, driven by the DevTools protocol. It collects all that a page complains of."""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

PATIENCE = 90.0
"""Seconds for whatever is to come about, on a machine that has other things to do."""
FLAGS = (
    "--remote-debugging-port=0",
    "--ignore-certificate-errors",  # the controller's own is signed by itself
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "End": (35, ""),
    "Home": (36, ""),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
}


class Page:
    """A tab with cookies of its own."""

    def __init__(self, browser: Browser, context: str, session: str) -> None:
        self.complaints: list[str] = []
        """Errors and warnings of the console, what broke a policy of the page, requests that failed."""
        self.requested_urls: list[str] = []
        """The addresses of all requests."""
        self._browser, self._context, self._session = browser, context, session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        return self._browser.send(method, params, self._session)

    def go(self, url: str) -> None:
        """Load a page, until all of it is there."""
        self.evaluate("window.isOld = true")
        self.send("Page.navigate", url=url)
        self.wait("!window.isOld && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, a promise's too."""
        reply = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise AssertionError(f"{expression}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until an expression is true."""
        until = time.monotonic() + PATIENCE
        while True:
            with suppress(AssertionError):  # between two pages there is none
                if self.evaluate(f"!!({expression})"):
                    return
            if time.monotonic() > until:
                raise AssertionError(f"never true: {expression}\n{self.complaints}\n{self.text()}")
            time.sleep(0.05)

    def text(self) -> str:
        """All that is read."""
        return str(self.evaluate("document.body.innerText"))

    def press(self, *keys: str) -> None:
        """Keys by name, or characters."""
        for key in keys:
            code, text = KEYS.get(key, (ord(key[0].upper()), key))
            about = {"key": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
            self.send("Input.dispatchKeyEvent", type="keyDown", **about)
            self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def focused(self) -> str:
        """The id of what has the focus, else what it is."""
        return str(self.evaluate("document.activeElement.id || document.activeElement.tagName"))

    def colours(self, scheme: str) -> None:
        """ "light" or "dark", as the system says."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def size(self, width: int, height: int, scale: float = 1) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def picture(self) -> bytes:
        """A PNG of what is to be seen."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    def cookies(self) -> list[dict[str, Any]]:
        return list(self.send("Network.getCookies")["cookies"])

    def close(self) -> None:
        self._browser.send("Target.disposeBrowserContext", {"browserContextId": self._context})

    def heard(self, method: str, params: dict[str, Any]) -> None:
        """Called by the browser with each event of this tab."""
        if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requested_urls.append(str(params["request"]["url"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))


class Browser:
    """A running Chromium."""

    def __init__(self, line: ClientConnection) -> None:
        self._line = line
        self._number = 0
        self._lock = threading.Lock()
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def page(self) -> Page:
        """A new tab, which shares no cookies with others."""
        context = self.send("Target.createBrowserContext", {})["browserContextId"]
        target = self.send("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._pages[session] = page = Page(self, context, session)
        return page

    def send(self, method: str, params: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        with self._lock:
            self._number += 1
            number = self._number
            self._answers[number] = queue.Queue()
            about = {"sessionId": session} if session else {}
            self._line.send(json.dumps({"id": number, "method": method, "params": params, **about}))
        try:
            answer = self._answers[number].get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"the browser does not answer {method}") from None
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def _read(self) -> None:
        with suppress(ConnectionClosed):
            for text in self._line:
                message = json.loads(text)
                if "id" in message:
                    self._answers[message["id"]].put(message)
                elif page := self._pages.get(message.get("sessionId", "")):
                    page.heard(message["method"], message["params"])


@contextmanager
def running(program: Path, folder: Path) -> Iterator[Browser]:
    """A browser with a profile in ``folder``, gone at the end with all that it started."""
    folder.mkdir(parents=True, exist_ok=True)
    # Its own sandbox needs rights that tests do not have, and root is refused with one.
    command = [str(program), "--no-sandbox", *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    environment = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        with connect(_address(folder, process), max_size=None, open_timeout=PATIENCE, proxy=None) as line:
            yield Browser(line)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _address(folder: Path, process: subprocess.Popen[bytes]) -> str:
    port_file, until = folder / "profile" / "DevToolsActivePort", time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        if port_file.exists() and len(lines := port_file.read_text().splitlines()) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    raise AssertionError(f"no browser: {(folder / 'log').read_text(errors='replace')[-2000:]}")

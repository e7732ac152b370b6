"""A browser for tests, driven by Playwright: Debian's Chromium, and what a page of it complains of."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, sync_playwright

from tests.support import chromium, images

PATIENCE = 90_000.0
"""Milliseconds for whatever is to come about, on a machine that has other things to do."""
FLAGS = ("--disable-gpu", "--force-color-profile=srgb")


@dataclass
class Complaints:
    """Errors and warnings of a page's console, what broke its policy, requests that failed; and what it requested."""

    texts: list[str] = field(default_factory=list)
    requested_urls: list[str] = field(default_factory=list)

    def listen(self, page: Page) -> None:
        """Collect those of a page from now on."""
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.texts.append(str(error)))
        page.on("request", lambda request: self.requested_urls.append(request.url))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self.texts.append(f"{message.text} {message.location['url']}")


def built_chromium() -> Path | None:
    """Chromium if this machine has fetched it: ``make built-upstream``."""
    program = images.image_folder("chromium", [chromium]) / "chromium"
    return program if program.exists() else None


@contextmanager
def running(program: Path, folder: Path) -> Iterator[Browser]:
    """A browser whose caches are in ``folder``, gone at the end with all that it started."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            chromium_sandbox=False,  # It needs rights that tests do not have, and root is refused with one
            args=FLAGS,
            env={**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")},
            timeout=PATIENCE,
        )
        try:
            yield browser
        finally:
            browser.close()


def new_page(context: BrowserContext, width: int = 1280, height: int = 900) -> Page:
    """A tab. The caller closes its context."""
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.set_viewport_size({"width": width, "height": height})
    return page


def wait_until(page: Page, expression: str) -> None:
    """Wait until an expression of JavaScript is true. Playwright's own wait_for_function needs eval(), which the policy
    of the page forbids."""
    until = time.monotonic() + PATIENCE / 1000
    while True:
        with suppress(Error):  # between two pages there is none
            if page.evaluate(f"!!({expression})"):
                return
        if time.monotonic() > until:
            raise AssertionError(f"never true: {expression}\n{page.inner_text('body')}")
        page.wait_for_timeout(50)


def press(page: Page, *keys: str) -> None:
    """Press keys one after the other, by name or character."""
    for key in keys:
        page.keyboard.press(key)


def focused(page: Page) -> str:
    """The id of what has the focus, else what it is."""
    return str(page.evaluate("document.activeElement.id || document.activeElement.tagName"))

"""The page beside ``devalloc up``: ``--page``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.verb import BadInput, Failed

if TYPE_CHECKING:
    import threading

    from devalloc.store import Store

FILE = "page-token"
"""Beside the store."""


def page_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--page HOST:PORT: passed as ``page: str | None``."""
    return click.option(
        "--page",
        metavar="HOST:PORT",
        help="Show nodes, devices, claims and machines in a browser there, such as 127.0.0.1:10301. It asks for a "
        f"token, which is another one each time: it is shown on a terminal and lies beside the store in {FILE}. "
        "Other addresses than those of this machine itself are served with TLS.",
    )(function)


class UpPage:
    """A page that shows a store to whoever has the token."""

    def __init__(self, address: str, store: Path, say: Callable[[str], None], *, on_terminal: bool) -> None:
        """Raises BadInput for an invalid address."""
        from secrets import token_urlsafe

        self.host, self.port = _place(address)
        self._file = store.parent / FILE
        self._say = say
        self._on_terminal = on_terminal
        self._token = token_urlsafe(32)

    def run(self, store: Store, stop: threading.Event) -> None:
        """Serve until ``stop`` is set. Raises Failed where it cannot listen."""
        from devalloc.controller.page import OneToken, Pages
        from devalloc.controller.page.html import tag
        from devalloc.controller.site import Site

        hint = tag("p", "It was shown when devalloc up began, and lies in the file ", tag("code", str(self._file)), ".")
        pages = Pages(store, OneToken(self._token), hint=hint)
        site = Site(
            pages.mounted(),
            None,
            host=self.host,
            port=self.port,
            tls=None if self._is_local else self._tls(),
            on_ready=self._tell,
        )
        try:
            with self._kept():
                site.run(stop)
        except OSError as error:
            raise Failed(f"--page cannot listen at {self.host}:{self.port}: {error.strerror or error}") from error
        finally:
            pages.close()

    @property
    def _is_local(self) -> bool:
        from ipaddress import ip_address

        return self.host == "localhost" or ip_address(self.host).is_loopback

    def _tls(self) -> Any:
        from socket import gethostname

        try:
            from devalloc.controller.certificate import self_signed

            return self_signed([self.host, gethostname(), "localhost"])
        except ImportError:
            raise Failed(
                f"--page needs a certificate at {self.host}, and cryptography to make one: "
                "pip install 'devalloc[controller]', or show it at 127.0.0.1"
            ) from None

    def _tell(self, address: tuple[str, int]) -> None:
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        how = f"token {self._token}" if self._on_terminal else f"its token lies in {self._file}"
        self._say(f"page http{'' if self._is_local else 's'}://{host}:{address[1]}/devalloc/, {how}")

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """While inside the token is in its file, for this user alone."""
        with suppress(FileNotFoundError):
            self._file.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self._file, flags, 0o600), "w") as file:
            file.write(f"{self._token}\n")
        try:
            yield
        finally:
            with suppress(OSError):
                self._file.unlink()


def _place(address: str) -> tuple[str, int]:
    from ipaddress import ip_address

    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        if host != "localhost":
            ip_address(host)
        if not port.isascii() or not port.isdecimal() or int(port) > 65535:
            raise ValueError
    except ValueError:
        raise BadInput(f"--page {address}: write an IP address and a port, such as 127.0.0.1:10301") from None
    return host, int(port)

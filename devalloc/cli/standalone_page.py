"""The page of ``devalloc up``: ``--page``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from devalloc.cli.command import BadInput, CommandFailed
from devalloc.settings import Setting

if TYPE_CHECKING:
    import threading

    from devalloc.store import Store

TOKEN_FILE = "page-token"
"""Name of the token's file, beside the store."""


PAGE = Setting(
    "Serve a page with nodes, devices, claims and machines here, such as 127.0.0.1:10301. It asks for a token; a new "
    f"one is printed at every start and kept in {TOKEN_FILE} beside the store. Addresses other than those of this "
    "machine itself use TLS.",
    flag="--page",
    metavar="HOST:PORT",
)


class StandalonePage:
    """A page that shows a store to everyone who has the token."""

    def __init__(self, address: str, store: Path, say: Callable[[str], None], *, on_terminal: bool) -> None:
        """Raises BadInput for an invalid address."""
        from secrets import token_urlsafe

        self.host, self.port = _host_and_port(address)
        self._file = store.parent / TOKEN_FILE
        self._say = say
        self._on_terminal = on_terminal
        self._token = token_urlsafe(32)

    def run(self, store: Store, stop: threading.Event) -> None:
        """Serve until ``stop`` is set. Raises Failed if it cannot listen."""
        from devalloc.controller.page import FleetPage, SingleTokenAuthorizer
        from devalloc.controller.page.html import tag
        from devalloc.controller.site import HttpSite

        hint = tag(
            "p", "devalloc up printed it at its start; it is also in the file ", tag("code", str(self._file)), "."
        )
        pages = FleetPage(store, SingleTokenAuthorizer(self._token), hint=hint)
        site = HttpSite(
            pages.mounted(),
            None,
            host=self.host,
            port=self.port,
            tls=None if self._is_local else self._tls(),
            on_ready=self._tell,
        )
        try:
            with self._token_file():
                site.run(stop)
        except OSError as error:
            raise CommandFailed(
                f"--page cannot listen at {self.host}:{self.port}: {error.strerror or error}"
            ) from error
        finally:
            pages.close()

    @property
    def _is_local(self) -> bool:
        return self.host == "localhost" or ip_address(self.host).is_loopback

    def _tls(self) -> Any:
        try:
            from devalloc.controller.certificate import self_signed

            return self_signed([self.host, gethostname(), "localhost"])
        except ImportError:
            raise CommandFailed(
                f"--page needs a certificate at {self.host}, and cryptography to make one: "
                "pip install 'devalloc[controller]', or use 127.0.0.1"
            ) from None

    def _tell(self, address: tuple[str, int]) -> None:
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        how = f"token {self._token}" if self._on_terminal else f"its token is in {self._file}"
        self._say(f"page http{'' if self._is_local else 's'}://{host}:{address[1]}/devalloc/, {how}")

    @contextmanager
    def _token_file(self) -> Iterator[None]:
        """While inside, keep the token in its file, which only this user can read."""
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


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        if host != "localhost":
            ip_address(host)
        if not port.isascii() or not port.isdecimal() or int(port) > 65535:
            raise ValueError
    except ValueError:
        raise BadInput(f"--page {address}: use an IP address and a port, such as 127.0.0.1:10301") from None
    return host, int(port)

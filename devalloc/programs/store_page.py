"""The page of ``devalloc up``."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from secrets import token_urlsafe
from socket import AF_INET, AF_INET6, create_server, gethostname
from typing import Any

from markupsafe import Markup

from devalloc.controller.http_endpoints import HttpSite
from devalloc.program import ProgramFailed
from devalloc.programs.settings import TOKEN_FILE
from devalloc.settings import BadSetting
from devalloc.store import Store
from devalloc.usage.page import FleetPage, SingleTokenAuthorizer


class StorePage:
    """A page that shows a store to everyone who has the token."""

    def __init__(self, address: tuple[str, int], store: Path, say: Callable[[str], None], *, on_terminal: bool) -> None:
        """Raises BadSetting if the host is not an IP address."""
        self.host, self.port = address
        try:
            ip_address("127.0.0.1" if self.host == "localhost" else self.host)
        except ValueError:
            raise BadSetting(
                "--page", f"must be an IP address and a port such as 127.0.0.1:10301, not {self.host}:{self.port}"
            ) from None
        self._file = store.parent / TOKEN_FILE
        self._say = say
        self._on_terminal = on_terminal
        self._token = token_urlsafe(32)

    def check_port(self) -> None:
        """Before anything is written: whether it can listen there. Raises ProgramFailed."""
        try:
            create_server((self.host, self.port), family=AF_INET6 if ":" in self.host else AF_INET).close()
        except OSError as error:
            raise self._listen_error(error) from error

    def _listen_error(self, error: OSError) -> ProgramFailed:
        why = os.strerror(error.errno) if error.errno else str(error)  # asyncio's strerror also has the address
        advice = "; name another port" if error.errno == errno.EADDRINUSE else ""
        return ProgramFailed(f"--page cannot listen at {self.host}:{self.port}: {why}{advice}")

    def run(self, store: Store, stop: threading.Event) -> None:
        """Serve until ``stop`` is set. Raises ProgramFailed if it cannot listen."""
        hint = Markup("<p>devalloc up printed it at its start; it is also in the file <code>{}</code>.</p>").format(
            self._file
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
            raise self._listen_error(error) from error
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
            raise ProgramFailed(
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

"""The page of a store, served to tests as the controller serves it."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from devalloc.controller.authorization import Authorizer
from devalloc.controller.http_endpoints import HttpSite
from devalloc.store import Event, Listing, Object, Store
from devalloc.usage.page import FleetPage, SingleTokenAuthorizer
from tests.support.waiting import in_threads

TOKEN = "a-token.of_the-page"


class FixedStore:
    """All of a store that a page reads: these objects, as they are."""

    def __init__(self, objects: Iterable[Object]) -> None:
        self._objects = list(objects)

    def list(self, kinds: Any = None, namespace: str | None = None) -> Listing:
        wanted = (kinds,) if isinstance(kinds, str) else kinds
        return Listing([obj for obj in self._objects if obj["kind"] in wanted], "1")

    def watch(self, kinds: Any, since: str, *, timeout: float) -> Iterator[Event]:
        return iter(())


@contextmanager
def served(
    store: Store | FixedStore,
    access: Authorizer | None = None,
    tls: ssl.SSLContext | None = None,
    remarks: Callable[[], str] = lambda: "",
) -> Iterator[str]:
    """The address of the page."""
    ready, at = threading.Event(), []

    def on_ready(address: tuple[str, int]) -> None:
        at.append(address)
        ready.set()

    fixed = store if isinstance(store, FixedStore) else None
    pages = FleetPage(store, access or SingleTokenAuthorizer(TOKEN), optional_store=fixed, remarks=remarks)  # type: ignore[arg-type]  a page only lists
    site = HttpSite(pages.mounted(), None, port=0, tls=tls, on_ready=on_ready)
    with closing(pages), in_threads(site.run):
        assert ready.wait(60)
        yield f"{'http' if tls is None else 'https'}://{at[0][0]}:{at[0][1]}/devalloc/"


def ask(
    url: str, path: str = "", *, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body; redirections are not followed. Of header names ``_`` is written ``-``."""
    scheme, _, rest = url.partition("://")
    host, _, folder = rest.partition("/")
    line = (
        http.client.HTTPSConnection(host, timeout=60, context=ssl._create_unverified_context())
        if scheme == "https"
        else http.client.HTTPConnection(host, timeout=60)
    )
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        sent["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        line.request(method, f"/{folder}{path}", body, sent)
        answer = line.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        line.close()

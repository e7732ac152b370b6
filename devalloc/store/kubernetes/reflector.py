"""Reflectors: each keeps one kind up to date in the informer cache, by a list and then a watch; together they
begin as of one moment.

The kinds that an informer cache holds: each from its first use on; kinds requested together are consistent.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from devalloc.api.conditions import without_default_status
from devalloc.backoff import Backoff
from devalloc.store.errors import Invalid, Object, Unavailable
from devalloc.store.kubernetes.api_error import ApiError, translate_error
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.informer_cache import InformerCache
from devalloc.store.kubernetes.resources import ApiResource, ResourceRegistry
from devalloc.store.metadata_rules import parse_version

log = logging.getLogger(__name__)

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.25, 10.0
"""Seconds before the next try after a failure, doubled after each failure up to the second value. Multiplied by a
random factor between 0.5 and 1.5, so that not all clients of a restarted server connect at once."""
MISSING_SECONDS = 30.0
"""How often to look whether the server serves an optional kind by now; times a random factor between 0.5 and 1.5."""
SHORT_WATCH_SECONDS = 1.0
"""A watch that ends sooner, without an event, counts as a failure."""


class Reflector:
    """One thread, which starts after the first list."""

    def __init__(
        self, client: Client, resource: ApiResource, mirror: InformerCache, *, on_cut: Callable[[], None] = lambda: None
    ) -> None:
        """``on_cut``: called if the server was unreachable, because it may be another server afterwards."""
        self.resource = resource
        self.is_missing = False
        """The server does not serve this optional kind now. It may later: its CRD can be installed at any time."""
        self._client = client
        self._mirror = mirror
        self._on_cut = on_cut
        self._version = "0"
        self._over = threading.Event()
        self._interrupted = threading.Event()
        """Ends the current watch."""
        self._heard = time.monotonic()
        self._fails = False
        self._is_watching = False
        """Whether the server accepted the last watch."""
        self._thread = threading.Thread(target=self._run, name=f"watch-{resource.plural}", daemon=True)

    @property
    def silent_seconds(self) -> float:
        """Seconds without a watch; 0 while there is one."""
        return time.monotonic() - self._heard if self._fails else 0.0

    def list(self, params: Mapping[str, str] | None = None, *, anew: bool = False) -> str:
        """Read all objects into the cache; returns their version of the API server. Raises ApiError."""
        objects: list[Object] = []
        version = ""
        for page in self._client.list(self.resource.path, {**self.resource.params, **(params or {})}):
            version = version or _version(page["metadata"])
            objects += [clean_object(obj, self.resource) for obj in page["items"]]
        self._mirror.relist(self.resource.store_kind, objects, version, anew=anew)
        return version

    def list_if_served(self, params: Mapping[str, str]) -> None:
        """Like ``list``; sets ``is_missing`` if the kind is optional and the server does not serve it."""
        try:
            self.list(params)
            self.is_missing = False
        except ApiError as error:
            if not self._is_not_served(error):
                raise
            self.is_missing = True
            log.info("the cluster does not serve %s of %s", self.resource.plural, self.resource.version)

    def begin(self, version: str) -> None:
        """Watch from a listed version, or from when the server serves the kind."""
        self._version = version or "0"
        self._thread.start()

    def end(self) -> None:
        """Ask the thread to end; ``join`` waits for it."""
        self._over.set()
        self._interrupted.set()

    def reselect(self, resource: ApiResource) -> None:
        """Hold another selection of the kind: list it, and watch it from there."""
        self.resource = resource
        self._interrupted.set()

    def join(self, seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        backoff, expired, listed = Backoff(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS, jitter=0.5), False, False
        while not self._over.is_set():
            expired = self._must_list() or expired
            began, got_event, self._is_watching = time.monotonic(), False, False
            if self._over.is_set():
                return
            try:
                if expired:
                    self._relist()
                    expired, listed = False, True
                elif backoff.failures and self._has_less():
                    expired = True
                    continue
                for event in self._client.watch(
                    self.resource.path, self.resource.params, self._version, self._interrupted, self._begun
                ):
                    backoff.reset()
                    got_event, listed = True, False
                    self._tell(event)
                if got_event or self._interrupted.is_set() or time.monotonic() - began >= SHORT_WATCH_SECONDS:
                    backoff.reset()
                    listed = False
                    continue
                why = "the watch ends at once"
            except ApiError as error:
                if self._is_not_served(error):
                    self._lose_kind()
                    continue
                if error.is_gone:
                    log.info("the watch of %s is too old; starting again: %s", self.resource.plural, error)
                    if not expired and not listed:
                        expired = True
                        continue
                    expired = True
                why = str(error)
                self._on_cut()
            except Exception as error:  # this thread survives every answer of the server
                log.exception("cannot read the watch of %s; starting again", self.resource.plural)
                why, expired = str(error), True
            if self._over.is_set():
                return
            self._wait_after_failure(backoff, why, began)

    def _must_list(self) -> bool:
        """Whether everything is to be read before the next watch. Waits while the server does not serve the kind."""
        must = self.is_missing
        if must:
            self._over.wait(MISSING_SECONDS * random.uniform(0.5, 1.5))
            self._fails = False
        if self._interrupted.is_set():
            self._interrupted.clear()  # before the resource is read
            must = True
        return must

    def _wait_after_failure(self, backoff: Backoff, why: str, began: float) -> None:
        if not self._fails:
            # A watch that broke was there until now, also if nothing changed for long.
            self._fails, self._heard = True, time.monotonic() if self._is_watching else began
        pause = backoff.next_delay()
        if backoff.failures in (1, 5) or backoff.failures % 20 == 0:
            log.warning("cannot watch %s: %s; next try in %.1f s", self.resource.plural, why, pause)
        self._over.wait(pause)

    def _begun(self) -> None:
        self._fails, self._is_watching = False, True

    def _is_not_served(self, error: ApiError) -> bool:
        return self.resource.is_optional and error.status == 404

    def _lose_kind(self) -> None:
        """The server does not serve the kind, so there are no objects of it."""
        if not self.is_missing:
            log.info("the cluster no longer serves %s of %s", self.resource.plural, self.resource.version)
            self._mirror.relist(self.resource.store_kind, (), self._version, anew=True)
        self.is_missing, self._fails = True, False

    def _has_less(self) -> bool:
        """Whether the server's version is older than ours: a watch from ours would miss everything until then."""
        page = self._client.get(self.resource.path, {"limit": "1"})
        return parse_version(_version(page["metadata"])) < parse_version(self._version)

    def _relist(self) -> None:
        """List again; the differences are the missed changes."""
        previous = self._version
        version = self.list()
        if self.is_missing:
            log.info("the cluster serves %s of %s now", self.resource.plural, self.resource.version)
            self.is_missing = False
        if parse_version(version) < parse_version(previous):
            log.warning(
                "the API server is at version %s of %s, but was at %s: a backup was restored; continuing with it",
                version,
                self.resource.plural,
                previous,
            )
            version = self.list(anew=True)
        self._version = version

    def _tell(self, event: Object) -> None:
        obj = event["object"]
        version = _version(obj["metadata"])
        if event.get("type") == "BOOKMARK":
            self._mirror.note_bookmark(self.resource.store_kind, version)
        else:
            self._mirror.tell(self.resource.store_kind, str(event.get("type")), clean_object(obj, self.resource))
        self._version = version


def clean_object(obj: Object, resource: ApiResource) -> Object:
    """An object as the store returns it: without managedFields and the status that the API server fills in, and with
    its kind, which lists omit."""
    metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    rest = {k: v for k, v in obj.items() if k not in ("apiVersion", "kind", "metadata")}
    version = f"{resource.group}/{resource.version}" if resource.group else resource.version
    content = {
        "apiVersion": obj.get("apiVersion", version),
        "kind": obj.get("kind", resource.kind),
        "metadata": metadata,
        **rest,
    }
    content = without_default_status(resource.kind, content)
    for path in resource.without:
        content = _without(content, path)
    if not resource.only:
        return content
    selected = _only(content, (_IDENTITY_PATHS + resource.only))
    return {name: part if name == "metadata" else _parts.share(part) for name, part in selected.items()}


_IDENTITY_PATHS = (
    ("apiVersion",),
    ("kind",),
    *(("metadata", name) for name in ("namespace", "name", "uid", "resourceVersion", "creationTimestamp")),
    ("metadata", "deletionTimestamp"),
)


def _only(content: Object, paths: Iterable[Sequence[str]]) -> Object:
    """The content of these paths, which also lead through each item of a list."""
    rests: dict[str, list[Sequence[str]]] = {}
    for name, *rest in paths:
        rests.setdefault(name, []).append(rest)
    return {name: _only_rest(content[name], rest) for name, rest in rests.items() if name in content}


def _only_rest(content: Any, paths: list[Sequence[str]]) -> Any:
    if not all(paths):
        return content
    if isinstance(content, list):
        return [_only_rest(each, paths) for each in content]
    return _only(content, paths) if isinstance(content, dict) else content


class _SharedParts:
    """Parts of objects that were read: most pods of one template on a node have the same of what is kept of them. What
    the store returns is never changed. Use from any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._parts: dict[str, Any] = {}
        self._characters = 0

    def share(self, content: Any) -> Any:
        """Equal content that was read before, or this one. Users can create pods with ever new ones: when there are
        too many, or they are too long, all are forgotten."""
        text = json.dumps(content)
        with self._mutex:
            if text in self._parts:
                return self._parts[text]
            if len(self._parts) >= MAX_SHARED or self._characters + len(text) > MAX_SHARED_CHARACTERS:
                self._parts.clear()
                self._characters = 0
            self._characters += len(text)
            self._parts[text] = content
            return content


MAX_SHARED = 20_000
"""Parts that are remembered at most."""
MAX_SHARED_CHARACTERS = 16 << 20
"""Of these together, as JSON: in memory a part takes a few times as much."""
_parts = _SharedParts()


def _without(content: Object, path: Sequence[str]) -> Object:
    """The content without a path; unchanged parts are not copied."""
    name, *rest = path
    if not isinstance(content.get(name), (dict, list)):
        return content
    if rest:
        return {**content, name: _without(content[name], rest)} if isinstance(content[name], dict) else content
    return {key: value for key, value in content.items() if key != name}


def _version(metadata: Object) -> str:
    version = metadata.get("resourceVersion")
    if not isinstance(version, str):
        raise Invalid("the API server sent an object without a resourceVersion")
    parse_version(version)
    return version


FIRST_LIST_ATTEMPTS = 3
"""How often to restart the first lists if the server forgets their version before the last one."""
JOIN_SECONDS = 5.0


class Reflectors:
    """The reflectors of all kinds. Thread-safe."""

    def __init__(
        self, client: Client, resources: ResourceRegistry, mirror: InformerCache, *, on_cut: Callable[[], None]
    ) -> None:
        """``on_cut``: called if the server was unreachable."""
        self._client = client
        self._resources = resources
        self._mirror = mirror
        self._on_cut = on_cut
        self._by_kind: dict[str, Reflector] = {}
        self._beginning = threading.Lock()
        self._over = threading.Event()

    @property
    def silent_seconds(self) -> float:
        """Seconds without a watch, for the kind with the longest time; 0 if all have one."""
        return max((reflector.silent_seconds for reflector in [*self._by_kind.values()]), default=0.0)

    def hold(self, kinds: frozenset[str]) -> None:
        """Keep these kinds in the cache from now on. Raises StoreError."""
        if kinds <= self._by_kind.keys():
            return
        with self._beginning:
            missing = sorted(kinds - self._by_kind.keys())
            if not missing:
                return
            if self._over.is_set():
                raise Unavailable("the store is closed")
            begun = [
                Reflector(self._client, self._resources.of(kind), self._mirror, on_cut=self._on_cut) for kind in missing
            ]
            version = _first_lists(begun)
            for reflector in begun:
                reflector.begin(version)
            self._by_kind |= {reflector.resource.store_kind: reflector for reflector in begun}

    def reselect(self, resource: ApiResource) -> None:
        """Hold another selection of a kind."""
        with self._beginning:
            if (reflector := self._by_kind.get(resource.store_kind)) is not None:
                reflector.reselect(resource)

    def refresh(self) -> None:
        """Read all held kinds again. Raises StoreError."""
        with self._beginning:
            for reflector in self._by_kind.values():
                if not reflector.resource.is_optional:
                    _read_all(reflector)
                elif not reflector.is_missing:
                    _read_if_served(reflector)

    def refuse(self) -> None:
        """Refuse additional kinds from now on."""
        self._over.set()

    def end(self) -> None:
        """End all watches permanently."""
        self.refuse()
        with self._beginning:
            for reflector in self._by_kind.values():
                reflector.end()
            for reflector in self._by_kind.values():
                reflector.join(JOIN_SECONDS)


def _first_lists(reflectors: Sequence[Reflector]) -> str:
    """List all kinds consistently; returns their version of the API server. Marks optional kinds that are missing."""
    first, *others = sorted(reflectors, key=lambda each: each.resource.is_optional)
    if first.resource.is_optional:  # all of them are
        _read_if_served(first)
        if first.is_missing:
            return _first_lists(others) if others else ""
    for number in range(FIRST_LIST_ATTEMPTS):
        version = _read_all(first)
        moment = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
        try:
            for reflector in others:
                reflector.list_if_served(moment)
            return version
        except ApiError as error:
            if not error.is_gone or number == FIRST_LIST_ATTEMPTS - 1:
                raise translate_error(error, f"list {reflector.resource.plural}") from error
    raise AssertionError("the last try raises")


def _read_if_served(reflector: Reflector) -> None:
    try:
        reflector.list_if_served({})
    except ApiError as error:
        raise translate_error(error, f"list {reflector.resource.plural}") from error


def _read_all(reflector: Reflector) -> str:
    try:
        return reflector.list()
    except ApiError as error:
        raise translate_error(error, f"list {reflector.resource.plural}") from error

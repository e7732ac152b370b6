"""The kinds of a cluster that a mirror holds: each from when it is first asked for, all asked for at once as of one
moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from devalloc.store.errors import Unavailable
from devalloc.store.kubernetes.answers import explained
from devalloc.store.kubernetes.apierror import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.mirror import Mirror
from devalloc.store.kubernetes.reflector import Reflector
from devalloc.store.kubernetes.resources import Resources

FIRST_LISTS = 3
"""How often the first lists are begun anew, because the moment that they are of is forgotten before the last."""
JOIN_SECONDS = 5.0


class Reflectors:
    """Safe to share between threads."""

    def __init__(self, client: Client, resources: Resources, mirror: Mirror, *, on_cut: Callable[[], None]) -> None:
        """``on_cut``: called when the server could not be reached."""
        self._client = client
        self._resources = resources
        self._mirror = mirror
        self._on_cut = on_cut
        self._by_kind: dict[str, Reflector] = {}
        self._beginning = threading.Lock()
        self._over = threading.Event()

    @property
    def silent_seconds(self) -> float:
        """For how long the server cannot be heard, for the kind of which that is longest; 0 while it can."""
        return max((reflector.silent_seconds for reflector in [*self._by_kind.values()]), default=0.0)

    def hold(self, kinds: frozenset[str]) -> None:
        """Have the mirror hold these kinds from here on. Raises StoreError."""
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

    def refresh(self) -> None:
        """Read all that is held anew. Raises StoreError."""
        with self._beginning:
            for reflector in self._by_kind.values():
                _read_all(reflector)

    def refuse(self) -> None:
        """Hold no more kinds than there are."""
        self._over.set()

    def end(self) -> None:
        """End all watches. For good."""
        self.refuse()
        with self._beginning:
            for reflector in self._by_kind.values():
                reflector.end()
            for reflector in self._by_kind.values():
                reflector.join(JOIN_SECONDS)


def _first_lists(reflectors: Sequence[Reflector]) -> str:
    """The version of the API server that all of them are of."""
    for number in range(FIRST_LISTS):
        first, *others = reflectors
        version = _read_all(first)
        moment = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
        try:
            for reflector in others:
                reflector.list(moment)
            return version
        except ApiError as error:
            if not error.is_gone or number == FIRST_LISTS - 1:
                raise explained(error, f"list {reflector.resource.plural}") from error
    raise AssertionError("the last try raises")


def _read_all(reflector: Reflector) -> str:
    try:
        return reflector.list()
    except ApiError as error:
        raise explained(error, f"list {reflector.resource.plural}") from error

"""What was kept for the machines of each billing id, times time.

What is told is what is written down, so that no counter ever goes back: the server that begins goes on from there. For
the time in which there was none it adds what is kept for each machine when it begins.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from devalloc.controller.permits.book import Book
from devalloc.store import AlreadyExists, Conflict, NotFound, Object, StoreError

log = logging.getLogger(__name__)

KIND = "ConfigMap"
NAMESPACE = "default"
FORGOTTEN = 30 * 86_400_000
"""Milliseconds after which an id is forgotten that no machine has any more."""
T = TypeVar("T")


class InWriter(Protocol):
    """Runs what speaks with the store in its thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class Shelf(Protocol):
    """The part of a ``Store`` that is needed here."""

    def get(self, kind: str, namespace: str | None, name: str) -> Object: ...

    def create(self, obj: Object) -> Object: ...

    def replace(self, obj: Object) -> Object: ...


@dataclass(frozen=True, slots=True)
class Total:
    """Of one billing id."""

    cpu: int = 0
    """Thousandths of a CPU, times milliseconds."""
    memory: int = 0
    """Bytes, times milliseconds."""
    last: int = 0
    """When a machine had it last, in milliseconds since 1970."""


class Usage:
    """Use from one event loop at a time."""

    def __init__(
        self,
        store: Shelf,
        book: Book,
        lease: str,
        holder: str,
        *,
        namespace: str = NAMESPACE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``lease``: the name of the one under which it is written; ``holder``: who writes; ``namespace``: where.
        ``clock``: seconds since 1970, which the next server goes by as well."""
        self.told: Mapping[str, Total] = {}
        """As it is written down."""
        self._store = store
        self._book = book
        self._name = f"{lease}-usage"
        self._namespace = namespace
        self._holder = holder
        self._clock = clock
        self._totals: dict[str, Total] = {}
        self._until = 0
        """Up to when it is counted, in milliseconds since 1970."""
        self._found: Object | None = None

    async def begin(self, in_writer: InWriter) -> None:
        """Go on from what is written; the book has all machines. Raises StoreError."""
        now = round(self._clock() * 1000)
        self._found = await in_writer(self._read)
        self.told, since = _content(self._found)
        self._totals, self._until = dict(self.told), now
        if since is not None:
            self._add(lambda created: now - max(since, created))

    async def run(self, in_writer: InWriter, interval: float) -> None:
        """Count, and write it down every ``interval`` seconds. Runs on where that fails: it is written later."""
        before = saved = time.monotonic()
        while True:
            await asyncio.sleep(min(1.0, interval))
            now = time.monotonic()
            self.add(now - before)
            before = now
            if now - saved >= interval:
                saved = now
                try:
                    await self.save(in_writer)
                except StoreError as error:
                    log.warning("what is kept for billing ids cannot be written: %s; it is tried again", error)

    def add(self, seconds: float) -> None:
        """Count what is kept now, for so long."""
        self._until = round(self._clock() * 1000)
        self._add(lambda created: round(seconds * 1000))

    async def save(self, in_writer: InWriter) -> None:
        """Write it down. Raises StoreError."""
        kept = {key: total for key, total in self._totals.items() if self._until - total.last < FORGOTTEN}
        self._totals, totals = kept, dict(kept)  # it is counted on while that is written
        if not totals and self._found is None:
            return
        try:
            self._found = await in_writer(partial(self._write, totals, self._until))
        except (Conflict, NotFound, AlreadyExists):
            self._found = await in_writer(self._read)
            self.told, _ = _content(self._found)
            if self._found is not None and _data(self._found).get("holder") != self._holder:
                self._totals = dict(self.told)  # another server counts: what was counted here is its business now
            return
        self.told = totals

    def _add(self, milliseconds: Callable[[int], int]) -> None:
        """For each machine so long, by when it came to be."""
        for key, record in self._book.records.items():
            if not record.billed_to or not record.runs:
                continue
            machine = self._book.nodes[record.node].machines[key]
            has = machine.reserved.above(machine.buffer)  # a buffer is a guess
            so_long = max(0, milliseconds(machine.since))
            before = self._totals.get(record.billed_to, Total())
            self._totals[record.billed_to] = Total(
                before.cpu + has.cpu * so_long, before.memory + has.memory * so_long, self._until
            )

    def _read(self) -> Object | None:
        try:
            return self._store.get(KIND, self._namespace, self._name)
        except NotFound:
            return None

    def _write(self, totals: Mapping[str, Total], until: int) -> Object:
        """As a ConfigMap. Raises StoreError."""
        content = json.dumps({key: astuple(total) for key, total in sorted(totals.items())}, separators=(",", ":"))
        data = {"holder": self._holder, "untilMilliseconds": str(until), "totals": content}
        if self._found is not None:
            return self._store.replace({**self._found, "data": data})
        metadata = {"name": self._name, "namespace": self._namespace}
        return self._store.create({"apiVersion": "v1", "kind": KIND, "metadata": metadata, "data": data})


def _data(found: Object) -> dict[str, Any]:
    data = found.get("data")
    return data if isinstance(data, dict) else {}


def _content(found: Object | None) -> tuple[dict[str, Total], int | None]:
    """What is written, and until when that was counted; of what cannot be read nothing."""
    if found is None:
        return {}, None
    data = _data(found)
    try:
        totals = {
            str(key): Total(*(max(0, int(amount)) for amount in amounts))
            for key, amounts in json.loads(data["totals"]).items()
        }
        return totals, int(data["untilMilliseconds"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        log.warning("what was kept for billing ids cannot be read, and is counted anew: %s", error)
        return {}, None

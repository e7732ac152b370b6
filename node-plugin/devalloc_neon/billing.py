"""Billing usage: what was reserved for the machines of each billing id, times time.

Only totals that are stored are reported, so that no counter ever goes back: the next server continues from them. For
the time without a server it adds what is reserved for each machine when it starts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from devalloc.machines.permits.leadership import Leadership
from devalloc.machines.permits.ledger import PermitLedgers
from devalloc.machines.permits.writer import RunInWriter
from devalloc.store import AlreadyExists, Conflict, NotFound, Object, ObjectStore, StoreError

log = logging.getLogger(__name__)

KIND = "ConfigMap"
NAMESPACE = "default"
FORGET_MILLISECONDS = 30 * 86_400_000
"""Milliseconds after which an id is forgotten that no machine has any more."""
MAX_BYTES = 500_000
"""Bytes of all totals as they are stored. Kubernetes stores at most 1 MiB in a ConfigMap, and every author of a machine
chooses its billing id."""
OTHER = "(other)"
"""In place of ids that no longer fit."""


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """Of one billing id."""

    cpu: int = 0
    """Thousandths of a CPU, times milliseconds."""
    memory: int = 0
    """Bytes, times milliseconds."""
    last: int = 0
    """When a machine had it last, in milliseconds since 1970."""

    def plus(self, other: UsageTotal) -> UsageTotal:
        """Of both together."""
        return UsageTotal(self.cpu + other.cpu, self.memory + other.memory, max(self.last, other.last))


class BillingUsage(Collector):
    """Use from one event loop at a time."""

    def __init__(
        self,
        store: ObjectStore,
        book: PermitLedgers,
        lease: str,
        holder: str,
        *,
        namespace: str = NAMESPACE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``lease``: the name of the one under which it is written; ``holder``: who writes; ``namespace``: where.
        ``clock``: seconds since 1970, which the next server goes by as well."""
        self.stored_totals: Mapping[str, UsageTotal] = {}
        """As it is written down."""
        self._store = store
        self._book = book
        self._name = f"{lease}-usage"
        self._namespace = namespace
        self._holder = holder
        self._clock = clock
        self._totals: dict[str, UsageTotal] = {}
        self._until = 0
        """Up to when it is counted, in milliseconds since 1970."""
        self._record: Object | None = None

    def collect(self) -> Iterator[Metric]:
        """Return two counters of what is written down."""
        cpu = CounterMetricFamily(
            "devalloc_permitted_cpu_seconds", "CPU time that was reserved for it.", labels=["billing_id"]
        )
        memory = CounterMetricFamily(
            "devalloc_permitted_memory_byte_seconds",
            "Memory that was reserved for it, times time.",
            labels=["billing_id"],
        )
        for name, total in sorted(self.stored_totals.items()):
            cpu.add_metric([name], total.cpu / 1_000_000)
            memory.add_metric([name], total.memory / 1000)
        yield from (cpu, memory)

    async def begin(self, in_writer: RunInWriter) -> None:
        """Go on from what is written; the book has all machines. Raises StoreError."""
        now = round(self._clock() * 1000)
        self._record = await in_writer(self._read)
        self.stored_totals, since = _content(self._record)
        self._totals, self._until = dict(self.stored_totals), now
        if since is not None:
            self._add(lambda created: now - max(since, created))

    async def run(self, in_writer: RunInWriter, interval: float) -> None:
        """Count, and write it down every ``interval`` seconds. Goes on if that fails: it is written later."""
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
                    log.warning("cannot write the totals of billing ids: %s; trying again", error)

    def add(self, seconds: float) -> None:
        """Count what is kept now, for so long."""
        self._until = round(self._clock() * 1000)
        self._add(lambda created: round(seconds * 1000))

    async def save(self, in_writer: RunInWriter) -> None:
        """Write it down. Raises StoreError."""
        current = {key: total for key, total in self._totals.items() if self._until - total.last < FORGET_MILLISECONDS}
        current = bounded(current, {record.billed_to for record in self._book.records.values()})
        self._totals, totals = current, dict(current)  # it is counted on while that is written
        if not totals and self._record is None:
            return
        try:
            self._record = await in_writer(partial(self._write, totals, self._until))
        except (Conflict, NotFound, AlreadyExists):
            self._record = await in_writer(self._read)
            self.stored_totals, _ = _content(self._record)
            if self._record is not None and _data(self._record).get("holder") != self._holder:
                self._totals = dict(
                    self.stored_totals
                )  # another server counts: what was counted here is its business now
            return
        self.stored_totals = totals

    def _add(self, milliseconds: Callable[[int], int]) -> None:
        """For each machine so long, by when it came to be."""
        for key, record in self._book.records.items():
            if not record.billed_to or not record.runs:
                continue
            machine = self._book.nodes[record.node].machines[key]
            has = machine.reserved.excess_over(machine.buffer)  # a buffer is a guess
            so_long = max(0, milliseconds(machine.since))
            before = self._totals.get(record.billed_to, UsageTotal())
            self._totals[record.billed_to] = UsageTotal(
                before.cpu + has.cpu * so_long, before.memory + has.memory * so_long, self._until
            )

    def _read(self) -> Object | None:
        try:
            return self._store.get(KIND, self._namespace, self._name)
        except NotFound:
            return None

    def _write(self, totals: Mapping[str, UsageTotal], until: int) -> Object:
        """As a ConfigMap. Raises StoreError."""
        content = _totals_text(totals)
        data = {"holder": self._holder, "untilMilliseconds": str(until), "totals": content}
        if self._record is not None:
            return self._store.replace({**self._record, "data": data})
        metadata = {"name": self._name, "namespace": self._namespace}
        return self._store.create({"apiVersion": "v1", "kind": KIND, "metadata": metadata, "data": data})


def billing(store: ObjectStore, namespace: str = NAMESPACE) -> Callable[[PermitLedgers, Leadership], BillingUsage]:
    """Make what counts for billing ids, of a server: it stores that where ``store`` has ConfigMaps of ``namespace``."""
    return lambda book, right: BillingUsage(store, book, right.name, right.holder, namespace=namespace)


def bounded(totals: Mapping[str, UsageTotal], present: Collection[str]) -> dict[str, UsageTotal]:
    """The same sums in at most ``MAX_BYTES``: of what does not fit, the ids lose their names that no machine has any
    more (``present``: those that one has), and then those with the least CPU time."""
    totals = dict(totals)
    size = len(_totals_text(totals))
    if size <= MAX_BYTES:
        return totals
    others = totals.pop(OTHER, UsageTotal())
    for key in sorted(totals, key=lambda key: (key in present, totals[key].cpu, totals[key].memory, key)):
        if size <= MAX_BYTES * 3 // 4:  # not again with each new id
            break
        size -= len(_totals_text({key: totals[key]})) - 1
        others = others.plus(totals.pop(key))
    return {**totals, OTHER: others}


def _totals_text(totals: Mapping[str, UsageTotal]) -> str:
    return json.dumps({key: astuple(total) for key, total in sorted(totals.items())}, separators=(",", ":"))


def _data(record: Object) -> dict[str, Any]:
    data = record.get("data")
    return data if isinstance(data, dict) else {}


def _content(record: Object | None) -> tuple[dict[str, UsageTotal], int | None]:
    """What is written, and until when that was counted; of what cannot be read nothing."""
    if record is None:
        return {}, None
    data = _data(record)
    try:
        totals = {
            str(key): UsageTotal(*(max(0, int(amount)) for amount in amounts))
            for key, amounts in json.loads(data["totals"]).items()
        }
        return totals, int(data["untilMilliseconds"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        log.warning("cannot read the totals of billing ids; counting starts at 0: %s", error)
        return {}, None

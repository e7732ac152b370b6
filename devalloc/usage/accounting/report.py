"""Answers about the usage of a month."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from devalloc.store import ObjectStore
from devalloc.usage.accounting.holdings import UsageKey
from devalloc.usage.accounting.ledger import MonthRecord, UsageTotal, month_of, month_start, previous_month
from devalloc.usage.accounting.records import read_record

GROUPINGS: Mapping[str, tuple[str, ...]] = {
    "device": (),
    "machine": ("device",),
    "class": ("device", "machine"),
    "namespace": ("device", "machine", "device_class"),
}
"""What rows are about, and which of their names are then left out."""


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The rows of a month."""

    month: str
    until: int | None
    """Up to when it is counted, in milliseconds since 1970; None if nothing was counted in that month."""
    rows: Mapping[UsageKey, UsageTotal]


def parse_month(text: str, now: int) -> str:
    """``this``, ``last`` or ``2026-11`` as a month. Raises ValueError."""
    if text in ("this", "last"):
        this = month_of(now)
        return this if text == "this" else previous_month(this)
    month_start(text)
    return month_of(month_start(text))


def read_report(store: ObjectStore, namespace: str, month: str) -> UsageReport:
    """The usage of a month; empty if nothing was counted, or if a later year has written over it.

    Raises errors.StoreError.
    """
    _, record = read_record(store, namespace, int(month[-2:]))
    return report_of(record, month)


def report_of(record: MonthRecord | None, month: str) -> UsageReport:
    """The same of a record."""
    if record is None or record.month != month:
        return UsageReport(month, None, {})
    return UsageReport(month, record.until, record.rows)


def grouped(report: UsageReport, by: str, namespace: str | None = None) -> UsageReport:
    """The rows of a namespace, or of all, summed by device, machine, class or namespace."""
    without = GROUPINGS[by]
    rows: dict[UsageKey, UsageTotal] = defaultdict(UsageTotal)
    for key, total in report.rows.items():
        if namespace in (None, key.namespace):
            kind = "" if by in ("machine", "namespace") else key.kind
            short = replace(key, kind=kind, **dict.fromkeys(without, ""))
            rows[short] = rows[short].plus(total)
    return replace(report, rows=dict(sorted(rows.items())))


def report_json(report: UsageReport) -> dict[str, Any]:
    """As users get it: seconds, CPU-seconds and byte-seconds."""
    until = None if report.until is None else datetime.fromtimestamp(report.until / 1000, UTC)
    return {
        "month": report.month,
        "until": None if until is None else until.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "usage": [_row_json(key, total) for key, total in report.rows.items()],
    }


def _row_json(key: UsageKey, total: UsageTotal) -> dict[str, Any]:
    names = {
        "kind": key.kind,
        "namespace": key.namespace,
        "machine": key.machine,
        "deviceClass": key.device_class,
        "device": key.device,
    }
    amounts = {
        "deviceSeconds": total.whole / 1000,
        "shareSeconds": total.shared / 1000,
        "cpuSeconds": total.cpu / 1_000_000,
        "memoryByteSeconds": total.memory // 1000,
    }
    return {name: value for name, value in (names | amounts).items() if value}

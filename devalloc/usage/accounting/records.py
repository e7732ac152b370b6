"""Months of usage as ConfigMaps, one for each month of the year: a new year writes over the old one.

So what is stored is bounded, and each month is written in one write: totals, up to when they count, and what was held
then. Whatever is read of that is consistent.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import Any

from devalloc.store import NotFound, Object, ObjectStore
from devalloc.usage.accounting.holdings import UsageKey
from devalloc.usage.accounting.ledger import CounterKey, MonthRecord, UsageTotal, folded, month_start

log = logging.getLogger(__name__)

KIND = "ConfigMap"
MAX_ROWS_BYTES = 500_000
"""Bytes of the rows of a month. Kubernetes stores at most 1 MiB in a ConfigMap."""
MAX_OPEN = 15_000
"""Digests that are stored."""
MONTHS = 12


def record_name(month: str) -> str:
    """The name of a month's ConfigMap, such as ``devalloc-usage-11``."""
    return f"devalloc-usage-{month[-2:]}"


def read_record(store: ObjectStore, namespace: str, number: int) -> tuple[Object | None, MonthRecord | None]:
    """The ConfigMap of a month of the year (1 to 12), and what it says. Raises StoreError."""
    try:
        obj = store.get(KIND, namespace, f"devalloc-usage-{number:02}")
    except NotFound:
        return None, None
    return obj, parse_record(obj)


def read_records(store: ObjectStore, namespace: str) -> Iterator[tuple[Object, MonthRecord]]:
    """All months that can be read. Raises StoreError."""
    for number in range(1, MONTHS + 1):
        obj, record = read_record(store, namespace, number)
        if obj is not None and record is not None:
            yield obj, record


def record_data(record: MonthRecord, holder: str) -> dict[str, str]:
    """As the data of a ConfigMap."""
    rows, text = record.rows, _rows_text(record.rows)
    while len(text) > MAX_ROWS_BYTES and len(rows) > MAX_FOLDED:
        rows = folded(rows, len(rows) // 2)
        text = _rows_text(rows)
    return {
        "month": record.month,
        "untilMilliseconds": str(record.until),
        "holder": holder,
        "rows": text,
        "counters": _dump([[*key, *astuple(total)] for key, total in sorted(record.counters.items())]),
        "open": _dump(sorted(record.open)[:MAX_OPEN]),
    }


MAX_FOLDED = 16
"""With so few rows they are small enough, whatever their names."""


def _rows_text(rows: Mapping[UsageKey, UsageTotal]) -> str:
    return _dump([[*astuple(key), *astuple(total)] for key, total in sorted(rows.items())])


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def parse_record(obj: Object) -> MonthRecord | None:
    """What a ConfigMap says; None, with a line in the log, if that cannot be read."""
    data = obj.get("data")
    try:
        if not isinstance(data, dict):
            raise ValueError("it has no data")
        month_start(data["month"])
        return MonthRecord(
            data["month"],
            int(data["untilMilliseconds"]),
            {UsageKey(*map(str, row[:5])): _total(row[5:]) for row in json.loads(data["rows"])},
            {_counter_key(row[:3]): _total(row[3:]) for row in json.loads(data["counters"])},
            frozenset(map(str, json.loads(data["open"]))),
        )
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        log.warning("cannot read the usage in ConfigMap %s: %s", obj["metadata"].get("name"), error)
        return None


def _counter_key(names: list[Any]) -> CounterKey:
    kind, namespace, device_class = map(str, names)
    return kind, namespace, device_class


def _total(amounts: list[Any]) -> UsageTotal:
    return UsageTotal(*(max(0, int(amount)) for amount in amounts))

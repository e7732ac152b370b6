"""Loans as what has devices beside claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from devalloc.api.node_rules import Restrictions
from devalloc.api.owner_names import owner_document, owner_name
from devalloc.api.views import ObjectView
from devalloc.controller.reconcile.decision import WriteUnit
from devalloc.controller.reconcile.requester import AnsweredRound, Requester, Requests
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.store import Change, Key, Object

KIND = "Loan"


def _entries(loan: Object) -> list[Any]:
    return [{name: loan["spec"][name] for name in ("devicePoolName", "deviceName")}]


def _read(documents: Sequence[Object], memo: Memo | None, others_wait: bool) -> Requests:
    """Each loan becomes a claim that has its device."""
    loans = [doc for doc in documents if doc["kind"] == KIND]
    held = [
        owner_document((key[0], owner_name(KIND, key[1])), doc, {}, {"claims": [{}]}, Restrictions(), _entries(doc))
        for doc in loans
        for key in [ObjectView(doc).key]
    ]
    return Requests([*(doc for doc in documents if doc["kind"] != KIND), *held] if loans else documents)


def _decide(requests: Requests, units: list[WriteUnit], done: AnsweredRound) -> list[WriteUnit]:
    for loan in done.objects:
        if loan["kind"] == KIND and not ObjectView(loan).status.get("lent"):
            change = Change(Key.of(loan), loan["metadata"]["resourceVersion"], {"lent": True})
            units.append(WriteUnit((change,), granted=False))
    return units


LOANS = Requester(kinds=frozenset({KIND}), holders=frozenset({KIND}), read=_read, decide=_decide, held=_entries)

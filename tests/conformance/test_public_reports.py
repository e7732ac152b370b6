"""Situations of public bug reports and questions of this trade: cold, and by a warm fleet jointly and one by one.

Each names its source. What is right follows from the specs, or from the documentation of Kubernetes' API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from devalloc_solver import Fleet, dra, solve_manifests
from tests.support.reference_data import Case, public_reports

CLAIMS = ("DeviceClaim", "ResourceClaim")


def devices_of(answer: Mapping[str, Any]) -> list[str]:
    given = answer["allocations"] or []
    if isinstance(given, dict):
        return sorted(entry["device"] for entry in given["devices"]["results"])
    return sorted(entry["deviceName"] for entry in given)


def is_pending(document: Case) -> bool:
    return document["kind"] in CLAIMS and not document.get("status")


def cold(report: Case) -> Iterable[Any]:
    is_ours = any(one["apiVersion"].startswith("devmgmtproto.k8s.io/") for one in report["documents"])
    return (solve_manifests if is_ours else dra.solve_manifests)(report["documents"])["claims"]


def warm_together(report: Case) -> Iterable[Any]:
    pending = [one for one in report["documents"] if is_pending(one)]
    return Fleet.from_manifests(report["documents"]).allocate_all(pending)["claims"]


def one_by_one(report: Case) -> Iterable[Any]:
    fleet = Fleet.from_manifests(one for one in report["documents"] if not is_pending(one))
    return [fleet.allocate(one) for one in report["documents"] if is_pending(one)]


WAYS = [
    pytest.param(report, ask, id=f"{report['name']}-{ask.__name__}")
    for report in public_reports()
    for ask in (cold, warm_together, one_by_one)
    if not (report.get("together") and ask is one_by_one)
]


@pytest.mark.parametrize(("report", "ask"), WAYS)
def test_it_is_answered_as_it_should_be(report: Case, ask: Any) -> None:
    answers = {answer["name"]: answer for answer in ask(report)}

    for name, expected in report["expected"].items():
        if name not in answers:  # a warm fleet is not asked about what has its devices
            assert ask is not cold
            continue
        given = devices_of(answers[name])
        assert (given if isinstance(expected, list) else len(given)) == expected, (report["source"], answers[name])
        assert answers[name]["allocated"] == bool(expected)
        assert (answers[name]["reason"] is None) == bool(expected)

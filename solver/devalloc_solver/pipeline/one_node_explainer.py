"""Why ``dra.allocate`` returned None: the smallest sets of things without which it would not, verified (S19)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

from devalloc.api.quantity import type_name
from devalloc_solver.answer_types import ExplanationDict
from devalloc_solver.cel.budget import Allowance, OutOfTime
from devalloc_solver.deadline import ALLOCATE_SECONDS, end_time
from devalloc_solver.dialects.resource_k8s.allocation_task import Manifest, as_manifests
from devalloc_solver.dialects.resource_k8s.errors import AllocationError
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.explain.resource_k8s.call_explainer import CallExplainer, CallInput, sort_slices
from devalloc_solver.pipeline.unit_search import place_unit


def explain(
    node: Manifest | str,
    claims: Iterable[Manifest],
    classes: Iterable[Manifest],
    slices: Iterable[Manifest],
    *,
    allocated: Manifest | None = None,
    features: Iterable[str] | None = None,
    deadline: float | None = ALLOCATE_SECONDS,
) -> ExplanationDict:
    """What ``allocate`` saw, and where it returns None, why.

    Returns ``{"reason", "message", "blockers": [{kind, ...}], "claims": [{namespace, name, requests: [funnel]}],
    "pools": [{name, state, why}], "ignored": [{name, why}]}``. Without the blockers the claims fit, and not with any of
    them. ``reason`` is None where they fit as it is, or where no claim waits. A funnel has ``request, devices, steps:
    [{what, count, devices, example?}], matching, inUse, excluded, free``.

    ``deadline``: seconds after which nothing more is found out; None for as long as it takes. Where the claims do not
    fit and the time does not suffice to find out why, the reason is ``SearchLimit``.

    Raises AllocationError as ``allocate`` does.
    """
    started = time.monotonic()
    allowance = Allowance()
    allowance.begin(end_time(deadline, started), started)
    gates = read_gates(features)
    claims, classes, slices = (
        as_manifests(claims, "claims"),
        as_manifests(classes, "classes"),
        as_manifests(slices, "slices"),
    )
    if allocated is not None and not isinstance(allocated, Mapping):
        raise AllocationError(f"allocated: must be a map, not {type_name(allocated)}")
    read, unread = sort_slices(slices)
    inputs = CallInput(
        node, tuple(claims), tuple(classes), read, dict(allocated or {}), gates, unread, allowance=allowance
    )
    try:
        task = inputs.task()
        fits = task is None or place_unit(task.snapshot, task.holdings, task.unit, ends=task.ends) is not None
    except OutOfTime as error:
        raise AllocationError(str(error), exceeded=error.bound) from None
    allowance.begin_search()
    if task is None:
        return {"reason": None, "message": None, "blockers": [], "claims": [], "pools": [], "ignored": []}
    explainer = CallExplainer(
        task.snapshot, task.holdings, (), allowance.until, task.offers, source=inputs, pools=task.pools
    )
    finding = None if fits else explainer.find(task.unit, task.unit.demands[0].key)
    answer: dict[str, Any] = {
        "reason": None if finding is None else str(finding.reason),
        "message": None if finding is None else explainer.message(finding, explainer.funnels(task.unit)),
        "blockers": [] if finding is None else explainer.blockers(finding),
        "claims": [
            {
                "namespace": demand.claim.claim.namespace,
                "name": demand.claim.claim.name,
                "requests": [explainer.funnel(request) for request in demand.requests],
            }
            for demand in task.unit.demands
        ],
        "pools": [{"name": p.title, "state": p.state.value, "why": p.why} for p in task.pools if p.why],
        "ignored": [{"name": ignored.name, "why": ignored.why} for ignored in task.ignored],
    }
    return cast(ExplanationDict, answer)

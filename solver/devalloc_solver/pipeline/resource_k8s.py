"""Solve ResourceClaims over many nodes, step by step, for the same goals as DeviceClaims (S17)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from devalloc.api.problems import Problem
from devalloc_solver.answer_types import ResourceSolutionDict
from devalloc_solver.cel.budget import SEARCH_CUT_SHORT, Allowance, SearchCutShort
from devalloc_solver.deadline import end_time, quick_search_end
from devalloc_solver.dialects.api_groups import as_manifest_list
from devalloc_solver.dialects.resource_k8s.answers import (
    ShareIds,
    answer_dict,
    devices_of_placement,
    make_result,
    placed_answer,
)
from devalloc_solver.dialects.resource_k8s.candidates import RequestVerdict
from devalloc_solver.dialects.resource_k8s.cluster_check import make_cluster_checker
from devalloc_solver.dialects.resource_k8s.cluster_devices import ClusterCache
from devalloc_solver.dialects.resource_k8s.demands import (
    build_units,
    constrained_attributes,
    node_of,
)
from devalloc_solver.dialects.resource_k8s.explainer import ResourceClaimExplainer
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.dialects.resource_k8s.fields import FieldError, ResourceAnswerRefused
from devalloc_solver.dialects.resource_k8s.manifests import (
    ClusterInput,
    Key,
    priority_of,
    read_documents,
)
from devalloc_solver.dialects.resource_k8s.pools import ClusterView, ResourcePool, SliceBook
from devalloc_solver.dialects.resource_k8s.published_devices import (
    NO_RECORDS,
    DeviceId,
    DevicesInUse,
    DeviceUsage,
    PublishedDevice,
    add_allocation,
    draws_of,
    lost_devices,
    records_of_claim,
    resources_of,
)
from devalloc_solver.dialects.units import RejectedClaim, timeout_rejection
from devalloc_solver.explain.explainer import FleetTotals
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.pipeline.decomposition import unproven_names
from devalloc_solver.pipeline.strategy import SearchOutcome, add_rejected_claims, explain_in_time, search_parts
from devalloc_solver.problem import overuse
from devalloc_solver.problem.allocations import Allocation, LostDevice
from devalloc_solver.problem.answer import ClaimAnswer, Solution, held_answer, loss_problems
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.placement_policy import check_policy
from devalloc_solver.problem.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PreparedCluster:
    """Everything known before the search begins."""

    problem_input: ClusterInput
    gates: frozenset[str]
    survey: ClusterView
    offers: Sequence[PublishedDevice]
    usage: DeviceUsage
    snapshot: Snapshot
    allocations: tuple[Allocation, ...]
    units: tuple[PlacementUnit, ...]
    refused: tuple[RejectedClaim, ...]
    problems: tuple[Problem, ...]
    lost: Mapping[Key, Sequence[LostDevice]]
    """devices of allocated claims that no longer exist"""
    allowance: Allowance


@gc_paused()
def solve_manifests(
    documents: Iterable[object],
    *,
    placement: str = "pack",
    deadline: float | None = None,
    features: Iterable[str] | None = None,
) -> ResourceSolutionDict:
    """Allocate the pending ResourceClaims among manifests: ResourceSlices, DeviceClasses, ResourceClaims and Nodes.

    Invalid content raises no exception: ``problems`` reports it, and an invalid claim has ``allocated: false``. The
    annotations ``devalloc.io/group``, ``/priority`` and ``/node`` of a claim mean what they do for DeviceClaims.

    Args:
        documents: manifests as JSON-like dicts, in any order. What the API server fills in may be missing.
        placement: ``pack`` (default) or ``spread``.
        deadline: seconds after which the best answer so far is returned; None sets no limit. A claim whose selectors
            take too long gets the reason ``SearchLimit``, and the others are solved.
        features: feature gates that are on. None means all features up to beta, and list-typed attributes.

    Returns:
        What ``devalloc_solver.solve_manifests`` returns; ``allocations`` of a claim is its AllocationResult.

    Raises:
        ValueError: for an unknown ``placement``, or ``documents`` that are one manifest or text.
    """
    started = time.monotonic()
    check_policy(placement)
    gates = read_gates(features)
    answer = solve(read_documents(as_manifest_list(documents), gates), gates, placement, deadline, started)
    return cast(ResourceSolutionDict, answer)


def solve(
    problem_input: ClusterInput,
    gates: frozenset[str],
    placement: str,
    deadline: float | None,
    started: float,
    *,
    is_quick: bool = False,
    cache: ClusterCache | None = None,
) -> dict[str, Any]:
    """The same for objects that are read; ``started`` is a monotonic time. ``is_quick``: see ``search_parts``;
    then the search has ``deadline`` for itself. ``cache``: see ``prepare``."""
    ends, began, cpu_began = end_time(deadline, started), time.monotonic(), time.thread_time()
    prepared = prepare(problem_input, gates, ends, started, cache, is_quick=is_quick)
    if is_quick:
        ends = quick_search_end(deadline, began, cpu_began)
        prepared.allowance.prolong(ends)
    outcome = search_parts(
        prepared.snapshot, prepared.allocations, prepared.units, placement=placement, ends=ends, is_quick=is_quick
    )
    levels = add_rejected_claims(
        outcome.levels, [priority_of(claim) for claim in problem_input.claims if claim.allocation is None]
    )
    answers = _answers(prepared, outcome, ends, is_quick=is_quick)
    solution = Solution(
        claims=tuple(sorted(answers, key=lambda a: a.key)),
        levels=tuple(levels),
        optimal=all(level.is_proven for level in levels if level.goal == "satisfied"),
        seconds=time.monotonic() - started,
        problems=prepared.problems,
        unproven=(*unproven_names(outcome.unproven),),
    )
    return solution.to_dict(answer_dict)


def prepare(
    problem_input: ClusterInput,
    gates: frozenset[str],
    ends: float | None = None,
    started: float | None = None,
    cache: ClusterCache | None = None,
    *,
    is_quick: bool = False,
) -> PreparedCluster:
    """All stages before the search of a call that began at ``started`` and has to answer at ``ends``. ``cache``: what
    the caller keeps from one call to the next. ``is_quick``: see ``Allowance.begin``."""
    usage, holders, problems = usage_of_claims(problem_input)
    devices, judge = (cache or ClusterCache()).take(problem_input, gates, usage)
    allowance = judge.selectors.allowance
    allowance.begin(ends, started, is_quick=is_quick)
    units, refused = build_units(problem_input, judge)
    allowance.begin_search()
    used = devices.used
    allocations = [(key, priority, used.items(held)) for key, priority, held in holders]
    overused = overuse.overuse_problems(_overuse_problems(used, holders, gates), "ResourceClaim", "/".join)
    lost = lost_by_claim(problem_input, devices.book)
    ignored = devices.book.ignored
    left_out = [Problem(why.why, kind="ResourceSlice", name=why.name, severity="warning") for why in ignored]
    return PreparedCluster(
        problem_input=problem_input,
        gates=gates,
        survey=devices.seen,
        offers=devices.offers,
        usage=usage,
        snapshot=devices.snapshot(constrained_attributes(problem_input.claims)),
        allocations=tuple(Allocation(*one) for one in sorted(allocations, key=lambda h: h[0])),
        units=tuple(units),
        refused=(*problem_input.refused, *refused),
        problems=(
            *problem_input.problems,
            *left_out,
            *problems,
            *_pool_problems(devices.seen),
            *devices.duplicates,
            *overused,
            *loss_problems(lost, "ResourceClaim", "status.allocation"),
        ),
        lost=lost,
        allowance=allowance,
    )


def lost_by_claim(problem_input: ClusterInput, book: SliceBook) -> dict[Key, Sequence[LostDevice]]:
    """The devices of claims, valid or not, that no longer exist."""
    held = [(each.key, each.allocation) for each in problem_input.claims]
    held += [(each.key, each.allocation) for each in problem_input.refused]
    lost = {key: lost_devices(allocation, book.absent_devices) for key, allocation in held if allocation is not None}
    return {key: lost[key] for key in sorted(lost) if lost[key]}


def usage_of_claims(
    problem_input: ClusterInput,
) -> tuple[DeviceUsage, list[tuple[Key, int, DeviceUsage]], list[Problem]]:
    """What is in use, and claim by claim; an allocation that cannot be read is a problem."""
    allocated = [
        (*c.key, priority_of(c), c.allocation, records_of_claim(c.annotations))
        for c in problem_input.claims
        if c.allocation is not None
    ]
    allocated += [(*r.key, 0, r.allocation, NO_RECORDS) for r in problem_input.refused if r.allocation is not None]
    usage = DeviceUsage()
    holders: list[tuple[Key, int, DeviceUsage]] = []
    problems: list[Problem] = []
    for namespace, name, priority, allocation, records in allocated:
        own = DeviceUsage()
        try:
            add_allocation(own, allocation, "status.allocation", records)
            add_allocation(usage, allocation, "status.allocation", records)
        except FieldError as error:
            problems.append(Problem(str(error), kind="ResourceClaim", namespace=namespace, name=name))
        holders.append(((namespace, name), priority, own))
    return usage, holders, problems


def _overuse_problems(
    used: DevicesInUse, holders: Iterable[tuple[Key, int, DeviceUsage]], gates: frozenset[str]
) -> list[overuse.Overuse[DeviceId]]:
    """What claims hold together and cannot. A device is one, however many nodes see it."""

    def amounts(usage: DeviceUsage, device: DeviceId) -> dict[str, int] | None:
        """It is unknown whether shares of a deleted device fit together: that raises no alarm."""
        same = used.of(device)
        is_whole = device in usage.whole or (same and not any(offer.is_shareable for offer in same))
        return None if is_whole else usage.shared[device]

    def draws(device: DeviceId) -> Iterator[tuple[tuple[ResourcePool, str], int]]:
        for offer in used.of(device)[:1]:
            if offer.drawn is None or offer.drawn.is_certain:
                yield from (((offer.pool, name), nano) for name, nano in draws_of(offer, gates))

    def capacity(device: DeviceId) -> dict[str, int]:
        same = used.of(device)
        return {name: resource.nano for name, resource in resources_of(same[0]).items()} if same else {}

    def total(counter: tuple[ResourcePool, str]) -> int | None:
        counters = {"/".join(key): nano for key, nano in counter[0].counters.items()}
        return counters.get(counter[1])

    held = (
        overuse.DeviceHold(key, device, amounts(usage, device))
        for key, _, usage in holders
        for device in sorted(usage.whole | usage.shared.keys())
    )
    return overuse.find_overuse(held, capacity, draws, total)


def _pool_problems(seen: ClusterView) -> Iterator[Problem]:
    if seen.unreached.devices and not seen.unreached.has_nodes:
        yield Problem(seen.unreached.why, kind="ResourceSlice", severity="warning")
    first_nodes: dict[tuple[str, str, str], str] = {}
    for name, pool in seen.broken.items():
        first_nodes.setdefault((pool.title, pool.state.value, pool.why), name)
    for (title, state, why), node in sorted(first_nodes.items()):
        message = f"pool {title} is {state}{f' as node {node} sees it' if node else ''}: {why}"
        yield Problem(message, kind="ResourceSlice", severity="warning")


def node_of_placement(placement: Placement, offers: Sequence[PublishedDevice], seen: ClusterView) -> str:
    """The node of a placement, or one that reaches all of its devices."""
    if placement.node is not None:
        return placement.node
    reached = [offers[entry.device.index].nodes for entry in placement.entries]
    if not reached:
        return next(iter(seen.nodes), "")
    names = sorted(frozenset.intersection(*reached))
    return next((name for name in names if _has_all_devices(placement, offers, name)), names[0])


def _has_all_devices(placement: Placement, offers: Sequence[PublishedDevice], node: str) -> bool:
    """Whether a request for all devices has all that this node reaches; others may reach more."""
    taken: dict[int, set[int]] = defaultdict(set)
    verdicts: dict[int, RequestVerdict] = {}
    for entry in placement.entries:
        if entry.request.mode in (AllocationMode.EVERY, AllocationMode.ADMIN_ALL):
            taken[entry.request.detail].add(entry.device.index)
            verdicts[entry.request.detail] = entry.request.spec.verdict
    return all(
        node not in verdicts[detail].broken
        and {index for index in verdicts[detail].accepted if node in offers[index].nodes} == indices
        for detail, indices in taken.items()
    )


# -- answers -----------------------------------------------------------------------------------------------------------


def _answers(
    prepared: PreparedCluster, outcome: SearchOutcome, ends: float | None, *, is_quick: bool
) -> list[ClaimAnswer]:
    placements = outcome.placements
    results = _results(prepared, placements)
    _verify_results(prepared, placements, results)
    answers = [placed_answer(p, results[p.demand.key], prepared.offers, prepared.gates) for p in placements]
    answers += [
        held_answer(claim.key, node_of(claim), claim.allocation, prepared.lost.get(claim.key, ()))
        for claim in prepared.problem_input.claims
        if claim.allocation is not None
    ]
    answers += [refused.answer() for refused in prepared.refused]
    explainer = ResourceClaimExplainer(
        *(prepared.snapshot, prepared.allocations, placements, ends),
        offers=prepared.offers,
        unreached=prepared.survey.unreached,
        fleet=FleetTotals(invalid_pools=prepared.problem_input.left_out),
    )
    unsatisfied, later = outcome.unsatisfied(prepared.units, is_quick=is_quick)
    too_late = SearchCutShort(SEARCH_CUT_SHORT)

    def late(unit: PlacementUnit) -> list[ClaimAnswer]:
        return [timeout_rejection(demand.claim, too_late).answer() for demand in unit.demands]

    answers += [answer for unit in later for answer in late(unit)]
    return [*answers, *explain_in_time(outcome, unsatisfied, ends, explainer.explain, late)]


def _results(prepared: PreparedCluster, placements: Sequence[Placement]) -> dict[Key, dict[str, Any]]:
    shares = ShareIds(prepared.usage.share_ids)
    return {
        placement.demand.key: make_result(
            placement.demand.claim.claim,
            devices_of_placement(placement.entries, prepared.offers),
            prepared.problem_input.classes,
            node_of_placement(placement, prepared.offers, prepared.survey),
            prepared.gates,
            shares,
        )
        for placement in sorted(placements, key=lambda p: p.demand.key)
    }


def _verify_results(
    prepared: PreparedCluster, placements: Sequence[Placement], results: Mapping[Key, Mapping[str, Any]]
) -> None:
    """Raises AnswerRefused when the independent check finds a violation: a bug of ours."""
    checker = make_cluster_checker(prepared.problem_input, prepared.survey.nodes, prepared.gates)
    by_node: dict[str, list[Key]] = defaultdict(list)
    for placement in placements:
        checker.hold(placement.demand.key, results[placement.demand.key], NO_RECORDS)
        by_node[node_of_placement(placement, prepared.offers, prepared.survey)].append(placement.demand.key)
    violations = [
        violation
        for node, keys in sorted(by_node.items())
        for violation in checker.wrong(
            node, [(key, prepared.problem_input.manifests[key], results[key]) for key in keys]
        )
    ]
    if violations:
        raise ResourceAnswerRefused(violations)

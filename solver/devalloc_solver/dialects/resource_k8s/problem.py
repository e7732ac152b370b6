"""The problem of ResourceClaims of a cluster, before it is solved: devices, who holds what; and its answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.api.problems import Problem
from devalloc_solver.deadline import NO_DEADLINE, Call
from devalloc_solver.dialects.resource_k8s.answers import (
    ShareIds,
    devices_of_placement,
    make_result,
    placed_answer,
)
from devalloc_solver.dialects.resource_k8s.candidates import RequestVerdict
from devalloc_solver.dialects.resource_k8s.cluster_check import make_cluster_checker
from devalloc_solver.dialects.resource_k8s.cluster_devices import ClusterCache, ClusterDevices
from devalloc_solver.dialects.resource_k8s.demands import build_units, node_of
from devalloc_solver.dialects.resource_k8s.explainer import ResourceClaimExplainer
from devalloc_solver.dialects.resource_k8s.fields import FieldError, ResourceAnswerRefused
from devalloc_solver.dialects.resource_k8s.manifests import ClusterInput, Key, priority_of
from devalloc_solver.dialects.resource_k8s.pools import ClusterView, ResourcePool, SliceBook, faults_by_driver
from devalloc_solver.dialects.resource_k8s.published_devices import (
    NO_RECORDS,
    DeviceId,
    DevicesInUse,
    DeviceUsage,
    add_allocation,
    draws_of,
    lost_devices,
    published_device,
    records_of_claim,
    resources_of,
)
from devalloc_solver.explain.explainer import FleetTotals
from devalloc_solver.pipeline.flow import UnsolvedProblem
from devalloc_solver.problem import overuse
from devalloc_solver.problem.allocations import HELD_BEFORE, LEAVING, Holding, LostDevice
from devalloc_solver.problem.answer import ClaimAnswer, held_answer, loss_problems
from devalloc_solver.problem.demand import AllocationMode
from devalloc_solver.problem.placement import Placement


@dataclass(frozen=True, slots=True)
class ResourceClaimDialect:
    """How the claims of a problem are answered."""

    problem_input: ClusterInput
    devices: ClusterDevices
    usage: DeviceUsage
    lost: Mapping[Key, Sequence[LostDevice]]
    """devices of allocated claims that no longer exist"""

    def echo(self) -> Iterator[ClaimAnswer]:
        for claim in self.problem_input.claims:
            if claim.allocation is not None:
                yield held_answer(claim.key, node_of(claim), claim.allocation, self.lost.get(claim.key, ()))

    def write(self, placements: Sequence[Placement]) -> Iterator[ClaimAnswer]:
        shares, classes = ShareIds(self.usage.share_ids), self.problem_input.classes
        gates = self.devices.gates
        for placement in sorted(placements, key=lambda p: p.demand.key):
            given = devices_of_placement(placement.entries)
            node = node_of_placement(placement, self.devices.seen.nodes)
            result = make_result(placement.demand.claim.claim, given, classes, node, gates, shares)
            yield placed_answer(placement, result, gates)

    def check(self, placements: Sequence[Placement], answers: Sequence[ClaimAnswer]) -> None:
        checker = make_cluster_checker(self.problem_input, self.devices.seen.nodes, self.devices.gates)
        results = {answer.key: answer.allocations for answer in answers}
        by_node: dict[str, list[Key]] = defaultdict(list)
        for placement in placements:
            key = placement.demand.key
            checker.hold(key, results[key], NO_RECORDS)
            node = node_of_placement(placement, self.devices.seen.nodes)
            by_node[node].append(key)
        violations = [
            violation
            for node, keys in sorted(by_node.items())
            for violation in checker.wrong(
                node, [(key, self.problem_input.manifests[key], results[key]) for key in keys]
            )
        ]
        if violations:
            raise ResourceAnswerRefused(violations)

    def explainer(
        self, problem: UnsolvedProblem[Any], placements: Sequence[Placement], ends: float | None
    ) -> ResourceClaimExplainer:
        seen_pools = (view.pool for view in self.devices.seen.views)
        return ResourceClaimExplainer(
            *(problem.snapshot, problem.allocations, placements, ends),
            unreached=self.devices.seen.unreached,
            fleet=FleetTotals(invalid_pools=faults_by_driver(self.problem_input.left_out, seen_pools)),
        )


ResourceClaimProblem = UnsolvedProblem[ResourceClaimDialect]


def prepare(
    problem_input: ClusterInput, gates: frozenset[str], call: Call = NO_DEADLINE, cache: ClusterCache | None = None
) -> ResourceClaimProblem:
    """All stages before the search. ``cache``: what the caller keeps from one call to the next."""
    usage, holders, problems = usage_of_claims(problem_input)
    devices, judge = (cache or ClusterCache()).take(problem_input, gates, usage)
    allowance = judge.selectors.allowance
    allowance.begin(call.ends, call.started, is_quick=call.is_quick)
    units, refused = build_units(problem_input, judge)
    allowance.begin_search()
    used = devices.used
    leaving = {claim.key for claim in problem_input.claims if claim.metadata.is_deleting}
    allocations = [
        Holding(key, priority, used.items(held), LEAVING if key in leaving else HELD_BEFORE)
        for key, priority, held in holders
    ]
    overused = overuse.overuse_problems(_overuse_problems(used, holders, gates), "ResourceClaim", "/".join)
    lost = lost_by_claim(problem_input, devices.book)
    ignored = devices.book.ignored
    left_out = [Problem(why.why, kind="ResourceSlice", name=why.name, severity="warning") for why in ignored]
    return UnsolvedProblem(
        snapshot=devices.snapshot,
        allocations=tuple(sorted(allocations, key=lambda h: h.owner)),
        units=tuple(units),
        refused=(*problem_input.refused, *refused),
        priorities=tuple(priority_of(claim) for claim in problem_input.claims if claim.allocation is None),
        problems=(
            *problem_input.problems,
            *left_out,
            *problems,
            *_pool_problems(devices.seen),
            *devices.duplicates,
            *overused,
            *loss_problems(lost, "ResourceClaim", "status.allocation"),
        ),
        allowance=allowance,
        dialect=ResourceClaimDialect(problem_input, devices, usage, lost),
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


def node_of_placement(placement: Placement, nodes: Iterable[str]) -> str:
    """The node of a placement, or one that reaches all of its devices; of no devices, the first of all nodes."""
    if placement.node is not None:
        return placement.node
    reached = [published_device(entry.device).nodes for entry in placement.entries]
    if not reached:
        return next(iter(nodes), "")
    names = sorted(frozenset.intersection(*reached))
    return next((name for name in names if _has_all_devices(placement, name)), names[0])


def _has_all_devices(placement: Placement, node: str) -> bool:
    """Whether a request for all devices has all that this node reaches; others may reach more."""
    taken: dict[int, set[int]] = defaultdict(set)
    verdicts: dict[int, RequestVerdict] = {}
    for entry in placement.entries:
        if entry.request.mode in (AllocationMode.EVERY, AllocationMode.ADMIN_ALL):
            taken[entry.request.detail].add(entry.device.index)
            verdicts[entry.request.detail] = entry.request.spec.verdict
    return all(
        node not in verdicts[detail].broken
        and {index for index in verdicts[detail].accepted if node in verdicts[detail].nodes[index]} == indices
        for detail, indices in taken.items()
    )

"""Many claims over many nodes, decided together: the goals of S17 for claims of resource.k8s.io."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.api.problems import Problem
from devalloc_solver import overuse
from devalloc_solver.assignment import Placement
from devalloc_solver.budget import SEARCH_CUT_SHORT, SearchCutShort
from devalloc_solver.collector import quiet_collector
from devalloc_solver.deadline import end_of, quick_search_end
from devalloc_solver.demand import Mode, Unit
from devalloc_solver.dialects import manifests_of
from devalloc_solver.dra.answers import answer_of, placed_answer, refusal_answer
from devalloc_solver.dra.candidates import Judge, Verdict
from devalloc_solver.dra.checked import make_checker
from devalloc_solver.dra.cluster import Survey, survey
from devalloc_solver.dra.demands import build_units, late, node_of
from devalloc_solver.dra.documents import Intake, Key, Refused, priority_of, read_documents
from devalloc_solver.dra.errors import AnswerRefused
from devalloc_solver.dra.features import read_features
from devalloc_solver.dra.fields import FieldError
from devalloc_solver.dra.inventory import Offer, UsedDevices, draws_of, list_offers, make_snapshot, resources_of
from devalloc_solver.dra.pools import Pool, SliceBook
from devalloc_solver.dra.reasons import Explainer
from devalloc_solver.dra.result import ShareIds, given_by, make_result
from devalloc_solver.dra.selectors import Selectors
from devalloc_solver.dra.translate import attributes_of
from devalloc_solver.dra.twins import problems_of
from devalloc_solver.dra.usage import DeviceId, Usage, add_allocation
from devalloc_solver.holdings import Holding
from devalloc_solver.parts import unproven_names
from devalloc_solver.policy import PLACEMENTS
from devalloc_solver.search import search_parts, with_refused
from devalloc_solver.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything known before the search begins."""

    intake: Intake
    gates: frozenset[str]
    survey: Survey
    offers: Sequence[Offer]
    usage: Usage
    snapshot: Snapshot
    holdings: tuple[Holding, ...]
    units: tuple[Unit, ...]
    refused: tuple[Refused, ...]
    problems: tuple[Problem, ...]


@quiet_collector()
def solve_manifests(
    documents: Iterable[object],
    *,
    placement: str = "pack",
    deadline: float | None = None,
    features: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Allocate the pending ResourceClaims among manifests: ResourceSlices, DeviceClasses, ResourceClaims and Nodes.

    Never raises for content: what is wrong is reported in ``problems`` and answered with ``allocated: false``. The
    annotations ``devalloc.io/group``, ``/priority`` and ``/node`` of a claim mean what they do for DeviceClaims.

    Args:
        documents: manifests as JSON-like dicts, in any order. What the API server fills in may be missing.
        placement: ``pack`` (default) or ``spread``.
        deadline: seconds after which the best answer found so far is returned; None for no limit. A claim whose
            selectors take too long is answered with ``SearchLimit``, and the others are solved.
        features: feature gates that are on; None for all up to beta, and lists.

    Returns:
        What ``devalloc_solver.solve_manifests`` returns; ``allocations`` of a claim is its AllocationResult.

    Raises:
        ValueError: for an unknown ``placement``, or ``documents`` that are one manifest or text.
    """
    started = time.monotonic()
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, not {placement!r}")
    gates = read_features(features)
    return solve(read_documents(manifests_of(documents), gates), gates, placement, deadline, started)


def solve(
    intake: Intake,
    gates: frozenset[str],
    placement: str,
    deadline: float | None,
    started: float,
    *,
    is_quick: bool = False,
) -> dict[str, Any]:
    """The same for objects that are read; ``started`` is a monotonic time. ``is_quick``: see ``search_parts``;
    then the search has ``deadline`` for itself."""
    ends, began, cpu_began = end_of(deadline, started), time.monotonic(), time.thread_time()
    prepared = prepare(intake, gates, ends, started)
    if is_quick:
        ends = quick_search_end(deadline, began, cpu_began)
    outcome = search_parts(
        prepared.snapshot, prepared.holdings, prepared.units, placement=placement, ends=ends, is_quick=is_quick
    )
    levels = with_refused(outcome.levels, [priority_of(claim) for claim in intake.claims if claim.allocation is None])
    unproven = unproven_names(outcome.unproven)
    answers = _answers(prepared, outcome.placements, ends, frozenset(unproven) if is_quick else frozenset())
    return {
        "claims": sorted(answers, key=lambda a: (a["namespace"], a["name"])),
        "objective": {"levels": [level.to_dict() for level in levels]},
        "optimal": all(level.is_proven for level in levels if level.goal == "satisfied"),
        "seconds": round(time.monotonic() - started, 6),
        "problems": [problem.to_dict() for problem in prepared.problems],
        **({"unproven": unproven} if unproven else {}),
    }


def prepare(intake: Intake, gates: frozenset[str], ends: float | None = None, started: float | None = None) -> Prepared:
    """All stages before the search of a call that began at ``started`` and has to answer at ``ends``."""
    book = SliceBook(intake.slices, gates, intake.read)
    seen = survey(book, intake.nodes)
    usage, holders, problems = held_usage(intake)
    offers = list_offers(seen.views, usage, gates)
    selectors = Selectors(gates)
    selectors.allowance.begin(ends, started)
    judge = Judge(gates, offers, Usage(), selectors, intake.classes, frozenset(seen.broken))
    units, refused = build_units(intake, judge)
    selectors.allowance.begin_search()
    used = UsedDevices(offers)
    holdings = [(key, priority, used.items(held)) for key, priority, held in holders]
    overused = overuse.problems_of(_overuse(offers, holders, gates), "ResourceClaim", "/".join)
    left_out = [Problem(why.why, kind="ResourceSlice", name=why.name, severity="warning") for why in book.ignored]
    return Prepared(
        intake=intake,
        gates=gates,
        survey=seen,
        offers=offers,
        usage=usage,
        snapshot=make_snapshot(offers, seen.nodes, attributes_of(intake.claims), gates),
        holdings=tuple(Holding(*one) for one in sorted(holdings, key=lambda h: h[0])),
        units=tuple(units),
        refused=(*intake.refused, *refused),
        problems=(*intake.problems, *left_out, *problems, *_broken_pools(seen), *problems_of(offers), *overused),
    )


def held_usage(intake: Intake) -> tuple[Usage, list[tuple[Key, int, Usage]], list[Problem]]:
    """What is in use, and claim by claim; an allocation that cannot be read is a problem."""
    allocated = [(c.namespace, c.name, priority_of(c), c.allocation) for c in intake.claims if c.allocation is not None]
    allocated += [(*r.key, 0, r.allocation) for r in intake.refused if r.allocation is not None]
    usage = Usage()
    holders: list[tuple[Key, int, Usage]] = []
    problems: list[Problem] = []
    for namespace, name, priority, allocation in allocated:
        mine = Usage()
        try:
            add_allocation(mine, allocation, "status.allocation")
            add_allocation(usage, allocation, "status.allocation")
        except FieldError as error:
            problems.append(Problem(str(error), kind="ResourceClaim", namespace=namespace, name=name))
        holders.append(((namespace, name), priority, mine))
    return usage, holders, problems


def _overuse(
    offers: Sequence[Offer], holders: Iterable[tuple[Key, int, Usage]], gates: frozenset[str]
) -> list[overuse.Overuse[DeviceId]]:
    """What claims hold together and cannot. A device is one, however many nodes see it."""
    first: dict[DeviceId, Offer] = {}
    sharable: set[DeviceId] = set()
    for offer in offers:
        first.setdefault(offer.id, offer)
        if offer.is_shareable:
            sharable.add(offer.id)

    def amounts(usage: Usage, device: DeviceId) -> dict[str, int] | None:
        """Nobody can tell whether shares of a device that is gone can be had together: that is no alarm."""
        is_whole = device in usage.whole or (device in first and device not in sharable)
        return None if is_whole else usage.shared[device]

    def draws(device: DeviceId) -> Iterator[tuple[tuple[Pool, str], int]]:
        offer = first.get(device)
        if offer is not None:
            yield from (((offer.pool, name), nano) for name, nano in draws_of(offer, gates))

    def capacity(device: DeviceId) -> dict[str, int]:
        offer = first.get(device)
        return {} if offer is None else {name: found.nano for name, found in resources_of(offer).items()}

    def total(counter: tuple[Pool, str]) -> int | None:
        counters = {"/".join(key): nano for key, nano in counter[0].counters.items()}
        return counters.get(counter[1])

    held = (
        overuse.Hold(key, device, amounts(usage, device))
        for key, _, usage in holders
        for device in sorted(usage.whole | usage.shared.keys())
    )
    return overuse.find_overuse(held, capacity, draws, total)


def _broken_pools(seen: Survey) -> Iterator[Problem]:
    told: dict[tuple[str, str, str], str] = {}
    for name, pool in seen.broken.items():
        told.setdefault((pool.title, pool.state.value, pool.why), name)
    for (title, state, why), node in sorted(told.items()):
        message = f"pool {title} is {state} as node {node} sees it: {why}"
        yield Problem(message, kind="ResourceSlice", severity="warning")


def seen_from(placement: Placement, offers: Sequence[Offer], seen: Survey) -> str:
    """The node of a placement, or one that reaches all of its devices."""
    if placement.node is not None:
        return placement.node
    reached = [offers[entry.device.index].nodes for entry in placement.entries]
    if not reached:
        return next(iter(seen.nodes), "")
    names = sorted(frozenset.intersection(*reached))
    return next((name for name in names if _is_all_there(placement, offers, name)), names[0])


def _is_all_there(placement: Placement, offers: Sequence[Offer], node: str) -> bool:
    """Whether a request for all devices has all that this node reaches; others may reach more."""
    taken: dict[int, set[int]] = defaultdict(set)
    verdicts: dict[int, Verdict] = {}
    for entry in placement.entries:
        if entry.slot.mode in (Mode.EVERY, Mode.ADMIN_ALL):
            taken[entry.slot.detail].add(entry.device.index)
            verdicts[entry.slot.detail] = entry.slot.spec.verdict
    return all(
        node not in verdicts[detail].broken
        and {index for index in verdicts[detail].accepted if node in offers[index].nodes} == indices
        for detail, indices in taken.items()
    )


# -- answers -------------------------------------------------------------------------------------------------------


def _answers(
    prepared: Prepared, placements: Sequence[Placement], ends: float | None, later: frozenset[str]
) -> list[dict[str, Any]]:
    """``later``: ``NAMESPACE/NAME`` of claims that are answered later; no time goes into their reasons."""
    results = _results(prepared, placements)
    _refuse_wrong(prepared, placements, results)
    answers = [placed_answer(placement, results[placement.demand.key]) for placement in placements]
    answers += [
        answer_of((claim.namespace, claim.name), dict(claim.allocation), node_of(claim))
        for claim in prepared.intake.claims
        if claim.allocation is not None
    ]
    answers += [refusal_answer(refused) for refused in prepared.refused]
    explainer = Explainer(prepared.snapshot, prepared.offers, prepared.holdings, placements, ends)
    placed = {placement.demand.key for placement in placements}
    for unit in prepared.units:
        if unit.demands[0].key in placed:
            continue
        if "/".join(unit.demands[0].key) in later:
            answers += [refusal_answer(late(demand.claim, SearchCutShort(SEARCH_CUT_SHORT))) for demand in unit.demands]
        else:
            answers += explainer.explain(unit)
    return answers


def _results(prepared: Prepared, placements: Sequence[Placement]) -> dict[Key, dict[str, Any]]:
    shares = ShareIds(prepared.usage.share_ids)
    return {
        placement.demand.key: make_result(
            placement.demand.claim.claim,
            given_by(placement.entries, prepared.offers),
            prepared.intake.classes,
            seen_from(placement, prepared.offers, prepared.survey),
            prepared.gates,
            shares,
        )
        for placement in sorted(placements, key=lambda p: p.demand.key)
    }


def _refuse_wrong(
    prepared: Prepared, placements: Sequence[Placement], results: Mapping[Key, Mapping[str, Any]]
) -> None:
    """Raises AnswerRefused when the independent check finds a violation: a bug of ours."""
    checker = make_checker(prepared.intake, prepared.survey.nodes, prepared.gates)
    by_node: dict[str, list[Key]] = defaultdict(list)
    for placement in placements:
        checker.hold(placement.demand.key, results[placement.demand.key])
        by_node[seen_from(placement, prepared.offers, prepared.survey)].append(placement.demand.key)
    found = [
        violation
        for node, keys in sorted(by_node.items())
        for violation in checker.wrong(node, [(key, prepared.intake.manifests[key], results[key]) for key in keys])
    ]
    if found:
        raise AnswerRefused(found)

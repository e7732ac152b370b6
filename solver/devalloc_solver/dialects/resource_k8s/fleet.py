"""ResourceClaims in a fleet that stays in memory: a cluster."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from devalloc.api.device_records import DeviceRecord, PoolDevice
from devalloc.api.json_content import MAPPINGS
from devalloc.api.meta import DEVICE_RECORDS
from devalloc.api.object_lists import flatten_lists
from devalloc.api.problems import Problem
from devalloc_solver.cel.budget import BudgetExceeded
from devalloc_solver.deadline import CHECK_SECONDS, Call
from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s.answers import (
    AllocatedRequestDevice,
    ShareIds,
    annotations_of,
    answer_dict,
    chosen_alternatives,
    devices_of_placement,
    make_result,
    placed_answer,
)
from devalloc_solver.dialects.resource_k8s.candidates import RequestJudge, amounts_to_take
from devalloc_solver.dialects.resource_k8s.claim_reader import ReadResourceClaim, ResourceClaimReader
from devalloc_solver.dialects.resource_k8s.claims import ResourceClaim, SubRequest
from devalloc_solver.dialects.resource_k8s.cluster_devices import ClusterCache
from devalloc_solver.dialects.resource_k8s.demands import build_units, find_refusal, node_of
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.dialects.resource_k8s.fields import AllocationError, Amount, ResourceAnswerRefused, short_text
from devalloc_solver.dialects.resource_k8s.fleet_explainer import ClusterExplainer
from devalloc_solver.dialects.resource_k8s.fleet_rules import ResourceClaimQuery
from devalloc_solver.dialects.resource_k8s.fleet_state import ClusterState, is_allocated
from devalloc_solver.dialects.resource_k8s.manifests import (
    ClusterInput,
    group_of,
    key_of,
    priority_of,
    read_documents,
)
from devalloc_solver.dialects.resource_k8s.problem import (
    ResourceClaimProblem,
    node_of_placement,
    prepare,
    usage_of_claims,
)
from devalloc_solver.dialects.resource_k8s.published_devices import (
    PublishedDevice,
    lost_devices,
    published_device,
    record_of_device,
    records_of_claim,
)
from devalloc_solver.dialects.resource_k8s.slices import single_node_selector
from devalloc_solver.dialects.resource_k8s.versions import as_v1
from devalloc_solver.fleet.backend import Answer, FleetBackend, Manifest
from devalloc_solver.fleet.node_class_plan import ChosenDevice, ChosenPlace
from devalloc_solver.fleet.node_index import HeldDevice, HeldDevices, HeldItem
from devalloc_solver.fleet.placed import PlacedClaim
from devalloc_solver.fleet.state import Name
from devalloc_solver.fleet.subset import FleetSubset
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.pipeline.flow import solve_problem
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.answer import ClaimAnswer, Solution, held_answer
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement_policy import PACK, PlacementPolicy
from devalloc_solver.problem.snapshot import Pool


class ResourceClaimFleet(FleetBackend[ClusterState, ReadResourceClaim, ResourceClaimQuery]):
    """ResourceSlices, DeviceClasses, Nodes and ResourceClaims."""

    _errors = (AllocationError, BudgetExceeded)

    def __init__(self, state: ClusterState) -> None:
        """Use ``from_manifests``."""
        self._refusals = ClusterExplainer(state)
        super().__init__(state, ResourceClaimReader(state.gates), self._refusals)
        self._gates = state.gates
        self._cache = ClusterCache()

    @classmethod
    def from_manifests(cls, documents: Iterable[Manifest], *, policy: PlacementPolicy = PACK) -> ResourceClaimFleet:
        """A fleet of what ``dra.solve_manifests`` takes. Pending claims among it are kept, and not solved."""
        objects = (as_v1(one) for document in documents for one in flatten_lists(document))
        named = ((_name(one), one) for one in objects if isinstance(one, Mapping))
        return cls(ClusterState(named, read_gates(None), policy))

    # -- one claim -----------------------------------------------------------------------------------------------------

    def _read(self, claim: Manifest) -> ReadResourceClaim:
        return self._reader.read(self._manifest(claim))

    def _settled(self, read: ReadResourceClaim) -> ClaimAnswer | None:
        claim = read.claim
        if isinstance(claim, RejectedClaim):
            return claim.answer()
        if claim.allocation is not None:
            lost = lost_devices(claim.allocation, self._state.absent_devices)
            return held_answer(claim.key, node_of(claim), claim.allocation, lost)
        return None

    def _held_answer(self, key: Key) -> ClaimAnswer:
        (manifest,) = self._state.objects["ResourceClaim", *key]
        answer = self._settled(self._reader.read(manifest))
        assert answer is not None
        return answer

    def _is_plain(self, read: ReadResourceClaim) -> bool:
        return not read.has_problems

    def _units(
        self, reads: Sequence[ReadResourceClaim], subset: FleetSubset[RequestJudge]
    ) -> Sequence[PlacementUnit] | None:
        units, refused = build_units(replace(self._state.classes, claims=[read.valid for read in reads]), subset.judge)
        return None if refused else units

    def _is_costly(self, read: ReadResourceClaim) -> bool:
        cost_of = self._state.rules.cost_of
        return any(cost_of(text) for subrequest in read.valid.subrequests for text in subrequest.selectors)

    def _is_waiting(self, read: ReadResourceClaim) -> bool:
        return isinstance(read.claim, ResourceClaim) and read.claim.allocation is None

    def _write(self, answer: ClaimAnswer, read: ReadResourceClaim | None = None) -> Answer:
        return answer_dict(answer)

    def _query(self, read: ReadResourceClaim) -> ResourceClaimQuery | RejectedClaim | None:
        rules, claim = self._state.rules, read.valid
        if not rules.has_met(read.shape) and (refusal := find_refusal(claim, self._state.classes)) is not None:
            return refusal
        return None if read.shape is None else rules.query(claim, read.shape)

    def _place_after_error(self, read: ReadResourceClaim) -> Answer:
        """Of one device or the other: the whole cluster is asked, and says of which."""
        return self._place_on_whole(read)

    def _edition(self) -> tuple[tuple[object, ...], object]:
        return (self._state.rules,), None

    # -- several claims ------------------------------------------------------------------------------------------------

    def _fresh(self, claims: Iterable[Manifest]) -> list[ReadResourceClaim]:
        reads = map(self._read, claims)
        return [read for read in reads if isinstance(read.claim, RejectedClaim) or read.claim.allocation is None]

    def _prepare(self, fresh: Sequence[ReadResourceClaim], call: Call) -> ResourceClaimProblem:
        return prepare(self._intake(fresh), self._gates, call, self._cache)

    def _solve(self, fresh: Sequence[ReadResourceClaim], call: Call) -> tuple[Solution, Iterable[ReadResourceClaim]]:
        problem = self._prepare(fresh, call)
        problem_input = problem.dialect.problem_input
        waiting = (claim for claim in problem_input.claims if claim.allocation is None)
        reads = (ReadResourceClaim(claim, problem_input.manifests[claim.key], None) for claim in waiting)
        return solve_problem(problem, self._state.policy, call), reads

    def _intake(self, fresh: Sequence[ReadResourceClaim]) -> ClusterInput:
        """All there is to decide on these claims, with the kept members of their groups."""
        requested, state = [read.manifest for read in fresh], self._state
        wanted = {_name(manifest) for manifest in requested}
        groups = {_group_key(manifest) for manifest in requested} - {None}
        documents = [
            one
            for name, same in state.objects.items()
            for one in state.effective(name, same)
            if name not in wanted and (name[0] != "ResourceClaim" or is_allocated(one) or _group_key(one) in groups)
        ]
        return read_documents([*documents, *requested], self._gates, state.read_slices(), state.checked)

    # -- objects -------------------------------------------------------------------------------------------------------

    def holds(self, namespace: str, name: str) -> bool:
        return any(is_allocated(one) for one in self._state.objects.get(("ResourceClaim", namespace, name), ()))

    def _release(self, key: Key) -> None:
        full = ("ResourceClaim", *key)
        held = [one for one in self._state.objects[full] if is_allocated(one)]
        rest = [{key: value for key, value in one["status"].items() if key != "allocation"} for one in held]
        self._state.replace(full, [{**one, "status": status} for one, status in zip(held, rest, strict=True)])

    def _metadata_of(self, name: Name) -> Mapping[str, Any]:
        metadata = next((one.get("metadata") for one in self._state.objects.get(name, ())), None)
        return metadata if isinstance(metadata, Mapping) else {}

    def _is_allocated(self, document: Manifest) -> bool:
        return is_allocated(document)

    def _name_of(self, document: Manifest) -> Name:
        return _name(document)

    def _replace(self, name: Name, document: Manifest) -> Iterable[Problem]:
        document, state = as_v1(document), self._state
        state.replace(name, [document])
        resource_slice = None if name in state.tainted else state.slices.get(name)
        read = {} if resource_slice is None else {id(document): resource_slice}
        problem_input = read_documents([document], self._gates, read, state.checked)
        return (*problem_input.problems, *usage_of_claims(problem_input)[2])

    def _manifest(self, claim: Manifest) -> Manifest:
        if not isinstance(claim, MAPPINGS) or claim.get("kind") != "ResourceClaim":
            raise ValueError("claim must be the manifest of a ResourceClaim")
        claim = as_v1(claim)
        stored = self._state.objects.get(_name(claim), [])
        if "spec" in claim:
            return stored[0] if len(stored) == 1 and is_allocated(stored[0]) else claim
        if len(stored) != 1:
            raise KeyError(f"no claim {'/'.join(_name(claim)[1:])} is in the fleet: give its whole manifest")
        return stored[0]

    # -- one claim by the index ----------------------------------------------------------------------------------------

    def _placed(self, read: ReadResourceClaim, query: ResourceClaimQuery, spot: ChosenPlace) -> PlacedClaim:
        """Raises AllocationError."""
        state, claim = self._state, read.valid
        given: list[AllocatedRequestDevice] = []
        entries: list[HeldDevice] = []
        records: dict[PoolDevice, DeviceRecord] = {}
        items: list[HeldItem] = []
        chosen: dict[int, int | None] = {}
        in_order = spot.given if len(spot.given) == 1 else sorted(spot.given, key=_by_request)
        for one in in_order:
            request, pool, device, amounts = one.request, one.pool, one.device, one.amounts
            offer, subrequest = published_device(device), request.spec.subrequest
            takes, taken = (self._takes(subrequest, offer), amounts) if offer.is_shareable else (None, None)
            given.append(AllocatedRequestDevice(request.detail, subrequest, offer, takes))
            chosen[request.detail] = request.alternative
            if not subrequest.admin:
                record = self._record_of_device(pool, offer) if pool.resources else None
                if record is not None:
                    records[pool.name, device.name] = record
                entries.append(HeldDevice(offer.pool.id, device.name, taken, record))
                items.append((spot.node, device.index, taken))
        warnings = query.rules.warnings(query, state.layout)
        node = spot.node or ""
        result = make_result(claim, given, state.classes.classes, node, self._gates, ShareIds(state.share_ids))
        annotations = annotations_of(records) if records else {}
        answer = ClaimAnswer(
            *claim.key,
            allocated=True,
            node=node,
            allocations=_copy_of_result(result, node),
            one_of=chosen_alternatives(claim, chosen.items()),
            annotations=annotations,
            warnings=tuple(warnings),
        ).to_dict()
        held = HeldDevices(priority_of(claim), None, tuple(entries))
        return PlacedClaim(answer, result, held, items)

    def _record_of_device(self, pool: Pool, offer: PublishedDevice) -> DeviceRecord | None:
        """What is to be recorded of a device of the index."""
        record = pool.records.get(offer.device.name)
        if record is None and (record := record_of_device(offer, self._gates)) is not None:
            pool.records[offer.device.name] = record
        return record

    def _takes(self, subrequest: SubRequest, offer: PublishedDevice) -> Mapping[str, Amount]:
        """What a share takes of a device that was accepted. Raises AllocationError."""
        fractional = gate.FRACTIONAL_RANGE in self._gates
        takes = amounts_to_take(subrequest.capacity, offer.device, fractional=fractional)
        assert not isinstance(takes, str)
        return takes

    def _check(self, read: ReadResourceClaim, placed: PlacedClaim) -> None:
        self._check_result(placed.answer["node"], read, placed.written)

    def _check_result(self, node: str, read: ReadResourceClaim, result: Manifest) -> None:
        until = self._state.index.allowance.until
        ends = None if until is None else until + CHECK_SECONDS
        if violations := self._state.checker.wrong(node, [(read.key, read.manifest, result)], ends):
            raise ResourceAnswerRefused(violations)

    def _grant(self, read: ReadResourceClaim, placed: PlacedClaim) -> None:
        annotations = placed.answer.get("annotations", {})
        recorded = ((entry, entry.record) for entry in placed.held.entries if annotations)
        records = {("/".join(entry.pool), entry.device): record for entry, record in recorded if record is not None}
        self._note(read, placed.written, annotations)
        self._state.grant(read.key, placed.held, placed.items, placed.written, records)

    def _record(self, read: ReadResourceClaim, answer: ClaimAnswer) -> None:
        result = _deep_copy(answer.allocations)
        self._note(read, result, answer.annotations)
        self._state.hold(read.key, read.priority, result, records_of_claim(answer.annotations))

    def _note(self, read: ReadResourceClaim, result: Manifest, annotations: Mapping[str, str]) -> None:
        """A claim has a result, which no other code changes. ``annotations``: what its answer writes on it besides."""
        manifest = _annotated(read.manifest, annotations)
        status = manifest.get("status")
        before = status if status is not None and isinstance(status, Mapping) else {}
        new_status = {**before, "allocation": result}
        self._state.objects["ResourceClaim", *read.key] = [{**manifest, "kind": "ResourceClaim", "status": new_status}]

    # -- one claim by the whole cluster --------------------------------------------------------------------------------

    @gc_paused()
    def _place_on_whole(self, read: ReadResourceClaim) -> Answer:
        claim = read.valid
        state, explainer = self._state, self._refusals
        state.index.allowance.begin_again()
        unit = explainer.whole_unit(claim)
        if isinstance(unit, RejectedClaim):
            return answer_dict(unit.answer())
        whole = explainer.whole()
        placement = whole.place(unit, state.policy, state.index.allowance.until)
        if placement is None:
            return deepcopy(answer_dict(explainer.explain_on_whole(unit)))
        given = devices_of_placement(placement.entries)
        node = node_of_placement(placement, state.all_nodes())
        result = make_result(claim, given, state.classes.classes, node, self._gates, ShareIds(state.share_ids))
        self._check_result(node, read, result)
        answer = placed_answer(placement, result, self._gates)
        self._record(read, answer)
        return answer.to_dict()


def _annotated(manifest: Manifest, annotations: Mapping[str, str]) -> Manifest:
    """A claim with what its answer writes on it, in place of what an earlier one wrote."""
    metadata = manifest.get("metadata")
    own = metadata.get("annotations") if isinstance(metadata, MAPPINGS) else None
    before = own if own is not None and isinstance(own, Mapping) else {}
    if not annotations and DEVICE_RECORDS not in before:
        return manifest
    if DEVICE_RECORDS in before:
        before = {name: text for name, text in before.items() if name != DEVICE_RECORDS}
    return {**manifest, "metadata": {**(metadata or {}), "annotations": {**before, **annotations}}}


def _by_request(given: ChosenDevice) -> tuple[int, int]:
    return given.request.detail, given.device.index


def _copy_of_result(result: Mapping[str, Any], node: str) -> dict[str, Any]:
    """A copy of a result on a node that shares nothing with the original; quick where entries are short texts."""
    devices = result["devices"]
    if devices.keys() != {"results"} or any(len(entry) != _PLAIN_ENTRY for entry in devices["results"]):
        copied: dict[str, Any] = _deep_copy(result)
        return copied
    return {"devices": {"results": [*map(dict, devices["results"])]}, "nodeSelector": single_node_selector(node)}


_PLAIN_ENTRY = len(("request", "driver", "pool", "device"))


def _deep_copy(content: Any) -> Any:
    """A copy that shares nothing with the original."""
    try:
        return marshal.loads(marshal.dumps(content))
    except ValueError:
        return deepcopy(content)


def _name(document: Manifest) -> Name:
    return (short_text(document.get("kind") or ""), *key_of(document))


def _group_key(document: Manifest) -> tuple[str, str] | None:
    """(namespace, group) of a claim that is a member of one."""
    group = group_of(document) if document.get("kind") == "ResourceClaim" else None
    return None if group is None else (_name(document)[1], group)

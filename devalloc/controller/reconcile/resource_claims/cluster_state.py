"""The objects of a cluster that matter for ResourceClaims, as the store has them, and as the solver sees them.

A pod is kept to nodes that kube-scheduler would accept: by the pod, by the node, and by the room that other pods leave
there (``node_room``). Affinity between pods, spreading and volumes do not count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from devalloc.api.adopted_pools import DEDICATED_ONLY, AllocatablePools, adopted_drivers, is_adoption_rule
from devalloc.api.dedicated_pools import (
    ALLOCATOR_KEY,
    is_for_devalloc,
    namespaces_for_devalloc,
    with_namespace_default,
)
from devalloc.api.findings import Cause, Finding, fact, text_fact
from devalloc.api.meta import DEVICE_RECORDS
from devalloc.api.node_rules import NodeRestriction, NodeRule
from devalloc.api.owner_names import POD, owner_name
from devalloc.api.reasons import Reason
from devalloc.api.views import Order, order_of
from devalloc.controller.reconcile.resource_claims.node_room import (
    Amounts,
    NodeRoom,
    NodesByRoom,
    RoomLedger,
    Shortage,
    pod_requests,
)
from devalloc.controller.reconcile.resource_claims.other_claims import OtherClaims
from devalloc.controller.reconcile.resource_claims.pending import (
    Key,
    PendingClaims,
    PendingGroup,
    allocation_node,
    allocation_of,
    is_waiting,
    key_of,
    pending_document,
    pod_claim_names,
)
from devalloc.controller.reconcile.resource_claims.shared_room import RoomRequest, most_at_once, plan_nodes
from devalloc.controller.reconcile.resource_claims.suitable_nodes import SuitableNodes
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.controller.reconcile.stored_claims import ClaimUnit, unit_of_claim
from devalloc.store.kubernetes.resources import ApiResource
from devalloc_solver.dialects.resource_k8s.matching import MatchCounts
from devalloc_solver.dialects.resource_k8s.taint_rules import with_rule_taints

Object = dict[str, Any]

_API = "resource.k8s.io"
KIND = "ResourceClaim"
RESOURCES = (
    ApiResource(KIND, _API, "v1", "resourceclaims", True, True),
    ApiResource("ResourceSlice", _API, "v1", "resourceslices", False, False),
    ApiResource("DeviceClass", _API, "v1", "deviceclasses", False, False),
    ApiResource("DeviceTaintRule", _API, "v1", "devicetaintrules", False, False, is_optional=True),  # v1 since 1.37
    ApiResource("Node", "", "v1", "nodes", False, False),
    ApiResource("Namespace", "", "v1", "namespaces", False, False),
    ApiResource(
        "Pod",
        "",
        "v1",
        "pods",
        True,
        False,
        fields="status.phase!=Failed,status.phase!=Succeeded",
        only=(
            *(("spec", name) for name in ("nodeName", "nodeSelector", "tolerations", "schedulingGates", "priority")),
            *(("spec", name) for name in ("resourceClaims", "overhead", "resources")),
            ("spec", "affinity", "nodeAffinity"),
            *(("spec", kind, name) for kind in ("containers", "initContainers") for name in ("name", "resources")),
            ("spec", "initContainers", "restartPolicy"),
            *(("status", name) for name in ("phase", "nominatedNodeName", "resourceClaimStatuses")),
            *(("status", "conditions", name) for name in ("type", "status", "reason")),
            *(("status", name) for name in ("resources", "allocatedResources")),
            *(
                ("status", kind, name)
                for kind in ("containerStatuses", "initContainerStatuses")
                for name in ("name", "resources", "allocatedResources")
            ),
        ),
    ),
)
WATCHED_KINDS = frozenset(resource.store_kind for resource in RESOURCES)
_SUITS_POD = NodeRule("", True, Reason.NODE_UNAVAILABLE, (fact(Cause.NODE_UNSUITED),))
"""That a claim may only be on the nodes that suit its pods."""
MAX_NODE_SETS = 1_000
"""Different nodes of wants that are remembered, so that equal ones share memory; then all are forgotten. So many of
5,000 nodes each take 260 MB."""
MAX_ROOMS = 100
"""Needs of pods of which a round remembers which nodes have room; then all are forgotten. So many take 60 MB with 5,000
nodes."""
MAX_SHARING, MAX_SHARING_NODES = 200, 200
"""How many requests share the room of how many nodes in one solve: those that come first, and where they are placed."""
MAX_PODS = 500
"""Of a want, the most urgent, that count for the room of a node: it runs no more."""
OWN_DRIVER = "devalloc.io"
COUNT_SECONDS = 0.5
"""How long a round counts devices for messages, of those that devalloc allocates and of others."""
RESULT_FIELDS = ("driver", "pool", "device", "shareID", "consumedCapacity", "adminAccess")


@dataclass(frozen=True, slots=True)
class SolverRequest:
    """What the solver is asked for a want."""

    want: PendingGroup
    documents: tuple[Object, ...]
    misfit: str | None
    """Why there is nothing to ask: no node is left."""
    reason: Reason = Reason.NO_SUITABLE_NODE
    """The code of ``misfit``."""
    is_narrow: bool = False
    """Nodes are left out that have room for some of its pods, but for fewer than others."""
    nodes: frozenset[str] = frozenset()
    """Where its claims may have devices, as their documents say unless all do."""
    unit: ClaimUnit | None = None
    """What its documents are to the solver; None without any."""

    @property
    def order(self) -> Order:
        """The place among others that want the same room: that of its first claim (S17)."""
        return min(map(order_of, self.documents))

    @property
    def priority(self) -> int:
        """Of that claim."""
        return -int(self.order[0])


class _Basis(NamedTuple):
    """What requests are built from, beside their wants."""

    offering: frozenset[str] = frozenset()
    """Nodes with devices."""
    facts: object = None
    """What counts of them for pods."""
    room: int = -1
    """The edition of what pods have left of them."""
    planned: Mapping[str, Amounts] = {}
    """What pods take there that are about to come."""


class _LeftOut(NamedTuple):
    """Which nodes a want is not to have."""

    nodes: frozenset[str]
    is_wide: bool
    """It may also have those where fewer of its pods have room."""


class _BuiltRequest(NamedTuple):
    """A request, and all that it was built from."""

    want: PendingGroup
    basis: _Basis
    left_out: _LeftOut
    needs: Sequence[_PodNeeds]
    decisive: object
    """What the needs depend on, beside the pods."""
    request: SolverRequest


@dataclass(frozen=True, slots=True)
class UnusedAllocation:
    """A claim of ours that holds devices for pods of which none has a node, though kube-scheduler looked for one."""

    want: PendingGroup
    node: str


class ClusterState:
    """Not thread-safe."""

    def __init__(self, count_seconds: float | None = COUNT_SECONDS) -> None:
        """``count_seconds``: how long devices are counted for messages after each ``look``; None: as long as it
        takes."""
        self._room = NodeRoom()
        self._objects: Mapping[str, list[Object]] = defaultdict(list)
        self._claims: dict[Key, Object] = {}
        self._pools = DEDICATED_ONLY
        self._node_sets: dict[frozenset[str], frozenset[str]] = {}
        self._basis = _Basis()
        self._built: dict[tuple[Key, ...], _BuiltRequest] = {}
        """Requests of the last round, by the claims of their wants."""
        self._memo = Memo()
        self._pending = PendingClaims()
        self._others = OtherClaims()
        self._suitable = SuitableNodes()
        self.has_left = False
        """The last ``build_requests`` left some to the next one."""
        self.supply: tuple[object, ...] = ()
        """All that ``explain_lack`` depends on, beside the claims; the very same as long as nothing of it changes."""
        self._matches = {is_ours: MatchCounts(count_seconds) for is_ours in (True, False)}
        """Of devices that devalloc allocates, and of others."""
        self._counted: dict[bool, bool] = {}
        """Which of these were given the objects of now, and whether there are such devices."""
        self._selected_nodes: dict[str, Object] = {}
        self._unadopted: str | None = None
        """What ``_describe_others`` says; None until it is asked."""
        self._adopting: Collection[str] = ()
        """Drivers with a rule that adopts."""

    def look(self, objects: Iterable[Object], pools: AllocatablePools = DEDICATED_ONLY) -> None:
        """All there is now, those of a kind in order; an unchanged object is the very same one as before. ``pools``:
        from which devalloc allocates."""
        by_kind: dict[str, list[Object]] = defaultdict(list)
        for content in objects:
            by_kind[content["kind"]].append(content)
        self._objects, self._pools = by_kind, pools
        self._memo.turn()
        self._counted = {}
        self._unadopted = None
        self._adopting = adopted_drivers(by_kind["DeviceTaintRule"])
        chosen = namespaces_for_devalloc(by_kind["Namespace"])
        claims = by_kind["ResourceClaim"]
        if chosen:
            claims = [
                self._memo.of("labelled", claim, partial(with_namespace_default, claim, chosen), chosen)
                for claim in claims
            ]
        self._claims = {key_of(claim): claim for claim in claims}
        self._pending.look(by_kind["Pod"], self._claims)
        self._room.update(by_kind["Node"], by_kind["Pod"], by_kind["DeviceClass"])
        labels = {node["metadata"]["name"]: node["metadata"].get("labels") for node in by_kind["Node"]}
        objects = (*by_kind["ResourceSlice"], *by_kind["DeviceClass"], *by_kind["DeviceTaintRule"])
        supply = pools, labels, objects
        self.supply = self.supply if supply == self.supply else supply

    @property
    def claims(self) -> Mapping[Key, Object]:
        return self._claims

    def wants(self) -> Sequence[PendingGroup]:
        return self._pending.groups

    def want_of(self, key: Key) -> PendingGroup | None:
        """What a claim waits in; None if no pod waits for it, or it has devices."""
        return self._pending.group_of(key)

    def documents(self) -> list[Object]:
        """All that the solver is to know but claims that wait."""
        held = (claim for claim in self._claims.values() if allocation_of(claim) is not None)
        pools = self._pools
        claims = (self._memo.of("held", claim, partial(_allocated_document, claim, pools), pools) for claim in held)
        return [*self._slices(), *self._objects["DeviceClass"], *filter(None, claims)]

    def gains(self, node: str) -> int:
        """A number that grows whenever a pod leaves the node, or the node itself changes."""
        return self._room.gains(node)

    def concerns(self, changed: Object) -> bool:
        """Whether an object of a watched kind that has changed since the last ``look`` may change an answer."""
        return changed["kind"] not in ("Node", "Pod") or not self._room.is_as_before(changed)

    def placed_pods(self) -> frozenset[str]:
        """The UIDs of the pods that have a node."""
        return frozenset(pod["metadata"]["uid"] for pod in self._objects["Pod"] if pod["spec"].get("nodeName"))

    def unused(self) -> list[UnusedAllocation]:
        """The claims of ours whose pods kube-scheduler does not place, with these pods."""
        using: dict[Key, list[Object]] = defaultdict(list)
        for pod in self._pending.holding.values():
            for name in pod_claim_names(pod) or ():
                using[pod["metadata"]["namespace"], name].append(pod)
        unused = []
        for key, pods in sorted(using.items()):
            claim = self._claims.get(key)
            if claim is None or not is_for_devalloc(claim) or not held_results(claim, self._pools):
                continue
            # A pod with a node is among the users: kube-scheduler adds it before it binds it.
            users = {user.get("uid") for user in _users(claim)}
            if users <= {pod["metadata"]["uid"] for pod in pods} and all(map(_is_unschedulable, pods)):
                want = PendingGroup((), tuple(sorted(pods, key=key_of)), (key,), None)
                unused.append(UnusedAllocation(want, allocation_node(allocation_of(claim) or {}) or ""))
        return unused

    def build_requests(
        self,
        wanted: Iterable[PendingGroup],
        avoided: Mapping[Key, frozenset[str]],
        wide: Collection[Key] = (),
    ) -> list[SolverRequest]:
        """Build what the solver is asked for each. ``avoided``: nodes that claims are not to have for now. ``wide``:
        claims that are also asked for where fewer of their pods have room."""
        nodes = {content["metadata"]["name"]: content for content in self._objects["Node"]}
        offering = frozenset(content["spec"]["nodeName"] for content in self._ours())
        there = {name: nodes[name] for name in sorted(offering & nodes.keys())}
        ledger = self._ledger()
        basis = _Basis(offering, self._suitable.look(there), self._room.edition, ledger.planned)
        basis = self._basis = self._basis if basis == self._basis else basis
        before, self._built = self._built, {}
        requests: dict[tuple[Key, ...], SolverRequest | None] = {}
        fresh: list[tuple[PendingGroup, _LeftOut]] = []
        for want in wanted:
            avoided_by = frozenset[str]().union(*(avoided[key] for key in want.claims if key in avoided))
            left_out = _LeftOut(avoided_by, any(key in wide for key in want.claims))
            one = before.get(want.claims)
            is_known = one is not None and one.want is want and one.basis is basis and one.left_out == left_out
            if is_known and one is not None:
                requests[want.claims], self._built[want.claims] = one.request, one
            else:
                requests[want.claims] = None  # its place in the order
                fresh.append((want, left_out))
        self.has_left = False
        suitable = self._suitable.of((pod for want, _ in fresh for pod in want.pods), there) if fresh else {}
        pending_others = {want.claims: others for want, _ in fresh if (others := self._pending_others(want))}
        if pending_others:
            self._others.look(
                [each for each in self._objects["ResourceSlice"] if not is_allocatable_slice(each, self._pools)],
                self._objects["DeviceClass"],
                self._claims.values(),
                self._objects["DeviceTaintRule"],
            )
        roomy = _RoomyNodes(ledger, there)
        for want, left_out in fresh:
            if not offering and (missing := self.not_adopted(self._claims[key] for key in want.claims)):
                requests[want.claims] = SolverRequest(want, (), missing, Reason.NOT_ADOPTED)
                continue
            if not all(id(pod) in suitable for pod in want.pods):
                self.has_left = True
                continue
            left = roomy.among([suitable[id(pod)] for pod in want.pods], want.nodes, left_out.nodes)
            one, others = before.get(want.claims), pending_others.get(want.claims, [])
            is_same = one is not None and one.want is want and one.decisive == self._room.decisive
            needs = one.needs if is_same and one is not None else self._needs(want)
            request = self._build(want, needs, roomy, left, others, is_wide=left_out.is_wide)
            requests[want.claims] = request
            if offering and not others:
                self._built[want.claims] = _BuiltRequest(want, basis, left_out, needs, self._room.decisive, request)
        return [request for request in requests.values() if request is not None]

    def _build(
        self,
        want: PendingGroup,
        needs: Sequence[_PodNeeds],
        roomy: _RoomyNodes,
        left: frozenset[str],
        others: Sequence[Object],
        *,
        is_wide: bool,
    ) -> SolverRequest:
        """Ask for the claims on the nodes that have room for their pods, or say that none has.

        ``left``: the nodes on which its pods may run. ``others``: its claims that kube-scheduler allocates.
        """
        there = roomy.nodes
        if there and not left:
            return SolverRequest(want, (), _misfit(want, len(there)))
        room = roomy.of(needs, want, left)
        if there and not room.counts:
            lacks = {name: roomy.shortage(name, needs) for name in sorted(left)[:3]}
            return SolverRequest(want, (), no_room_message(want, len(left), lacks), Reason.NO_ROOM_FOR_POD)
        if others:
            suits = self._others.suiting(room.counts, there, others)
            if room.counts and not suits:
                return SolverRequest(want, (), _no_others_message(want, len(room.counts), others))
            room = _Room.of({name: count for name, count in room.counts.items() if name in suits})
        is_narrow = len(room.best) < len(room.counts) and not is_wide
        nodes = self._shared(room.best if is_narrow else room.nodes)
        documents = self._pending_documents(want, None if nodes == self._basis.offering else nodes)
        unit = unit_of_claim(documents[0])
        return SolverRequest(want, documents, None, is_narrow=is_narrow, nodes=nodes, unit=unit)

    def at_node(self, request: SolverRequest, node: str) -> SolverRequest:
        """The same on this node only; if there is nothing, it is asked for elsewhere."""
        nodes = frozenset([node])
        documents = self._pending_documents(request.want, nodes)
        return replace(request, documents=documents, is_narrow=True, nodes=nodes)

    def _shared(self, nodes: frozenset[str]) -> frozenset[str]:
        """The same nodes, always as the same object."""
        if len(self._node_sets) >= MAX_NODE_SETS:
            self._node_sets.clear()
        return self._node_sets.setdefault(nodes, nodes)

    def _pending_documents(self, want: PendingGroup, nodes: frozenset[str] | None) -> tuple[Object, ...]:
        """``nodes``: None for all."""
        pods = [pod["metadata"]["name"] for pod in want.pods]
        name = owner_name(POD, *pods) if len(pods) == 1 else "/".join(want.claims[0])
        group = name if len(want.claims) > 1 else None
        rules = () if nodes is None else (NodeRestriction(_SUITS_POD, nodes),)
        return tuple(pending_document(self._claims[key], group, rules, want.priority) for key in want.claims)

    def _pending_others(self, want: PendingGroup) -> list[Object]:
        """The claims of a want's pods that kube-scheduler has yet to allocate."""
        keys = {(pod["metadata"]["namespace"], name) for pod in want.pods for name in pod_claim_names(pod) or ()}
        claims = (self._claims[key] for key in sorted(keys - {*want.claims, *want.held}) if key in self._claims)
        return [claim for claim in claims if allocation_of(claim) is None]

    def admit(self, placed: Iterable[tuple[SolverRequest, str]]) -> list[SolverRequest]:
        """Choose the requests whose pods all find room on the nodes that they were given, if the most urgent go
        first."""
        ledger = self._ledger()
        by_order = sorted(placed, key=lambda each: each[0].order)
        return [request for request, node in by_order if self._admit(ledger, request, [node])]

    def _admit(self, ledger: RoomLedger, request: SolverRequest, nodes: Iterable[str]) -> bool:
        """Plan the pods of a request on the first of these nodes that has room, if one has."""
        needs = self._needs(request.want)
        for node in nodes:
            fitting = ledger.fitting(node, [each.requests for each in needs])
            if _covers(needs, fitting, request.want):
                for place in fitting:
                    ledger.place(node, needs[place].requests)
                return True
        return False

    def share_room(
        self, placed: Sequence[tuple[SolverRequest, str]], placement: str, seconds: float
    ) -> list[tuple[SolverRequest, str]]:
        """Choose a node for each of several requests that do not all find room where they were given devices, so that
        more of them do than if each moved on to a node that is left. None at all if there is no such choice, or none
        was made in so many seconds."""
        placed = sorted(placed, key=lambda each: each[0].order)[:MAX_SHARING]
        given, others = {node for _, node in placed}, frozenset[str]().union(*(each.nodes for each, _ in placed))
        nodes = [*sorted(given), *sorted(others - given)][:MAX_SHARING_NODES]
        ledger, moving = self._ledger(), self._ledger()
        moved, lost = list[SolverRequest](), list[SolverRequest]()
        for each, node in placed:
            has_room = self._admit(moving, each, (node, *(name for name in nodes if name in each.nodes)))
            (moved if has_room else lost).append(each)
        if not lost:
            return []
        amounts = [self._taken(ledger, each.want, node) for each, node in placed]
        names = set[str]().union(*amounts) & ledger.resources(nodes)
        free = {node: {name: ledger.free(node, name) for name in names} for node in nodes}
        urgent = min(each.priority for each in lost)
        rivals = [of for (each, _), of in zip(placed, amounts, strict=True) if each.priority >= urgent]
        if most_at_once(rivals, free) <= sum(each.priority >= urgent for each in moved):
            return []
        slices = [each for each in self._slices() if each["spec"]["nodeName"] in free]
        documents = [self._pending_documents(each.want, each.nodes.intersection(free)) for each, _ in placed]
        planned = plan_nodes(
            [RoomRequest(*each) for each in zip(documents, amounts, strict=True)],
            [*slices, *self._objects["DeviceClass"], *self._holders(slices)],
            free,
            placement=placement,
            seconds=seconds,
        )
        chosen = [(request, node) for (request, _), node in zip(placed, planned, strict=True) if node]
        return chosen if _priorities(each for each, _ in chosen) > _priorities(moved) else []

    def _taken(self, ledger: RoomLedger, want: PendingGroup, node: str) -> Amounts:
        """What the pods of a want that find room on the node take there."""
        needs, amounts = self._needs(want), Counter[str]()
        for place in ledger.fitting(node, [each.requests for each in needs]):
            amounts.update(needs[place].requests)
        return amounts

    def _holders(self, slices: Iterable[Object]) -> Iterator[Object]:
        """The claims that have devices of the pools of these slices."""
        pools = {(each["spec"]["driver"], each["spec"]["pool"]["name"]) for each in slices}
        for claim in self._claims.values():
            if any((each["driver"], each["pool"]) in pools for each in held_results(claim, self._pools)):
                yield _allocated_document(claim, self._pools) or {}

    def _needs(self, want: PendingGroup) -> tuple[_PodNeeds, ...]:
        pods = sorted(want.pods, key=lambda pod: (-(pod["spec"].get("priority") or 0), key_of(pod)))[:MAX_PODS]
        return tuple(
            _PodNeeds(
                self._requests(pod),
                frozenset((pod["metadata"]["namespace"], name) for name in pod_claim_names(pod) or ()),
            )
            for pod in pods
        )

    def _ledger(self) -> RoomLedger:
        """What is free on nodes beside the pods there, and those that have devices there and are about to come."""
        ledger = self._room.ledger()
        for _, pod in sorted(self._pending.holding.items()):
            claims = [
                claim
                for name in pod_claim_names(pod) or ()
                if (claim := self._claims.get((pod["metadata"]["namespace"], name))) and is_for_devalloc(claim)
            ]
            held = [allocation_of(claim) for claim in claims]
            if claims and all(held) and (node := next(filter(None, (allocation_node(e) for e in held if e)), None)):
                ledger.place(node, self._requests(pod))
        return ledger

    def _requests(self, pod: Object) -> Amounts:
        """What of a pod's requests decides where it fits."""
        return self._memo.of("requests", pod, lambda: self._room.countable(pod_requests(pod)), self._room.decisive)

    def not_adopted(self, claims: Iterable[Object]) -> str:
        """That devices match these claims, and devalloc does not allocate them; "" if there are none. The claims need
        not be among the objects."""
        return _not_adopted_message(self._matching(claims, is_ours=False), self._adopting)

    @property
    def offers_nothing(self) -> bool:
        """Whether there are no devices that devalloc allocates."""
        return next(self._ours(), None) is None

    def _describe_others(self) -> str:
        """Where nothing is devalloc's to allocate: whose devices there are; "" if there are none, or some are. The same
        for all claims, so it is looked at once for all that wait."""
        if self._unadopted is None:
            drivers = sorted({str(each["spec"]["driver"]) for each in self._objects["ResourceSlice"]})
            more = f" and {len(drivers) - 3} more" if drivers[3:] else ""
            text = f"none is adopted of the drivers with devices ({', '.join(drivers[:3])}{more})"
            self._unadopted = text if drivers and self.offers_nothing else ""
        return self._unadopted

    @property
    def is_behind(self) -> bool:
        """Whether messages lack numbers of devices because there was no time to count them."""
        return any(counts.is_behind for counts in self._matches.values())

    def explain_lack(self, reason: str, finding: Finding, claims: Sequence[Object]) -> tuple[str, Finding]:
        """The reason and finding of claims that find too few devices, with how many others match them, which devalloc
        does not allocate."""
        if reason not in (Reason.NO_MATCHING_DEVICES, Reason.NOT_ENOUGH_DEVICES, Reason.NODE_UNAVAILABLE):
            return reason, finding
        if not (others := self.not_adopted(claims)):
            is_empty = any(cause["code"] == Cause.NO_DEVICES for cause in finding.causes)
            if is_empty and (there := self._describe_others()):
                finding = replace(finding, causes=[text_fact(there)])
            return reason, finding
        if not self._matching(claims, is_ours=True):
            return Reason.NOT_ADOPTED.value, Finding([text_fact(others)])
        return reason, replace(finding, causes=[*finding.causes, text_fact(f"elsewhere, {others}")])

    def _matching(self, claims: Iterable[Object], *, is_ours: bool) -> Counter[str]:
        matching, counts = Counter[str](), self._matches[is_ours]
        if is_ours not in self._counted:
            chosen = [s for s in self._objects["ResourceSlice"] if is_allocatable_slice(s, self._pools) is is_ours]
            counts.look((*chosen, *self._objects["DeviceClass"], *self._nodes_to_select()))
            self._counted[is_ours] = bool(chosen)
        for claim in claims if self._counted[is_ours] else ():
            matching.update(counts.matching(claim))
        return matching

    def _nodes_to_select(self) -> Collection[Object]:
        """Nodes by what selectors see of them: the very same ones although their kubelets report something."""
        before, self._selected_nodes = self._selected_nodes, {}
        for content in self._objects["Node"]:
            name = content["metadata"]["name"]
            metadata = {"name": name, "labels": content["metadata"].get("labels") or {}}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
            self._selected_nodes[name] = before[name] if before.get(name) == node else node
        return self._selected_nodes.values()

    def _ours(self) -> Iterator[Object]:
        return (content for content in self._objects["ResourceSlice"] if is_allocatable_slice(content, self._pools))

    def _slices(self) -> Iterator[Object]:
        by_pool: dict[tuple[object, object], list[Object]] = defaultdict(list)
        for rule in self._objects["DeviceTaintRule"]:
            selector = rule["spec"].get("deviceSelector")
            if selector is not None and not is_adoption_rule(rule):
                by_pool[selector.get("driver"), selector.get("pool")].append(rule)
        for content in self._ours():
            driver, pool = content["spec"]["driver"], content["spec"]["pool"]["name"]
            places = ((driver, pool), (driver, None), (None, pool), (None, None))
            rules = [rule for place in places for rule in by_pool.get(place, ())]
            rules.sort(key=lambda rule: str(rule["metadata"]["name"]))
            yield self._memo.of("slice", content, partial(effective_slice, content, rules), rules)


@dataclass(frozen=True, slots=True)
class _PodNeeds:
    """What a pod takes of its node, and the claims that it uses."""

    requests: Amounts
    claims: frozenset[Key]


def _priorities(requests: Iterable[SolverRequest]) -> list[int]:
    """The highest first: of two such lists the larger is of requests that are more urgent, or more."""
    return sorted((each.priority for each in requests), reverse=True)


def _covers(needs: Sequence[_PodNeeds], fitting: Iterable[int], want: PendingGroup) -> bool:
    """Whether each pending claim has a pod that fits."""
    used = frozenset[Key]().union(*(needs[place].claims for place in fitting))
    return used.issuperset(want.claims)


def _not_adopted_message(matching: Mapping[str, int], adopting: Collection[str]) -> str:
    """Say how many devices match by driver, and what to do. ``adopting``: drivers with a rule that adopts."""
    if not (number := sum(matching.values())):
        return ""
    drivers = sorted(matching, key=lambda driver: (-matching[driver], driver))[:3]
    devices = "1 device matches" if number == 1 else f"{number} devices match"
    pending = [driver for driver in drivers if driver in adopting]
    if pending:
        return f"{devices}, none is adopted yet; see: devalloc adopt, for driver {', '.join(pending)}"
    advice = "set their nodes aside" if drivers == [OWN_DRIVER] else f"devalloc adopt driver/{drivers[0]}"
    return f"{devices}, none is adopted ({', '.join(drivers)}); {advice}, or remove the claim's label {ALLOCATOR_KEY}"


class _Room(NamedTuple):
    """Nodes that have room."""

    counts: Mapping[str, int]
    """By node how many pods fit."""
    nodes: frozenset[str]
    """All of these."""
    best: frozenset[str]
    """Those where the most fit."""

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> _Room:
        most = max(counts.values(), default=0)
        nodes = frozenset(counts)
        best = nodes.difference(name for name, count in counts.items() if count < most)
        return cls(counts, nodes, nodes if len(best) == len(nodes) else best)


def _shape_of(needs: Sequence[_PodNeeds], want: PendingGroup) -> tuple[Any, ...]:
    """Equal for pods that need the same, for the claims of the same places."""
    pending = {key: place for place, key in enumerate(want.claims)}
    return len(pending), *(
        (tuple(sorted(each.requests.items())), tuple(sorted(pending[key] for key in each.claims & pending.keys())))
        for each in needs
    )


class _RoomyNodes:
    """The nodes that have room for pods; computed once for all pods that need the same."""

    def __init__(self, ledger: RoomLedger, nodes: Mapping[str, Object]) -> None:
        self.nodes = nodes
        self._ledger = ledger
        self._names = frozenset(nodes)
        self._by_room = NodesByRoom(ledger, self._names)
        self._counts: dict[tuple[Any, ...], dict[str, int]] = {}
        self._among: dict[tuple[Any, ...], frozenset[str]] = {}
        self._rooms: dict[tuple[Any, ...], _Room] = {}

    def among(
        self, suitable: Sequence[frozenset[str]], nodes: frozenset[str] | None, avoided: frozenset[str]
    ) -> frozenset[str]:
        """The nodes that suit all pods, if these are all that count, without some."""
        key = tuple({id(each): None for each in suitable}), nodes, avoided
        if key not in self._among:
            if len(self._among) >= MAX_ROOMS:
                self._among.clear()
            left = self._names.intersection(*suitable).difference(avoided)
            self._among[key] = left if nodes is None else left & nodes
        return self._among[key]

    def of(self, needs: Sequence[_PodNeeds], want: PendingGroup, among: frozenset[str]) -> _Room:
        """Those of some nodes on which each pending claim has a pod that fits."""
        shape = _shape_of(needs, want)
        if (key := (shape, among)) not in self._rooms:
            if len(self._rooms) >= MAX_ROOMS:
                self._rooms.clear()
            together = Counter[str]()
            for each in needs:
                together.update(each.requests)
            having = self._by_room.having(together) if _covers(needs, range(len(needs)), want) else ()
            counts = dict.fromkeys(having, len(needs))
            if len(needs) > 1:
                counts |= self._some_of(shape, needs, want, self._names - counts.keys())
            self._rooms[key] = _Room.of({name: count for name, count in counts.items() if name in among})
        return self._rooms[key]

    def _some_of(
        self, shape: tuple[Any, ...], needs: Sequence[_PodNeeds], want: PendingGroup, nodes: Collection[str]
    ) -> dict[str, int]:
        """The same of nodes without room for all pods."""
        if shape not in self._counts:
            amounts = [each.requests for each in needs]
            fitting = {node: self._ledger.fitting(node, amounts) for node in nodes}
            self._counts[shape] = {
                node: len(places) for node, places in fitting.items() if _covers(needs, places, want)
            }
        return self._counts[shape]

    def shortage(self, node: str, needs: Sequence[_PodNeeds]) -> Shortage | None:
        """What the node lacks for the first pod that finds no room; None if they are only too many."""
        fitting = self._ledger.fitting(node, [each.requests for each in needs])
        first = next((each for place, each in enumerate(needs) if place not in fitting), None)
        return None if first is None else self._ledger.shortage(node, first.requests)


def _users(claim: Object) -> list[Object]:
    users: list[Object] = (claim.get("status") or {}).get("reservedFor") or []
    return users


def _is_unschedulable(pod: Object) -> bool:
    """Whether kube-scheduler has looked for a node for the pod, and neither has one nor makes room on one."""
    status = pod.get("status") or {}
    return (
        is_waiting(pod)
        and not status.get("nominatedNodeName")
        and any(
            each.get("type") == "PodScheduled"
            and each.get("status") == "False"
            and each.get("reason") == "Unschedulable"
            for each in status.get("conditions") or ()
        )
    )


def no_room_message(want: PendingGroup, count: int, nodes: Mapping[str, object]) -> str:
    """Say where pods found no room. ``nodes``: some of the ``count`` nodes, each with what it lacks, or None."""
    pods = ", ".join(pod["metadata"]["name"] for pod in want.pods[:3])
    shown = [*nodes] if None in nodes.values() else [f"{name} ({lacks})" for name, lacks in nodes.items()][:1]
    places, more = ", ".join(shown), f" and {count - len(shown)} more" if count > len(shown) else ""
    return f"pod {pods} has no room on {places}{more}; free some there, or ask for less"


def _no_others_message(want: PendingGroup, count: int, others: Sequence[Object]) -> str:
    pods = ", ".join(pod["metadata"]["name"] for pod in want.pods[:3])
    claims = ", ".join(claim["metadata"]["name"] for claim in others[:3])
    nodes = "the only node" if count == 1 else f"none of {count} nodes"
    has = "has no devices" if count == 1 else "has devices"
    return (
        f"{nodes} with devices for devalloc and room for pod {pods} {has} for its other claims, which kube-scheduler "
        f"allocates: {claims}"
    )


def _misfit(want: PendingGroup, nodes: int) -> str:
    names = ", ".join(pod["metadata"]["name"] for pod in want.pods[:3])
    message = f"none of {nodes} node{'s' if nodes > 1 else ''} with devices for devalloc suits pod {names}: see its "
    message += "node selector, affinity and tolerations, and whether nodes are cordoned or not ready"
    return (
        message
        if want.nodes is None
        else f"{message}; its claims are bound to {', '.join(sorted(want.nodes)) or 'several'}"
    )


def _allocated_document(claim: Object, pools: AllocatablePools) -> Object | None:
    """A claim that holds devices of these pools, as far as that goes; None for any other."""
    ours = held_results(claim, pools)
    if not ours:
        return None
    metadata = {key: claim["metadata"][key] for key in ("namespace", "name", "uid")}
    if (records := claim["metadata"].get("annotations", {}).get(DEVICE_RECORDS)) is not None:
        metadata["annotations"] = {DEVICE_RECORDS: records}
    fields = {name: claim[name] for name in ("apiVersion", "kind", "spec")}
    return {**fields, "metadata": metadata, "status": {"allocation": {"devices": {"results": ours}}}}


def held_results(claim: Object, pools: AllocatablePools) -> list[dict[str, Any]]:
    """The devices of these pools that a claim has, as its status records them."""
    results = ((allocation_of(claim) or {}).get("devices") or {}).get("results") or []
    return [
        {k: v for k, v in each.items() if k in (*RESULT_FIELDS, "request")}
        for each in results
        if pools.cover(each["driver"], each["pool"])
    ]


def is_allocatable_slice(content: Mapping[str, Any], pools: AllocatablePools) -> bool:
    """Whether a slice is of one of these pools, and of one node."""
    spec = content["spec"]
    return pools.cover(spec["driver"], spec["pool"]["name"]) and bool(spec.get("nodeName"))


def effective_slice(content: Object, rules: Sequence[Mapping[str, Any]]) -> Object:
    """A slice without the taint that keeps others off, with those of rules."""
    spec = content["spec"]
    if "devices" not in spec:
        return content
    devices = [*map(_effective_device, spec["devices"])]
    return dict(with_rule_taints({**content, "spec": {**spec, "devices": devices}}, rules))


def _effective_device(device: Object) -> Object:
    taints = [taint for taint in device.get("taints") or () if taint.get("key") != ALLOCATOR_KEY]
    rest = {name: value for name, value in device.items() if name != "taints"}
    return rest | ({"taints": taints} if taints else {})

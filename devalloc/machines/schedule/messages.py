"""Why a machine does not fit, in terms of hosts: the solver's findings are about devices. Pure.

Only if every node that it may be on is short of something in all: else the solver's causes say more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from devalloc.api import cordon, host_pool_names, meta
from devalloc.api.findings import HOLDERS, Cause, Fact, Finding, as_json, fact, finding_of, first_of, text_fact
from devalloc.api.machine_reservation import parse_nano, sum_entries
from devalloc.api.pool import unavailability
from devalloc.api.quantity import Format, Quantity, count_text, readable_texts
from devalloc.api.reasons import Reason, find_reason
from devalloc.api.views import ClaimKey, ClaimView, MachineKey, MachineView, device_claims_in, effective_attributes
from devalloc.machines.schedule import machines
from devalloc.machines.schedule.machines import MachineRequest
from devalloc.machines.schedule.resize import MachineGrowth
from devalloc.machines.schedule.solver_input import SchedulingInput
from devalloc.store import Object

_CODES = {
    Reason.DEVICES_IN_USE: Reason.NO_ROOM,
    Reason.INSUFFICIENT_CAPACITY: Reason.NODES_TOO_SMALL,
    Reason.NOT_ENOUGH_DEVICES: Reason.NODES_TOO_SMALL,
    Reason.NO_MATCHING_DEVICES: Reason.NODES_TOO_SMALL,
}
"""What the solver's reasons mean for a machine."""
_REPLACED_REASONS = {*_CODES, Reason.LOST_TO_HIGHER_PRIORITY, Reason.LOST_TO_COMPETITION, Reason.NODE_UNAVAILABLE}
"""Reasons that are about what there is of devices, and not about what was asked for: no user wrote the requests."""
_RESOURCE_NAMES = {
    host_pool_names.CPU: ("CPU", "", Format.DECIMAL_SI),
    host_pool_names.MEMORY: ("memory", "", Format.BINARY_SI),
    **{name: (f"huge pages of {size}", "", Format.BINARY_SI) for size, name in host_pool_names.HUGE_PAGES.items()},
    host_pool_names.NETWORK: ("bandwidth", "/s", Format.DECIMAL_SI),
    host_pool_names.DISK: ("disk", "", Format.BINARY_SI),
    host_pool_names.DISK_IO: ("disk bandwidth", "/s", Format.DECIMAL_SI),
}
_MATCH = meta.GROUP_MATCH
_MATCH_PATH = f"metadata.annotations[{_MATCH}]"
_POLICY, _BOUND_NUMA = "spec.numaPolicy", "status.numaNodes"
Room = dict[str, tuple[int, int]]
"""Nano units that there are of each resource, and that are free."""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What a node has for machines."""

    whole: Room
    by_numa: Mapping[int, Room]
    """What each of its NUMA nodes has, and with it what belongs to none."""
    unschedulable: str = ""
    """Why the node gets nothing new; empty if it does."""
    is_cordoned: bool = False
    """Whether that is because it is cordoned, and only that."""


class MachineMessages:
    """Of one answer of the solver."""

    def __init__(self, placing: SchedulingInput, claims: Iterable[Mapping[str, Any]]) -> None:
        """``claims``: the answer's."""
        self._placing = placing
        self._claims = claims
        self._rooms: dict[str, NodeRoom] | None = None
        self._pins: dict[ClaimKey, str] = {}
        self._shortages: dict[tuple[object, ...], Sequence[Fact] | None] = {}
        """For machines that want the same, which are many at a time."""

    def why(self, key: MachineKey, answer: Mapping[str, Any]) -> tuple[str, Finding, dict[str, Any]]:
        """Code, finding, and what else there is to tell. ``answer``: what the solver says of the machine, or a
        part of it."""
        part, requests = (answer["namespace"], answer["name"]), self._placing.requests_of(key)
        target = next((one for one in requests if part in one.parts), requests[0] if requests else None)
        code, finding, details = self._why(key, target, answer)
        ties = [fact(Cause.TIE, text=target.tie)] if target is not None and target.tie else []
        return code, replace(finding, causes=[*finding.causes, *ties]), details

    def _why(
        self, key: MachineKey, target: MachineRequest | None, answer: Mapping[str, Any]
    ) -> tuple[str, Finding, dict[str, Any]]:
        """Choose the code: of room if each node is short of it, of closed nodes, or the solver's own."""
        is_own = target is not None and (answer["namespace"], answer["name"]) in target.parts
        reason = answer["reason"]
        solved = finding_of(answer)
        if is_own and any(one["code"] == Cause.NODE_BARRED for one in solved.causes):
            reason = Reason.NODES_TOO_SMALL.value  # those that may take it
        code = str(_CODES.get(reason, reason))
        details = {name: value for name, value in answer.items() if name in ("warnings", "funnel")}
        if target is not None and is_own and target.excluded and not self._nodes(target):
            return answer["reason"], Finding([fact(Cause.NO_NODE, node=self._pins.get(target.parts[0]))]), details
        is_of_claim = not is_own and answer["reason"] == Reason.NO_MATCHING_DEVICES  # which says what it matches
        is_of_room = answer["reason"] in _REPLACED_REASONS and not is_of_claim
        rooms = self._short(target, code) if target is not None and is_of_room else None
        blockers = [*map(dict, solved.blockers)]
        if target is None or rooms is None:
            causes: list[Fact] = [*solved.causes]
            if is_own:
                causes = [{name: value for name, value in each.items() if name != "request"} for each in causes]
            if is_own and blockers and all(map(_is_unschedulable_node, blockers)):
                causes = []
                details.pop("funnel", None)  # it counts devices, and there are enough
            closed = self._reason_of_closed_nodes(target) if target is not None and is_own and is_of_room else None
            finding = replace(solved, causes=causes, blockers=self._blockers(key, target, code, blockers))
            return closed or answer["reason"], finding, details
        details.pop("funnel", None)
        blockers = self._blockers(key, target, code, blockers)
        if code == Reason.NODES_TOO_SMALL:  # it fits no node, empty or uncordoned
            blockers = [one for one in blockers if one["kind"] not in HOLDERS and not _is_unschedulable_node(one)]
        blockers = [*map(self._with_idle, blockers)] or self._lacks(target, code)
        # Releasing what is kept for the machine itself would not help it, and the cause names its amounts already.
        own = {"kind": "machine", "namespace": key[0], "name": key[1]}
        helps = all(one["kind"] in HOLDERS and not own.items() <= one.items() for one in blockers)
        caveats = [] if helps else ["nothingLeft"]
        large = code != Reason.NODES_TOO_SMALL
        fields = () if large else tuple(one["path"] for one in blockers if one["kind"] == "amount")
        policy = None if large else next((one["path"] for one in blockers if one["kind"] == "matchAttribute"), None)
        policy = None if policy == _BOUND_NUMA else policy  # which no user writes
        cause = fact(Cause.ROOM, **first_of("nodes", rooms), large=large, fields=fields, policy=policy)
        return code, Finding([cause], blockers, solved.alternatives, caveats), details

    def _reason_of_closed_nodes(self, target: MachineRequest) -> str | None:
        """Why no node may take it at all, if that is why; None if one may."""
        rooms = [room for node in self._nodes(target) if (room := self._node_rooms().get(node)) is not None]
        if not rooms or not all(room.unschedulable for room in rooms):
            return None
        is_cordoned = all(room.is_cordoned for room in rooms)
        return (Reason.NODES_CORDONED if is_cordoned else Reason.NODES_UNSCHEDULABLE).value

    def _with_idle(self, blocker: Mapping[str, Any]) -> dict[str, Any]:
        """A machine that is in the way and does not run, with the reason why it does not."""
        if blocker["kind"] != "machine":
            return dict(blocker)
        machine = self._placing.objects.get((blocker["namespace"], blocker["name"]))
        code = "" if machine is None else machines.why_idle(machine)
        return {**blocker, "idle": code} if code else dict(blocker)

    def _short(self, target: MachineRequest, code: str) -> Sequence[Fact] | None:
        """Of what there is too little on each node that it may be on; None if one has enough of everything, or if it
        may be on none."""
        rooms = self._node_rooms()
        pin = self._pins.get(target.parts[0])
        cache_key = (
            code,
            pin,
            target.excluded,
            type(target),
            target.is_on_one_numa_node,
            *((name, amount.nano) for name, amount in target.amounts.items()),
            *((n, name, one.nano) for n, part in target.by_numa.items() for name, one in part.items()),
        )
        if cache_key not in self._shortages:
            of_nodes = {node: rooms.get(node, NodeRoom({}, {})) for node in self._nodes(target)}
            unschedulable: list[Fact] = []
            if code != Reason.NODES_TOO_SMALL:
                unschedulable = [
                    {"node": node, "why": one.unschedulable} for node, one in of_nodes.items() if one.unschedulable
                ]
                of_nodes = {node: one for node, one in of_nodes.items() if not one.unschedulable}
            rows = _shortages(of_nodes, target, code)
            if rows is None and target.is_on_one_numa_node:
                rows = _numa_shortages(of_nodes, target.amounts, code)
            self._shortages[cache_key] = [*rows, *unschedulable] if rows else None
        return self._shortages[cache_key]

    def _nodes(self, target: MachineRequest) -> list[str]:
        """The nodes on which a machine may be, whatever there is room for."""
        rooms = self._node_rooms()
        pin = self._pins.get(target.parts[0])
        return sorted((rooms.keys() if pin is None else {pin}) - target.excluded)

    def _node_rooms(self) -> dict[str, NodeRoom]:
        if self._rooms is None:
            taken: dict[tuple[str, str, str], int] = defaultdict(int)
            for entries in self._given().values():
                ours = [entry for entry in entries if entry.get("devicePoolName") in self._placing.pools]
                for place, nano in sum_entries(ours).items():
                    taken[place] += nano
            self._rooms = {}
            for name, pool in self._placing.pools.items():
                rooms = [
                    (_numa_of(device), _device_room(device, lambda *where, name=name: taken[name, *where]))
                    for device in pool["spec"].get("devices", ())
                ]
                shared = _sum_of_rooms(room for numa, room in rooms if numa is None)
                by_numa = {numa: shared | room for numa, room in rooms if numa is not None}
                node = str(host_pool_names.node_of_host_pool(pool))
                whole = _sum_of_rooms(room for _, room in rooms)
                reasons = _why_unschedulable(pool)
                is_cordoned = bool(reasons) and all(map(cordon.is_cordoned, reasons))
                why = "; ".join(reason.why for reason in reasons)
                self._rooms[node] = NodeRoom(whole, by_numa, why, is_cordoned)
        return self._rooms

    def _given(self) -> dict[ClaimKey, Sequence[Any]]:
        """What each claim holds that holds any, or is given now; and whose node is settled, on the way."""
        holdings: dict[ClaimKey, Sequence[Any]] = {}
        for view in map(ClaimView, device_claims_in(self._placing.documents)):
            if (node := view.annotation(meta.NODE)) is not None:
                self._pins[view.key] = node
            holdings[view.key] = view.entries
        return holdings | {
            (one["namespace"], one["name"]): one["allocations"] for one in self._claims if one["allocated"]
        }

    def _blockers(
        self, key: MachineKey, target: MachineRequest | None, code: str, blockers: Iterable[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        unique: dict[object, dict[str, Any]] = {}
        for each in (one for blocker in blockers for one in self._in_words_of_machine(key, target, code, blocker)):
            if each["kind"] == "matchAttribute":
                resource = each.get("path")
            else:
                resource = each.get("resource") if each.get("path") in _FIELDS.values() else None
            unique.setdefault(len(unique) if resource is None else resource, each)
        return [*unique.values()]

    def _in_words_of_machine(
        self, key: MachineKey, target: MachineRequest | None, code: str, blocker: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """A machine has no requests, but amounts: each of those that no node has."""
        own = blocker.get("machine", "/".join(key)) == "/".join(key) and "claim" not in blocker
        wish = self._placing.wishes.get(key)
        if blocker["kind"] == "node" and wish is not None and "nodeName" in MachineView(wish.machine).spec:
            return [{"kind": "node", "node": blocker["node"], "path": "spec.nodeName"}]
        if target is None or not own or blocker["kind"] not in ("amount", "request"):
            return [self._blocker(blocker)]
        more = {name: value for name, value in blocker.items() if name != "machine"}
        if blocker["kind"] == "amount" and not target.by_numa:
            return [{**more, "path": _FIELDS.get(str(blocker.get("resource")), blocker["path"])}]
        return [{**more, **one} for one in self._lacks(target, code)] or [
            {**more, "resource": name, "path": _FIELDS[name], "requested": str(amount)}
            for name, amount in target.amounts.items()
        ]

    def _lacks(self, target: MachineRequest, code: str) -> list[dict[str, Any]]:
        """The fields of a machine that ask for more than any node has, or for NUMA nodes."""
        if missing := [{"kind": "amount", **one} for one in self._missing(target, code)]:
            return missing
        numa = {"kind": "matchAttribute", "attribute": "numa", "path": _numa_field(target.machine)}
        return [numa] if target.by_numa else []

    def _missing(self, target: MachineRequest, code: str) -> Iterator[dict[str, Any]]:
        """What a machine asks for of which every node that it may be on has too little, and the most of it on one."""
        rooms = self._node_rooms()
        places = [rooms[node].whole for node in self._nodes(target) if node in rooms]
        for resource, amount in target.amounts.items():
            rows = (place.get(resource, (0, 0)) for place in places)
            most = max((total if code == Reason.NODES_TOO_SMALL else free for total, free in rows), default=0)
            if most < amount.nano:
                yield {
                    "resource": resource,
                    "path": _FIELDS[resource],
                    "requested": str(amount),
                    "most": str(Quantity.capped(most, amount.format)),
                }

    def _blocker(self, blocker: Mapping[str, Any]) -> dict[str, Any]:
        """A machine is called by its own name."""
        is_policy = blocker["kind"] == "limit" or meta.GROUP_MATCH in blocker.get("path", "")
        if is_policy and "claim" not in blocker and "machine" not in blocker:  # how the solver sees the policy
            return {"kind": "matchAttribute", "attribute": "numa", "path": _POLICY}
        return _of_its_machine(blocker)


_FIELDS = {
    host_pool_names.CPU: "spec.cpu",
    **dict.fromkeys(host_pool_names.MEMORY_RESOURCES, "spec.memory"),
    host_pool_names.DISK: "spec.disk",
    host_pool_names.DISK_IO: "spec.diskIO",
    host_pool_names.NETWORK: "spec.nics",
}
"""The field of a machine that asks for each resource."""


def _numa_of(device: Mapping[str, Any]) -> int | None:
    return next((one.get("intValue") for one in device.get("attributes", ()) if one.get("name") == "numa"), None)


def _device_room(device: Mapping[str, Any], taken: Callable[[str, str], int]) -> Room:
    """``taken``: by the device's name and the resource's."""
    room: Room = {}
    for each in device.get("resources", ()):
        nano = parse_nano(each.get("capacity"))
        room[each["name"]] = (nano, max(0, nano - taken(device["name"], each["name"])))
    return room


def _sum_of_rooms(rooms: Iterable[Room]) -> Room:
    total: Room = {}
    for room in rooms:
        for resource, (nano, free) in room.items():
            before = total.get(resource, (0, 0))
            total[resource] = (before[0] + nano, before[1] + free)
    return total


def _shortages(rooms: Mapping[str, NodeRoom], target: MachineRequest, code: str) -> list[Fact] | None:
    """Of what each node has too little, a row for each; None if one has enough of everything."""
    rows: list[Fact] = []
    for node, room in rooms.items():
        if not room.whole:
            rows.append({"node": node, "lacks": []})
        elif short := _lacking(room.whole, target.amounts, code, not isinstance(target, MachineGrowth)):
            rows.append({"node": node, "lacks": short})
        elif (row := _numa_row(node, room, target, code)) is not None:
            rows.append(row)
        else:
            return None
    return rows


def _numa_row(node: str, room: NodeRoom, target: MachineRequest, code: str) -> Fact | None:
    """The first NUMA node that a machine must be on and that a node lacks, or that has too little; None if all do."""
    for number, amounts in target.by_numa.items():
        if (part := room.by_numa.get(number)) is None:
            return {"node": node, "numa": number, "lacks": []}
        if short := _lacking(part, amounts, code, not isinstance(target, MachineGrowth)):
            return {"node": node, "numa": number, "lacks": short}
    return None


def _numa_field(machine: Object) -> str:
    """The field by which a machine must be on NUMA nodes of certain numbers."""
    view = MachineView(machine)
    if (view.spec.get("start") or {}).get("numaNode") is not None:
        return "spec.start.numaNode"
    return _POLICY if view.spec.get("numaPolicy") == machines.SINGLE_NUMA else _BOUND_NUMA


def _why_unschedulable(pool: Mapping[str, Any]) -> tuple[cordon.UnschedulableReason, ...]:
    """Why the node of a host pool gets nothing new; empty if it does."""
    whys = {
        unavailability({name: one.get("stringValue", "") for name, one in effective_attributes(pool, device).items()})
        or ""
        for device in pool["spec"].get("devices", ())
    }
    reasons = [cordon.unschedulable_reasons(why) for why in sorted(whys)]
    return reasons[0] if reasons and all(reasons) else ()


def _is_unschedulable_node(blocker: Mapping[str, Any]) -> bool:
    return cordon.is_cordon_or_unschedulable(blocker) and "device" not in blocker


def _numa_shortages(rooms: Mapping[str, NodeRoom], wanted: Mapping[str, Quantity], code: str) -> list[Fact] | None:
    """The same for the NUMA node of each node that lacks the fewest resources; None if one has enough of everything."""
    rows: list[Fact] = []
    for node, room in rooms.items():
        short = {numa: _lacking(part, wanted, code, is_whole=True) for numa, part in room.by_numa.items()}
        if not all(short.values()):
            return None
        part = room.by_numa
        best = min(
            short,
            key=lambda numa: (len(short[numa]), -sum(free for _, free in part[numa].values()), numa),
            default=None,
        )
        if best is not None:
            rows.append({"node": node, "numa": best, "lacks": short[best]})
    return rows or None


def _lacking(room: Room, wanted: Mapping[str, Quantity], code: str, is_whole: bool) -> list[Fact]:
    short = []
    for resource, amount in wanted.items():
        total, free = room.get(resource, (0, 0))
        has = total if code == Reason.NODES_TOO_SMALL else free
        if has < amount.nano:
            short.append(_row(resource, total, None if code == Reason.NODES_TOO_SMALL else free, amount.nano, is_whole))
    return short


def _row(resource: str, total: int, free: int | None, wanted: int, is_whole: bool) -> Fact:
    word, per, form = _RESOURCE_NAMES[resource]
    amounts = [Quantity.capped(nano, form) for nano in ((total, wanted) if free is None else (total, wanted, free))]
    texts = map(count_text, amounts) if resource == host_pool_names.CPU else readable_texts(*amounts)
    has, requested, *unused = (f"{each}{per}" for each in texts)
    row: dict[str, Any] = {"resource": word, "has": has, "wanted": requested}
    return row | ({"free": unused[0]} if unused else {}) | ({} if is_whole else {"grows": True})


def of_machine(placing: SchedulingInput, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer to a claim, with the fields of machines for those of the solver's input: the policy of a machine that
    is to be on one NUMA node is an annotation there. Its ``message`` is left out."""
    key = (answer["namespace"], answer["name"])
    if not answer["message"]:
        return answer
    finding, owner = finding_of(answer), placing.owners.get(key)
    machine = None if owner is None else placing.objects.get(owner)
    is_policy = key in placing.agreeing  # else its user wrote that, too
    name = "" if machine is None else "/".join(MachineView(machine).key)
    policy = {"path": _POLICY, "machine": name}
    causes = [
        {**one, "see": f"{_POLICY} of machine {name}"}
        if is_policy and (one["code"], one.get("attribute")) == (Cause.HELD_DIFFER, "numa")
        else one
        for one in finding.causes
    ]
    blockers = [
        {**one, **policy}
        if is_policy and (one.get("path"), one.get("attribute")) == (_MATCH_PATH, "numa")
        else _of_its_machine(one)
        for one in finding.blockers
    ]
    more = {"causes": causes, "blockers": blockers}
    return {**answer, **{name: value for name, value in more.items() if value or name in answer}}


def _of_its_machine(blocker: Mapping[str, Any]) -> dict[str, Any]:
    """A blocker of a claim; one that is of a machine's spec, with the field of that."""
    if "machine" not in blocker:
        return dict(blocker)
    return {**blocker, "path": _FIELDS.get(str(blocker.get("resource")), "spec")}


def withheld_answers(placing: SchedulingInput) -> list[dict[str, Any]]:
    """The answers of claims that wait with a machine and are not asked for."""
    return [
        answer_entry(claim, why=_why_withheld(claim, placing))
        | (
            {"machine": "/".join(owner)}
            if claim not in placing.arriving and (owner := placing.owners.get(claim))
            else {}
        )
        for claim in sorted(placing.kept_back)
    ]


def _why_withheld(claim: ClaimKey, placing: SchedulingInput) -> tuple[str, str]:
    """Why a claim is not asked for: its machine moves, is stopped or waits."""
    if (devices := placing.arriving.get(claim)) is not None:
        why = f"its machine has moved to node {devices.node}; it gets the devices that wait for it there"
        return Reason.CLAIM_MOVING.value, why
    owner = placing.owners.get(claim)
    machine = "/".join(owner or ())
    if owner is None:
        why = "it is in a group with a claim that waits with its machine"
    elif owner in placing.standing.resting:
        why = f"it is placed with machine {machine}, which left its node and is stopped, when that is to run"
    elif owner in placing.moving:
        why = f"its machine {machine} is moving to node {placing.moving[owner]}; it is placed when that is done"
    else:
        _, waits_for = placing.waiting.get(owner, ("", "a claim of it waits with another machine"))
        why = f"it is placed with machine {machine}, which waits: {waits_for}"
    return Reason.GROUP_UNSATISFIABLE.value, why


def answer_entry(
    key: tuple[str, str],
    node: str | None = None,
    entries: Sequence[Any] = (),
    why: tuple[str, Finding | str] | None = None,
) -> dict[str, Any]:
    """An answer of the form of those to claims. ``why``: reason and finding, or sentence, if it is a refusal."""
    reason, finding = why or (None, None)
    if isinstance(finding, str):
        finding = Finding([text_fact(finding)])
    row = find_reason(reason)
    verdict = {"verdict": row.verdict} if row is not None and row.verdict else {}
    data = {} if finding is None else verdict | as_json(finding)
    return {
        "namespace": key[0],
        "name": key[1],
        "allocated": node is not None or bool(entries),
        "node": node,
        "allocations": [*entries],
        "oneOf": None,
        "reason": reason,
        "message": None,
        **data,
    }

"""From the solver's answer to what is written on machines, in one with what is written on their claims; and whether
a plugin serves the node that a machine is for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from devalloc.api import meta
from devalloc.api.conditions import PLACED, READY, STALLED, with_condition, with_stall, without_conditions
from devalloc.api.cordon import is_node, pool_node
from devalloc.api.findings import Cause, Finding, fact, message_of
from devalloc.api.machine_reservation import FITS
from devalloc.api.reasons import STILL_SEARCHING, Reason, is_transient_reason
from devalloc.api.serving import is_of_unserved
from devalloc.api.views import NOT_TO_RUN, STOPPED_ON_REQUEST, ClaimKey, MachineView
from devalloc.controller.reconcile.decision import WriteUnit
from devalloc.controller.reconcile.release import release_change
from devalloc.machines.schedule import machines
from devalloc.machines.schedule.messages import MachineMessages
from devalloc.machines.schedule.solver_input import SchedulingInput
from devalloc.store import Change, Key, Object

SERVED = "Served"
"""Condition of a machine: False while no plugin on its node runs machines. It is not there otherwise."""
_NOT_STARTED = "NotStarted"
_LABEL = "devalloc.io/publish"
_PLUGIN_STARTS = {"pools": "check its pod of devalloc-node", "host": "start devalloc-node.service there"}
"""How to start the plugin of a node, by values of the label with which it has one that runs machines."""
_ADVICE = "label it devalloc.io/publish=host, and run the plugin as a service of that host"
_HELD_ADVICE = (
    "; its status dates from when the node was served. To remove it: serve the node again, or, only if nothing of "
    "it runs there any more, remove its finalizer devalloc.io/node"
)
_RESERVATION_FIELDS = ("allocations", "numaNode")
_OF_ITS_NODE = ("nodeName", "conditions", "movedClaims")


def decide_machines(
    placing: SchedulingInput,
    answer: Mapping[str, Any],
    units: Iterable[WriteUnit],
    now: str,
    say: Callable[[str, Finding], str] = lambda namespace, finding: message_of(finding),
) -> list[WriteUnit]:
    """``units`` of the claims, and what is to be written on machines; a machine and its claims are one unit.

    Of a group with a machine in it all is written or nothing. ``now``: RFC 3339. ``say``: the sentence of a finding in
    a namespace.
    """
    answers: dict[ClaimKey, Mapping[str, Any]] = {(one["namespace"], one["name"]): one for one in answer["claims"]}
    by_claim = {(key.namespace or "default", key.name): unit for unit in units for key in unit.keys if unit.granted}
    leaving = {Key.of(claim) for claims in placing.standing.evicted.values() for claim in claims}
    left = {id(unit): unit for unit in units if not unit.keys & leaving}
    done: list[WriteUnit] = []
    joint: dict[tuple[str, str], list[Change]] = {}
    messages = MachineMessages(placing, answer["claims"])
    for key, wish in placing.wishes.items():
        part_answers = [answers[part] for part in wish.parts]
        if all(one["allocated"] for one in part_answers):
            change = _place_change(wish.machine, part_answers, placing.pools, now)
            if wish.group is None:
                done.append(WriteUnit((change,), granted=True))
            else:
                joint.setdefault(wish.group, []).append(change)
        elif not any(one.get(STILL_SEARCHING) for one in part_answers):
            refused = next(one for one in part_answers if not one["allocated"])
            reason, finding, _ = messages.why(key, refused)
            done += condition_units(wish.machine, reason, say(key[0], finding), now)
    for group, claims in placing.members.items():
        own_units = {claim: by_claim.get(claim) for claim in claims if answers[claim]["allocated"]}
        members = {id(unit): unit for unit in own_units.values() if unit is not None}
        for number in members:
            left.pop(number, None)
        if None not in own_units.values():  # else something keeps one of them from being given its devices
            joint.setdefault(group, []).extend(change for unit in members.values() for change in unit.changes)
        else:
            joint.pop(group, None)
    done += [WriteUnit(tuple(changes), granted=True) for changes in joint.values() if changes]
    for key, (reason, message) in placing.waiting.items():
        done += condition_units(placing.objects[key], reason, message, now)
    for key, entries in placing.standing.running.items():
        done.append(WriteUnit((_adopt_change(placing.objects[key], entries, placing.pools, now),), granted=False))
    for key, growth in placing.growing.items():
        one = answers[growth.parts[0]]
        if one["allocated"]:
            entries = growth.grown_entries(one["allocations"])
            change = _adopt_change(growth.machine, entries, placing.pools, now)
            done.append(WriteUnit((change,), granted=False, grows=True))
        elif not one.get(STILL_SEARCHING):
            reason, finding, _ = messages.why(key, one)
            finding = replace(finding, causes=[*finding.causes, fact(Cause.RESERVATION_STAYS)])
            done += condition_units(growth.machine, reason, say(key[0], finding), now, FITS)
    for key, entries in placing.fitted.items():
        change = _adopt_change(placing.objects[key], entries, placing.pools, now)
        done.append(WriteUnit((change,), granted=False, released=True))
    for key in placing.standing.freed:
        changes = (_free_change(placing.objects[key]), *map(release_change, placing.standing.evicted.get(key, ())))
        done.append(WriteUnit(changes, granted=False, released=True))
    return [*left.values(), *done]


def node_service_units(documents: Collection[Object], taken: Collection[Key], now: str) -> list[WriteUnit]:
    """The writes on machines whose nodes have no plugin, or have one again. ``taken``: objects that are written
    otherwise. Nothing if no Node is read: without a cluster there are none."""
    nodes = {doc["metadata"]["name"]: doc for doc in documents if is_node(doc)}
    if not nodes:
        return []
    publishing = {pool_node(doc) for doc in documents if doc.get("kind") == "DevicePool"}
    units: list[WriteUnit] = []
    for machine in machines.virtual_machines_in(documents):
        if Key.of(machine) in taken:
            continue
        named = MachineView(machine).running_node
        view = MachineView(machine)
        holder, before = view.holder, view.condition(SERVED)
        asks = holder is None and view.spec.get("running") is not False and not view.is_deleting
        why = _not_served_reason(named, nodes, publishing, asks=asks) if named else None
        if why is not None:
            reason, message = why
            speaks = holder is None and view.condition(PLACED).get("status") != "False"
            units += condition_units(
                machine, reason, message + (_HELD_ADVICE if holder else ""), now, SERVED, speaks=speaks
            )
        elif before:
            units.append(WriteUnit((_served_again_change(machine, now),), granted=False))
    return units


def stopped_units(documents: Iterable[Object], taken: Collection[Key], now: str) -> list[WriteUnit]:
    """The writes on machines that are not to run, and of which nothing is written yet, or why they waited: on a cluster
    they would look as if they still did, as the API server's default says. ``taken``: as of ``node_service_units``."""
    stopped = "False", STOPPED_ON_REQUEST, NOT_TO_RUN
    units = []
    for machine in machines.virtual_machines_in(documents):
        view = MachineView(machine)
        rests = view.spec.get("running") is False and view.holder is None and not view.is_deleting
        placed = view.condition(PLACED)
        waited = placed.get("status") == "False" and placed.get("reason") != STOPPED_ON_REQUEST
        if (view.status and not waited) or not rests or Key.of(machine) in taken:
            continue
        others = without_conditions(view.status.get("conditions"), [READY, STALLED])
        conditions = with_condition(others, PLACED, stopped, now, view.metadata.get("generation"))
        status = {name: part for name, part in view.status.items() if name not in ("phase", "reason", "message")}
        units.append(WriteUnit((Change.of(machine, {**status, "conditions": conditions}),), granted=False))
    return units


def _not_served_reason(
    name: str, nodes: Mapping[str, Any], publishing: Collection[str | None], *, asks: bool
) -> tuple[str, str] | None:
    """Say why no plugin of a node runs a machine; None if one does.

    ``asks``: the machine waits for a plugin to take it. A plugin that publishes nothing shows that it runs only by
    taking machines.
    """
    if name not in nodes:
        return Reason.NODE_NOT_FOUND.value, f"there is no Node {name} in this cluster"
    label = (nodes[name]["metadata"].get("labels") or {}).get(_LABEL)
    if start := _PLUGIN_STARTS.get(str(label)):
        if name in publishing or not asks:
            return None
        problem = f"no node plugin serves node {name}, which publishes no DevicePools: {start}"
        return Reason.NODE_NOT_SERVED.value, problem
    if label == "none" or name not in publishing:
        problem = f"is labelled {_LABEL}={label}" if label else "publishes no DevicePools"
        return (
            Reason.NODE_NOT_SERVED.value,
            f"node {name} {problem}, so no plugin there runs machines; to run one: {_ADVICE}",
        )
    return None


def _place_change(
    machine: Object, part_answers: Sequence[Mapping[str, Any]], pools: Mapping[str, Object], now: str
) -> Change:
    entries = [entry for one in part_answers for entry in one["allocations"]]
    node = next(one["node"] for one in part_answers)
    change = _reserve_change(machine, node, entries, pools, now)
    before = MachineView(machine).annotation
    notes: dict[str, str | None] = {meta.EVICT: None} if before(meta.EVICT) is not None else {}
    if before(meta.LAST_NODE) not in (None, node):  # its disks are reached from there as well
        notes[meta.LAST_NODE] = node
    return replace(change, annotations=notes)


def _adopt_change(machine: Object, entries: Sequence[Any], pools: Mapping[str, Object], now: str) -> Change:
    return _reserve_change(machine, MachineView(machine).running_node, entries, pools, now)


def _reserve_change(
    machine: Object, node: str, entries: Sequence[Any], pools: Mapping[str, Object], now: str
) -> Change:
    """``entries`` of a node are kept for the machine."""
    status = {name: value for name, value in MachineView(machine).status.items() if name not in _RESERVATION_FIELDS}
    status |= {"phase": status.get("phase", "Pending"), "nodeName": node, "allocations": [*entries]}
    if MachineView(machine).spec.get("numaPolicy") == machines.SINGLE_NUMA:
        compute = [entry for entry in entries if entry.get("allocations")]
        status |= {} if (numa := machines.single_numa(compute, pools)) is None else {"numaNode": numa}
    if MachineView(machine).holder is None:  # no one else wrote anything: the controller takes it back
        status = {name: value for name, value in status.items() if name not in ("reason", "message")}
    status["conditions"] = _with_condition(machine, PLACED, ("True", "Placed", f"on node {node}"), now)
    return Change.of(machine, status)


def condition_units(
    machine: Object, reason: str, message: str, now: str, condition: str = PLACED, *, speaks: bool = True
) -> list[WriteUnit]:
    """Why it is not placed, or not with more, or not served; nothing if it says so already. ``speaks``: this is the
    reason of the machine as well, unless a node has it, which says how it is."""
    before = MachineView(machine).status
    content = "False", reason, message[:4096]
    status = {**before, "conditions": _with_condition(machine, condition, content, now, speaks=speaks)}
    if speaks and MachineView(machine).holder is None:
        status |= {"phase": "Pending", "reason": reason, "message": message[:4096]}
    return (
        []
        if status == before
        else [WriteUnit((Change.of(machine, status),), granted=False, transient=is_transient_reason(reason))]
    )


def _served_again_change(machine: Object, now: str) -> Change:
    """Its status without the condition that no plugin serves its node, and without this as its reason."""
    view = MachineView(machine)
    before, gone = view.status, view.condition(SERVED)
    left = without_conditions(before["conditions"], [SERVED])
    if is_of_unserved(view.condition(READY)):  # which its plugin takes back when it runs
        return Change.of(machine, {**before, "conditions": left})
    if view.condition(READY).get("reason") == gone.get("reason"):
        waits = "False", _NOT_STARTED, f"on node {MachineView(machine).running_node}, which has not started it yet"
        left = with_condition(left, READY, waits, now, view.metadata.get("generation"))
    status = {key: value for key, value in before.items() if key != "conditions"} | (
        {"conditions": left} if left else {}
    )
    if status.get("reason") == gone.get("reason"):
        status = {key: value for key, value in status.items() if key not in ("reason", "message")}
    return Change.of(machine, status)


def _free_change(machine: Object) -> Change:
    status = {name: value for name, value in MachineView(machine).status.items() if name not in _RESERVATION_FIELDS}
    change = Change.of(machine, {name: value for name, value in status.items() if name not in _OF_ITS_NODE})
    return replace(change, annotations={meta.EVICT: None}) if machines.is_leaving(machine) else change


def _with_condition(
    machine: Object, name: str, content: tuple[str, str, str], now: str, *, speaks: bool = True
) -> list[Any]:
    """Its conditions with this one. A machine that is placed fits, unless this condition says otherwise.

    Until a node has it, it is not ready for the same reason; after that the node says whether it is. ``speaks``: as of
    ``condition_units``."""
    view = MachineView(machine)
    generation = view.metadata.get("generation")
    conditions: object = view.status.get("conditions")
    if name == PLACED:
        conditions = without_conditions(conditions, [FITS])
        is_invalid = content[:2] == ("False", Reason.MACHINE_INVALID.value)
        conditions = with_stall(conditions, content[1:] if is_invalid else None, now, generation)
    conditions = with_condition(conditions, name, content, now, generation)
    if view.holder is not None or not speaks:
        return conditions
    not_started = "False", _NOT_STARTED, f"{content[2]}, which has not started it yet"
    not_ready = not_started if content[0] == "True" else content
    return with_condition(conditions, READY, not_ready, now, generation)

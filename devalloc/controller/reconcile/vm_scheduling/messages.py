"""Messages why a machine does not fit, in terms of hosts: the solver's messages are about devices. Pure.

Only where every node that it may be on is short of something in all: else the solver's words say more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc.api import host_pool_names, meta
from devalloc.api.decode import decode
from devalloc.api.machine_reservation import missing_amounts, parse_nano, required_amounts
from devalloc.api.quantity import Format, Quantity
from devalloc.api.reasons import Reason
from devalloc.api.views import ClaimKey, ClaimView, ObjectView
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.controller.reconcile.vm_scheduling import machines
from devalloc.controller.reconcile.vm_scheduling.solver_input import SchedulingInput

_CODES = {
    Reason.DEVICES_IN_USE: Reason.NO_ROOM,
    Reason.INSUFFICIENT_CAPACITY: Reason.NODES_TOO_SMALL,
    Reason.NOT_ENOUGH_DEVICES: Reason.NODES_TOO_SMALL,
}
"""What the solver's reasons mean for a machine."""
_REPLACED_REASONS = {*_CODES, Reason.LOST_TO_HIGHER_PRIORITY, Reason.LOST_TO_COMPETITION, Reason.NODE_UNAVAILABLE}
"""Reasons that are about what there is of devices, and not about what was asked for."""
_RESOURCE_NAMES = {
    host_pool_names.CPU: ("CPU", "", Format.DECIMAL_SI),
    host_pool_names.MEMORY: ("memory", "", Format.BINARY_SI),
    **{name: (f"huge pages of {size}", "", Format.BINARY_SI) for size, name in host_pool_names.HUGE_PAGES.items()},
    host_pool_names.NETWORK: ("bandwidth", "/s", Format.BINARY_SI),
    host_pool_names.DISK: ("disk", "", Format.BINARY_SI),
    host_pool_names.DISK_IO: ("disk bandwidth", "/s", Format.BINARY_SI),
}
_MAX_NODES = 3
"""Nodes that a message names, and machines that block it."""
NodeRoom = dict[str, tuple[int, int]]
"""Nano units that there are of each resource, and that are free."""


class MachineMessages:
    """Of one answer of the solver."""

    def __init__(self, placing: SchedulingInput, claims: Iterable[Mapping[str, Any]]) -> None:
        """``claims``: the answer's."""
        self._placing = placing
        self._claims = claims
        self._rooms: dict[str, NodeRoom] | None = None
        self._pins: dict[ClaimKey, str] = {}
        self._shortages: dict[tuple[object, ...], str | None] = {}
        """For machines that want the same, which are many at a time."""

    def why(self, key: machines.MachineKey, answer: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
        """Code, sentence and what else there is to tell. ``answer``: what the solver says of the claim that stands for
        the machine."""
        code, text, details = self._why(key, answer)
        request = self._placing.wishes.get(key)
        return code, f"{request.tie}: {text}" if request is not None and request.tie else text, details

    def _why(self, key: machines.MachineKey, answer: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
        code = str(_CODES.get(answer["reason"], answer["reason"]))
        short = self._short(key, code) if answer["reason"] in _REPLACED_REASONS else None
        details = {name: value for name, value in answer.items() if name in ("warnings", "funnel", "blockers")}
        if short is None:
            return answer["reason"], with_machine_names(answer["message"], self._placing), details
        details.pop("funnel", None)
        blockers = [self._blocker(blocker) for blocker in answer.get("blockers", ())]
        if "blockers" in details:
            details["blockers"] = blockers
        text = f"{'no node is large enough' if code == Reason.NODES_TOO_SMALL else 'there is no room for it'}: {short}"
        freeing = [f"{one['kind']} {one['namespace']}/{one['name']}" for one in blockers if one["kind"] in _HOLDERS]
        own = f"machine {'/'.join(key)}"  # what is kept for it already is no help
        if freeing and len(freeing) == len(blockers) and own not in freeing:
            more = f" and {len(freeing) - _MAX_NODES} more" if len(freeing) > _MAX_NODES else ""
            text += f"; without {', '.join(freeing[:_MAX_NODES])}{more} there would be room"
        return code, text, details

    def _short(self, key: machines.MachineKey, code: str) -> str | None:
        """Of what there is too little on each node that it may be on; None where one has enough of everything."""
        growth, wish = self._placing.growing.get(key), self._placing.wishes.get(key)
        if growth is not None:
            part, wanted = growth.part, missing_amounts(growth.spec, growth.entries)
        elif wish is not None and isinstance(machine := decode(wish.machine).object, VirtualMachine):
            part, wanted = wish.parts[0], required_amounts(machine.spec)
        else:
            return None
        rooms = self._found_rooms()
        pin = self._pins.get(part)
        cache_key = (code, pin, growth is None, *((name, amount.nano) for name, amount in wanted.items()))
        if cache_key not in self._shortages:
            nodes = sorted(rooms) if pin is None else [pin]
            self._shortages[cache_key] = _shortage(
                {node: rooms.get(node, {}) for node in nodes}, wanted, code, growth is None
            )
        return self._shortages[cache_key]

    def _found_rooms(self) -> dict[str, NodeRoom]:
        if self._rooms is None:
            taken: dict[tuple[str, str], int] = defaultdict(int)
            for entries in self._given().values():
                ours = [entry for entry in entries if entry.get("devicePoolName") in self._placing.pools]
                for (where, _, resource), nano in machines.sum_entries(ours).items():
                    taken[where, resource] += nano
            self._rooms = {}
            for name, pool in self._placing.pools.items():
                total: dict[str, int] = defaultdict(int)
                for device in pool["spec"].get("devices", ()):
                    for each in device.get("resources", ()):
                        total[each["name"]] += parse_nano(each.get("capacity"))
                room = {what: (nano, max(0, nano - taken[name, what])) for what, nano in total.items()}
                self._rooms[str(host_pool_names.node_of_host_pool(pool))] = room
        return self._rooms

    def _given(self) -> dict[ClaimKey, Sequence[Any]]:
        """What each claim holds that holds any, or is given now; and whose node is settled, on the way."""
        holdings: dict[ClaimKey, Sequence[Any]] = {}
        for doc in self._placing.documents:
            if doc.get("kind") == "DeviceClaim":
                key = ClaimView(doc).key
                if (node := ObjectView(doc).annotation(meta.NODE)) is not None:
                    self._pins[key] = node
                holdings[key] = ClaimView(doc).entries
        return holdings | {
            (one["namespace"], one["name"]): one["allocations"] for one in self._claims if one["allocated"]
        }

    def _blocker(self, blocker: Mapping[str, Any]) -> dict[str, Any]:
        """A machine is called by its own name, and an amount by the machine's own field."""
        if blocker["kind"] == "amount" and blocker.get("resource") in _FIELDS:
            return {**blocker, "path": _FIELDS[blocker["resource"]]}
        machine = self._placing.names.get((blocker.get("namespace", ""), blocker.get("name", "")))
        if blocker["kind"] != "claim" or machine is None:
            return dict(blocker)
        return {**blocker, "kind": "machine", "namespace": machine[0], "name": machine[1]}


_HOLDERS = ("claim", "machine")
_FIELDS = {
    host_pool_names.CPU: "spec.cpu",
    **dict.fromkeys(host_pool_names.MEMORY_RESOURCES, "spec.memory"),
    host_pool_names.DISK: "spec.disk",
}


def _shortage(rooms: Mapping[str, NodeRoom], wanted: Mapping[str, Quantity], code: str, is_whole: bool) -> str | None:
    lines = []
    for node, room in rooms.items():
        short = []
        for resource, amount in wanted.items():
            total, free = room.get(resource, (0, 0))
            if (total if code == Reason.NODES_TOO_SMALL else free) < amount.nano:
                short.append(
                    _text(resource, total, None if code == Reason.NODES_TOO_SMALL else free, amount.nano, is_whole)
                )
        if not short:
            return None
        lines.append(f"node {node}: {' and '.join(short)}")
    left = len(lines) - _MAX_NODES
    return "; ".join([*lines[:_MAX_NODES], *([f"and {left} more nodes"] if left > 0 else [])]) or None


def _text(resource: str, total: int, free: int | None, wanted: int, is_whole: bool) -> str:
    word, per, form = _RESOURCE_NAMES[resource]
    has, requested = (f"{Quantity(nano, form)}{per}" for nano in (total, wanted))
    text = f"{has} {word}" if free is None else f"{Quantity(free, form)}{per} of {has} {word} free"
    return f"{text}, {requested}{'' if is_whole else ' more'} wanted"


def with_machine_names(message: str, placing: SchedulingInput) -> str:
    """With machines called what they are called, and not by the claims that stand for them in the solver's input."""
    for (namespace, name), key in placing.names.items():
        if name in message:
            message = message.replace(f"{namespace}/{name}", f"machine {'/'.join(key)}")
    return message

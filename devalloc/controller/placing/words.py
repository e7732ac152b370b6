"""Why a machine finds no room, in the words of hosts: the solver's are those of devices. Pure.

Only where every node that it may be on is short of something in all: else the solver's words say more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc.api import hostpool, meta
from devalloc.api.decode import decode
from devalloc.api.quantity import Format, Quantity
from devalloc.api.reservation import lacking, nano_of, wants
from devalloc.api.virtualmachine import VirtualMachine
from devalloc.controller.claims import ClaimKey, allocations, annotation, claim_key
from devalloc.controller.placing import machines
from devalloc.controller.placing.documents import Placing

NO_ROOM, TOO_SMALL = "NoRoom", "NodesTooSmall"
_CODES = {"DevicesInUse": NO_ROOM, "InsufficientCapacity": TOO_SMALL, "NotEnoughDevices": TOO_SMALL}
_OURS = {*_CODES, "LostToHigherPriority", "LostToCompetition", "NodeUnavailable"}
"""Reasons that are about what there is of devices, and not about what was asked for."""
_WORDS = {
    hostpool.CPU: ("CPU", "", Format.DECIMAL_SI),
    hostpool.MEMORY: ("memory", "", Format.BINARY_SI),
    hostpool.NETWORK: ("bandwidth", "/s", Format.BINARY_SI),
    hostpool.DISK: ("disk", "", Format.BINARY_SI),
    hostpool.DISK_IO: ("disk bandwidth", "/s", Format.BINARY_SI),
}
_SHOWN = 3
"""Nodes that are told of, and machines in the way."""
Room = dict[str, tuple[int, int]]
"""Nano units that there are of each resource, and that are free."""


class Words:
    """Of one answer of the solver."""

    def __init__(self, placing: Placing, claims: Iterable[Mapping[str, Any]]) -> None:
        """``claims``: the answer's."""
        self._placing = placing
        self._claims = claims
        self._rooms: dict[str, Room] | None = None
        self._pins: dict[ClaimKey, str] = {}
        self._said: dict[tuple[object, ...], str | None] = {}
        """For machines that want the same, which are many at a time."""

    def why(self, key: machines.MachineKey, told: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
        """Code, sentence and what else there is to tell. ``told``: what the solver says of the claim that stands for
        the machine."""
        code = _CODES.get(told["reason"], told["reason"])
        short = self._short(key, code) if told["reason"] in _OURS else None
        details = {name: value for name, value in told.items() if name in ("warnings", "funnel", "blockers")}
        if short is None:
            return told["reason"], named(told["message"], self._placing), details
        details.pop("funnel", None)
        blockers = [self._blocker(blocker) for blocker in told.get("blockers", ())]
        if "blockers" in details:
            details["blockers"] = blockers
        text = f"{'it is larger than what there is' if code == TOO_SMALL else 'there is no room for it'}: {short}"
        freeing = [f"{one['kind']} {one['namespace']}/{one['name']}" for one in blockers if one["kind"] in _HOLDERS]
        own = f"machine {'/'.join(key)}"  # what is kept for it already is no help
        if freeing and len(freeing) == len(blockers) and own not in freeing:
            more = f" and {len(freeing) - _SHOWN} more" if len(freeing) > _SHOWN else ""
            text += f"; without {', '.join(freeing[:_SHOWN])}{more} there would be room"
        return code, text, details

    def _short(self, key: machines.MachineKey, code: str) -> str | None:
        """Of what there is too little on each node that it may be on; None where one has enough of everything."""
        growth, wish = self._placing.growing.get(key), self._placing.wishes.get(key)
        if growth is not None:
            part, wanted = growth.part, lacking(growth.spec, growth.entries)
        elif wish is not None and isinstance(machine := decode(wish.machine).object, VirtualMachine):
            part, wanted = wish.parts[0], wants(machine.spec)
        else:
            return None
        rooms = self._found_rooms()
        pin = self._pins.get(part)
        asked = (code, pin, growth is None, *((name, amount.nano) for name, amount in wanted.items()))
        if asked not in self._said:
            nodes = sorted(rooms) if pin is None else [pin]
            self._said[asked] = _shortage({node: rooms.get(node, {}) for node in nodes}, wanted, code, growth is None)
        return self._said[asked]

    def _found_rooms(self) -> dict[str, Room]:
        if self._rooms is None:
            taken: dict[tuple[str, str], int] = defaultdict(int)
            for entries in self._given().values():
                ours = [entry for entry in entries if entry.get("devicePoolName") in self._placing.pools]
                for (where, _, resource), nano in machines.taken_by(ours).items():
                    taken[where, resource] += nano
            self._rooms = {}
            for name, pool in self._placing.pools.items():
                total: dict[str, int] = defaultdict(int)
                for device in pool["spec"].get("devices", ()):
                    for each in device.get("resources", ()):
                        total[each["name"]] += nano_of(each.get("capacity"))
                room = {what: (nano, max(0, nano - taken[name, what])) for what, nano in total.items()}
                self._rooms[str(hostpool.node_of_host_pool(pool))] = room
        return self._rooms

    def _given(self) -> dict[ClaimKey, Sequence[Any]]:
        """What each claim holds that holds any, or is given now; and whose node is settled, on the way."""
        found: dict[ClaimKey, Sequence[Any]] = {}
        for doc in self._placing.documents:
            if doc.get("kind") == "DeviceClaim":
                key = claim_key(doc)
                if (node := annotation(doc, meta.NODE)) is not None:
                    self._pins[key] = node
                found[key] = allocations(doc)
        return found | {(one["namespace"], one["name"]): one["allocations"] for one in self._claims if one["allocated"]}

    def _blocker(self, blocker: Mapping[str, Any]) -> dict[str, Any]:
        """A machine is called by its own name, and an amount by the machine's own field."""
        if blocker["kind"] == "amount" and blocker.get("resource") in _FIELDS:
            return {**blocker, "path": _FIELDS[blocker["resource"]]}
        machine = self._placing.names.get((blocker.get("namespace", ""), blocker.get("name", "")))
        if blocker["kind"] != "claim" or machine is None:
            return dict(blocker)
        return {**blocker, "kind": "machine", "namespace": machine[0], "name": machine[1]}


_HOLDERS = ("claim", "machine")
_FIELDS = {hostpool.CPU: "spec.cpu", hostpool.MEMORY: "spec.memory", hostpool.DISK: "spec.disk"}


def _shortage(rooms: Mapping[str, Room], wanted: Mapping[str, Quantity], code: str, is_whole: bool) -> str | None:
    told = []
    for node, room in rooms.items():
        short = []
        for resource, amount in wanted.items():
            total, free = room.get(resource, (0, 0))
            if (total if code == TOO_SMALL else free) < amount.nano:
                short.append(_text(resource, total, None if code == TOO_SMALL else free, amount.nano, is_whole))
        if not short:
            return None
        told.append(f"node {node}: {' and '.join(short)}")
    left = len(told) - _SHOWN
    return "; ".join([*told[:_SHOWN], *([f"and {left} more nodes"] if left > 0 else [])]) or None


def _text(resource: str, total: int, free: int | None, wanted: int, is_whole: bool) -> str:
    word, per, form = _WORDS[resource]
    has, asked = (f"{Quantity(nano, form)}{per}" for nano in (total, wanted))
    told = f"{has} {word}" if free is None else f"{Quantity(free, form)}{per} of {has} {word} free"
    return f"{told}, {asked}{'' if is_whole else ' more'} wanted"


def named(message: str, placing: Placing) -> str:
    """With machines called what they are called, and not by the claims that stand for them in the solver's input."""
    for (namespace, name), key in placing.names.items():
        if name in message:
            message = message.replace(f"{namespace}/{name}", f"machine {'/'.join(key)}")
    return message

"""Parts of devices, and the claims that do not say that they want one (S6b).

A virtual function, a vGPU or a MIG instance is a part of a card. If the card itself, or another one, is offered whole,
then a claim that says nothing about parts means a whole one: its candidates are without the parts of that driver.

Which devices are offered whole is a fact of the fleet, and candidates are also judged on extracts of it: one device of
each kind, or a few nodes. So it stands here by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from devalloc.api.findings import Rule, RuleCode, rule
from devalloc_solver.cel.device_claims.reads import attributes_read
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot

FUNCTION = "function"
"""The attribute that says whether a device is a part."""
PROFILE = "profile"
"""The attribute that partitions have."""
_WHOLE, _PARTS = frozenset(("whole", "pf")), frozenset(("vf", "mdev"))
_ATTRIBUTES_OF_PARTS = frozenset((FUNCTION, PROFILE, "profileID", "vfIndex", "pfPciBusID", "mdevParent"))
"""A claim whose expressions read one of these says whether it wants a part."""

Driver = str
Node = str | None


def is_part(device: Device) -> bool:
    """Whether a device is a virtual function, a vGPU or another partition."""
    function = device.attributes.get(FUNCTION)
    return function in _PARTS or (function is None and PROFILE in device.attributes)


def _look_at(pool: Pool) -> tuple[Pool, bool, Sequence[Device]]:
    """The pool, whether it has parts, and its devices that are offered whole."""
    has_parts, wholes = False, []
    for device in pool.devices:
        function = device.attributes.get(FUNCTION)
        if function in _WHOLE:
            if device.unavailable is None and device.undefined is None:
                wholes.append(device)
        elif not has_parts and (function is not None or PROFILE in device.attributes):
            has_parts = is_part(device)
    return pool, has_parts, wholes


def says_which(expressions: Iterable[str | None], names: Iterable[str] = ()) -> bool:
    """Whether any of a claim's expressions says that it wants a part, or none; ``names``: attributes of which it wants
    a value."""
    reads = [attributes_read(text) for text in expressions if text and text.strip()]
    reads.append(frozenset(names))
    return any(names is None or not names.isdisjoint(_ATTRIBUTES_OF_PARTS) for names in reads)


def why_left_out(part: Device) -> Rule:
    """The rule by which a part drops out."""
    return rule(RuleCode.PART, say=expression_for(part))


def expression_for(part: Device) -> str:
    """What a claim says that wants such a part."""
    function = part.attributes.get(FUNCTION)
    return f"'{PROFILE}' in device" if function is None else f"device.{FUNCTION} == '{function}'"


@dataclass(slots=True, eq=False)
class WholeDevices:
    """The devices of a fleet that are offered whole, and the drivers that have parts."""

    edition: object = field(default_factory=object)
    """another one whenever an answer of ``is_offered`` may be another one"""
    _wholes: dict[Driver, dict[Node, Sequence[Device]]] = field(default_factory=dict)
    _parts: Counter[Driver] = field(default_factory=Counter)
    """driver -> nodes where it has parts"""
    _parts_on: dict[Node, set[Driver]] = field(default_factory=dict)
    _of_pool: dict[Node, dict[str, tuple[Pool, bool, Sequence[Device]]]] = field(default_factory=dict)
    """by the name of the pool, what ``_look_at`` says of it"""
    _read: set[str] | None = field(default_factory=set)
    """the attributes on which the answers so far depend; None for all"""

    @classmethod
    def of(cls, snapshot: Snapshot) -> WholeDevices:
        """Those of a whole fleet."""
        wholes = cls()
        for node in snapshot.pools_by_node:
            wholes.put(node, snapshot)
        return wholes

    def put(self, node: Node, snapshot: Snapshot) -> bool:
        """These are all the pools of a node (None: the network). Whether ``edition`` changes."""
        parts: set[Driver] = set()
        by_driver: dict[Driver, list[Device]] = {}
        before_of_pool, of_pool = self._of_pool.pop(node, {}), {}
        for pool in snapshot.pools_by_node.get(node, ()):
            seen = before_of_pool.get(pool.name)
            if seen is None or seen[0] is not pool:
                seen = _look_at(pool)
            of_pool[pool.name] = seen
            if seen[1]:
                parts.add(pool.driver)
            if seen[2]:
                by_driver.setdefault(pool.driver, []).extend(seen[2])
        if of_pool:
            self._of_pool[node] = of_pool
        for driver in self._parts_on.pop(node, ()):
            self._parts[driver] -= 1
        for driver in parts:
            self._parts[driver] += 1
        if parts:
            self._parts_on[node] = parts
        before = {driver: nodes.pop(node) for driver, nodes in self._wholes.items() if node in nodes}
        for driver, devices in by_driver.items():
            self._wholes.setdefault(driver, {})[node] = devices
        changed = bool(before or by_driver) and self._seen(before) != self._seen(by_driver)
        if changed:
            self.edition = object()
        return changed

    def _seen(self, by_driver: dict[Driver, Sequence[Device]] | dict[Driver, list[Device]]) -> object:
        """What the answers so far depend on."""
        read = self._read
        names = None if read is None else sorted(read)
        return {
            driver: {
                tuple(sorted((name, repr(value)) for name, value in device.attributes.items()))
                if names is None
                else tuple(map(device.attributes.get, names))
                for device in devices
            }
            for driver, devices in by_driver.items()
        }

    @property
    def drivers_with_parts(self) -> frozenset[Driver]:
        return frozenset(driver for driver, count in self._parts.items() if count > 0)

    def is_offered(
        self, driver: Driver, pin: Node, read: frozenset[str] | None, accepts: Callable[[Device], bool]
    ) -> bool:
        """Whether a device is offered whole that a request accepts, on the node that it is bound to, or anywhere.

        ``read``: the attributes by which the request tells devices apart; None for all.
        """
        if self._read is not None:
            self._read = None if read is None else self._read | read
        names = None if read is None else sorted(read)
        met: set[tuple[object, ...]] = set()
        for device in self._reached(driver, pin):
            if names is not None:
                key = tuple(map(device.attributes.get, names))
                if key in met:
                    continue
                met.add(key)
            if accepts(device):
                return True
        return False

    def _reached(self, driver: Driver, pin: Node) -> Iterator[Device]:
        nodes = self._wholes.get(driver, {})
        for node in nodes if pin is None else dict.fromkeys((pin, None)):
            yield from nodes.get(node, ())

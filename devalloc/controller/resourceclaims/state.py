"""The objects of a cluster that matter for ResourceClaims, as they were told of, and what they are to the solver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc.api.aside import is_aside
from devalloc.controller.resourceclaims import slices
from devalloc.controller.resourceclaims.solver import Name
from devalloc.controller.resourceclaims.suiting import suits, wishes
from devalloc.controller.resourceclaims.waiting import Key, Want, allocation, key_of, pending_document, wants
from devalloc.store import Event, EventType

Object = dict[str, Any]

SELECTED = 1500
"""How many nodes an expression names at most (10 KiB): of more that suit a pod the first are tried."""
RESULTS = ("driver", "pool", "device", "shareID", "consumedCapacity", "adminAccess")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the solver is asked for a want."""

    want: Want
    documents: tuple[Object, ...]
    expression: str | None
    """That keeps its claims to the nodes of its pods, where not all do."""
    misfit: str | None
    """Why there is nothing to ask: no node is left."""


class Cluster:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Name, Object]] = defaultdict(dict)
        self._numbers: dict[str, int] = {}
        """Of nodes, for as long as this process lives."""
        self._prepared: dict[Name, tuple[Object, Object]] = {}
        """Slices as they were told, and as the solver has them, under the rules that hold now."""
        self._rules_changed = False

    def tell(self, events: Iterable[Event]) -> None:
        """What happened, in order."""
        for event in events:
            content = event.object
            metadata = content["metadata"]
            name = content["kind"], metadata.get("namespace", ""), metadata["name"]
            if event.type is EventType.DELETED:
                self._objects[content["kind"]].pop(name, None)
            else:
                self._objects[content["kind"]][name] = content
            self._rules_changed = self._rules_changed or content["kind"] == "DeviceTaintRule"

    def clear(self) -> None:
        """Forget all objects: they are told anew."""
        self._objects.clear()
        self._prepared.clear()

    def claims(self) -> dict[Key, Object]:
        return {key_of(claim): claim for claim in self._objects["ResourceClaim"].values()}

    def wants(self) -> list[Want]:
        return wants(self._objects["Pod"].values(), self.claims())

    def documents(self) -> dict[Name, Object]:
        """All that the solver is to know but claims that wait."""
        if self._rules_changed:
            self._prepared.clear()
            self._rules_changed = False
        found = dict(self._slices())
        found.update(self._objects["DeviceClass"])
        for name, claim in self._objects["ResourceClaim"].items():
            if (held := _holding(claim)) is not None:
                found[name] = held
        return found

    def asked(self, wanted: Iterable[Want], avoided: Mapping[Key, frozenset[str]]) -> list[Asked]:
        """What the solver is asked for each. ``avoided``: nodes that claims are not to have for now."""
        claims = self.claims()
        nodes = {name[2]: content for name, content in self._objects["Node"].items()}
        offering = {content["spec"]["nodeName"] for content in self._ours()}
        there = {name: nodes[name] for name in sorted(offering & nodes.keys())}
        known: dict[str, frozenset[str]] = {}
        """Nodes by what a pod says of them: most pods say the same."""

        def suiting(pod: Object) -> frozenset[str]:
            said = repr(wishes(pod))
            if said not in known:
                known[said] = frozenset(name for name, node in there.items() if suits(pod, node))
            return known[said]

        found = []
        for want in wanted:
            left = frozenset(there).intersection(*(suiting(pod) for pod in want.pods))
            left = left if want.nodes is None else left & want.nodes
            left = left.difference(*(avoided.get(key, frozenset()) for key in want.claims))
            if there and not left:
                found.append(Asked(want, (), None, _misfit(want, len(there))))
                continue
            expression = None
            if left != offering:
                expression = slices.on_nodes(self._number(name) for name in sorted(left)[:SELECTED])
            group = "/".join(want.claims[0]) if len(want.claims) > 1 else None
            priority = max((pod["spec"].get("priority") or 0 for pod in want.pods), default=0)
            told = (pending_document(claims[key], group, expression, priority) for key in want.claims)
            found.append(Asked(want, tuple(told), expression, None))
        return found

    def _ours(self) -> Iterator[Object]:
        return (content for content in self._objects["ResourceSlice"].values() if slices.is_ours(content))

    def _slices(self) -> Iterator[tuple[Name, Object]]:
        rules = sorted(self._objects["DeviceTaintRule"].values(), key=lambda rule: str(rule["metadata"]["name"]))
        kept = {}
        for content in self._ours():
            name = "ResourceSlice", "", content["metadata"]["name"]
            before = self._prepared.get(name)
            if before is None or before[0] is not content:
                before = content, slices.prepared(content, rules, self._number(content["spec"]["nodeName"]))
            kept[name] = before
            yield name, before[1]
        self._prepared = kept

    def _number(self, node: str) -> int:
        return self._numbers.setdefault(node, len(self._numbers))


def _misfit(want: Want, nodes: int) -> str:
    names = ", ".join(pod["metadata"]["name"] for pod in want.pods[:3])
    told = f"none of {nodes} node{'s' if nodes > 1 else ''} with devices that are set aside suits pod {names}: see its "
    told += "node selector, affinity and tolerations, and whether nodes are cordoned or not ready"
    return (
        told if want.nodes is None else f"{told}; its claims are bound to {', '.join(sorted(want.nodes)) or 'several'}"
    )


def _holding(claim: Object) -> Object | None:
    """A claim that holds devices which are set aside, as far as that goes; None for any other."""
    held = allocation(claim)
    results = ((held or {}).get("devices") or {}).get("results") or []
    ours = [{k: v for k, v in each.items() if k in (*RESULTS, "request")} for each in results if is_aside(each["pool"])]
    if not ours:
        return None
    metadata = {key: claim["metadata"][key] for key in ("namespace", "name", "uid")}
    told = {name: claim[name] for name in ("apiVersion", "kind", "spec")}
    return {**told, "metadata": metadata, "status": {"allocation": {"devices": {"results": ours}}}}

"""Random clusters of resource.k8s.io, and what may happen to them one thing after the other; the same for a seed."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

from devalloc.api.findings import Cause, fact
from devalloc.api.meta import NODE, PRIORITY
from devalloc.api.node_rules import FIELD, NodeRestriction, NodeRule, Restrictions
from devalloc.api.reasons import Reason
from tests.support.dra_instances import RARE, THEMES, drawn
from tests.support.dra_random_pools import Manifest

API = "resource.k8s.io/v1"
Name = tuple[str, str, str]
ONLY, BUT = (NodeRule("", is_only, Reason.NODE_UNAVAILABLE, (fact(Cause.NODE_UNSUITED),)) for is_only in (True, False))
"""Rules by which a claim may be on the nodes that it names only, or on all others."""

_THEMES = [theme for theme in (*THEMES, *RARE) if theme not in ("in use", "several claims", "limits", "gates off")]
_SERIALS = ('device.attributes[device.driver].?id.orValue("") == "%s"', 'device.attributes[device.driver].id == "%s"')


class RandomCluster:
    """Documents by name, and the next thing to do with them."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.themes = set(rng.sample(_THEMES, rng.choice([1, 2, 2, 3])))
        self.nodes = [f"n{number}" for number in range(1, rng.choice([3, 4, 5]))]
        self.documents: dict[Name, Manifest] = {}
        self.spare: list[Manifest] = []
        """slices that are not there yet"""
        self._number = 0
        self._specs: list[Manifest] = []
        twin = None
        for node in self.nodes:
            slices, twin = self._slices(node, twin)
            for one in slices:
                if rng.random() < 0.1:
                    self.spare.append(one)
                else:
                    self.put(one)
        for one in drawn(rng, self.themes)["input"]["classes"]:
            self.put(_object("DeviceClass", one))
        for node in self.nodes:
            if rng.random() < 0.8:
                self.put(self._node(node))

    # -- what there is -----------------------------------------------------------------------------------------------

    def put(self, document: Manifest) -> None:
        """Take in a document, in place of the one of its name."""
        self.documents[name_of(document)] = document

    def _node(self, name: str) -> Manifest:
        labels = {"zone": self.rng.choice("aabc"), "rack": self.rng.choice("678")}
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}

    def _slices(self, node: str, twin: list[Manifest] | None) -> tuple[list[Manifest], list[Manifest]]:
        """The slices of a node, often like those of the node before but for names."""
        rng = self.rng
        drawing = twin if twin is not None and rng.random() < 0.5 else drawn(rng, self.themes)["input"]["slices"]
        specs = deepcopy(drawing)
        for one in specs:
            one["metadata"]["name"] += f"-{node}"
            if one["spec"].get("nodeName") == "n1":
                one["spec"]["nodeName"] = node
            if rng.random() < 0.95:
                one["spec"]["pool"]["name"] += f"-{node}"
            for number, device in enumerate(one["spec"].get("devices", ())):
                device["attributes"] = {**device.get("attributes", {}), "id": {"string": f"{node}-{number}"}}
        return [_object("ResourceSlice", one) for one in specs], drawing

    # -- claims ------------------------------------------------------------------------------------------------------

    def claim(self) -> Manifest:
        """A claim that is new; most ask for what others have asked for."""
        rng = self.rng
        self._number += 1
        spec = deepcopy(rng.choice(self._specs)) if self._specs and rng.random() < 0.6 else self._spec()
        annotations = {PRIORITY: str(rng.randrange(3))} if rng.random() < 0.3 else {}
        if rng.random() < 0.1:
            annotations[NODE] = rng.choice([*self.nodes, "nowhere"])
        metadata: Manifest = {"name": f"c{self._number}", "namespace": "default"}
        if annotations:
            metadata["annotations"] = annotations
        claim = _object("ResourceClaim", {"metadata": metadata, "spec": spec})
        return claim | {FIELD: Restrictions(self._restrictions())} if rng.random() < 0.3 else claim

    def _restrictions(self) -> tuple[NodeRestriction, ...]:
        rules = self.rng.choice([(ONLY,), (BUT,), (ONLY, BUT)])
        names = (*self.nodes, "nowhere")
        return tuple(
            NodeRestriction(rule, frozenset(name for name in names if self.rng.random() < 0.5)) for rule in rules
        )

    def _spec(self) -> Manifest:
        """What no claim has asked for yet."""
        rng = self.rng
        spec: Manifest = drawn(rng, self.themes)["input"]["claimsToAllocate"][0]["spec"]
        if rng.random() < 0.25:
            (request, *_) = spec["devices"]["requests"]
            exact = request.get("exactly") or request["firstAvailable"][0]
            text = rng.choice(_SERIALS) % f"{rng.choice(self.nodes)}-{rng.randrange(3)}"
            exact["selectors"] = [{"cel": {"expression": text}}]
        self._specs.append(deepcopy(spec))
        return spec

    def claims(self, *, held: bool) -> list[Name]:
        return [n for n, one in self.documents.items() if n[0] == "ResourceClaim" and is_held(one) is held]

    # -- changes -----------------------------------------------------------------------------------------------------

    def changed_slice(self) -> Manifest | None:
        """A slice as it is after something happened to it."""
        rng = self.rng
        names = [name for name in self.documents if name[0] == "ResourceSlice"]
        if self.spare and (not names or rng.random() < 0.2):
            return self.spare.pop()
        if not names:
            return None
        changed = deepcopy(self.documents[rng.choice(names)])
        spec = changed["spec"]
        devices = spec.get("devices") or [{"name": "d0"}]
        device = rng.choice(devices)
        kind = rng.randrange(9)
        if kind == 0 and len(devices) > 1:
            devices.remove(device)
        elif kind == 1:
            devices.append({**deepcopy(device), "name": "new"})
        elif kind == 2:
            device["taints"] = [{"key": "k", "value": "v", "effect": "NoSchedule"}]
        elif kind == 3:
            device.pop("taints", None)
        elif kind == 4:
            device["attributes"] = {**device.get("attributes", {}), "model": {"string": rng.choice(["big", "odd"])}}
        elif kind == 5:
            spec["pool"]["generation"] += 1
        elif kind == 6 and spec.get("nodeName"):
            spec["nodeName"] = rng.choice([*self.nodes, "n9"])
        elif kind == 7:
            spec["pool"]["resourceSliceCount"] = rng.choice([1, 2])
        elif kind == 8:
            spec["pool"]["name"] = rng.choice(["p0", "p1-n1", "p0-n2"])
        return changed

    def changed_class(self) -> Manifest:
        text = self.rng.choice(['device.driver == "a.io"', 'device.driver == "b.io"', "true", "device.nothing"])
        spec = {"selectors": [{"cel": {"expression": text}}]} if self.rng.random() < 0.8 else {}
        name = self.rng.choice(["any", "a", "ok"])
        return _object("DeviceClass", {"metadata": {"name": name}, "spec": spec})

    def changed_node(self) -> Manifest:
        return self._node(self.rng.choice([*self.nodes, "n8"]))

    def any_name(self) -> Name | None:
        """Of an object that may go."""
        names = [name for name in self.documents if name[0] != "ResourceClaim"]
        return self.rng.choice(names) if names else None


def _object(kind: str, content: Manifest) -> Manifest:
    return {"apiVersion": API, "kind": kind, **content}


def name_of(document: Manifest) -> Name:
    """Kind, namespace, name."""
    metadata: dict[str, Any] = document["metadata"]
    namespace = metadata.get("namespace", "default") if document["kind"] == "ResourceClaim" else ""
    return document["kind"], namespace, metadata["name"]


def is_held(document: Manifest) -> bool:
    return bool(document.get("status", {}).get("allocation"))

"""Random histories of a warm fleet where all kinds of devices and claims meet, and what a cold solve says of each step.

A node has several pools: whole cards with attributes, cards in partitions, devices that many claims share, and one that
stands for the machine, of whose memory machines take a part, together with their other claims. Claims have priorities,
choices, constraints and rules about nodes. Nodes are of a few makes, so that many are alike.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.testing import claim, device, device_class, one_of, pool, request
from tests.support import dra_builders as dra

Manifest = dict[str, Any]
PROFILES = {"whole": 4, "half": 2, "quarter": 1}
"""profile of a partition -> what it draws of the four slices of its card"""


class Step(NamedTuple):
    """What a warm fleet and a cold solve say of the same claims."""

    claims: Sequence[Manifest]
    warm: Manifest
    cold: Manifest

    @property
    def is_same(self) -> bool:
        return _comparable(self.warm) == _comparable(self.cold)


def _comparable(answer: Manifest) -> Manifest:
    """All but the time that it took, bounds, which tell how it was proven, and the order of problems."""
    levels = [(level["goal"], level.get("priority"), level["value"]) for level in answer["objective"]["levels"]]
    return {**answer, "seconds": 0, "objective": levels, "problems": sorted(map(str, answer["problems"]))}


def marks_of(rng: Random, nodes: Sequence[str]) -> dict[str, str]:
    """Priority and rules about nodes, as annotations without their prefix."""
    marks: dict[str, str] = {}
    if rng.random() < 0.4:
        marks["priority"] = str(rng.randrange(3))
    if rng.random() < 0.15:
        marks["node"] = rng.choice([*nodes, "nowhere"])
    elif rng.random() < 0.2:
        marks["excluded-nodes"] = ",".join(rng.sample(nodes, rng.randrange(1, len(nodes))))
    return marks


# -- DeviceClaims ------------------------------------------------------------------------------------------------------


class DeviceClaimDialect:
    """Pools, classes and claims of devalloc."""

    kind = "DeviceClaim"

    def classes(self) -> list[Manifest]:
        return [
            *(device_class(kind, driver=kind) for kind in ("card", "part", "share", "host")),
            device_class("watch", driver="card", adminAccess=True),
        ]

    def pools(self, rng: Random, node: str) -> list[Manifest]:
        cards = [
            device(f"c{n}", attributes={"numa": n % 2, "model": rng.choice("ab"), "slot": rng.randrange(3)})
            for n in range(rng.choice([2, 3, 4]))
        ]
        parts = [
            device(f"{profile}-{n}", attributes={"profile": profile}, requests={"slices": draws})
            for profile, draws in PROFILES.items()
            for n in range(4 // draws)
        ]
        shares = [
            device(f"s{n}", attributes={"numa": n}, resources={"memory": rng.choice(["8Gi/1Gi", "6Gi/2Gi", "8Gi"])})
            for n in range(2)
        ]
        made = [pool(f"{node}-host", node, "host", devices=[device("host", resources={"memory": "16Gi/1Gi"})])]
        made += [pool(f"{node}-cards{k}", node, "card", devices=cards) for k in range(rng.choice([1, 1, 2]))]
        if rng.random() < 0.7:
            made.append(pool(f"{node}-parts", node, "part", resources={"slices": "4/1"}, devices=parts))
        if rng.random() < 0.7:
            made.append(pool(f"{node}-shares", node, "share", devices=shares))
        return made

    def common(self, rng: Random, nodes: Sequence[str]) -> list[Manifest]:
        return [pool("net", None, "share", devices=[device("n0", resources={"memory": "4Gi"})])] if nodes[3:] else []

    def claim(self, rng: Random, name: str, nodes: Sequence[str]) -> Manifest:
        entries = [self._entry(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
        fields: Manifest = {"match": ["numa"]} if rng.random() < 0.15 else {}
        annotations = {f"devalloc.io/{key}": value for key, value in marks_of(rng, nodes).items()}
        return claim(name, *entries, annotations=annotations, **fields)

    def machine(self, rng: Random, name: str, nodes: Sequence[str]) -> list[Manifest]:
        """A part of a node, and a claim for a device beside it."""
        size = request("host", requests={"memory": rng.choice(["4Gi", "8Gi", "20Gi"])})
        group = {"devalloc.io/group": name}
        return [
            claim(f"{name}-host", size, annotations=group),
            claim(f"{name}-device", self._entry(rng), annotations=group),
        ]

    def _entry(self, rng: Random) -> Manifest:
        return one_of(self._request(rng), self._request(rng)) if rng.random() < 0.2 else self._request(rng)

    def _request(self, rng: Random) -> Manifest:
        kind = rng.choice(["card", "card", "card", "part", "part", "share", "share", "watch"])
        if kind == "share":
            limits = {"count": 1} if rng.random() < 0.3 else {}
            return request(kind, requests={"memory": rng.choice(["1Gi", "3Gi", "6Gi", "12Gi"])}, limits=limits)
        if kind == "part":
            return request(kind, rng.choice([1, 1, 2]), constraints=f"device.profile == '{rng.choice([*PROFILES])}'")
        fields: Manifest = {}
        if rng.random() < 0.3:
            fields["constraints"] = rng.choice(["device.model == 'a'", "device.numa == 1", "device.slot > 0"])
        if rng.random() < 0.3:
            fields["matchAttributes"] = [rng.choice(["numa", "model", "slot"])]
        return request(kind, rng.choice([1, 1, 2, 3]), **fields)

    def held(self, document: Manifest, answer: Manifest) -> Manifest:
        """The claim with what it got."""
        metadata = document["metadata"]
        annotations = {**metadata.get("annotations", {}), **answer["annotations"]}
        status = {"allocations": answer["allocations"]}
        return {**document, "metadata": {**metadata, "annotations": annotations}, "status": status}

    def changed(self, rng: Random, document: Manifest) -> Manifest:
        """A pool with a device less, or one that is another."""
        devices = document["spec"]["devices"]
        if len(devices) > 1 and rng.random() < 0.5:
            devices.pop(rng.randrange(len(devices)))
        else:
            one = rng.choice(devices)
            others = [each for each in one.get("attributes", ()) if each["name"] != "numa"]
            one["attributes"] = [*others, {"name": "numa", "intValue": rng.randrange(2)}]
        return document


# -- ResourceClaims ----------------------------------------------------------------------------------------------------


class ResourceClaimDialect:
    """The same of resource.k8s.io."""

    kind = "ResourceClaim"

    def classes(self) -> list[Manifest]:
        return [dra.device_class(kind, f"device.driver == '{kind}.io'") for kind in ("card", "part", "share", "net")]

    def pools(self, rng: Random, node: str) -> list[Manifest]:
        cards = [
            dra.device(
                f"c{n}",
                {"numa": n % 2, "id": rng.choice("xyz"), "tags": rng.sample(["p", "q", "r"], 2)},
                **({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]} if rng.random() < 0.1 else {}),
            )
            for n in range(rng.choice([2, 3, 4]))
        ]
        parts = [
            dra.device(f"{profile}-{n}", {"profile": profile}, counters={"card": {"slices": str(draws)}})
            for profile, draws in PROFILES.items()
            for n in range(4 // draws)
        ]
        policy = {"default": "2", "validRange": {"min": "1", "step": "1"}}
        shares = [
            dra.device(f"s{n}", {"numa": n}, capacity={"m": {"value": rng.choice("468"), "requestPolicy": policy}})
            | {"allowMultipleAllocations": True}
            for n in range(2)
        ]
        where = {"nodeName": node}
        made = [
            dra.slice_(f"{node}-cards{k}", cards, driver="card.io", pool=f"{node}-cards{k}", **where)
            for k in range(rng.choice([1, 1, 2]))
        ]
        if rng.random() < 0.7:
            own = {"driver": "part.io", "pool": f"{node}-parts", "count": 2, **where}
            made.append(dra.slice_(f"{node}-parts", parts, **own))
            made.append(dra.counter_slice(f"{node}-counters", {"card": {"slices": "4"}}, **own))
        if rng.random() < 0.7:
            made.append(dra.slice_(f"{node}-shares", shares, driver="share.io", pool=f"{node}-shares", **where))
        return made

    def common(self, rng: Random, nodes: Sequence[str]) -> list[Manifest]:
        labelled = [dra.node(node, zone=rng.choice("ab")) for node in nodes]
        zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
        where: Manifest = rng.choice(
            [
                {"allNodes": True},
                {"nodeSelector": {"nodeSelectorTerms": [zone]}},
                {"perDeviceNodeSelection": True},
            ]
        )
        own = {"nodeName": rng.choice(nodes)} if "perDeviceNodeSelection" in where else {}
        devices = [dra.device(f"n{number}", {"id": rng.choice("xyz")}) | own for number in range(3)]
        return [*labelled, dra.slice_("net", devices, driver="net.io", pool="net", **where)]

    def claim(self, rng: Random, name: str, nodes: Sequence[str]) -> Manifest:
        requests = []
        for number in range(rng.choice([1, 1, 2, 3])):
            own = f"r{number}"
            if rng.random() < 0.2:
                requests.append(dra.first_of(own, self._ask(rng), self._ask(rng)))
            elif rng.random() < 0.05:
                requests.append(dra.request(own, None, class_name="card"))
            else:
                watches = {"adminAccess": True} if rng.random() < 0.1 else {}
                requests.append({"name": own, "exactly": self._ask(rng) | watches})
        constraints = []
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            kind = rng.choice(["matchAttribute", "distinctAttribute"])
            one: Manifest = {kind: rng.choice(["card.io/numa", "card.io/id", "card.io/tags", "share.io/numa"])}
            if rng.random() < 0.5:
                one["requests"] = [rng.choice(requests)["name"]]
            constraints.append(one)
        return dra.claim(*requests, name=name, marks=marks_of(rng, nodes), constraints=constraints)

    def machine(self, rng: Random, name: str, nodes: Sequence[str]) -> list[Manifest]:
        """Two claims of one machine."""
        pair = [dra.claim({"name": "r", "exactly": self._ask(rng)}, name=f"{name}-{n}") for n in range(2)]
        for one in pair:
            one["metadata"]["annotations"] = {"devalloc.io/group": name}
        return pair

    def _ask(self, rng: Random) -> Manifest:
        kind = rng.choice(["card", "card", "card", "part", "part", "share", "share", "net"])
        if kind == "part":
            profile = f"device.attributes['part.io'].profile == '{rng.choice([*PROFILES])}'"
            return dra.ask(rng.choice([1, 1, 2]), profile, class_name=kind)
        if kind == "share":
            return dra.ask(rng.choice([1, 1, 2]), class_name=kind, amounts={"m": rng.choice("1234")})
        selectors = ["device.attributes['card.io'].numa == 1"] if kind == "card" and rng.random() < 0.2 else []
        return dra.ask(rng.choice([1, 1, 2, 3]), *selectors, class_name=kind)

    def held(self, document: Manifest, answer: Manifest) -> Manifest:
        metadata = document["metadata"]
        annotations = {**metadata.get("annotations", {}), **(answer.get("annotations") or {})}
        status = {"allocation": answer["allocations"]}
        return {**document, "metadata": {**metadata, "annotations": annotations}, "status": status}

    def changed(self, rng: Random, document: Manifest) -> Manifest:
        devices = document["spec"].get("devices", [])
        if len(devices) > 1 and rng.random() < 0.5:
            devices.pop(rng.randrange(len(devices)))
        elif devices:
            rng.choice(devices).setdefault("attributes", {})["numa"] = {"int": rng.randrange(2)}
        return document


Dialect = DeviceClaimDialect | ResourceClaimDialect
POOLS = ("DevicePool", "ResourceSlice")


@dataclass
class History:
    """A fleet and the documents that it has seen."""

    dialect: Dialect
    rng: Random
    documents: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    """(kind, name) -> what the store has; of claims only those that hold devices"""
    number: int = 0

    def __post_init__(self) -> None:
        rng = self.rng
        self.placement = rng.choice(["pack", "spread"])
        self.nodes = [f"n{number}" for number in range(rng.choice([2, 4, 7]))]
        seeds = [rng.random() for _ in range(3)]
        for one in (*self.dialect.classes(), *self.dialect.common(rng, self.nodes)):
            self._put(one)
        for node in self.nodes:
            for one in self.dialect.pools(Random(rng.choice(seeds)), node):
                self._put(one)
        self.fleet = self._restarted()

    def _restarted(self) -> Fleet:
        documents = copy.deepcopy([*self.documents.values()])
        self.rng.shuffle(documents)
        return Fleet.from_manifests(documents, placement=self.placement)

    def _put(self, document: Manifest) -> None:
        self.documents[document["kind"], document["metadata"]["name"]] = copy.deepcopy(document)

    def steps(self, count: int) -> Iterator[Step]:
        """Whatever happens between: devices are given back, pools change, the process begins anew."""
        for _ in range(count):
            self._happen()
            claims = self._claims()
            if self.rng.random() < 0.8:
                self.fleet.allocate_all([])
            documents = [*self.documents.values(), *claims]
            cold: Any = solve_manifests(copy.deepcopy(documents), placement=self.placement)
            if len(claims) == 1 and self.rng.random() < 0.7:
                name = claims[0]["metadata"]["name"]
                alone = next(one for one in cold["claims"] if one["name"] == name)
                warm: Any = self.fleet.allocate(copy.deepcopy(claims[0]), None)
                yield Step(claims, {**cold, "claims": [warm]}, {**cold, "claims": [alone]})
                answers = [warm]
            else:
                joint: Any = self.fleet.allocate_all(copy.deepcopy(claims))
                yield Step(claims, joint, cold)
                answers = joint["claims"]
            by_name = {one["name"]: one for one in answers}
            for one in claims:
                answer = by_name[one["metadata"]["name"]]
                if answer["allocated"]:
                    self._put(self.dialect.held(one, answer))

    def _claims(self) -> list[Manifest]:
        self.number += 1
        if self.rng.random() < 0.1:
            return self.dialect.machine(self.rng, f"m{self.number}", self.nodes)
        count = self.rng.choice([1, 2, 2, 3, 4, 6])
        return [self.dialect.claim(self.rng, f"c{self.number}-{n}", self.nodes) for n in range(count)]

    def _happen(self) -> None:
        rng = self.rng
        held = [name for kind, name in self.documents if kind == self.dialect.kind]
        for name in rng.sample(held, min(len(held), rng.choice([0, 0, 1, 1, 2]))):
            self.fleet.delete({"kind": self.dialect.kind, "metadata": {"namespace": "default", "name": name}})
            del self.documents[self.dialect.kind, name]
        if rng.random() < 0.15:
            key = rng.choice([key for key in self.documents if key[0] in POOLS])
            changed = self.dialect.changed(rng, copy.deepcopy(self.documents[key]))
            self._put(changed)
            self.fleet.update(copy.deepcopy(changed))
        if rng.random() < 0.05:
            self.fleet = self._restarted()

"""Claims of resource.k8s.io over several nodes: random instances, and the best that can be done by trying everything.

Pools are local to a node each, so that a node's claims can be judged on their own, by the oracle for one node. Where
there are pools that several nodes reach, one claim or group asks, so that no two nodes ever want the same device.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from devalloc.api.meta import GROUP, PRIORITY
from tests.support import dra_oracle
from tests.support.dra_instances import FEATURES, THEMES, Instance, drawn
from tests.support.dra_random_pools import Manifest

API = "resource.k8s.io/v1"
ALONE = [theme for theme in THEMES if theme not in ("network", "broken", "in use", "several claims")]
"""What may be drawn of a node whose pools no other node reaches."""


class TooLarge(Exception):
    """Trying everything takes too long."""


@dataclass(frozen=True)
class JointInstance:
    """Instances of single nodes, and the claims that all of them might take."""

    nodes: Mapping[str, Instance]
    claims: tuple[Manifest, ...]
    classes: tuple[Manifest, ...]
    shared: tuple[Manifest, ...] = ()
    """slices that are among those of every node"""

    @property
    def documents(self) -> list[Manifest]:
        """Manifests as ``solve_manifests`` takes them."""
        nodes = [{"apiVersion": "v1", "kind": "Node", **instance["input"]["node"]} for instance in self.nodes.values()]
        local = (one for instance in self.nodes.values() for one in instance["input"]["slices"])
        slices = [*(one for one in local if one not in self.shared), *self.shared]
        return [
            *nodes,
            *({"apiVersion": API, "kind": "ResourceSlice", **one} for one in slices),
            *({"apiVersion": API, "kind": "DeviceClass", **one} for one in self.classes),
            *({"apiVersion": API, "kind": "ResourceClaim", **one} for one in self.claims),
        ]


def networked(rng: Random) -> JointInstance:
    """Two or three nodes, devices that several of them reach, and one claim or group that may ask for ``All``."""
    themes = {"all", *rng.sample(ALONE, rng.choice([1, 2])), *(["taints"] if rng.random() < 0.5 else [])}
    given = _joint(rng, themes)
    shared = drawn(rng, themes)["input"]["slices"]
    for one in shared:
        one["metadata"]["name"] += "-net"
        spec = one["spec"]
        spec["pool"]["name"] += "-net"
        for where in ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"):
            spec.pop(where, None)
        if spec.get("devices") and rng.random() < 0.4:
            spec["perDeviceNodeSelection"] = True
            for device in spec["devices"]:
                device |= {"allNodes": True} if rng.random() < 0.4 else {"nodeName": rng.choice([*given.nodes])}
        else:
            spec["allNodes"] = True
    for instance in given.nodes.values():
        instance["input"]["slices"] += shared
    claims = given.claims[: rng.choice([1, 1, 2])]
    for claim in claims:
        claim["metadata"]["annotations"] = {PRIORITY: "0", GROUP: "g"}
    return JointInstance(given.nodes, claims, given.classes, tuple(shared))


def joint(rng: Random) -> JointInstance:
    """Two or three nodes and a few claims, some of them in a group."""
    return _joint(rng, set(rng.sample(ALONE, rng.choice([1, 2, 3]))))


def _joint(rng: Random, themes: set[str]) -> JointInstance:
    nodes = {}
    classes: tuple[Manifest, ...] = ()
    claims: list[Manifest] = []
    for number in range(1, rng.choice([3, 3, 4])):
        name = f"n{number}"
        instance = drawn(rng, themes)
        for one in instance["input"]["slices"]:
            one["metadata"]["name"] += f"-{name}"
            one["spec"]["pool"]["name"] += f"-{name}"
            one["spec"]["nodeName"] = name
        instance["input"]["node"]["metadata"]["name"] = name
        classes = tuple(instance["input"]["classes"])
        claims += instance["input"]["claimsToAllocate"]
        claims += drawn(rng, themes)["input"]["claimsToAllocate"] if rng.random() < 0.5 else []
        nodes[name] = instance
    del claims[4:]
    for number, claim in enumerate(claims):
        annotations = {PRIORITY: str(rng.randrange(3))}
        if number < 2 and rng.random() < 0.3:
            annotations[GROUP] = "g"
        for request in claim["spec"]["devices"]["requests"]:
            for one in request.get("firstAvailable") or [request["exactly"]]:
                for toleration in one.get("tolerations", ()):
                    toleration.setdefault("operator", "Equal")  # as the API server would, and results tell
        claim["metadata"] = {"name": f"c{number}", "namespace": "default", "annotations": annotations}
    return JointInstance(nodes, tuple(claims), classes)


def best(given: JointInstance) -> dict[int, int]:
    """How many claims of each priority can be satisfied, the highest priority first; by trying every distribution.

    Raises TooLarge.
    """
    groups: dict[str, list[int]] = {}
    for number, claim in enumerate(given.claims):
        name = claim["metadata"]["annotations"].get(GROUP, f"alone {number}")
        groups.setdefault(name, []).append(number)
    units = list(groups.values())
    priorities = [int(claim["metadata"]["annotations"][PRIORITY]) for claim in given.claims]
    levels = sorted(set(priorities), reverse=True)

    @cache
    def fits(node: str, numbers: tuple[int, ...]) -> bool:
        instance = deepcopy(given.nodes[node])
        instance["input"]["claimsToAllocate"] = [given.claims[number] for number in numbers]
        verdict = dra_oracle.solve(instance)
        if verdict.outcome == "unknown":
            raise TooLarge
        return verdict.outcome == "allocated"

    best_counts = tuple(0 for _ in levels)
    for places in itertools.product([None, *given.nodes], repeat=len(units)):
        taken = [number for unit, place in zip(units, places, strict=True) if place for number in unit]
        counts = tuple(sum(priorities[number] == level for number in taken) for level in levels)
        if counts > best_counts and all(
            fits(node, numbers)
            for node in given.nodes
            if (numbers := tuple(n for unit, place in zip(units, places, strict=True) if place == node for n in unit))
        ):
            best_counts = counts
    return dict(zip(levels, best_counts, strict=True))


def counts(given: JointInstance, answer: Mapping[str, Any]) -> dict[int, int]:
    """How many claims of each priority the answer satisfies."""
    priority = {claim["metadata"]["name"]: int(claim["metadata"]["annotations"][PRIORITY]) for claim in given.claims}
    by_priority = dict.fromkeys(sorted(set(priority.values()), reverse=True), 0)
    for claim in answer["claims"]:
        by_priority[priority[claim["name"]]] += claim["allocated"]
    return by_priority


def placed(given: JointInstance, answer: Mapping[str, Any]) -> list[tuple[Instance, list[Manifest]]]:
    """For each node its instance with the claims that were placed there, and their results, for the check.

    Those that any node may use are left out.
    """
    manifests = {claim["metadata"]["name"]: claim for claim in given.claims}
    shown = []
    for node, instance in given.nodes.items():
        on_node = [claim for claim in answer["claims"] if claim["allocated"] and claim["node"] == node]
        one = deepcopy(instance)
        one["features"] = dict.fromkeys(FEATURES, True)
        one["input"]["claimsToAllocate"] = [manifests[claim["name"]] for claim in on_node]
        shown.append((one, [claim["allocations"] for claim in on_node]))
    return shown

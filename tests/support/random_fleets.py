"""Random small fleets, classes and claims that meet every rule of claim-semantics, and each other.

`documents(random)` is plain seeded randomness for long runs; `DOCUMENTS` the same as a hypothesis strategy.

Left out on purpose, because the rules do not settle them: allocated claims whose pool name is ambiguous and that carry
no node, allocated claims that are invalid, groups with a deleting member, missing configs behind a deviceType.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

from hypothesis import strategies as st

from devalloc.api.meta import ALLOCATED_NODE, COMPATIBILITY_GROUP, GROUP, GROUP_MATCH, NODE, PRIORITY, UNAVAILABLE
from tests.support.manifests import (
    Manifest,
    allocated,
    claim,
    config,
    config_reference,
    device,
    device_class,
    entry,
    pool,
)

MATCHABLE = ["numa", "model", "root", "link"]
CONSTRAINTS = [
    "device.model == 'm1'",
    "device.model != 'm1'",
    "device.numa == 0",
    "'root' in device",
    "device.link >= '10G'",
    "device.firmware >= semver('1.10.0')",
    "device.model == 'm1' || device.numa == 1",
    "!(device.root == 'r0')",
    "true",
]
BAD_CONSTRAINTS = ["device.model ==", "nothing == 1", "device.numa + 1", "'text'"]


_CLAIMS = [1, 2, 2, 3, 3, 4]
"""How many claims wait; with more, the oracle may take minutes."""


def documents(random: Random) -> list[Manifest]:
    """The manifests of one small instance, in random order."""
    nodes = ["n1", "n2", "n3"][: random.choice([1, 1, 2, 2, 3])]
    themes = random.sample(sorted(_THEMES), random.choice([1, 1, 1, 2]))
    pools = _pools(random, nodes, [_THEMES[theme][0] for theme in themes])
    classes = _classes(random)
    held = _held_claims(random, pools, nodes)
    wanted = [name for theme in themes for name in _THEMES[theme][1]]
    types = [_THEMES[theme][2] for theme in themes]
    pending = [_pending_claim(random, f"c{i}", nodes, wanted, types) for i in range(random.choice(_CLAIMS))]
    if _chance(random, 0.03):
        pending.append(_pending_claim(random, "c0", nodes, wanted, types))
    configs = [config("tuned")] if _chance(random, 0.7) else []
    if _chance(random, 0.3):
        _make_equal(random, pending)
    everything = pools + classes + held + pending + configs
    random.shuffle(everything)
    return everything


def equal_shares(random: Random) -> list[Manifest]:
    """Equal claims for shares of GPUs: such claims are counted together, and dealt out what they take together."""
    nodes = ["n1", "n2"][: random.choice([1, 1, 2])]
    pools = [_gpus(random, f"p{number}", random.choice([*nodes, *nodes, None])) for number in range(len(nodes))]
    for content in pools:  # with more, the oracle takes minutes
        del content["spec"]["devices"][2:]
    held = _held_claims(random, pools, nodes) if _chance(random, 0.4) else []
    requests = {"memory": random.choice(["1Gi", "2Gi", "3Gi", "5Gi", "7Gi", "2500Mi", "11Gi"])}
    if _chance(random, 0.3):
        requests["cores"] = random.choice(["1", "1500m", "2", "3"])
    detail: Manifest = {"deviceClass": "any", "requests": requests}
    if _chance(random, 0.2):
        detail["limits"] = {"count": random.choice([1, 1, 2])}
    if _chance(random, 0.2):
        detail["matchAttributes"] = [random.choice(MATCHABLE)]
    if _chance(random, 0.2):
        detail = {
            "oneOf": [detail, {"deviceClass": "any", "requests": random.choice([{"count": 1}, {"memory": "2Gi"}])}]
        }
    details = [detail] if _chance(random, 0.8) else [detail, {"deviceClass": "any", "requests": {"memory": "1Gi"}}]
    pending = [claim(f"c{number}", *deepcopy(details)) for number in range(random.choice([2, 3, 3]))]
    if _chance(random, 0.25):
        pending.append(
            claim("other", {"deviceClass": "any", "requests": random.choice([{"count": 1}, {"memory": "3Gi"}])})
        )
    everything = [*pools, *held, *pending, *_classes(random), device_class("any")]
    random.shuffle(everything)
    return everything


def admins_beside_others(random: Random) -> list[Manifest]:
    """Claims and groups of which some details look on only, at devices that exclude each other."""
    nodes = ["n1", "n2"][: random.choice([1, 1, 2])]
    makers = [_profiles, _profiles, _partitions, _gpus]
    pools = [random.choice(makers)(random, f"p{number}", random.choice(nodes)) for number in range(len(nodes))]
    held = _held_claims(random, pools, nodes) if _chance(random, 0.3) else []
    group = {"annotations": {GROUP: "vm"}} if _chance(random, 0.6) else {}
    pending = []
    for number in range(random.choice([1, 2, 2])):
        details = []
        for _ in range(random.choice([1, 2, 2])):
            counts = [{"count": 1}, {"count": 2}, {"count": 2}, {"count": 3}]
            if _chance(random, 0.5):
                detail: Manifest = {"deviceClass": "look", "requests": random.choice([*counts, {}])}
                if _chance(random, 0.15):
                    detail["limits"] = {"count": random.choice([1, 2, 3])}
            else:
                detail = {"deviceClass": "any", "requests": random.choice([*counts[:3], {"memory": "2Gi"}])}
            if _chance(random, 0.15):
                detail["matchAttributes"] = [random.choice([*MATCHABLE, "profile"])]
            details.append(detail)
        if _chance(random, 0.15) and len(details) > 1:
            details = [{"oneOf": details}]
        pending.append(claim(f"c{number}", *details, **deepcopy(group)))
    look = device_class("look", adminAccess=True)
    everything = [*pools, *held, *pending, *_classes(random), device_class("any"), look]
    random.shuffle(everything)
    return everything


def _make_equal(random: Random, claims: list[Manifest]) -> None:
    """Most claims ask for what the first one does, since claims that ask for the same are counted together."""
    for content in claims[1:]:
        if _chance(random, 0.7):
            content["spec"] = deepcopy(claims[0]["spec"])


DOCUMENTS: st.SearchStrategy[list[Manifest]] = st.randoms(use_true_random=False).map(documents)
"""Instances for hypothesis, which shrinks the choices made."""


def _chance(random: Random, probability: float) -> bool:
    return random.random() >= 1 - probability


# -- pools -----------------------------------------------------------------------------------------------------------


def _pools(random: Random, nodes: list[str], makers: list[Maker]) -> list[Manifest]:
    pools = []
    for number in range(random.choice([2, 2, 3, 3, 4])):
        node = None if _chance(random, 0.12) else random.choice(nodes)
        pools.append(random.choice(makers)(random, f"p{number}", node))
    if len(nodes) > 1 and _chance(random, 0.15):
        # The same name on two nodes is fine; on one node, or on the network too, it is not (S2).
        twin = random.choice(makers)(random, pools[0]["metadata"]["name"], random.choice([*nodes, None]))
        pools.append(twin)
    if _chance(random, 0.1):
        pools.append(_invalid(random, random.choice(nodes)))
    return pools


def _gpus(random: Random, name: str, node: str | None) -> Manifest:
    memory = random.choice(["8Gi/1Gi", "6Gi/2Gi", "8Gi", "7Gi/3Gi", "10Gi/4Gi"])
    cores = random.choice([None, "4", "3500m/500m", "4/2"])
    resources = {"memory": memory} | ({"cores": cores} if cores else {})
    devices = [
        device(f"g{i}", attributes=_traits(random), resources=resources if _chance(random, 0.9) else None)
        for i in range(random.choice([1, 2, 2, 3, 4]))
    ]
    attributes = {"model": random.choice(["m1", "m2"])} | (
        {"numa": random.choice([0, 1])} if _chance(random, 0.6) else {}
    )
    return pool(name, node, random.choice(["gpu-a", "gpu-b"]), attributes=attributes, devices=devices)


def _traits(random: Random) -> dict[str, Any]:
    """Attributes of one device; each may be missing, and a type may differ from its neighbour's."""
    traits: dict[str, Any] = {}
    if _chance(random, 0.4):
        traits["numa"] = random.choice([0, 1, "0"])
    if _chance(random, 0.5):
        traits["root"] = random.choice(["r0", "r1"])
    if _chance(random, 0.3):
        traits["link"] = {"quantityValue": random.choice(["10G", "10000M", "25G", "1G"])}
    if _chance(random, 0.3):
        traits["firmware"] = {"semVerValue": random.choice(["1.9.0", "1.10.0", "1.10.0+x", "2.0.0-rc.1"])}
    if _chance(random, 0.07):
        traits[UNAVAILABLE] = "unhealthy: fell off the bus"
    return traits


def _partitions(random: Random, name: str, node: str | None) -> Manifest:
    """A card in parts that exclude each other through pool resources (S12)."""
    block = random.choice(["", "/2", "/3"])
    devices = [device("whole", attributes=_traits(random) | {"profile": "full"}, requests={"mem": 8, "slices": 4})]
    for i in range(random.choice([1, 2, 3])):
        size = random.choice([1, 2])
        requests = {"mem": random.choice([2, 3, 4]), "slices": size} | ({f"slot{i % 2}": 1} if size == 1 else {})
        if _chance(random, 0.06):
            requests["undefined"] = 1
        resources = {"memory": f"{2 * size}Gi/1Gi"} if _chance(random, 0.5) else None
        traits = _traits(random) | {"profile": f"p{size}"}
        devices.append(device(f"p{size}-{i}", attributes=traits, requests=requests, resources=resources))
    capacities = {"mem": f"9{block}", "slices": "4", "slot0": "1", "slot1": "1"}
    attributes = {"model": random.choice(["m1", "m2"])}
    return pool(name, node, "part", attributes=attributes, resources=capacities, devices=devices)


def _profiles(random: Random, name: str, node: str | None) -> Manifest:
    """A card that holds one profile size at a time (S12a)."""
    devices = []
    for i in range(random.choice([2, 3, 4])):
        size = random.choice(["4G", "8G"])
        group = {COMPATIBILITY_GROUP: size} if _chance(random, 0.85) else {}
        resources = {"memory": "4Gi/1Gi"} if _chance(random, 0.3) else None
        devices.append(device(f"v{i}", attributes={"profile": size, **group, **_traits(random)}, resources=resources))
    return pool(name, node, "part", attributes={"numa": random.choice([0, 1])}, devices=devices)


def _nic(random: Random, name: str, node: str | None) -> Manifest:
    root = {"root": random.choice(["r0", "r1"])} if _chance(random, 0.8) else {}
    functions = random.choice([1, 2])
    devices = []
    for pf in range(functions):
        devices.append(device(f"pf{pf}", attributes={"model": "pf", **root}, requests={f"vfs{pf}": 2}))
        devices += [
            device(f"pf{pf}vf{vf}", attributes={"model": "vf", **root, **_traits(random)}, requests={f"vfs{pf}": 1})
            for vf in range(random.choice([1, 2]))
        ]
    return pool(name, node, "nic", attributes={"numa": 0}, resources={"vfs0": 2, "vfs1": 2}, devices=devices)


Maker = Callable[[Random, str, str | None], Manifest]
_THEMES: dict[str, tuple[Maker, list[str], str]] = {
    "gpu": (_gpus, ["gpu-a", "gpu-a", "gpu-b", "gpu-any", "gpu-any", "watch", "tuned"], "gpu"),
    "partition": (_partitions, ["part", "part", "small", "watch-m1"], "part"),
    "profile": (_profiles, ["part", "small", "gpu-any", "watch"], "part"),
    "nic": (_nic, ["pf", "vf", "vf", "watch"], "nic"),
}
"""Kinds of pools, with the classes and the device type that fit them."""


def _invalid(random: Random, node: str) -> Manifest:
    """A pool that is skipped whole (S2, S4a)."""
    bad: dict[str, Callable[[], dict[str, Any]]] = {
        "devices": lambda: {"devices": [device("g0"), device("g0")]},
        "block": lambda: {"devices": [device("g0", resources={"memory": "4Gi/0"}), device("g1")]},
        "capacity": lambda: {"devices": [device("g0", resources={"memory": "-1"}), device("g1")]},
        "attribute": lambda: {"devices": [device("g0", attributes={"numa": {"intValue": 1, "stringValue": "1"}})]},
        "semver": lambda: {"devices": [device("g0", attributes={"firmware": {"semVerValue": "1.9"}}), device("g1")]},
    }
    return pool("invalid", node, "gpu-a", attributes={"model": "m1"}, **bad[random.choice(sorted(bad))]())


# -- classes ---------------------------------------------------------------------------------------------------------


def _classes(random: Random) -> list[Manifest]:
    classes = [
        device_class("gpu-a", driver="gpu-a", deviceType="gpu"),
        device_class("gpu-b", driver="gpu-b", deviceType="gpu", constraints="device.model == 'm2'"),
        device_class("gpu-any", driver="", deviceType="gpu", constraints="'model' in device && device.model != 'pf'"),
        device_class("part", driver="part", deviceType="part"),
        device_class("small", driver="part", deviceType="part", constraints="device.profile in ['p1', '4G']"),
        device_class("pf", driver="nic", deviceType="nic", constraints="device.model == 'pf'"),
        device_class("vf", driver="nic", deviceType="nic", constraints="device.model == 'vf'"),
        device_class("watch", deviceType="gpu", adminAccess=True),
        device_class("watch-m1", deviceType="part", constraints="device.model == 'm1'", adminAccess=True),
        device_class("tuned", driver="gpu-a", configs=[config_reference("tuned", "default")]),
    ]
    if _chance(random, 0.1):
        classes = [c for c in classes if c["metadata"]["name"] != "gpu-any"]
    if _chance(random, 0.15):
        classes.append(device_class("broken", deviceType="gpu", constraints=random.choice(BAD_CONSTRAINTS)))
    if _chance(random, 0.05):
        classes.append(device_class("gpu-b", driver="gpu-b", deviceType="gpu"))
    return classes


# -- claims that wait ------------------------------------------------------------------------------------------------


def _pending_claim(random: Random, name: str, nodes: list[str], wanted: list[str], types: list[str]) -> Manifest:
    entries = [_spec_entry(random, wanted, types) for _ in range(random.choice([1, 1, 1, 1, 2, 2, 3]))]
    annotations: dict[str, str] = {}
    if _chance(random, 0.25):
        annotations[PRIORITY] = random.choice(["5", "-1", "5", "10"])
    if _chance(random, 0.12):
        annotations[NODE] = random.choice([*nodes, *nodes, "elsewhere"])
    metadata: dict[str, Any] = {}
    if _chance(random, 0.8):
        zone = random.choice(["00:00:0{}Z", "01:00:0{}+01:00"])
        metadata["creationTimestamp"] = "2026-01-01T" + zone.format(random.randrange(3))
    if _chance(random, 0.03):
        metadata["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    elif _chance(random, 0.25):
        annotations[GROUP] = random.choice(["vm", "vm", "pod"])
    if _chance(random, 0.02):
        annotations[PRIORITY] = random.choice(["high", "1.5"])
    if annotations:
        metadata["annotations"] = annotations
    match = [random.choice(MATCHABLE)] if _chance(random, 0.15) else None
    if _chance(random, 0.02):
        entries = []
    return claim(name, *entries, match=match, **metadata)


def _spec_entry(random: Random, wanted: list[str], types: list[str]) -> Manifest:
    if _chance(random, 0.3):
        entries: Manifest = {"oneOf": [_detail(random, wanted, types) for _ in range(random.choice([2, 2, 3]))]}
        return entries | ({"requests": {"count": 1}} if _chance(random, 0.02) else {})
    return _detail(random, wanted, types)


def _detail(random: Random, wanted: list[str], types: list[str]) -> Manifest:
    detail: Manifest = {}
    where = random.random()
    if where < 0.55:
        detail["deviceClass"] = random.choice(wanted)
        if _chance(random, 0.1):
            detail["deviceType"] = random.choice(["gpu", "part", "nic"])
    elif where < 0.85:
        detail["deviceType"] = random.choice(types)
    if _chance(random, 0.008):
        detail["deviceClass"] = random.choice(["missing", "broken"])
    if _chance(random, 0.2):
        detail["constraints"] = random.choice(CONSTRAINTS)
    if _chance(random, 0.006):
        detail["constraints"] = random.choice(BAD_CONSTRAINTS)
    if _chance(random, 0.15):
        detail["matchAttributes"] = random.sample(MATCHABLE, random.choice([1, 1, 2]))
    if _chance(random, 0.04):
        detail["configs"] = [config_reference("tuned")]
    detail |= _amounts(random)
    return detail


def _amounts(random: Random) -> Manifest:
    kind = random.random()
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    memory = random.choice(["1Gi", "2Gi", "2Gi", "3Gi", "4Gi", "5Gi", "7Gi", "9Gi", "13Gi", "2500Mi"])
    if kind < 0.6:
        if kind < 0.45:
            requests["count"] = random.choice([1, 1, 1, 2, 2, "3"])
            if _chance(random, 0.3):
                limits["count"] = int(requests["count"]) + random.choice([0, 1, 2])
        if _chance(random, 0.25):
            if "count" in requests:
                requests["memory"] = memory
            if _chance(random, 0.5):
                limits["memory"] = random.choice(["13Gi", "14Gi", "16Gi", "21Gi"])
        elif not requests and _chance(random, 0.3):
            limits["memory"] = random.choice(["5Gi", "6Gi", "8Gi"])
    else:
        if kind < 0.95:
            requests["memory"] = memory
        if kind >= 0.85:
            requests["cores"] = random.choice(["1", "250m", "1500m", "3", "5"])
        if _chance(random, 0.2):
            limits["count"] = random.choice([1, 2, 2])
        if _chance(random, 0.15):
            limits["memory"] = random.choice(["13Gi", "16Gi"])
    if _chance(random, 0.006):
        requests["count"] = random.choice(["1500m", 0, "-1"])
    return ({"requests": requests} if requests else {}) | ({"limits": limits} if limits else {})


# -- claims that hold ------------------------------------------------------------------------------------------------


def _held_claims(random: Random, pools: list[Manifest], nodes: list[str]) -> list[Manifest]:
    claims = []
    drawn: Counter[tuple[int, str]] = Counter()
    usable = [p for p in pools if p["metadata"]["name"] != "invalid" and p["spec"]["devices"]]
    for number in range(random.choice([0, 0, 0, 1, 1, 2])):
        held_pool = random.choice(usable)
        name = held_pool["metadata"]["name"]
        devices = held_pool["spec"]["devices"]
        chosen = random.sample(devices, min(len(devices), random.choice([1, 1, 2])))
        entries = [
            _held_entry(random, name, held)
            for held in chosen
            # Now and then more is held than there is (S18).
            if _draw(drawn, held_pool, held) or _chance(random, 0.1)
        ]
        if _chance(random, 0.1):
            entries.append(entry(name, "gone") if _chance(random, 0.5) else entry("gone", "g0"))
        if not entries:
            continue
        annotations: dict[str, str] = {}
        if _chance(random, 0.2):
            annotations[GROUP] = "vm"
        if _chance(random, 0.2):
            annotations[PRIORITY] = "7"
        watching = _chance(random, 0.12)
        details: list[Manifest] = [{"deviceClass": "watch"}] if watching else [{"requests": {"count": len(entries)}}]
        if watching and _chance(random, 0.4):
            details.append({"requests": {"count": 1}})
        indexes = sorted(random.choice([str(i) for i in range(len(details))]) for _ in entries)
        metadata: dict[str, Any] = {"annotations": annotations} if annotations else {}
        if _chance(random, 0.15):
            metadata["deletionTimestamp"] = "2026-01-02T00:00:00Z"
        node = held_pool["spec"].get("nodeName") or random.choice(nodes)
        name_tells = sum(p["metadata"]["name"] == name for p in pools) == 1 and GROUP not in annotations
        claims.append(
            allocated(
                claim(f"h{number}", *details, **metadata),
                entries,
                node=None if name_tells and _chance(random, 0.4) else node,
                details=indexes if _chance(random, 0.6) else None,
            )
        )
    return claims


def _draw(drawn: Counter[tuple[int, str]], held_pool: Manifest, held: Manifest) -> bool:
    """Record a device as held; False when it would not fit beside the others."""
    groups = [a["stringValue"] for a in held.get("attributes", []) if a["name"] == COMPATIBILITY_GROUP]
    costs = {(id(held_pool), name): int(amount) for name, amount in held.get("requests", {}).items()}
    costs |= {(id(held_pool), f"group {group}"): 1 for group in groups}
    costs[id(held_pool), f"device {held['name']}"] = 1
    room = {(id(held_pool), r["name"]): int(r["capacity"]) for r in held_pool["spec"].get("resources", [])}
    others = [key for key in drawn if key[0] == id(held_pool) and key[1].startswith("group ")]
    if any(key not in costs for key in others if groups) or drawn[id(held_pool), f"device {held['name']}"]:
        return False
    # One less than there is leaves room for rounding to blocks.
    if any(drawn[key] + cost > room.get(key, 8) - (key[1] == "mem") for key, cost in costs.items() if key in room):
        return False
    drawn.update(costs)
    return True


def _held_entry(random: Random, name: str, held: Manifest) -> Manifest:
    amounts = {
        resource["name"]: random.choice(["1Gi", "2Gi", "3Gi", "1Gi", "20Gi"]) if resource["name"] == "memory" else "2"
        for resource in held.get("resources", [])
    }
    if amounts and _chance(random, 0.6):
        return entry(name, held["name"], **amounts)
    return entry(name, held["name"])


def groups_that_agree(random: Random) -> list[Manifest]:
    """A fleet whose claims are in groups that are to agree on an attribute, those that hold devices with them."""
    manifests = documents(random)
    for document in manifests:
        notes = document["metadata"].setdefault("annotations", {})
        has_node = "status" not in document or ALLOCATED_NODE in notes  # else a pool's name alone says on which node
        stays = "deletionTimestamp" not in document["metadata"]
        if document["kind"] == "DeviceClaim" and has_node and stays and _chance(random, 0.8):
            notes[GROUP] = random.choice(["x", "y"])
            if _chance(random, 0.8):
                notes[GROUP_MATCH] = random.choice(["numa", "numa", "model", "numa, model"])
    return manifests

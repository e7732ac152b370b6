"""Situations to spread or pack: whole devices, shares and partitions on a few nodes, in both dialects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from random import Random
from typing import Any

from devalloc.api.quantity import Quantity
from tests.support import oracle
from tests.support.manifests import allocated, claim, device, device_class, entry, pool
from tests.support.oracle_instance import ADMIN, Instance

Manifest = dict[str, Any]
DRIVER = "gpu.example.com"
SHARE = "4Gi"
KINDS = ("whole", "shared", "part")
_API = "resource.k8s.io/v1"


def measure(instance: Instance, answers: Iterable[Manifest], policy: str = "spread") -> tuple[Fraction, ...]:
    """Goal 5 of an answer, by the oracle's words; what admin details look at is not in use."""
    position = {each.key: index for index, each in enumerate(instance.devices)}
    by_place = {(node, pool, name): index for (node, _, pool, name), index in position.items()}
    details = {one.key: one.entries for group in instance.groups for one in group.claims}
    whole: set[int] = set()
    taken: dict[int, dict[str, int]] = {}
    for answer in answers:
        key = answer["namespace"], answer["name"]
        if not answer["allocated"] or key not in details:
            continue
        for number, chosen in enumerate(answer["oneOf"] or [None] * len(details[key])):
            if details[key][number][chosen or 0].mode == ADMIN:
                break
        else:
            for got in answer["allocations"]:
                place = got["devicePoolName"], got["deviceName"]
                index = by_place.get((answer["node"], *place), by_place.get((None, *place)))
                assert index is not None
                amounts = got.get("allocations")
                if not amounts:
                    whole.add(index)
                    continue
                shares = taken.setdefault(index, {})
                for amount in amounts:
                    _, block = instance.devices[index].capacity[amount["name"]]
                    blocks = -(-Quantity.parse(amount["allocation"]).nano // block)
                    shares[amount["name"]] = shares.get(amount["name"], 0) + blocks
    if policy == "pack":
        return tuple(map(Fraction, oracle.new_places(instance, whole | taken.keys())))
    return oracle.unevenness(instance, whole, taken)


def mixed(random: Random, claims: int) -> list[Manifest]:
    """Nodes of unequal size, some devices in use, and claims of all kinds, each for one device. All in DevicePools."""
    documents = [device_class(kind, driver=DRIVER, constraints=f"device.kind == '{kind}'") for kind in KINDS]
    held = 0
    for node in range(random.choice([2, 3])):
        for number in range(random.choice([1, 2])):
            made = _pool(random, f"n{node}-p{number}", f"n{node}")
            documents.append(made)
            for each in made["spec"]["devices"]:
                if _kind(each) != "part" and random.random() < 0.35:
                    documents.append(_held(f"h{held:02}", f"n{node}", made, each))
                    held += 1
    for number in range(claims):
        documents.append(waiting(f"c{number:02}", random.choice(KINDS)))
    return documents


def waiting(name: str, kind: str) -> Manifest:
    """A claim for one device of a kind, or for a share of one."""
    if kind == "shared":
        return claim(name, {"deviceClass": kind, "requests": {"memory": SHARE}, "limits": {"count": 1}})
    return claim(name, {"deviceClass": kind, "requests": {"count": 1}})


def _pool(random: Random, name: str, node: str) -> Manifest:
    kind = random.choice(KINDS)
    if kind == "part":
        devices = [device(f"g{n}", attributes={"kind": kind}, requests={"slices": n + 1}) for n in range(3)]
        return pool(name, node, DRIVER, resources={"slices": random.choice([4, 7])}, devices=devices)
    count = random.choice([1, 2, 3])
    sizes = [random.choice(["24Gi", "24Gi", "40Gi"]) for _ in range(count)] if kind == "shared" else [None] * count
    devices = [
        device(f"g{n}", attributes={"kind": kind}, resources=None if size is None else {"memory": size})
        for n, size in enumerate(sizes)
    ]
    return pool(name, node, DRIVER, devices=devices)


def _held(name: str, node: str, made: Manifest, each: Manifest) -> Manifest:
    kind = _kind(each)
    given = entry(made["metadata"]["name"], each["name"], **({"memory": SHARE} if kind == "shared" else {}))
    return allocated(waiting(name, kind), [given], node=node)


def _kind(each: Manifest) -> str:
    return str(each["attributes"][0]["stringValue"])


# -- the same in the other dialect ---------------------------------------------------------------------------------


def as_resources(documents: Sequence[Manifest]) -> list[Manifest]:
    """The same in objects of resource.k8s.io."""
    return [each for document in documents for each in _TRANSLATIONS[document["kind"]](document)]


def _class(document: Manifest) -> Iterable[Manifest]:
    kind = document["metadata"]["name"]
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "{kind}"'
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    yield {"apiVersion": _API, "kind": "DeviceClass", "metadata": {"name": kind}, "spec": spec}


def _slices(document: Manifest) -> Iterable[Manifest]:
    name, spec = document["metadata"]["name"], document["spec"]
    sets = spec.get("resources", ())
    common = {
        "driver": DRIVER,
        "nodeName": spec["nodeName"],
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 2 if sets else 1},
    }
    devices = []
    for each in spec["devices"]:
        made: Manifest = {"name": each["name"], "attributes": {"kind": {"string": _kind(each)}}}
        if each.get("resources"):
            made["capacity"] = {one["name"]: {"value": one["capacity"]} for one in each["resources"]}
            made["allowMultipleAllocations"] = True
        if each.get("requests"):
            counters = {counter: {"value": str(amount)} for counter, amount in each["requests"].items()}
            made["consumesCounters"] = [{"counterSet": "card", "counters": counters}]
        devices.append(made)
    yield _slice(f"{name}-devices", common | {"devices": devices})
    if sets:
        counters = {one["name"]: {"value": str(one["capacity"])} for one in sets}
        yield _slice(f"{name}-counters", common | {"sharedCounters": [{"name": "card", "counters": counters}]})


def _slice(name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": _API, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def _claim(document: Manifest) -> Iterable[Manifest]:
    (detail,) = document["spec"]["claims"]
    name, kind = document["metadata"]["name"], detail["deviceClass"]
    exactly: Manifest = {"deviceClassName": kind, "allocationMode": "ExactCount", "count": 1}
    if kind == "shared":
        exactly["capacity"] = {"requests": {"memory": SHARE}}
    made: Manifest = {
        "apiVersion": _API,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }
    if held := document.get("status", {}).get("allocations"):
        node = document["metadata"]["annotations"]["devalloc.io/allocated-node"]
        results = []
        for number, given in enumerate(held):
            result = {
                "request": "r",
                "driver": DRIVER,
                "pool": given["devicePoolName"],
                "device": given["deviceName"],
            }
            if given.get("allocations"):
                result["shareID"] = f"11111111-1111-4111-8111-{hash((name, number)) % 10**12:012}"
                result["consumedCapacity"] = {a["name"]: a["allocation"] for a in given["allocations"]}
            results.append(result)
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        selector = {"nodeSelectorTerms": [{"matchFields": fields}]}
        made["status"] = {"allocation": {"devices": {"results": results}, "nodeSelector": selector}}
    yield made


_TRANSLATIONS = {"DeviceClass": _class, "DevicePool": _slices, "DeviceClaim": _claim}


def as_device_claims(answers: Iterable[Manifest]) -> list[Manifest]:
    """Answers to ResourceClaims in the form of those to DeviceClaims."""
    read = []
    for answer in answers:
        results = answer["allocations"]["devices"]["results"] if answer["allocated"] else []
        read.append(
            {
                "namespace": answer["namespace"],
                "name": answer["name"],
                "allocated": answer["allocated"],
                "node": answer["node"],
                "oneOf": None,
                "allocations": [
                    {
                        "devicePoolName": result["pool"],
                        "deviceName": result["device"],
                        "allocations": [
                            {"name": name, "allocation": amount}
                            for name, amount in (result.get("consumedCapacity") or {}).items()
                        ],
                    }
                    for result in results
                ],
            }
        )
    return read

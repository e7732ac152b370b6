"""What ``bench_everyday`` measures of one checkout, in a process of its own: `python benchmarks/everyday.py WHAT`.

It prints lines of JSON: what was measured, and the CPU seconds of each call. It uses only what each checkout has, so
that PYTHONPATH can name another one.
"""

from __future__ import annotations

import gc
import inspect
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import bench_fleet
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.resource_claims.allocator import ResourceClaimAllocator
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import Fleet
from tests.support.machine_allocator import machine_allocator

Manifest = dict[str, Any]

API = "devmgmtproto.k8s.io/v1alpha1"
MODELS = {"a100": ("40Gi", 3), "h100": ("80Gi", 2), "l4": ("24Gi", 3), "l40s": ("48Gi", 2)}
"""Memory, and how frequent"""
NODES, CLAIMS, MACHINES, WAITING, ROUNDS, RENEWALS = 5_000, 4_000, 4_000, 10_000, 200, 4_000


def main() -> None:
    MEASURED[sys.argv[1]]()


def report(what: str, seconds: list[float]) -> None:
    print(json.dumps([what, seconds]), flush=True)


def cpu(act: Callable[[], object]) -> float:
    """CPU seconds of this thread."""
    started = time.thread_time()
    act()
    return time.thread_time() - started


# -- a fleet -----------------------------------------------------------------------------------------------------------


def everyday() -> None:
    chance = random.Random(11)
    fleet = load([*pools(NODES, chance), *classes()])
    seconds: list[float] = []
    first: list[float] = []
    seen: set[str] = set()
    live: list[str] = []
    for number in range(CLAIMS):
        claim = drawn(f"c{number}", chance)
        if len(live) > NODES // 2:
            fleet.release("default", live.pop(chance.randrange(len(live))))
        taken = cpu(partial(fleet.allocate, claim))
        shape = str(claim["spec"])
        (seconds if shape in seen else first).append(taken)
        seen.add(shape)
        live.append(claim["metadata"]["name"])
    report("a claim on 80,000 devices", seconds)
    report("a claim of a new shape", first)


def two_claims() -> None:
    fleet = load([*pools(NODES, random.Random(11)), *classes()])
    for number in range(NODES - 60):
        fleet.allocate(wants(f"all{number}", 8))
    for number in range(120):
        fleet.allocate(wants(f"some{number}", 3))
    fleet.allocate_all([])
    pairs = [[wants(f"a{n}", 1), wants(f"b{n}", 2, matchAttributes=["numa"])] for n in range(6)]
    report("two claims on 5,000 nearly full nodes", [cpu(partial(fleet.allocate_all, pair)) for pair in pairs])
    pairs = [[wants(f"c{n}", 1), wants(f"d{n}", 3)] for n in range(6)]
    report("the same, of which one fits nowhere", [cpu(partial(fleet.allocate_all, pair)) for pair in pairs])


def large_load() -> None:
    documents = bench_fleet.manifests(NODES)
    report("140,000 devices loaded", [cpu(partial(load, documents))])


def changed_machine() -> None:
    machines = [machine(number, 0) for number in range(MACHINES)]
    fleet = load([*pools(100, random.Random(11)), *classes(), *machines])
    claim = wants("c", 1)
    seconds = []
    for number in range(50):
        fleet.allocate(claim)
        fleet.release("default", "c")
        before = cpu(partial(fleet.allocate, claim))
        fleet.release("default", "c")
        after = cpu(partial(fleet.update, machine(number, 1))) + cpu(partial(fleet.allocate, claim))
        fleet.release("default", "c")
        seconds.append(max(0.0, after - before))
    report("a machine among 4,000 changes", seconds)


def load(documents: list[Manifest]) -> Fleet:
    """A fleet that stays, where the checkout distinguishes that."""
    options: Manifest = {"freeze": True} if "freeze" in inspect.signature(Fleet.from_manifests).parameters else {}
    return Fleet.from_manifests(documents, **options)


def pools(nodes: int, chance: random.Random) -> list[Manifest]:
    documents = []
    for node in range(nodes):
        (model,) = chance.choices(list(MODELS), [weight for _, weight in MODELS.values()])
        common = {"model": {"stringValue": model}, "memory": {"quantityValue": MODELS[model][0]}}
        common |= {"vendor": {"stringValue": "nvidia"}, "driverVersion": {"semVerValue": "550.54.15"}}
        documents.append(pool(node, "gpu", common))
        documents.append(pool(node, "nic", {"linkSpeed": {"quantityValue": "100G"}}))
    return documents


def pool(node: int, what: str, common: Manifest) -> Manifest:
    devices = [
        {
            "name": f"{what}-{number}",
            "attributes": [
                {"name": "numa", "intValue": number // 4},
                {"name": "pcieRoot", "stringValue": f"root{number // 2}"},
                {"name": "uuid", "stringValue": f"{what}-{node}-{number}"},
            ],
        }
        for number in range(8)
    ]
    attributes = [{"name": name, **value} for name, value in common.items()]
    spec = {"nodeName": f"node-{node:05d}", "driver": f"{what}.example.com", "attributes": attributes}
    return thing("DevicePool", f"node-{node:05d}-{what}", {**spec, "devices": devices}, namespace=None)


def classes() -> list[Manifest]:
    rules = {"gpu": "device.vendor == 'nvidia'", "nic": "device.linkSpeed >= '25G'"}
    return [
        thing("DeviceClass", name, {"driver": f"{name}.example.com", "constraints": rule}, namespace=None)
        for name, rule in rules.items()
    ]


def drawn(name: str, chance: random.Random) -> Manifest:
    """GPUs of a model, mostly one; some on one NUMA node, some with a NIC, some with alternatives."""
    count, kind = chance.choice([1, 1, 1, 2, 2, 4, 8]), chance.random()
    model = f"device.model == '{chance.choice(list(MODELS))}' && device.driverVersion >= '535.0.0'"
    gpus: Manifest = {"deviceClass": "gpu", "constraints": model, "requests": {"count": count}}
    if count in (2, 4) and chance.random() < 0.5:
        gpus["matchAttributes"] = ["numa"]
    spec: Manifest = {"claims": [gpus]}
    if kind < 0.3:
        spec["claims"].append({"deviceClass": "nic", "requests": {"count": 1}})
        if count <= 4:
            spec["matchAttributes"] = ["numa"]
    elif kind < 0.45 and count <= 2:
        spec = {"claims": [{"oneOf": [gpus, {**gpus, "constraints": "device.memory >= '40Gi'"}]}]}
    claim = thing("DeviceClaim", name, spec)
    claim["metadata"]["creationTimestamp"] = f"2026-01-01T{chance.randrange(24):02d}:{chance.randrange(60):02d}:00Z"
    return claim


def wants(name: str, count: int, namespace: str = "default", device_class: str = "gpu", **more: Any) -> Manifest:
    detail = {"deviceClass": device_class, "requests": {"count": count}, **more}
    return thing("DeviceClaim", name, {"claims": [detail]}, namespace)


def machine(number: int, version: int) -> Manifest:
    kind = {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachine"}
    amount = {"cpu": {"min": 1, "max": 1}, "memory": {"min": "512Mi", "max": "512Mi"}}
    metadata = {"name": f"m{number}", "namespace": "default", "resourceVersion": str(version)}
    return {**kind, "metadata": metadata, "spec": amount, "status": {"phase": "Running"}}


def thing(kind: str, name: str, spec: Manifest, namespace: str | None = "default") -> Manifest:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec}


# -- claims that wait --------------------------------------------------------------------------------------------------


def waiting(shapes: int) -> None:
    """``shapes``: different ones among the claims of tenant A that wait; B asks for devices that A does not want, then
    for the same."""
    with tempfile.TemporaryDirectory() as folder:
        store = SQLiteStore(Path(folder) / "store.db")
        for document in [*pools(100, random.Random(11)), *classes()]:
            store.create(document)
        for number in range(WAITING):
            rule = f"device.numa < {9 + number % shapes}"
            store.create(wants(f"a{number}", 1, "a", constraints=rule) if shapes <= 8 else wide(number))
        allocator = machine_allocator(store)
        settle(allocator)
        for what, device_class in (("other devices", "nic"), ("the same devices", "gpu")):
            seconds = []
            for number in range(5):
                if device_class == "gpu":
                    holder = next(each for each in store.list("DeviceClaim", namespace="a").objects if held(each))
                    store.delete("DeviceClaim", "a", holder["metadata"]["name"])
                store.create(wants(f"{device_class}{number}", 1, "b", device_class))
                seconds.append(cpu(allocator.round))
                allocator.round()
            report(f"10,000 wait, {shapes:,} shapes: a neighbour's answer, {what}", seconds)
        restarted, allocator = time.process_time(), machine_allocator(store)
        settle(allocator)
        report(f"10,000 wait, {shapes:,} shapes: restart, until all are answered", [time.process_time() - restarted])
        for _ in range(RENEWALS):
            if not (allocator._resting and allocator._resting.is_due):
                break
            allocator.round()
        report(f"10,000 wait, {shapes:,} shapes: until all reasons are new, too", [time.process_time() - restarted])
        store.close()


def waiting_pods() -> None:
    """ResourceClaims of pods: A's wait for GPUs of 100 nodes; B asks for NICs, then for GPUs that become free."""
    with tempfile.TemporaryDirectory() as folder:
        store = SQLiteStore(Path(folder) / "store.db")
        for number in range(100):
            store.create(node(f"node-{number:05d}"))
            for what in ("gpu", "nic"):
                store.create(resource_slice(f"node-{number:05d}", what))
        for what in ("gpu", "nic"):
            rule = f"device.driver == '{what}.example.com'"
            store.create(resource("DeviceClass", what, {"selectors": [{"cel": {"expression": rule}}]}))
        for number in range(WAITING):
            create_pod(store, "a", f"a{number}", "gpu")
        allocator = ResourceClaimAllocator(store, stamp="1 a")  # type: ignore[arg-type]
        settle(allocator)
        for claim in store.list("ResourceClaim").objects:
            if is_allocated(claim):
                start_pod(store, claim)
        settle(allocator)
        for what, device_class in (("other devices", "nic"), ("the same devices", "gpu")):
            seconds = []
            for number in range(5):
                if device_class == "gpu":
                    end_pod(store, next(each for each in store.list("ResourceClaim").objects if is_allocated(each)))
                create_pod(store, "b", f"{device_class}{number}", device_class)
                seconds.append(cpu(allocator.round))
                settle(allocator)
            report(f"10,000 pods wait: a neighbour's answer, {what}", seconds)
        restarted, allocator = time.process_time(), ResourceClaimAllocator(store, stamp="2 a")  # type: ignore[arg-type]
        settle(allocator)
        report("10,000 pods wait: restart, until all are answered", [time.process_time() - restarted])
        store.close()


def node(name: str) -> Manifest:
    status = {"allocatable": {"cpu": "64", "pods": "200"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": status}


def resource(kind: str, name: str, spec: Manifest, **metadata: Any) -> Manifest:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def resource_slice(node_name: str, what: str) -> Manifest:
    pool = {"name": f"{node_name}-{what}.devalloc", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"{what}-{number}", "attributes": {"numa": {"int": number // 4}}} for number in range(8)]
    spec = {"driver": f"{what}.example.com", "nodeName": node_name, "pool": pool, "devices": devices}
    return resource("ResourceSlice", f"{node_name}-{what}", spec)


def create_pod(store: SQLiteStore, namespace: str, name: str, device_class: str) -> None:
    """A pod that waits for a device, with its claim."""
    requests = [{"name": "r", "exactly": {"deviceClassName": device_class}}]
    labels = {"devalloc.io/allocator": "devalloc"}
    store.create(
        resource("ResourceClaim", name, {"devices": {"requests": requests}}, namespace=namespace, labels=labels)
    )
    spec: Manifest = {"resourceClaims": [{"name": "r", "resourceClaimName": name}]}
    spec["containers"] = [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]
    metadata = {"namespace": namespace, "name": name}
    store.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def start_pod(store: SQLiteStore, claim: Manifest) -> None:
    (term,) = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    pod = store.get("Pod", claim["metadata"]["namespace"], claim["metadata"]["name"])
    store.replace({**pod, "spec": {**pod["spec"], "nodeName": term["matchFields"][0]["values"][0]}})


def end_pod(store: SQLiteStore, claim: Manifest) -> None:
    namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
    store.delete("Pod", namespace, name)
    store.replace({**claim, "metadata": {**claim["metadata"], "finalizers": []}})
    store.delete("ResourceClaim", namespace, name)


def is_allocated(claim: Manifest) -> bool:
    return bool((claim.get("status") or {}).get("allocation"))


def wide(number: int) -> Manifest:
    return wants(f"a{number}", 1 if number < 900 else 9, "a", constraints=f"device.numa < {9 + number}")


def held(claim: Manifest) -> bool:
    return bool((claim.get("status") or {}).get("allocations"))


def settle(allocator: DeviceClaimAllocator | ResourceClaimAllocator) -> None:
    """Round after round until none has left anything to the next one."""
    for _ in range(ROUNDS):
        allocator.round()
        if not allocator.loop.is_again:
            break


MEASURED: dict[str, Callable[[], None]] = {
    "everyday": everyday,
    "two_claims": two_claims,
    "large_load": large_load,
    "changed_machine": changed_machine,
    "waiting_1": lambda: waiting(1),
    "waiting_8": lambda: waiting(8),
    "waiting_10000": lambda: waiting(WAITING),
    "waiting_pods": waiting_pods,
}

if __name__ == "__main__":
    gc.collect()
    main()

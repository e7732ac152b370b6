"""Nodes that say what they have for machines, and machines as manifests."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from devalloc.inventory.capacity import Capacity, HostCapacity, NumaNode, host_pool
from devalloc.store import Store

Object = dict[str, Any]
GIB = 2**30


def capacity(
    cpus: int = 4,
    memory: int = 8,
    numa: int = 2,
    network: int = 10**9,
    disk_io: int = 10**9,
    ratio: int = 1,
    huge: Sequence[int] = (),
) -> HostCapacity:
    """CPUs and GiB of all NUMA nodes together, each with as many; bytes per second. ``huge``: GiB in huge pages of
    2 MiB, by node, beside its other memory."""
    pages = [{2 << 20: size * GIB} if size else {} for size in [*huge, *[0] * numa]][:numa]
    total = Capacity("hugepages-2Mi", sum(huge) * GIB, Fraction(1), "detected")
    numbers = [frozenset(range(cpus * n // numa, cpus * (n + 1) // numa)) for n in range(numa)]
    return HostCapacity(
        cpu=Capacity("cpu", cpus * 1000, Fraction(ratio), "detected"),
        memory=Capacity("memory", memory * GIB, Fraction(1), "detected"),
        disk=Capacity("disk", 100 * GIB, Fraction(1), "configured"),
        network=Capacity("network", network, Fraction(1), "configured"),
        disk_io=Capacity("disk_io", disk_io, Fraction(1), "configured"),
        image_limit=20 * GIB,
        cpus=frozenset().union(*numbers),
        nodes=tuple(
            NumaNode(n, node_cpus, memory * GIB // numa + sum(pages[n].values()), huge_pages=pages[n])
            for n, node_cpus in enumerate(numbers)
        ),
        huge_pages=(total,) if total.capacity else (),
        uplink=None,
    )


def host(node: str = "n", *, live_migration: bool = True, shared_storage: Sequence[str] = (), **amounts: Any) -> Object:
    """The pool of a node with these amounts; see ``capacity``. ``live_migration``: it receives machines that run."""
    pool = host_pool(capacity(**amounts), node, shared_storage=shared_storage, live_migration=live_migration)
    return pool.to_manifest()


def machine(name: str, cpu: str = "1", memory: str = "1Gi", *claims: str, **spec: Any) -> Object:
    """A machine that starts with so much; ``spec``: further fields."""
    bounds = {"cpu": {"min": cpu, "max": "8"}, "memory": {"min": memory, "max": "8Gi"}}
    return {
        "apiVersion": "devalloc.io/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**bounds, "start": {"kernel": "/boot/vmlinuz"}, "claims": [*claims], **spec},
    }


def status(store: Store, name: str) -> Object:
    """The status of a machine; empty where it has none."""
    content: Object = store.get("VirtualMachine", "default", name).get("status", {})
    return content


def node_by_machine(store: Store) -> dict[str, str]:
    """The node of each machine that something is kept for."""
    machines = store.list("VirtualMachine").objects
    return {m["metadata"]["name"]: m["status"]["nodeName"] for m in machines if m.get("status", {}).get("allocations")}


def reserved_for(store: Store, name: str) -> dict[str, dict[str, str]]:
    """What is kept for a machine: by device, by resource."""
    return {
        entry["deviceName"]: {one["name"]: one["allocation"] for one in entry["allocations"]}
        for entry in status(store, name).get("allocations", [])
    }

"""One-line summaries of claims, machines and pools, the same in every table and on the page.

They read manifests from a store. If another program wrote something that does not match the API, they raise
AttributeError, KeyError, TypeError or ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from devalloc.api import meta

Object = dict[str, Any]


def format_devices(entries: Sequence[Object] | Object, *, limit: int | None = 4) -> str:
    """Allocation entries, or those of an AllocationResult, as "pool/device (memory 3Gi)", at most ``limit`` of them.

    Consecutive devices of a pool name the pool once.
    """
    if isinstance(entries, Mapping):
        entries = [_allocation_entry(one) for one in entries.get("devices", {}).get("results", [])]
    shown = entries if limit is None or len(entries) <= limit else entries[: limit - 1]
    texts, last = [], None
    for entry in shown:
        pool = entry["devicePoolName"]
        amounts = ", ".join(f"{amount['name']} {amount['allocation']}" for amount in entry.get("allocations", []))
        name = entry["deviceName"] if pool == last else f"{pool}/{entry['deviceName']}"
        texts.append(f"{name} ({amounts})" if amounts else name)
        last = pool
    if len(shown) < len(entries):
        texts.append(f"{len(entries) - len(shown)} more")
    return ", ".join(texts)


def _allocation_entry(result: Object) -> Object:
    """A device of an AllocationResult in the form of an allocation entry."""
    amounts = [{"name": name, "allocation": amount} for name, amount in result.get("consumedCapacity", {}).items()]
    pool = f"{result['driver']}/{result['pool']}"
    return {"devicePoolName": pool, "deviceName": result["device"], "allocations": amounts}


def attribute_text(device_or_spec: Object, name: str) -> str:
    """The value of an attribute as text; "" if there is none."""
    for entry in device_or_spec.get("attributes", []):
        if entry["name"] == name:
            return next(str(value) for key, value in entry.items() if key != "name")
    return ""


def claim_state(claim: Object) -> str:
    """Allocated, Prepared (its node has bound the devices), Pending, Releasing or Deleting."""
    if claim["metadata"].get("deletionTimestamp"):
        return "Deleting"
    is_prepared = meta.NODE_FINALIZER in claim["metadata"].get("finalizers", [])
    holds = bool(claim.get("status", {}).get("allocations"))
    if annotation_text(claim, meta.RELEASE) and (holds or is_prepared):
        return "Releasing"
    if is_prepared:
        return "Prepared"
    return "Allocated" if holds else "Pending"


def annotation_text(obj: Object, name: str) -> str:
    """The value of an annotation; "" if there is none."""
    return str(obj["metadata"].get("annotations", {}).get(name, ""))


def request_summary(claim: Object) -> str:
    """The devices that a claim requests: "4 gpu, 1 vf"."""
    return ", ".join(_detail_summary(entry) for entry in claim.get("spec", {}).get("claims", []))


def _detail_summary(detail: Object) -> str:
    if detail.get("oneOf"):
        return " or ".join(_detail_summary(alternative) for alternative in detail["oneOf"])
    what = detail.get("deviceClass") or detail.get("deviceType") or "any device"
    requests = dict(detail.get("requests", {}))
    count = requests.pop("count", None)
    amounts = " ".join(f"{amount} {name}" for name, amount in requests.items())
    if amounts and count is None:
        return f"{amounts} of {what}"
    return f"{count or 1} {what}" + (f" with {amounts}" if amounts else "")


def machine_node(machine: Object) -> str:
    """The node of its spec, or else the node on which it was placed."""
    return str(machine["spec"].get("nodeName") or machine.get("status", {}).get("nodeName") or "")


def machine_phase(machine: Object) -> str:
    """Its phase; Deleting once its deletion was requested, Pending until a node reports its status."""
    if machine["metadata"].get("deletionTimestamp"):
        return "Deleting"
    return str(machine.get("status", {}).get("phase", "Pending"))


def machine_amount(machine: Object, name: str) -> str:
    """The actual and the wanted amount: "2/4"."""
    bounds = machine["spec"]["cpu" if name == "cpus" else name]
    requested = str(bounds.get("use", bounds["min"]))
    observed = machine.get("status", {}).get("observed", {}).get(name)
    return requested if observed is None or str(observed) == requested else f"{observed}/{requested}"


def pool_model(pool: Object) -> str:
    """The card's model; its virtual functions, which follow in the list, often have another one."""
    spec = pool.get("spec", {})
    models = [attribute_text(spec, "model"), *(attribute_text(device, "model") for device in spec.get("devices", []))]
    return next((model for model in models if model), "")


def pool_numa_nodes(pool: Object) -> str:
    """The NUMA nodes of its devices: "0,1"."""
    spec = pool.get("spec", {})
    values = [attribute_text(spec, "numa"), *(attribute_text(device, "numa") for device in spec.get("devices", []))]
    return ",".join(dict.fromkeys(value for value in values if value))

"""Short constructors for manifests, so that tests show what matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from devalloc.api.meta import ALLOCATED_NODE, ALLOCATION_DETAILS, DEVALLOC, DEVMGMT

Manifest = dict[str, Any]

_VALUE_FIELDS = {int: "intValue", str: "stringValue"}


def pool(
    name: str,
    node: str | None = "n1",
    driver: str = "gpu",
    *,
    attributes: Mapping[str, Any] | None = None,
    resources: Mapping[str, Any] | None = None,
    devices: Sequence[Manifest] = (),
) -> Manifest:
    """A DevicePool; ``node`` None is a network pool. Attributes and resources as in `device`."""
    spec: Manifest = {"driver": driver}
    if node is not None:
        spec["nodeName"] = node
    if attributes:
        spec["attributes"] = _attributes(attributes)
    if resources:
        spec["resources"] = _resources(resources)
    spec["devices"] = list(devices)
    return {"apiVersion": DEVMGMT, "kind": "DevicePool", "metadata": {"name": name}, "spec": spec}


def device(
    name: str,
    *,
    attributes: Mapping[str, Any] | None = None,
    requests: Mapping[str, Any] | None = None,
    resources: Mapping[str, Any] | None = None,
) -> Manifest:
    """A device. Attributes: a plain string or int, or {"semVerValue": …}, {"quantityValue": …}.

    Resources: a capacity, or "capacity/blockSize".
    """
    content: Manifest = {"name": name}
    if attributes:
        content["attributes"] = _attributes(attributes)
    if requests:
        content["requests"] = dict(requests)
    if resources:
        content["resources"] = _resources(resources)
    return content


def device_class(name: str, **spec: Any) -> Manifest:
    """A DeviceClass with this spec."""
    return {"apiVersion": DEVMGMT, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def claim(name: str, *details: Manifest, **metadata: Any) -> Manifest:
    """A DeviceClaim in namespace default with these details; ``match`` are the spec's matchAttributes."""
    match = metadata.pop("match", None)
    spec: Manifest = {"claims": list(details)}
    if match:
        spec = {"matchAttributes": list(match), **spec}
    meta = {"name": name, "namespace": "default", **metadata}
    return {"apiVersion": DEVMGMT, "kind": "DeviceClaim", "metadata": meta, "spec": spec}


def config(name: str, namespace: str = "default") -> Manifest:
    """A configuration object that classes and claims can refer to."""
    return {"apiVersion": DEVALLOC, "kind": "VfConfig", "metadata": {"name": name, "namespace": namespace}, "spec": {}}


def config_reference(name: str, namespace: str | None = None) -> Manifest:
    """A reference to such an object; classes need its namespace."""
    reference = {"apiVersion": DEVALLOC, "kind": "VfConfig", "name": name}
    return reference if namespace is None else {**reference, "namespace": namespace}


def allocated(
    content: Manifest, entries: Sequence[Manifest], *, node: str | None = None, details: Sequence[str] | None = None
) -> Manifest:
    """The claim with a status that holds ``entries`` (see `entry`), and the annotations that go with it."""
    annotations = dict(content["metadata"].get("annotations", {}))
    if node is not None:
        annotations[ALLOCATED_NODE] = node
    if details is not None:
        annotations[ALLOCATION_DETAILS] = "[" + ",".join(f'"{detail}"' for detail in details) + "]"
    metadata = {**content["metadata"], **({"annotations": annotations} if annotations else {})}
    return {**content, "metadata": metadata, "status": {"allocations": list(entries)}}


def entry(pool_name: str, device_name: str, **amounts: Any) -> Manifest:
    """One device of an allocation; with amounts it is a share."""
    content: Manifest = {"devicePoolName": pool_name, "deviceName": device_name}
    if amounts:
        content["allocations"] = [{"name": name, "allocation": amount} for name, amount in amounts.items()]
    return content


def _attributes(values: Mapping[str, Any]) -> list[Manifest]:
    return [
        {"name": name, **(value if isinstance(value, dict) else {_VALUE_FIELDS[type(value)]: value})}
        for name, value in values.items()
    ]


def _resources(capacities: Mapping[str, Any]) -> list[Manifest]:
    resources = []
    for name, text in capacities.items():
        capacity, _, block = str(text).partition("/")
        resources.append({"name": name, "capacity": capacity, **({"blockSize": block} if block else {})})
    return resources

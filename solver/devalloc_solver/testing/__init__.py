"""Builders of manifests, and readers of answers, for tests of programs that use the solver.

    fleet = [device_class("gpu"), pool("cards", "node-a", devices=[device("gpu-0"), device("gpu-1")])]
    answer = solve_manifests([*fleet, claim("train", request("gpu", count=2))])
    assert devices_of(answer, "train") == ["cards/gpu-0", "cards/gpu-1"]

A builder takes the fields that differ, under their names in manifests, and fills in the rest. It raises TypeError for a
name that does not exist, and for an argument that another builder should have made.
``devalloc_solver.testing.fixtures`` has fixtures for pytest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import signature
from typing import Never, TypedDict, Unpack, cast

from devalloc.api.claim import DeviceClaimDetail
from devalloc.api.decode import decode
from devalloc.api.device_class import DeviceClassSpec
from devalloc.api.fields import ApiModel
from devalloc.api.meta import ALLOCATED_NODE, ALLOCATION_DETAILS, DEVMGMT, GROUP, NODE, PRIORITY
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.pool import Attribute
from devalloc.api.problems import closest_match
from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc.api.validation.schema import field_schemas
from devalloc_solver.answer_types import ClaimAnswerDict, SolutionDict
from devalloc_solver.testing.fields import Amount as Amount
from devalloc_solver.testing.fields import ClassFields as ClassFields
from devalloc_solver.testing.fields import Manifest as Manifest
from devalloc_solver.testing.fields import RequestFields as RequestFields

Value = str | int | Quantity | SemVer | Manifest
"""The value of an attribute; as a dict, such as ``{"semVerValue": "1.2"}``."""


class MetadataFields(TypedDict, total=False):
    """Fields of ``metadata`` that ``claim`` takes."""

    namespace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    uid: str
    finalizers: Sequence[str]
    creationTimestamp: str
    deletionTimestamp: str


# -- the fleet ---------------------------------------------------------------------------------------------------------


def pool(
    name: str,
    node: str | None = "n1",
    driver: str = "gpu",
    *,
    attributes: Mapping[str, Value] | None = None,
    resources: Mapping[str, Amount] | None = None,
    devices: Sequence[Manifest] = (),
    **unknown: Never,
) -> Manifest:
    """A DevicePool. With ``node`` None, every node reaches it over the network. See ``device`` for the rest."""
    _refuse_unknown(unknown, pool)
    _check_made(devices, "pool", "devices", 'device("gpu-0")')
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
    attributes: Mapping[str, Value] | None = None,
    requests: Mapping[str, Amount] | None = None,
    resources: Mapping[str, Amount] | None = None,
    **unknown: Never,
) -> Manifest:
    """A device for ``pool``.

    Args:
        attributes: values by name, such as ``{"model": "L4", "numa": 0}``. Raises TypeError for other Python types.
        requests: amounts of the pool's resources that it consumes.
        resources: its own capacities, or "CAPACITY/BLOCKSIZE" such as "40Gi/1Gi".
    """
    _refuse_unknown(unknown, device)
    content: Manifest = {"name": name}
    if attributes:
        content["attributes"] = _attributes(attributes)
    if requests:
        content["requests"] = dict(requests)
    if resources:
        content["resources"] = _resources(resources)
    return content


def device_class(name: str, **spec: Unpack[ClassFields]) -> Manifest:
    """A DeviceClass. Without fields, all devices match it."""
    _check_names(spec, DeviceClassSpec, "device_class")
    return {"apiVersion": DEVMGMT, "kind": "DeviceClass", "metadata": {"name": name}, "spec": dict(spec)}


# -- claims ------------------------------------------------------------------------------------------------------------


def request(device_class: str | None = None, count: int | None = None, **fields: Unpack[RequestFields]) -> Manifest:
    """A request for ``claim``, such as ``request("gpu", 2, constraints="device.model == 'L4'")``."""
    _check_names(fields, DeviceClaimDetail, "request")
    content: Manifest = {} if device_class is None else {"deviceClass": device_class}
    content |= fields
    if count is not None:
        content["requests"] = {"count": count, **content.get("requests", {})}
    return content


def one_of(*alternatives: Manifest) -> Manifest:
    """A request with alternatives, the preferred one first. Exactly one of them is satisfied."""
    _check_made(alternatives, "one_of", "alternatives", 'request("gpu")')
    return {"oneOf": list(alternatives)}


def claim(
    name: str,
    *requests: Manifest,
    match: Sequence[str] = (),
    priority: int | None = None,
    group: str | None = None,
    node: str | None = None,
    **metadata: Unpack[MetadataFields],
) -> Manifest:
    """A DeviceClaim, in the namespace default unless ``namespace`` is given.

    Args:
        requests: see ``request``.
        match: attributes that must have one value on all devices of all requests.
        priority, group, node: the annotations devalloc.io/priority, /group and /node.
    """
    _check_names(metadata, ObjectMeta, "claim", also=("match", "priority", "group", "node"))
    _check_made(requests, "claim", "requests", 'request("gpu")')
    spec: Manifest = {"claims": list(requests)}
    if match:
        spec = {"matchAttributes": list(match), **spec}
    meta: Manifest = {"name": name, "namespace": "default", **metadata}
    own = {PRIORITY: None if priority is None else str(priority), GROUP: group, NODE: node}
    if given := {key: value for key, value in own.items() if value is not None}:
        meta["annotations"] = {**meta.get("annotations", {}), **given}
    return {"apiVersion": DEVMGMT, "kind": "DeviceClaim", "metadata": meta, "spec": spec}


def allocated(
    claim: Manifest, entries: Sequence[Manifest], *, node: str | None = None, details: Sequence[str] | None = None
) -> Manifest:
    """A claim that already has devices.

    Args:
        entries: see ``entry``.
        node: the node of the devices.
        details: the index of the request of each entry, such as "0" or "1.0" (S18).
    """
    annotations = dict(claim["metadata"].get("annotations", {}))
    if node is not None:
        annotations[ALLOCATED_NODE] = node
    if details is not None:
        annotations[ALLOCATION_DETAILS] = json.dumps([*details], separators=(",", ":"))
    metadata = {**claim["metadata"], **({"annotations": annotations} if annotations else {})}
    return {**claim, "metadata": metadata, "status": {"allocations": list(entries)}}


def entry(pool_name: str, device_name: str, **amounts: Amount) -> Manifest:
    """One device of an allocation; with amounts it is a share."""
    content: Manifest = {"devicePoolName": pool_name, "deviceName": device_name}
    if amounts:
        content["allocations"] = [{"name": name, "allocation": amount} for name, amount in amounts.items()]
    return content


# -- checks ------------------------------------------------------------------------------------------------------------


def check_manifests(*manifests: Manifest | Sequence[Manifest]) -> None:
    """Check that manifests, or lists of them, are valid. Raises ValueError with all problems: a test with a typo should
    not pass."""
    __tracebackhide__ = True
    problems = [str(problem) for manifest in flatten(manifests) for problem in decode(manifest).problems]
    if problems:
        raise ValueError("\n".join(problems))


def flatten(manifests: Sequence[Manifest | Sequence[Manifest]]) -> list[Manifest]:
    """The manifests, with those of lists among them."""
    flat: list[Manifest] = []
    for each in manifests:
        flat += each if isinstance(each, list | tuple) else [cast(Manifest, each)]
    return flat


def answer_of(solution: SolutionDict, name: str, namespace: str = "default") -> ClaimAnswerDict:
    """The answer to one claim. Raises KeyError with the names of the others if there is none."""
    __tracebackhide__ = True
    for each in solution["claims"]:
        if (each["namespace"], each["name"]) == (namespace, name):
            return each
    names = [f"{each['namespace']}/{each['name']}" for each in solution["claims"]]
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    others = f"it has {', '.join(names[:_NAMES_SHOWN])}{more}" if names else "it has no claims"
    raise KeyError(f"no claim {namespace}/{name} in the answer; {others}")


def devices_of(solution: SolutionDict, name: str, namespace: str = "default") -> list[str]:
    """The devices of a claim as POOL/DEVICE. Raises AssertionError with the reason if it has none, KeyError if there is
    no such claim."""
    __tracebackhide__ = True
    answer = answer_of(solution, name, namespace)
    if not answer["allocated"]:
        raise AssertionError(_refusal_text(answer))
    return _devices(answer)


def assert_allocated(answer: ClaimAnswerDict | SolutionDict) -> list[str]:
    """The devices as POOL/DEVICE. Raises AssertionError with the reason of each claim that has none, and for an answer
    without claims.

    Args:
        answer: to one claim, as of ``Fleet.allocate``, or to several, as of ``solve_manifests``.
    """
    __tracebackhide__ = True
    answers = [cast(ClaimAnswerDict, answer)] if "allocated" in answer else answer["claims"]
    if not answers:
        raise AssertionError("no claims in the answer; add a claim to the manifests")
    refused = [_refusal_text(each) for each in answers if not each["allocated"]]
    if refused:
        raise AssertionError("\n".join(refused))
    return [device for each in answers for device in _devices(each)]


_NAMES_SHOWN = 5


def _refusal_text(answer: ClaimAnswerDict) -> str:
    return f"{answer['namespace']}/{answer['name']} is not allocated: {answer['reason']}: {answer['message']}"


def _devices(answer: ClaimAnswerDict) -> list[str]:
    return [f"{one['devicePoolName']}/{one['deviceName']}" for one in answer["allocations"]]


# -- parts -------------------------------------------------------------------------------------------------------------


def _attributes(values: Mapping[str, Value]) -> list[Manifest]:
    return [{"name": name, **_attribute(name, value)} for name, value in values.items()]


def _attribute(name: str, value: Value) -> Manifest:
    if isinstance(value, dict):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | Quantity | SemVer):
        raise TypeError(f"attribute {name}: must be a text, an integer, a Quantity or a SemVer, not {value!r}")
    return Attribute.of(name, value).to_manifest()


def _resources(capacities: Mapping[str, Amount]) -> list[Manifest]:
    resources = []
    for name, text in capacities.items():
        capacity, _, block = str(text).partition("/")
        resources.append({"name": name, "capacity": capacity, **({"blockSize": block} if block else {})})
    return resources


def _check_made(given: Sequence[object], builder: str, argument: str, example: str) -> None:
    """Raise TypeError for what no builder made: a name alone would become a manifest that is invalid."""
    if isinstance(given, str | Mapping):
        raise TypeError(f"{builder}() takes several {argument}, such as [{example}], not {given!r}")
    for each in given:
        if not isinstance(each, Mapping):
            raise TypeError(f"{builder}() takes {argument} such as {example}, not {each!r}")


def _refuse_unknown(unknown: Mapping[str, object], builder: Callable[..., Manifest]) -> None:
    """Raise TypeError for arguments that a builder does not have."""
    names = [*signature(builder).parameters][:-1]
    for name in unknown:
        near = closest_match(name, names)
        hint = f"did you mean {near}?" if near else f"the arguments are: {', '.join(names)}"
        raise TypeError(f"{builder.__name__}() has no argument {name!r}; {hint}")


def _check_names(given: Mapping[str, object], model: type[ApiModel], builder: str, also: Collection[str] = ()) -> None:
    """Raise TypeError for names that are not fields of the model."""
    names = {*field_schemas(model), *also}
    for name in given:
        if name not in names:
            near = closest_match(name, names)
            hint = f"did you mean {near}?" if near else f"the fields are: {', '.join(sorted(names))}"
            raise TypeError(f"{builder}() has no argument {name!r}; {hint}")

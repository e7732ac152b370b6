"""The metadata file of a request (KEP-5304): which PCI address or mdev a container was given. Pure, as ``cdi`` is.

KubeVirt reads it in the pod that runs the machine. A file for each request of a ResourceClaim, as a JSON stream with an
object for each version of its API, the newest first; a CDI device of its own mounts it where readers look for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from devalloc_node.claims.cdi import Rendered, spec
from devalloc_node.errors import Denied
from devalloc_node.model.grant import ClaimRef, Grant
from devalloc_node.model.names import check_ref, is_label, shown
from devalloc_node.model.prepared import PreparedDevice

VERSIONS = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"
_FOLDER = "dra-device-metadata"
_NAME_BYTES = 255


def metadata_files(grant: Grant, devices: Sequence[PreparedDevice], *, driver: str, data: str, folder: str) -> Rendered:
    """The files of a ResourceClaim: ``<data>/dra-device-metadata/<namespace>_<claim>/<request>/metadata.json`` and the
    CDI spec ``<folder>/<driver>_metadata_<uid>_<request>.json`` that mounts it, kind ``<driver>/metadata``.

    Each device's ids are those of the requests that it answers. Raises Denied ``ClaimNameInvalid``,
    ``RequestNameInvalid``.
    """
    ref = grant.ref
    check_ref(ref)
    if grant.pod_claim_name is not None and not is_label(grant.pod_claim_name):
        raise Denied("ClaimNameInvalid", f"the pod's name for {ref}, {shown(grant.pod_claim_name)}, is not a DNS label")
    files: dict[str, bytes] = {}
    ids: dict[str, tuple[str, ...]] = {}
    for request, answering in _by_request(ref, devices).items():
        path = f"{data}/{_FOLDER}/{_claim_folder(ref)}/{request}/metadata.json"
        name = f"{ref.uid}_{request}"
        files[path] = _stream(grant, request, answering, driver)
        files[f"{folder}/{driver}_metadata_{name}.json"] = spec(
            f"{driver}/metadata", [{"name": name, "containerEdits": {"mounts": [_mount(grant, request, path, driver)]}}]
        )
        for device in answering:
            ids[device.key] = (*ids.get(device.key, ()), f"{driver}/metadata={name}")
    return Rendered(files, ids)


def _by_request(ref: ClaimRef, devices: Sequence[PreparedDevice]) -> dict[str, list[PreparedDevice]]:
    by_request: dict[str, list[PreparedDevice]] = {}
    for device in devices:
        for name in dict.fromkeys(name.partition("/")[0] for name in device.requests):
            if not is_label(name):
                raise Denied(
                    "RequestNameInvalid", f"the request {shown(name)} of {ref} has no valid name (a DNS label)"
                )
            by_request.setdefault(name, []).append(device)
    return by_request


def _claim_folder(ref: ClaimRef) -> str:
    """``<namespace>_<claim>``: no namespace has an underscore. A name that is too long for a folder ends in a hash."""
    name = f"{ref.namespace}_{ref.name}"
    if len(name) <= _NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: _NAME_BYTES - len(digest) - 1]}_{digest}"


def _stream(grant: Grant, request: str, devices: Sequence[PreparedDevice], driver: str) -> bytes:
    ref = grant.ref
    content: dict[str, Any] = {
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid, "generation": 1},
        "requests": [{"name": request, "devices": [_device(device, driver) for device in devices]}],
    }
    if grant.pod_claim_name is not None:
        content["podClaimName"] = grant.pod_claim_name
    objects = [{"apiVersion": version, "kind": "DeviceMetadata", **content} for version in VERSIONS]
    return b"".join(json.dumps(each, indent=1).encode() + b"\n" for each in objects)


def _device(device: PreparedDevice, driver: str) -> Mapping[str, Any]:
    return {
        "driver": driver,
        "pool": device.pool,
        "name": device.device,
        "attributes": {
            name: {"int" if isinstance(value, int) else "string": value}
            for name, value in sorted(device.attributes.items())
        },
    }


def _mount(grant: Grant, request: str, path: str, driver: str) -> Mapping[str, Any]:
    if grant.pod_claim_name is None:
        place = f"resourceclaims/{grant.ref.name}"
    else:
        place = f"resourceclaimtemplates/{grant.pod_claim_name}"
    return {
        "hostPath": path,
        "containerPath": f"{IN_CONTAINER}/{place}/{request}/{driver}-metadata.json",
        "options": ["ro", "bind"],
    }

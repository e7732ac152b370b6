"""The files that go with prepared claims: which there are, where they lie, whether any is left, and how one is written.

Steps of kind ``file`` put one there. A value is its text; None means no file.

CDI tells container runtimes what a prepared device is inside a container. There is a spec file for each claim, with
the claim's UID in its name and in the names of its devices: runtimes load a file again only when they miss a name, so
one that was used must never mean anything else.

The metadata file of a request (KEP-5304) lists the PCI addresses or mdevs that a container was given. KubeVirt reads
it in the pod that runs the machine. It is a JSON stream with an object for each version of its API, the newest first;
a CDI device of its own mounts it where readers look for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devalloc.api.fields import is_label
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.boundary import Host
from devalloc_node.host.files import Files
from devalloc_node.journal.protocol import Journal, JournalReader
from devalloc_node.model.grant import ClaimRef, Grant, check_ref, shown
from devalloc_node.model.step import PreparedDevice, Value

CLASS = "device"
_NODE = re.compile(r"/dev(/[A-Za-z0-9_][A-Za-z0-9_.:-]*)+")
_NOT_IN_ENV = re.compile(r"[^A-Z0-9_]")


@dataclass(frozen=True, slots=True)
class Rendered:
    """Files to write for a claim, and what the devices are called in them."""

    files: Mapping[str, bytes]
    """Content by full path."""
    ids: Mapping[str, tuple[str, ...]]
    """Full CDI names by the device's key (``Prepared.cdi_ids``)."""


def claim_spec(ref: ClaimRef, devices: Sequence[PreparedDevice], *, driver: str, folder: str) -> Rendered:
    """The spec file of a claim: ``<folder>/<driver>_claim_<uid>.json``, kind ``<driver>/device``.

    Each device brings its nodes and an environment variable: ``DEVALLOC_PCI_<DEVICE>`` (addresses, the main one first)
    or ``DEVALLOC_MDEV_<DEVICE>`` (UUID). Raises Denied ``ClaimNameInvalid`` or ``DeviceNameInvalid``.
    """
    check_ref(ref)
    entries: list[dict[str, Any]] = []
    ids: dict[str, tuple[str, ...]] = {}
    for index, device in enumerate(devices):
        if not is_label(device.device):
            raise Denied(
                "DeviceNameInvalid", f"the device {shown(device.device)} of {ref} has no valid name (a DNS label)"
            )
        # Numbered: one claim may have a device twice, as two shares or as owner and as admin.
        name = f"{ref.uid}-{index}-{device.device}"
        entries.append({"name": name, "containerEdits": _edits(device)})
        ids[device.key] = (*ids.get(device.key, ()), f"{driver}/{CLASS}={name}")
    if not entries:
        return Rendered({}, {})
    path = f"{folder}/{driver}_claim_{ref.uid}.json"
    return Rendered({path: spec(f"{driver}/{CLASS}", entries)}, ids)


def spec(kind: str, devices: Sequence[Mapping[str, Any]]) -> bytes:
    """A CDI spec of the lowest version that knows what is in it."""
    digit_first = any(device["name"][:1].isdigit() for device in devices)
    content = {"cdiVersion": "0.5.0" if digit_first else "0.3.0", "kind": kind, "devices": list(devices)}
    return json.dumps(content).encode() + b"\n"


def _edits(device: PreparedDevice) -> dict[str, Any]:
    suffix = _NOT_IN_ENV.sub("_", device.device.upper())
    if device.mdev_uuid is not None:
        env = f"DEVALLOC_MDEV_{suffix}={device.mdev_uuid}"
    else:
        env = f"DEVALLOC_PCI_{suffix}={','.join(device.functions)}"
    edits: dict[str, Any] = {"env": [env]}
    if nodes := _nodes(device.nodes):
        edits["deviceNodes"] = [{"path": node, "permissions": "rw"} for node in nodes]
    return edits


def _nodes(nodes: Sequence[str]) -> list[str]:
    """The device's nodes, and the one by which VFIO is opened at all."""
    all_nodes: dict[str, None] = {}
    for node in nodes:
        if not _NODE.fullmatch(node):
            raise Denied("DeviceNameInvalid", f"{shown(node)} is not a device node below /dev")
        if node.startswith("/dev/vfio/devices/"):
            all_nodes["/dev/iommu"] = None
        elif node.startswith("/dev/vfio/"):
            all_nodes["/dev/vfio/vfio"] = None
        all_nodes[node] = None
    return list(all_nodes)


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


MAX_BYTES = 2**20
"""Far more than any of them has."""
_FOLDERS = "files/folders"


@dataclass(frozen=True, slots=True)
class ClaimFiles:
    """CDI specs in ``cdi``, metadata files below ``data``, both named after ``driver``."""

    driver: str
    cdi: Path
    data: Path
    journal: JournalReader

    def spec(self, grant: Grant, devices: Sequence[PreparedDevice]) -> Rendered:
        """The CDI spec. Raises Denied."""
        return claim_spec(grant.ref, devices, driver=self.driver, folder=str(self.cdi))

    def metadata(self, grant: Grant, devices: Sequence[PreparedDevice]) -> Rendered:
        """The metadata files. Raises Denied; ``ClaimNameHeld`` while another claim of that name has its own there."""
        # Their folder is named after the claim, not after its UID. A claim is in the journal before it renders,
        # so two at once see each other.
        for other in (record.ref for record in self.journal.claims()):
            if other != grant.ref and str(other) == str(grant.ref):
                raise Denied(
                    "ClaimNameHeld",
                    f"another claim {other} (uid {other.uid}) is still prepared, and its files have the same names",
                )
        return metadata_files(grant, devices, driver=self.driver, data=str(self.data), folder=str(self.cdi))

    def remains(self, uid: str) -> Sequence[str]:
        """CDI specs of a claim that are there, by their paths. Raises Failed."""
        try:
            names = sorted(path.name for path in self.cdi.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise Failed("HostUnreadable", f"cannot list {self.cdi}: {error.strerror}") from error
        starts = (f"{self.driver}_claim_{uid}.", f"{self.driver}_metadata_{uid}_")
        return [str(self.cdi / name) for name in names if name.startswith(starts)]


def folders_ever(journal: Journal, now: Sequence[str]) -> tuple[str, ...]:
    """All folders that files of claims may be in: those that are written to now, and, as the journal remembers, those
    that were when the plugin was told others. Raises Failed."""
    remembered: list[str] = json.loads(journal.setting(_FOLDERS) or "[]")
    every = sorted({*remembered, *now})
    if every != remembered:
        journal.set(_FOLDERS, json.dumps(every))
    return tuple(every)


@dataclass(frozen=True, slots=True)
class FileKind:
    """Writes and removes files below the folders that the host's boundary allows."""

    host: Host
    earlier: tuple[str, ...] = ()
    """Folders that it allowed once (``folders_ever``): what was written there is removed from there, or repeated."""

    def read(self, target: str) -> Value:
        try:
            descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                content = file.read(MAX_BYTES + 1)
            return content.decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise Failed("FileUnreadable", f"cannot read {target}: {error}") from error

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        try:
            if value is None:
                self.host.remove_file(target)
            else:
                self.host.put_file(target, value.encode())
        except PermissionError:
            if value is None:
                Files(self.earlier).remove(target)
            else:
                Files(self.earlier).put(target, value.encode())
        if self.read(target) != value:
            raise Failed("FileUnreadable", f"{target} does not contain what was just written to it")

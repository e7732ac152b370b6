"""How KubeVirt 1.9 accepts a machine with devices of a DRA driver, and reads them in its pod: by its rules alone
(``pkg/dra`` and its admitter)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Object = dict[str, Any]
BASE = "/var/run/kubernetes.io/dra-device-attributes"
_SUPPORTED = {"metadata.resource.k8s.io/v1alpha1"}


class Refused(Exception):
    """KubeVirt does not start the machine; the text says why."""


def wishes(machine: Object) -> Iterator[tuple[str, str]]:
    """(name in resourceClaims, request) of each device of a machine. Raises Refused, as on its creation."""
    spec = machine["spec"]
    claims = [claim["name"] for claim in spec.get("resourceClaims", ())]
    if len(set(claims)) < len(claims):
        raise Refused("duplicate resourceClaims name")
    devices, pairs = spec["domain"]["devices"], []
    gpus = devices.get("gpus", [])
    if len({"deviceName" in gpu for gpu in gpus}) > 1:
        raise Refused("contains both DRA and non-DRA GPUs")
    for device in (*gpus, *devices.get("hostDevices", ())):
        if ("deviceName" in device) == ("claimName" in device):
            raise Refused("a device must have either a deviceName or a claim")
        if "claimName" not in device:
            continue
        if not device["claimName"] or not device.get("requestName"):
            raise Refused("claimName and requestName are required")
        pairs.append((device["claimName"], device["requestName"]))
    if len(set(pairs)) < len(pairs):
        raise Refused("duplicate claimName/requestName pair")
    if not {claim for claim, _ in pairs} <= set(claims):
        raise Refused("resourceClaims must specify all claims that devices use")
    yield from pairs


def device_of(files: Mapping[str, bytes], machine: Object, claim: str, request: str) -> tuple[str, str]:
    """What KubeVirt passes to QEMU: ``mdev`` and a UUID, or ``pci`` and an address. ``files``: of the pod, by path.
    Raises Refused."""
    (reference,) = (each for each in machine["spec"]["resourceClaims"] if each["name"] == claim)
    if name := reference.get("resourceClaimName"):
        folder = f"{BASE}/resourceclaims/{name}/{request}"
    else:
        folder = f"{BASE}/resourceclaimtemplates/{claim}/{request}"
    matches = [path for path in files if Path(path).parent == Path(folder) and path.endswith("-metadata.json")]
    if len(matches) != 1:
        raise Refused(f"found {len(matches)} metadata files in {folder}")
    metadata = _first_supported(files[matches[0]].decode())
    devices = next((each.get("devices", []) for each in metadata["requests"] if each["name"] == request), [])
    if len(devices) != 1:
        raise Refused(f"request {request} has {len(devices)} devices, but only one is supported")
    attributes = devices[0].get("attributes", {})
    if uuid := attributes.get("mdevUUID", {}).get("string"):
        return "mdev", uuid
    if address := attributes.get("resource.kubernetes.io/pciBusID", {}).get("string"):
        return "pci", address
    raise Refused("neither mdevUUID nor pciBusID")


def _first_supported(text: str) -> Object:
    decoder, unknown = json.JSONDecoder(), []
    while text := text.lstrip():
        each, end = decoder.raw_decode(text)
        text = text[end:]
        if not each.get("apiVersion"):
            raise Refused("missing apiVersion")
        if each["apiVersion"] in _SUPPORTED:
            return dict(each)
        unknown.append(each["apiVersion"])
    raise Refused(f"no compatible metadata version in the stream (unknown versions: {unknown})")

"""What opaque parameters of ResourceClaims become; the rest of these grants is asked of a real API server."""

from __future__ import annotations

from typing import Any, cast

import pytest

from devalloc.store.kubernetes.client import Client
from devalloc_node.binding.vf_settings import wanted_settings
from devalloc_node.errors import Denied, Failed
from devalloc_node.kube.grants import ResourceClaimGrants
from devalloc_node.model.grant import ClaimRef, GrantedDevice

REF = ClaimRef("default", "a", "uid")


class Server:
    """Knows one claim for a VF, whose class has these parameters."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        opaque = {"driver": "devalloc.io", "parameters": parameters}
        result = {"request": "vf", "driver": "devalloc.io", "pool": "n-0000-41-00", "device": "0000-41-10-0"}
        devices = {"results": [result], "config": [{"source": "FromClass", "requests": ["vf"], "opaque": opaque}]}
        self.claim = {"metadata": {"uid": "uid"}, "status": {"allocation": {"devices": devices}}}

    def get(self, path: str, **more: Any) -> dict[str, Any]:
        return self.claim


def granted(**parameters: Any) -> GrantedDevice:
    (device,) = ResourceClaimGrants(cast(Client, Server(parameters)), "devalloc.io", "n").get(REF).devices
    return device


@pytest.mark.parametrize("more", [{}, {"metadata": {"name": "tenant-7"}}])
def test_parameters_need_no_name(more: dict[str, Any]) -> None:
    device = granted(apiVersion="devalloc.io/v1alpha1", kind="VfConfig", spec={"vlan": 7}, **more)
    assert wanted_settings(device) == {"vlan": 7}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"apiVersion": "devalloc.io/v1alpha1", "kind": "VFConfig", "spec": {"vlan": 7}}, "VFConfig"),
        ({"apiVersion": "devalloc.io/v1alpha1", "kind": "VfConfig", "spec": {"vlam": 7}}, "vlam"),
        ({"apiVersion": "devalloc.io/v1", "kind": "VfConfig", "spec": {"vlan": 7}}, "must be devalloc.io/v1alpha1"),
        ({"apiVersion": "v1", "kind": "ConfigMap", "data": {"vlan": "7"}}, "ConfigMap"),
        ({"vlan": 7}, "kind"),
    ],
)
def test_unknown_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    """They may be what keeps the device in its network."""
    with pytest.raises(Denied, match=message) as caught:
        granted(**parameters)
    assert caught.value.code == "ConfigInvalid"


@pytest.mark.parametrize("answer", [{}, {"metadata": None}, {"metadata": {"uid": None}}])
def test_an_answer_that_says_nothing_proves_nothing(answer: dict[str, Any]) -> None:
    """As of a proxy between us and the API server."""
    server = Server({})
    server.claim = answer
    grants = ResourceClaimGrants(cast(Client, server), "devalloc.io", "n")
    for ask in (grants.identity, lambda: grants.is_gone(REF), lambda: grants.get(REF)):
        with pytest.raises(Failed, match=r"no UID"):
            ask()


def allocated_on(*nodes: str) -> dict[str, Any]:
    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": list(nodes)}]}
    return {"allocation": {"nodeSelector": {"nodeSelectorTerms": [by_name]}}}


@pytest.mark.parametrize(
    ("uid", "status", "belongs"),
    [
        ("uid", allocated_on("n"), True),
        ("uid", allocated_on("m"), False),
        ("uid", {"allocation": {"devices": {}}}, True),  # it may be
        ("uid", {"allocation": {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{}]}]}}}, True),
        ("uid", {}, False),
        ("another", allocated_on("n"), False),
    ],
)
def test_a_claim_belongs_to_the_node_of_its_devices(uid: str, status: dict[str, Any], *, belongs: bool) -> None:
    server = Server({})
    server.claim = {"metadata": {"uid": uid}, "status": status}
    assert ResourceClaimGrants(cast(Client, server), "devalloc.io", "m").belongs_to_node(REF, "n") is belongs

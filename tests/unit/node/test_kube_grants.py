"""What ResourceClaims grant a node, and which are refused. A test of the cluster tier asks a real API server."""

from __future__ import annotations

from typing import Any, cast

import pytest

from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc_node.binding.vf_settings import wanted_settings
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.kube.grants import MAX_DEVICES, ResourceClaimGrants
from devalloc_node.model.grant import ClaimRef, GrantedDevice
from tests.support.node_errors import raises

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
    with raises(Denied, "ConfigInvalid", match=message):
        granted(**parameters)


@pytest.mark.parametrize("answer", [{}, {"metadata": None}, {"metadata": {"uid": None}}])
def test_an_answer_that_says_nothing_proves_nothing(answer: dict[str, Any]) -> None:
    """As of a proxy between us and the API server."""
    server = Server({})
    server.claim = answer
    grants = ResourceClaimGrants(cast(Client, server), "devalloc.io", "n")
    for ask in (grants.identity, lambda: grants.is_gone(REF), lambda: grants.get(REF)):
        with pytest.raises(Failed, match=r"no UID"):
            ask()


RESULT = {"request": "gpu", "driver": "devalloc.io", "pool": "p", "device": "d"}


def claim_of(*results: Any, uid: str = "uid", node: str = "n") -> dict[str, Any]:
    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    selector = {"nodeSelectorTerms": [by_name]}
    allocation = {"devices": {"results": [*results]}, "nodeSelector": selector}
    return {"metadata": {"uid": uid}, "status": {"allocation": allocation}}


@pytest.mark.parametrize(
    ("claim", "code", "words"),
    [
        (claim_of(RESULT, uid="other"), "ClaimUidMismatch", "now has the UID other, not uid"),
        ({"metadata": {"uid": "uid"}, "status": {}}, "ClaimNotAllocated", "is not allocated"),
        (claim_of({**RESULT, "pool": 7}), "ClaimInvalid", "cannot read the allocation"),
        (claim_of({"request": "gpu"}), "ClaimInvalid", "cannot read the allocation"),
        (claim_of(*[RESULT] * (MAX_DEVICES + 1)), "ClaimInvalid", f"more than {MAX_DEVICES}"),
        (claim_of({**RESULT, "driver": "gpu.example.com"}), "ClaimElsewhere", "has no device of driver devalloc.io"),
        (claim_of(), "ClaimElsewhere", "has no device of driver devalloc.io"),
        (claim_of(RESULT, node="m"), "ClaimElsewhere", "is allocated on m, not n"),
    ],
)
def test_only_a_claim_that_is_allocated_here_is_granted(claim: dict[str, Any], code: str, words: str) -> None:
    server = Server({})
    server.claim = claim
    with raises(Denied, code, retryable=code == "ClaimNotAllocated", match=words):
        ResourceClaimGrants(cast(Client, server), "devalloc.io", "n").get(REF)
    server.claim = claim_of(RESULT, {**RESULT, "driver": "gpu.example.com"})
    grant = ResourceClaimGrants(cast(Client, server), "devalloc.io", "n").get(REF)
    assert [each.device for each in grant.devices] == ["d"], "those of other drivers are not ours"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError(404, "NotFound", "", {"name": "a"}), "ClaimNotFound"),
        (ApiError(404, "NotFound", "no such path"), "ApiUnavailable"),
        (ApiError(404, "NotFound", "", {"name": "default"}), "ApiUnavailable"),
        (ApiError(403, "Forbidden", ""), "ApiUnavailable"),
        (ApiError(0, "NoAnswer", ""), "ApiUnavailable"),
    ],
)
def test_only_the_servers_word_about_this_name_shows_that_a_claim_is_gone(error: ApiError, code: str) -> None:
    class Refusing:
        def get(self, path: str, **more: Any) -> dict[str, Any]:
            raise error

    grants = ResourceClaimGrants(cast(Client, Refusing()), "devalloc.io", "n")
    with raises(NodeError, code, retryable=code == "ApiUnavailable"):
        grants.get(REF)
    if code == "ClaimNotFound":
        assert grants.is_gone(REF)
    else:
        with pytest.raises(Failed):
            grants.is_gone(REF)


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

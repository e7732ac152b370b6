"""Pods with claims of several drivers, of which kube-scheduler allocates some: on which nodes the rest can be had."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api.adopted_pools import AllocatablePools
from devalloc.api.node_rules import is_barred, node_restrictions_of
from devalloc.api.reasons import Reason
from devalloc.controller.reconcile.resource_claims import other_claims
from devalloc.controller.reconcile.resource_claims.cluster_state import ClusterState, SolverRequest
from devalloc.controller.reconcile.resource_claims.other_claims import OtherClaims

Object = dict[str, Any]
API = {"apiVersion": "resource.k8s.io/v1"}
GPU, NIC = "gpu.example.com", "nic.example.com"
ADOPTED = AllocatablePools(frozenset({(GPU, None)}))


def node(name: str) -> Object:
    there = {"pods": "10", "cpu": "8", "memory": "8Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": name},
        "status": {"allocatable": there, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pool(driver: str, on: str, *devices: str) -> Object:
    header = {"name": on, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": on, "pool": header, "devices": [{"name": name} for name in devices]}
    return {**API, "kind": "ResourceSlice", "metadata": {"name": f"{driver}-{on}"}, "spec": spec}


def device_class(driver: str) -> Object:
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {**API, "kind": "DeviceClass", "metadata": {"name": driver}, "spec": {"selectors": [selector]}}


def claim(name: str, driver: str, *, ours: bool = False, on: str = "", device: str = "nic-0", count: int = 1) -> Object:
    labels = {"devalloc.io/allocator": "devalloc"} if ours else {}
    exactly = {"deviceClassName": driver, "allocationMode": "ExactCount", "count": count}
    made: Object = {
        **API,
        "kind": "ResourceClaim",
        "metadata": {"namespace": "a", "name": name, "uid": name, "labels": labels},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }
    if on:
        results = [{"request": "r", "driver": driver, "pool": on, "device": device}]
        made["status"] = {"allocation": {"devices": {"results": results}}}
    return made


def pod(name: str, *claims: str) -> Object:
    used = [{"name": each, "resourceClaimName": each} for each in claims]
    metadata = {"namespace": "a", "name": name, "uid": f"uid-{name}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"resourceClaims": used, "containers": []}}


CLUSTER = (
    *(node(name) for name in ("n1", "n2", "n3")),
    *(pool(GPU, name, "gpu-0") for name in ("n1", "n2", "n3")),
    pool(NIC, "n2", "nic-0", "nic-1"),
    pool(NIC, "n3", "nic-0"),
    device_class(GPU),
    device_class(NIC),
    claim("gpu", GPU, ours=True),
)


def request_for(*objects: Object) -> SolverRequest:
    state = ClusterState()
    state.look([*CLUSTER, *objects], ADOPTED)
    (request,) = state.build_requests(state.wants(), {})
    return request


def nodes_of(request: SolverRequest) -> list[str]:
    """The nodes that the solver may choose from."""
    assert request.misfit is None
    (document,) = request.documents
    restrictions = node_restrictions_of(document)
    assert restrictions
    return [name for name in ("n1", "n2", "n3") if not is_barred(restrictions, name)]


def test_only_nodes_are_asked_for_where_kube_scheduler_can_give_the_rest() -> None:
    assert nodes_of(request_for(claim("nic", NIC), pod("p", "gpu", "nic"))) == ["n2", "n3"]
    assert nodes_of(request_for(claim("nic", NIC, count=2), pod("p", "gpu", "nic"))) == ["n2"], "it has two"
    taken = claim("taken", NIC, on="n3")
    assert nodes_of(request_for(claim("nic", NIC), taken, pod("p", "gpu", "nic"))) == ["n2"], "that of n3 is in use"


def test_a_pod_whose_other_claim_can_be_had_nowhere_takes_no_devices() -> None:
    request = request_for(claim("nic", NIC, count=3), pod("p", "gpu", "nic"))
    assert request.reason is Reason.NO_SUITABLE_NODE
    assert request.misfit == (
        "none of 3 nodes with devices for devalloc and room for pod p has devices for its other claims, which "
        "kube-scheduler allocates: nic"
    )


def test_a_claim_of_an_adopted_driver_without_the_label_can_be_had_nowhere() -> None:
    request = request_for(claim("plain", GPU), pod("p", "gpu", "plain"))
    assert request.reason is Reason.NO_SUITABLE_NODE


def test_a_pod_without_other_claims_is_not_narrowed() -> None:
    (document,) = request_for(pod("p", "gpu")).documents
    assert not node_restrictions_of(document)


def test_what_there_was_no_time_for_is_taken_to_suit() -> None:
    """kube-scheduler then sends the claim back."""
    now = 0.0
    others = OtherClaims(lambda: now)
    objects = [pool(NIC, "n3", "nic-0")], [device_class(NIC)]
    others.look(*objects, [], [])
    assert not others.suiting(["n1"], {"n1": node("n1")}, [claim("nic", NIC)])
    others.look(*objects, [], [])
    now = other_claims.ROUND_SECONDS
    assert others.suiting(["n2"], {"n2": node("n2")}, [claim("nic", NIC)]) == {"n2"}


def test_equal_claims_are_judged_once_in_a_round_and_without_time_as_in_the_last_one() -> None:
    """A tenant may have thousands of pods that wait, each of which could use any node."""
    now = 0.0
    others = OtherClaims(lambda: now)
    objects = [pool(NIC, "n3", "nic-0")], [device_class(NIC)]
    names, nodes = ["n1", "n3"], {"n1": node("n1"), "n3": node("n3")}
    others.look(*objects, [], [])
    assert others.suiting(names, nodes, [claim("nic", NIC)]) == {"n3"}
    assert others.suiting(names, {}, [claim("another", NIC)]) == {"n3"}, "no node is looked at again"
    others.look(*objects, [], [])
    now = other_claims.ROUND_SECONDS
    assert others.suiting(names, {}, [claim("nic", NIC)]) == {"n3"}
    assert others.suiting(names, {}, [claim("nic", NIC, count=2)]) == {"n1", "n3"}, "of these nothing is known"


def test_a_node_is_judged_anew_only_where_something_of_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    allocate = other_claims.allocate

    def noted(on: Object, *arguments: Any, **more: Any) -> Any:
        judged.append(on["metadata"]["name"])
        return allocate(on, *arguments, **more)

    monkeypatch.setattr(other_claims, "allocate", noted)
    others, nodes, classes = OtherClaims(), {name: node(name) for name in ("n2", "n3")}, [device_class(NIC)]
    slices, wanted = [pool(NIC, "n2", "nic-0"), pool(NIC, "n3", "nic-0")], [claim("nic", NIC)]
    for _ in range(2):
        others.look(slices, classes, [], [])
        assert others.suiting(nodes, nodes, wanted) == {"n2", "n3"}
    assert judged == ["n2", "n3"]
    others.look(slices, classes, [claim("taken", NIC, on="n3")], [])
    assert others.suiting(nodes, nodes, wanted) == {"n2"}
    assert judged == ["n2", "n3", "n3"]

"""What is asked for pods is remembered from round to round: it is what a controller that just started would ask."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from devalloc.controller.reconcile.resource_claims import pending
from devalloc.controller.reconcile.resource_claims.cluster_state import ClusterState
from devalloc.controller.reconcile.resource_claims.pending import PendingClaims, pending_groups
from devalloc.store import Key
from tests.support.examples import examples

Object = dict[str, Any]
NODES, PODS, CLAIMS = ("n0", "n1", "n2"), 10, 10


def a_slice(node: str) -> Object:
    pool = {"name": f"{node}.devalloc", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "devalloc.io", "nodeName": node, "pool": pool, "devices": [{"name": "d0"}, {"name": "d1"}]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}


def a_node(random: Random, name: str) -> Object:
    taints = [{"key": "closed", "effect": "NoSchedule"}] if random.random() < 0.2 else []
    room = {"cpu": random.choice(["1", "2", "3"]), "pods": "9"}
    metadata = {"name": name, "labels": {"zone": random.choice("ab")}}
    return {"kind": "Node", "metadata": metadata, "spec": {"taints": taints}, "status": {"allocatable": room}}


def a_claim(random: Random, number: int) -> Object:
    labels = {} if random.random() < 0.15 else {"devalloc.io/allocator": "devalloc"}
    notes = {"devalloc.io/group": random.choice("gh")} if random.random() < 0.2 else {}
    metadata = {"namespace": "a", "name": f"c{number}", "uid": f"uid-{number}", "labels": labels, "annotations": notes}
    claim: Object = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
    claim["spec"] = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}}
    if random.random() < 0.3:
        node = random.choice(NODES)
        results = [{"request": "r", "driver": "devalloc.io", "pool": f"{node}.devalloc", "device": "d0"}]
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
        claim["status"] = {"allocation": allocation}
    return claim


def a_pod(random: Random, number: int) -> Object:
    named = [f"c{random.randrange(CLAIMS)}" for _ in range(random.choice([0, 1, 1, 2]))]
    spec: Object = {
        "resourceClaims": [{"name": str(place), "resourceClaimName": name} for place, name in enumerate(named)]
    }
    spec["containers"] = [{"name": "c", "resources": {"requests": {"cpu": random.choice(["500m", "1"])}}}]
    if random.random() < 0.3:
        spec["nodeName"] = random.choice(NODES)
    if random.random() < 0.3:
        spec["nodeSelector"] = {"zone": random.choice("ab")}
    return {"kind": "Pod", "metadata": {"namespace": "a", "name": f"p{number}", "uid": f"pod-{number}"}, "spec": spec}


def change(random: Random, there: dict[Key, Object]) -> None:
    """Something comes, goes, or becomes another one."""
    if random.random() < 0.25 and len(there) > 4:
        there.pop(random.choice([*there]))
        return
    what = random.choice(["node", "slice", "claim", "claim", "pod", "pod"])
    if what in ("node", "slice"):
        drawn = a_node(random, random.choice(NODES)) if what == "node" else a_slice(random.choice(NODES))
    elif what == "claim":
        drawn = a_claim(random, random.randrange(CLAIMS))
    else:
        drawn = a_pod(random, random.randrange(PODS))
    there[Key.of(drawn)] = drawn


@pytest.mark.parametrize("seed", range(examples(20, 0.2)))
def test_requests_that_are_remembered_are_those_of_a_start(seed: int) -> None:
    random, there, warm = Random(seed), dict[Key, Object](), ClusterState()
    for number in range(80):
        for _ in range(20 if number == 0 else random.choice([0, 1, 1, 2])):
            change(random, there)
        objects = [there[key] for key in sorted(there, key=str)]
        new = ClusterState()
        for cluster in (warm, new):
            cluster.look(objects)
        pods = [each for each in objects if each["kind"] == "Pod"]
        assert list(warm.wants()) == pending_groups(pods, warm.claims)
        avoided = {key: frozenset({random.choice(NODES)}) for key in warm.claims if random.random() < 0.1}
        wide = {key for key in warm.claims if random.random() < 0.1}
        wanted = [want for want in warm.wants() if random.random() < 0.9]
        assert warm.build_requests(wanted, avoided, wide) == new.build_requests(wanted, avoided, wide)
        assert warm.unused() == new.unused()


@pytest.mark.parametrize("tie", ["group", "shared claim"])
def test_a_change_in_a_large_group_looks_at_each_pod_a_few_times(tie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count, there, pods = 200, dict[tuple[str, str], Object](), []
    for number in range(count):
        names = [f"c{number}", *(["shared"] if tie == "shared claim" else [])]
        for name in names:
            notes = {"devalloc.io/group": "g"} if tie == "group" else {}
            labels = {"devalloc.io/allocator": "devalloc"}
            there["a", name] = {"metadata": {"namespace": "a", "name": name, "labels": labels, "annotations": notes}}
        used = [{"name": name, "resourceClaimName": name} for name in names]
        metadata = {"namespace": "a", "name": f"p{number}", "uid": f"{number}"}
        pods.append({"metadata": metadata, "spec": {"resourceClaims": used}})
    warm = PendingClaims()
    warm.look(pods, there)
    looks: list[object] = []
    names_of = pending._names_of
    monkeypatch.setattr(pending, "_names_of", lambda pod: looks.append(pod) or names_of(pod))
    changed = {**there, ("a", "c0"): {**there["a", "c0"]}}
    warm.look(pods, changed)
    assert len(looks) <= 5 * count
    assert warm.groups == pending_groups(pods, changed)

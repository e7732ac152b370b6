"""Pods with ResourceClaims between two allocators: devalloc gives devices, kube-scheduler (played here as it behaves)
places pods on the node of their devices or sends a claim back. They must converge, and say little on the way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest

from devalloc.api.findings import message_of
from devalloc.controller.reconcile.events import ObjectEvent
from devalloc.controller.reconcile.resource_claims import allocator, cluster_state, suitable_nodes
from devalloc.controller.reconcile.resource_claims.allocator import (
    MAX_AVOID_SECONDS,
    MAX_TRIES,
    MIN_AVOID_SECONDS,
    UNPLACED_SECONDS,
    ResourceClaimAllocator,
)
from devalloc.controller.reconcile.resource_claims.cluster_state import RESOURCES
from devalloc.store import Event, EventType, Unavailable
from devalloc.store.kubernetes import KubernetesStore
from tests.support.fake_kube import FakeClient, FakeKube

Object = dict[str, Any]
PODS, CLAIMS = "/api/v1/namespaces/a/pods", "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims"
NODES, SLICES = "/api/v1/nodes", "/apis/resource.k8s.io/v1/resourceslices"


class Bed:
    """A cluster with devalloc's allocator, a clock, and kube-scheduler."""

    def __init__(self) -> None:
        kube = FakeKube()
        self.client, self.own_client = FakeClient(kube), FakeClient(kube)
        self.now = 1000.0
        self.events: list[ObjectEvent] = []
        expression = {"cel": {"expression": "device.driver == 'devalloc.io'"}}
        body = {"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {"selectors": [expression]}}
        self.client.create("/apis/resource.k8s.io/v1/deviceclasses", body)
        self.store = KubernetesStore(self.own_client, resources=RESOURCES)  # type: ignore[arg-type]
        self.allocator = ResourceClaimAllocator(
            self.store, stamp="1 a", record=self.events.extend, clock=lambda: self.now
        )
        self.refuses: set[str] = set()
        """Nodes on which kube-scheduler places nothing, for a reason of its own."""

    def node(self, name: str, cpu: str, devices: int = 4) -> None:
        status = {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}}
        there = self.client.create(NODES, {"kind": "Node", "metadata": {"name": name}, "spec": {}})
        self.client.replace(f"{NODES}/{name}/status", {**there, "status": status})
        header = {"name": f"{name}.devalloc", "generation": 1, "resourceSliceCount": 1}
        entries = [{"name": f"d{number}"} for number in range(devices)]
        spec = {"driver": "devalloc.io", "nodeName": name, "pool": header, "devices": entries}
        self.client.create(SLICES, {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})

    def claim(self, name: str, **annotations: str) -> None:
        exactly = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}
        metadata = {"namespace": "a", "name": name, "labels": {"devalloc.io/allocator": "devalloc"}}
        metadata |= {"annotations": annotations}
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        self.client.create(CLAIMS, {"kind": "ResourceClaim", "metadata": metadata, "spec": spec})

    def pod(self, name: str, *claims: str, cpu: str = "1", on: str = "", priority: int = 0) -> None:
        used = [{"name": claim, "resourceClaimName": claim} for claim in claims]
        containers = [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]
        spec = {"resourceClaims": used, "containers": containers, "nodeName": on, "priority": priority}
        there = self.client.create(PODS, {"kind": "Pod", "metadata": {"namespace": "a", "name": name}, "spec": spec})
        self.client.replace(f"{PODS}/{name}/status", {**there, "status": {"phase": "Pending"}})

    def pods(self) -> list[Object]:
        return [pod for page in self.client.list(PODS) for pod in page["items"]]

    def delete_pod(self, name: str) -> None:
        self.client.delete(f"{PODS}/{name}", self.client.get(f"{PODS}/{name}")["metadata"]["uid"])

    def round(self, seconds: float = 0.1) -> None:
        """One of devalloc, until it has no more to do, and one of kube-scheduler."""
        for _ in range(50):
            self.store.refresh()
            self.allocator.round()
            if not self.allocator.loop.is_again:
                break
        else:
            raise AssertionError("a round follows another without end")
        self.schedule()
        self.now += seconds

    def schedule(self) -> None:
        """As kube-scheduler does: place each pod whose claims all have devices, or give one claim of it back, if no
        other pod uses that."""
        for pod in self.pods():
            if pod["spec"].get("nodeName"):
                continue
            names = [each["resourceClaimName"] for each in pod["spec"]["resourceClaims"]]
            claims = [self.client.get(f"{CLAIMS}/{name}") for name in names]
            nodes = {self.node_of(name) for name in names}
            if None in nodes:
                self._mark(pod)
                continue
            (node,) = nodes
            if node not in self.refuses and self._has_room(str(node), pod):
                for claim in claims:
                    users = claim["status"]["reservedFor"]
                    if all(user["uid"] != pod["metadata"]["uid"] for user in users):
                        users.append({"resource": "pods", "name": "", "uid": pod["metadata"]["uid"]})
                        self._write(claim)
                self.client.replace(
                    f"{PODS}/{pod['metadata']['name']}", {**pod, "spec": {**pod["spec"], "nodeName": node}}
                )
                continue
            self._mark(pod)
            if self.refuses_filter_first:
                continue
            for claim in claims:
                if [user["uid"] for user in claim["status"]["reservedFor"]] in ([], [pod["metadata"]["uid"]]):
                    self._write(claim | {"status": {}})
                    break

    refuses_filter_first = False
    """kube-scheduler never comes to the claims: another of its filters refuses the node before."""

    def _write(self, claim: Object) -> None:
        self.client.replace(f"{CLAIMS}/{claim['metadata']['name']}/status", claim)

    def _mark(self, pod: Object) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        if (pod.get("status") or {}).get("conditions") != [condition]:
            body = {**pod, "status": {**pod.get("status", {}), "conditions": [condition]}}
            self.client.replace(f"{PODS}/{pod['metadata']['name']}/status", body)

    def _has_room(self, node: str, pod: Object) -> bool:
        """Counted in whole CPUs, which is all that pods ask for here."""
        there = [each for each in self.pods() if each["spec"].get("nodeName") == node]
        free = int(self.client.get(f"{NODES}/{node}")["status"]["allocatable"]["cpu"])
        return sum(map(_cpu, there)) + _cpu(pod) <= free

    def node_of(self, claim: str) -> str | None:
        held = (self.client.get(f"{CLAIMS}/{claim}").get("status") or {}).get("allocation")
        if not held:
            return None
        node: str = held["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        return node

    def placed(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.pods() if each["spec"].get("nodeName")]

    def reasons(self, claim: str) -> list[str]:
        return [
            each.reason
            for each in self.events
            if (each.regarding["kind"], each.regarding["name"]) == ("ResourceClaim", claim)
        ]

    def writes(self) -> int:
        """Of devalloc."""
        return len(self.own_client.writes)


def _cpu(pod: Object) -> int:
    return sum(int(each["resources"]["requests"]["cpu"]) for each in pod["spec"]["containers"])


@pytest.fixture
def bed() -> Iterator[Bed]:
    there = Bed()
    yield there
    there.store.close()


# -- the room of nodes -------------------------------------------------------------------------------------------------


def test_devices_are_given_where_the_pod_has_room(bed: Bed) -> None:
    for number in range(19):
        bed.node(f"n{number:02}", "1")
        bed.pod(f"full{number:02}", on=f"n{number:02}")
    bed.node("n19", "4")
    for number in range(40):
        bed.claim(f"c{number:02}")
        bed.pod(f"p{number:02}", f"c{number:02}")
    bed.round()
    bed.round()
    given = [number for number in range(40) if bed.node_of(f"c{number:02}")]
    assert [bed.node_of(f"c{number:02}") for number in given] == ["n19"] * 4
    assert len(bed.placed()) == 19 + 4
    refused = next(f"c{number:02}" for number in range(40) if number not in given)
    assert bed.reasons(refused)[-1] == "NoRoomForPod"
    note = next(each.note for each in bed.events if each.reason == "NoRoomForPod")
    assert "n00 (cpu 0 free, 1 wanted)" in note
    assert note.endswith(" and 19 more; free some there, or ask for less")
    before, events = bed.writes(), len(bed.events)
    for _ in range(20):
        bed.round(10)
    assert bed.writes() == before, "pods that fit nowhere cost no writes"
    assert len(bed.events) == events


def test_pods_of_one_round_share_the_room_of_a_node(bed: Bed) -> None:
    """There are devices for all, and CPUs for five; the most urgent go first."""
    bed.node("n0", "2", devices=8)
    bed.node("n1", "3", devices=8)
    for number in range(8):
        bed.claim(f"c{number}")
        bed.pod(f"p{number}", f"c{number}", priority=number)
    for _ in range(5):
        bed.round()
    assert bed.placed() == [f"p{number}" for number in range(3, 8)]
    assert all("SentBack" not in bed.reasons(f"c{number}") for number in range(8))
    assert [bed.node_of(f"c{number}") for number in range(3)] == [None] * 3, "no device is held without room"


def test_a_pod_leaves_a_node_to_another_that_has_no_other(bed: Bed) -> None:
    bed.node("n0", "1")
    bed.node("n1", "1")
    bed.claim("a")
    bed.pod("pa", "a")
    bed.claim("b", **{"devalloc.io/node": "n0"})
    bed.pod("pb", "b")
    bed.round()
    assert bed.placed() == ["pa", "pb"]


def test_pods_of_several_sizes_go_where_all_have_room(bed: Bed) -> None:
    """The first would fit on either node, and the others only together."""
    bed.node("n0", "4")
    bed.node("n1", "3")
    for name, cpu in (("a", "3"), ("b", "2"), ("c", "2")):
        bed.claim(name)
        bed.pod(f"p{name}", name, cpu=cpu)
    bed.round()
    assert [bed.node_of(name) for name in "abc"] == ["n1", "n0", "n0"]
    assert bed.placed() == ["pa", "pb", "pc"]


def test_of_pods_that_cannot_all_have_room_the_most_urgent_do(bed: Bed) -> None:
    for name in ("n0", "n1"):
        bed.node(name, "1")
    bed.claim("a")
    bed.pod("pa", "a")
    for name, priority in (("b", 1), ("c", 2)):
        bed.claim(name, **{"devalloc.io/node": "n0"})
        bed.pod(f"p{name}", name, priority=priority)
    bed.round()
    assert bed.placed() == ["pa", "pc"]
    assert bed.reasons("b") == ["NoRoomForPod"]


def test_what_is_asked_for_with_the_room_keeps_its_constraints_and_alternatives(bed: Bed) -> None:
    bed.node("n0", "1")
    bed.node("n1", "1")
    for each in ("n0", "n1"):
        there = bed.client.get(f"{SLICES}/{each}")
        for device in there["spec"]["devices"]:
            device["attributes"] = {"model": {"string": "x"}}
        bed.client.replace(f"{SLICES}/{each}", there)
    for name, pin in (("a", {}), ("b", {"devalloc.io/node": "n0"})):
        bed.claim(name, **pin)
        exactly = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 2}
        requests = [{"name": "r", "firstAvailable": [{"name": "two", **exactly}]}]
        constraints = [{"matchAttribute": "devalloc.io/model"}]
        claim = bed.client.get(f"{CLAIMS}/{name}")
        spec = {"devices": {"requests": requests, "constraints": constraints}}
        bed.client.replace(f"{CLAIMS}/{name}", {**claim, "spec": spec})
        bed.pod(f"p{name}", name)
    bed.round()
    assert bed.placed() == ["pa", "pb"]
    results = bed.client.get(f"{CLAIMS}/b")["status"]["allocation"]["devices"]["results"]
    assert [each["request"] for each in results] == ["r/two"] * 2


def test_without_time_to_share_the_room_each_pod_goes_where_some_is_left(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator, "SHARE_SECONDS", 0.0)
    for name, cpu in (("n0", "4"), ("n1", "3")):
        bed.node(name, cpu)
    for name, cpu in (("a", "3"), ("b", "2"), ("c", "2")):
        bed.claim(name)
        bed.pod(f"p{name}", name, cpu=cpu)
    bed.round()
    assert len(bed.placed()) >= 2


def test_pods_whose_nodes_there_was_no_time_to_judge_are_answered_in_the_next_round(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.node("n0", "1")
    bed.claim("a")
    bed.pod("pa", "a")
    with monkeypatch.context() as patch:
        patch.setattr(suitable_nodes, "ROUND_SECONDS", 0.0)
        bed.store.refresh()
        bed.allocator.round()
    assert bed.allocator.loop.is_again
    bed.round()
    assert bed.placed() == ["pa"]


def test_more_pods_than_a_node_runs_wait_together_and_hold_up_no_other(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_state, "MAX_PODS", 1)
    bed.node("n0", "9")
    for name in "ab":
        bed.claim(name, **{"devalloc.io/group": "g"})
        bed.pod(f"p{name}", name)
    bed.claim("c")
    bed.pod("pc", "c")
    bed.round()
    assert bed.placed() == ["pc"]
    assert bed.reasons("a") == ["NoRoomForPod"]


def test_a_refusal_is_reported_after_a_round_that_failed(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.node("n0", "9", devices=1)
    for name in "ab":
        bed.claim(name)
        bed.pod(f"p{name}", name)
    bed.store.refresh()
    with monkeypatch.context() as patch:
        patch.setattr(bed.store, "commit_each", Mock(side_effect=Unavailable("no answer")))
        with pytest.raises(Unavailable):
            bed.allocator.round()
    bed.round()
    assert (bed.reasons("a"), len(bed.reasons("b"))) == (["Allocated"], 1)


def test_a_refusal_is_decided_and_worded_once_while_nothing_changes_for_it(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.node("n0", "9", devices=0)
    for number in range(4):
        bed.claim(f"c{number}")
        bed.pod(f"p{number}", f"c{number}")
    worded = Mock(wraps=message_of)
    monkeypatch.setattr(allocator, "message_of", worded)
    for _ in range(2):
        bed.round()  # kube-scheduler writes on each pod that it found no place for it
    worded.reset_mock()
    bed.claim("new")
    bed.pod("pnew", "new")
    bed.round()
    assert worded.call_count == 1
    bed.round()
    worded.reset_mock()
    bed.node("n1", "9", devices=0)
    bed.round()
    assert worded.call_count == 5, "what is there has changed"


def test_what_kubelets_report_begins_no_round_unless_it_counts(bed: Bed) -> None:
    """Thousands of pods may wait, and thousands of kubelets report."""

    def matters(change: Object, path: str = f"{NODES}/n", event: EventType = EventType.MODIFIED) -> bool:
        there = bed.client.get(path)
        changed = {**there, **{name: {**there.get(name, {}), **part} for name, part in change.items()}}
        return bed.allocator._matters(Event(event, changed, "9"))

    bed.node("n", "2")
    bed.pod("runs", on="n")
    bed.claim("c")
    bed.pod("waits", "c", cpu="9")
    bed.round()
    ready = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]
    assert not matters({"status": {"images": ["i"]}})
    assert not matters({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, f"{PODS}/runs")
    for change in ({"metadata": {"labels": {"a": "b"}}}, {"spec": {"unschedulable": True}}):
        assert matters(change), change
    assert matters({"status": {"allocatable": {"cpu": "3"}}})
    assert matters({"status": {"conditions": ready}}), "it had never reported that it is ready"
    assert matters({"spec": {"containers": []}}, f"{PODS}/runs")
    assert matters({"status": {"conditions": []}}, f"{PODS}/waits")
    assert matters({}, f"{SLICES}/n")
    assert matters({}, event=EventType.DELETED)
    assert matters({}, f"{PODS}/runs", EventType.DELETED)


def test_a_claim_that_requests_nothing_holds_up_no_other_wherever_its_pod_may_run(bed: Bed) -> None:
    """Such a claim is valid, and any tenant may have one."""
    bed.node("n0", "2")
    bed.node("n1", "2")
    for name, spec in (("a", {}), ("b", {"devices": {}}), ("c", {"devices": {"requests": []}})):
        bed.claim(name, **{"devalloc.io/node": "n1"})
        claim = bed.client.get(f"{CLAIMS}/{name}")
        bed.client.replace(f"{CLAIMS}/{name}", {**claim, "spec": spec})
        bed.pod(f"p{name}", name)
    bed.claim("good")
    bed.pod("pgood", "good")
    bed.store.refresh()
    bed.allocator.round()
    assert bed.node_of("good") == "n0"
    assert all(bed.reasons(name) == ["Allocated"] for name in "abc")


def test_a_claim_that_says_its_priority_goes_before_more_urgent_pods(bed: Bed) -> None:
    """The solver and the room of nodes go by the same order (S17)."""
    bed.node("n0", "1", devices=8)
    for name, priority in (("a", 5), ("b", 0)):
        bed.claim(name, **({"devalloc.io/priority": "9"} if name == "b" else {}))
        bed.pod(f"p{name}", name, priority=priority)
    for _ in range(3):
        bed.round()
    assert bed.placed() == ["pb"]


def test_a_pod_gets_devices_once_another_leaves_its_node(bed: Bed) -> None:
    bed.node("n", "2")
    bed.pod("other", on="n", cpu="2")
    bed.claim("c")
    bed.pod("p", "c")
    bed.round()
    assert bed.node_of("c") is None
    bed.delete_pod("other")
    bed.round()
    assert bed.placed() == ["p"]


# -- claims that pods share --------------------------------------------------------------------------------------------


def test_a_claim_of_two_pods_goes_where_both_have_room(bed: Bed) -> None:
    for name, cpu in (("n0", "1"), ("n1", "1"), ("n2", "2")):
        bed.node(name, cpu)
    bed.claim("c")
    bed.pod("p", "c")
    bed.pod("q", "c")
    bed.round()
    assert bed.node_of("c") == "n2"
    assert bed.placed() == ["p", "q"]


def test_a_claim_of_two_pods_goes_where_one_has_room_if_there_are_no_devices_elsewhere(bed: Bed) -> None:
    bed.node("n0", "1")
    bed.node("n1", "2", devices=0)
    bed.node("n2", "2", devices=1)
    bed.claim("first")
    bed.pod("a", "first", cpu="0")
    bed.refuses = {"n0"}
    bed.round()
    bed.round()
    assert bed.node_of("first") == "n2"
    bed.refuses = set()
    bed.claim("c")
    bed.pod("p", "c")
    bed.pod("q", "c")
    bed.round()
    assert bed.node_of("c") == "n0"
    assert bed.placed() == ["a", "p"]


def test_a_shared_claim_is_reserved_for_the_most_urgent_pod_and_comes_back_from_a_full_node(bed: Bed) -> None:
    """kube-scheduler gives back only what at most one pod uses; no other controller would ever move it."""
    bed.node("n0", "4")
    bed.node("n1", "4")
    bed.refuses = {"n0"}
    bed.claim("c")
    bed.pod("p", "c")
    bed.pod("q", "c", priority=5)
    bed.store.refresh()
    bed.allocator.round()
    assert bed.node_of("c") == "n0"
    users = bed.client.get(f"{CLAIMS}/c")["status"]["reservedFor"]
    assert [user["name"] for user in users] == ["q"]
    for _ in range(3):
        bed.round()
    assert bed.node_of("c") == "n1"
    assert bed.placed() == ["p", "q"]


# -- what kube-scheduler does not place --------------------------------------------------------------------------------


def test_devices_that_no_pod_comes_to_use_are_taken_back(bed: Bed) -> None:
    """Another filter of kube-scheduler refuses the node, so that it never looks at the claim."""
    bed.node("n0", "4")
    bed.node("n1", "4")
    bed.refuses, bed.refuses_filter_first = {"n0"}, True
    bed.claim("c")
    bed.pod("p", "c")
    bed.round()
    assert bed.node_of("c") == "n0"
    bed.round(UNPLACED_SECONDS - 1)
    assert bed.node_of("c") == "n0", "kube-scheduler may be busy"
    bed.round(2)
    bed.round()
    bed.round()
    assert bed.node_of("c") == "n1"
    bed.round()
    assert bed.placed() == ["p"]
    assert bed.reasons("c") == ["Allocated", "SentBack", "Allocated"]


def test_devices_stay_while_kube_scheduler_makes_room_for_their_pod(bed: Bed) -> None:
    bed.node("n0", "4")
    bed.node("n1", "4")
    bed.refuses, bed.refuses_filter_first = {"n0"}, True
    bed.claim("c")
    bed.pod("p", "c")
    bed.round()
    pod = bed.client.get(f"{PODS}/p")
    bed.client.replace(f"{PODS}/p/status", {**pod, "status": {**pod["status"], "nominatedNodeName": "n0"}})
    for _ in range(5):
        bed.round(UNPLACED_SECONDS)
    assert bed.node_of("c") == "n0"


def test_a_claim_that_no_node_suits_stops_hopping_and_says_so(bed: Bed) -> None:
    for number in range(20):
        bed.node(f"n{number:02}", "4")
    bed.refuses = {f"n{number:02}" for number in range(20)}
    bed.claim("c")
    bed.pod("p", "c")
    for _ in range(20):
        bed.round(0.1)
    assert bed.reasons("c") == ["Allocated", "SentBack", "NoRoomForPod"]
    note = next(each.note for each in bed.events if each.reason == "NoRoomForPod")
    assert all(f"n{number:02}" in note for number in range(3))
    assert "and 2 more" in note
    before = bed.writes()
    assert before <= 5 * MAX_TRIES + 10
    for _ in range(100):
        bed.round(0.1)
    assert bed.writes() == before, "it waits"


def test_tries_become_rarer_to_the_end(bed: Bed) -> None:
    for number in range(20):
        bed.node(f"n{number:02}", "4")
    bed.refuses = {f"n{number:02}" for number in range(20)}
    bed.claim("c")
    bed.pod("p", "c")
    times = []
    for _ in range(600):
        before = bed.writes()
        bed.round(5.0)
        if bed.writes() > before:
            times.append(bed.now)
    gaps = [b - a for a, b in pairwise(times)]
    assert max(gaps) <= MAX_AVOID_SECONDS + 10
    assert gaps[-1] >= MAX_AVOID_SECONDS - 10
    assert len(times) <= 16
    assert bed.reasons("c") == ["Allocated", "SentBack", "NoRoomForPod"]


def test_a_change_of_a_node_ends_the_wait_at_once(bed: Bed) -> None:
    for number in range(20):
        bed.node(f"n{number:02}", "4")
    bed.refuses = {f"n{number:02}" for number in range(20)}
    bed.pod("other", on="n00")
    bed.claim("c")
    bed.pod("p", "c")
    for _ in range(10):
        bed.round(0.1)
    assert bed.node_of("c") is None
    bed.now += MIN_AVOID_SECONDS
    bed.refuses = set()
    bed.round()
    assert bed.placed() == ["other"], "nothing has changed that devalloc can see"
    bed.delete_pod("other")
    bed.round()
    assert bed.placed() == ["p"]
    bed.round()
    assert bed.reasons("c") == ["Allocated", "SentBack", "NoRoomForPod", "Allocated"]


def test_a_claim_that_hopped_begins_anew_after_its_pod_had_a_node(bed: Bed) -> None:
    bed.node("n0", "4")
    bed.node("n1", "4")
    bed.refuses = {"n0"}
    bed.claim("c")
    bed.pod("p", "c")
    for _ in range(4):
        bed.round()
    assert bed.placed() == ["p"]
    (notes,) = bed.allocator._notes.values()
    assert (notes.tries, notes.avoided) == (0, {})

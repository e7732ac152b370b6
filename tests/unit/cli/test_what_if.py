"""solve, explain, capacity and snapshot of a claim: against what a store or a cluster has, or for files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from devalloc.cli import target
from devalloc.store.kubernetes.resources import CORE_KINDS, OWN_KINDS
from tests.support.cli_shell import Shell, claim, device_class, pool, text
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.host_pools import machine

Object = dict[str, Any]


@pytest.fixture
def live(devalloc: Shell) -> Shell:
    """A store with two devices, one of them given out."""
    devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim("held")))
    devalloc.allocate()
    return devalloc


def test_a_claim_is_solved_on_what_the_store_has(live: Shell) -> None:
    solved = live("solve", "-f", "-", stdin=text(claim("new")))

    assert solved.code == 0
    assert [line.split()[:3] for line in solved.out.splitlines()[1:]] == [["default/new", "yes", "node-a"]]
    assert live("get", "claims", "-o", "name").out == "deviceclaim/held\n", "nothing is written"


def test_a_claim_that_is_too_large_is_refused_with_who_is_in_the_way(live: Shell) -> None:
    answer = live("solve", "-f", "-", "-o", "json", stdin=text(claim("new", count=2)))

    assert answer.code == 3
    (one,) = answer.json["claims"]
    assert one["reason"] == "DevicesInUse"
    assert one["blockers"][0]["name"] == "held"


def test_capacity_leads_to_what_is_in_the_way_of_a_claim_that_does_not_fit(live: Shell, tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(text(claim("new", count=2)))
    counted = live("capacity", "new", "-f", file)
    assert counted.out == "0 more like default/new\n"
    assert counted.err == f"what is in the way: devalloc explain new -f {file}\n"
    assert "held" in live("explain", "new", "-f", file).out
    assert live("capacity", "held").err == "", "one more fits"


def test_explain_says_what_would_be(live: Shell, tmp_path: Path) -> None:
    (tmp_path / "new.yaml").write_text(text(claim("new")))

    explained = live("explain", "new", "-f", tmp_path / "new.yaml")

    assert explained.code == 0
    assert "default/new is not allocated yet, but would be on node node-a" in explained.out
    assert f"devalloc apply -f {tmp_path / 'new.yaml'}" in explained.out


def test_explain_of_a_claim_that_is_not_in_the_files_is_that_of_the_store(live: Shell) -> None:
    assert "default/held is allocated" in live("explain", "held", "-f", "-", stdin=text(claim("new"))).out


def test_capacity_counts_with_a_claim_of_the_store_on_what_files_add(live: Shell) -> None:
    more = text({**pool(), "metadata": {"name": "more"}})

    assert live("capacity", "held").out.startswith("1 more like default/held")
    assert live("capacity", "held", "--with-store", "-f", "-", stdin=more).out.startswith("3 more like default/held")


def test_with_no_store_the_files_are_all_there_is(live: Shell) -> None:
    alone = live("solve", "-f", "-", "--no-store", stdin=text(claim("new")))

    assert alone.code == 3
    assert "ClassNotFound" in alone.out


@pytest.mark.parametrize("verb", [("solve",), ("explain", "claim/held"), ("capacity", "held")])
def test_solve_warns_that_it_leaves_out_a_replica_set(live: Shell, verb: tuple[str, ...]) -> None:
    spec = {"replicas": 2, "template": {"spec": machine("any")["spec"]}}
    head = {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachineReplicaSet", "metadata": {"name": "web"}}
    warned = live(*verb, "-f", "-", stdin=text({**head, "spec": spec})).err
    assert "warning: VirtualMachineReplicaSet web: the controller creates its machines" in warned


def test_no_store_needs_files(live: Shell) -> None:
    refused = live("solve", "--no-store")

    assert (refused.code, refused.err) == (2, "error: --no-store: give manifests with -f\n")


def test_files_with_pools_are_a_fleet_of_their_own(live: Shell) -> None:
    own = text(pool("other", node="node-z"), device_class(), claim("new"))

    assert "node-z" in live("solve", "-f", "-", stdin=own).out
    assert "node-a" not in live("solve", "-f", "-", stdin=own).out


def test_with_store_a_card_more_is_laid_over_what_is_there(live: Shell) -> None:
    more = text(pool("more", node="node-z", devices=3), claim("new", count=3))

    assert "node-z" in live("solve", "-f", "-", "--with-store", stdin=more).out
    assert "ClassNotFound" in live("solve", "-f", "-", stdin=more).out


def test_without_a_store_the_files_are_answered_alone(devalloc: Shell) -> None:
    assert "ClassNotFound" in devalloc("solve", "-f", "-", stdin=text(claim("new"))).out
    assert not devalloc.store.exists()


def test_a_claim_of_the_store_that_is_applied_again_keeps_what_it_holds(live: Shell) -> None:
    same = live("solve", "-f", "-", "-o", "json", stdin=text(claim("held")))
    other = live("solve", "-f", "-", "-o", "json", stdin=text(claim("held", count=2)))

    assert same.json["claims"][0]["allocations"] == other.json["claims"][0]["allocations"]
    assert same.err == ""
    assert "is allocated, so its spec is fixed" in other.err


@pytest.mark.parametrize("annotations", ["x", ["x"]])
@pytest.mark.parametrize("command", ["solve", "capacity"])
def test_metadata_that_no_object_can_have_hurts_no_claim_beside_it(
    live: Shell, command: str, annotations: object
) -> None:
    """On an object of a foreign kind, which no check reads before it is laid over the one of the store."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "n"}}
    live("apply", "-f", "-", stdin=text(secret))
    wrong = {**secret, "metadata": {"name": "n", "annotations": annotations}}

    assert live(command, "-f", "-", stdin=text(wrong, claim("new"))).code == 0


def test_an_edit_of_a_class_is_tried_out(live: Shell) -> None:
    edited = text(device_class(driver="gpu.devalloc.io", constraints="device.model == 'H100'"), claim("new"))

    assert "NoMatchingDevices" in live("solve", "-f", "-", stdin=edited).out


def test_files_without_claims_show_what_becomes_of_those_of_the_store(live: Shell) -> None:
    live("apply", "-f", "-", stdin=text(claim("late", count=2)))

    now = live("solve", "-o", "json").json["claims"]
    more = text(pool("more", node="node-z"))
    then = live("solve", "-f", "-", "--with-store", "-o", "json", stdin=more).json["claims"]

    assert [(one["name"], one["allocated"]) for one in now] == [("held", True), ("late", False)]
    assert [(one["name"], one["allocated"]) for one in then] == [("held", True), ("late", True)]


def test_a_pool_that_is_cordoned_in_the_store_gives_nothing(live: Shell) -> None:
    live("cordon", "pool/gpus")

    explained = live("explain", "new", "-f", "-", stdin=text(claim("new"))).out
    assert ["2", "are", "unavailable"] in [line.split()[:3] for line in explained.splitlines()]


def test_a_quota_of_the_store_counts(live: Shell) -> None:
    hard = {"gpu.deviceclass.devmgmtproto.k8s.io/devices": "1"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "default"}}
    live("apply", "-f", "-", stdin=text({**quota, "spec": {"hard": hard}}))

    assert "QuotaExceeded" in live("solve", "-f", "-", stdin=text(claim("new"))).out


def test_a_snapshot_of_a_claim_holds_the_store_too(live: Shell, tmp_path: Path) -> None:
    live("snapshot", tmp_path / "s.json", "-f", "-", stdin=text(claim("new")))

    content = json.loads((tmp_path / "s.json").read_text())
    assert [one["name"] for one in content["answer"]["claims"]] == ["held", "new"]
    assert "DevicePool" in {one["kind"] for one in content["documents"]}


class TestOnACluster:
    @pytest.fixture
    def cluster(self, devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKube:
        kube = FakeKube()
        paths = {resource.kind: resource for resource in (*OWN_KINDS, *CORE_KINDS)}
        kube.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
        for obj in (pool(), device_class()):
            resource = paths[obj["kind"]]
            namespace = obj["metadata"].get("namespace") if resource.namespaced else None
            kube.create(resource.within(namespace), obj)
        monkeypatch.setattr(target, "connect_cluster", lambda kubeconfig: FakeClient(kube))
        (tmp_path / "kubeconfig").touch()
        monkeypatch.setenv("DEVALLOC_KUBECONFIG", str(tmp_path / "kubeconfig"))
        return kube

    def test_a_claim_is_answered_with_the_clusters_devices(self, devalloc: Shell, cluster: FakeKube) -> None:
        solved = devalloc("solve", "-f", "-", stdin=text(claim("new", namespace="default")))

        assert solved.code == 0, solved.err
        assert "node-a" in solved.out
        assert "would be on node node-a" in devalloc("explain", "new", "-f", "-", stdin=text(claim("new"))).out
        assert devalloc("capacity", "-f", "-", stdin=text(claim("new"))).out.startswith("2 more like default/new")
        assert not any("deviceclaims" in path for path in cluster.objects)

    def test_a_snapshot_has_the_clusters_objects(self, devalloc: Shell, cluster: FakeKube, tmp_path: Path) -> None:
        assert devalloc("snapshot", tmp_path / "s.json").code == 0

        kinds = {one["kind"] for one in json.loads((tmp_path / "s.json").read_text())["documents"]}
        assert {"DevicePool", "DeviceClass"} <= kinds

    def test_no_store_asks_no_cluster(self, devalloc: Shell, cluster: FakeKube) -> None:
        assert "ClassNotFound" in devalloc("solve", "--no-store", "-f", "-", stdin=text(claim("new"))).out

    def test_pools_of_the_files_are_laid_over_the_cluster(self, devalloc: Shell, cluster: FakeKube) -> None:
        more = text(pool("more", node="node-z", devices=3), claim("new", count=3), claim("old", count=2))
        solved = devalloc("solve", "-f", "-", "-o", "json", stdin=more)

        assert solved.code == 0, solved.err
        assert {one["name"]: one["node"] for one in solved.json["claims"]} == {"new": "node-z", "old": "node-a"}
        assert "node-z" in devalloc("explain", "new", "-f", "-", stdin=more).out
        assert "ClassNotFound" in devalloc("solve", "--no-store", "-f", "-", stdin=more).out
        assert not any("more" in path for path in cluster.objects), "nothing is written"

    def test_manifests_of_the_other_dialect_are_answered_alone_with_a_warning(
        self, devalloc: Shell, cluster: FakeKube
    ) -> None:
        before = dict(cluster.objects)
        solved = devalloc("solve", "-f", "examples/dra")

        assert "warning: the answer for manifests of resource.k8s.io ignores the objects of the cluster" in solved.err
        assert solved.code == devalloc("solve", "--no-store", "-f", "examples/dra").code
        assert cluster.objects == before


def test_without_a_store_the_error_shows_how_to_name_a_cluster(devalloc: Shell) -> None:
    assert "a cluster with --kubeconfig" in devalloc("top", "--once").err

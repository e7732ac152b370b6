"""Upgrade and roll back on a real API server, as docs/install.md tells it, with the rights that are shipped: the
release before is installed, works, is replaced part by part by this version, and comes back. In between each part works
beside parts of the other version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import run
from typing import Any

import grpc
import pytest

from devalloc.api import meta
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2_grpc import NodeStub
from tests.support import kube_build, kube_rights, pci_cards
from tests.support.claim_history import History, holders
from tests.support.claim_judge import why_not
from tests.support.controller_processes import DEVMGMT, LEASE, Process, leader_process
from tests.support.fake_host import FakeHost
from tests.support.fake_tree import memory_folder
from tests.support.go_build import Progress, Unavailable
from tests.support.host_pools import machine
from tests.support.kube_api import Cluster, running
from tests.support.kube_plugin import Bed, plugin_bed
from tests.support.previous import PRESENT, Version, previous
from tests.support.waiting import until

Object = dict[str, Any]
NODE = "upgrade-node"
CLAIMS = f"{DEVMGMT}/namespaces/default/deviceclaims"
MACHINES = "/apis/devalloc.io/v1alpha1"
KINDS = {"deviceclaims": DEVMGMT, "devicepools": DEVMGMT, "deviceclasses": DEVMGMT, "virtualmachines": MACHINES}
GPUS = ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0")
INSTALLED = {
    "apps/v1": ("deployments", "daemonsets"),
    "rbac.authorization.k8s.io/v1": ("clusterroles", "clusterrolebindings", "roles", "rolebindings"),
    "admissionregistration.k8s.io/v1": ("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
    "apiextensions.k8s.io/v1": ("customresourcedefinitions",),
    "networking.k8s.io/v1": ("networkpolicies",),
}
NEWER_KINDS = frozenset(
    f"customresourcedefinitions/{plural}.devalloc.io"
    for plural in ("virtualmachinemigrations", "virtualmachinereplicasets")
)
"""What the release before does not know, and does not remove."""
COUNTED = "deprecated.daemonset.template.generation"
OURS = "labelSelector=app.kubernetes.io/part-of=devalloc"


@pytest.fixture(scope="module")
def cluster(progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One of its own: all of devalloc is brought there and replaced."""
    try:
        with running(kube_build.binaries(progress), tmp_path_factory.mktemp("upgrade")) as cluster:
            assert cluster.create("/api/v1/nodes", {"kind": "Node", "metadata": {"name": NODE}}).ok
            yield cluster
    except Unavailable as reason:
        pytest.skip(f"no Kubernetes API server: {reason}")


def install(version: Version, cluster: Cluster) -> dict[str, str]:
    """The guide's command; what it says became of each object."""
    command = version.devalloc("install", "--image-prefix", "registry.example.com/team/")
    command += ["--kubeconfig", str(cluster.kubeconfig("admin"))]
    done = run(command, env=version.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def installed(cluster: Cluster) -> dict[str, Object]:
    """By path what is there of devalloc, without what the server counts."""
    by_name = {}
    for group, kinds in INSTALLED.items():
        for kind in kinds:
            for one in cluster.get(f"/apis/{group}/{kind}?{OURS}").content["items"]:
                labels, annotations = (one["metadata"].get(name, {}) for name in ("labels", "annotations"))
                notes = {name: text for name, text in annotations.items() if name != COUNTED}
                spec = {name: part for name, part in one.items() if name not in ("metadata", "status")}
                by_name[f"{kind}/{one['metadata']['name']}"] = {**spec, "labels": labels, "annotations": notes}
    return by_name


def stored(cluster: Cluster) -> dict[str, Object]:
    """By path all that was written by users, controllers and nodes."""
    by_path = {}
    for kind, group in KINDS.items():
        for one in cluster.get(f"{group}/{kind}").content["items"]:
            where = f"/namespaces/{one['metadata']['namespace']}" if "namespace" in one["metadata"] else ""
            by_path[f"{group}{where}/{kind}/{one['metadata']['name']}"] = one
    return by_path


def refuses_or_drops(cluster: Cluster) -> dict[str, str]:
    """What the server now would not take, or not keep whole, of what is stored."""
    wrong = {}
    for path, one in stored(cluster).items():
        for part in ("", "/status"):
            answer = cluster.replace(f"{path}{part}", one, dry_run=True)
            if answer.status == 404 and part:
                continue  # classes have none
            content = {**answer.content, "metadata": {**answer.content.get("metadata", {}), "managedFields": None}}
            if not answer.ok or content != {**one, "metadata": {**one["metadata"], "managedFields": None}}:
                wrong[path + part] = answer.message or f"{content} is not {one}"
    return wrong


TORN = """
import sys
import tests.support
from contextlib import closing
from pathlib import Path
from devalloc.store import Change, Key, StoreError
from devalloc.store.kubernetes import Client, KubernetesStore

client = Client.connect(Path(sys.argv[1]))
if sys.argv[2] == "recover":
    with closing(KubernetesStore(client)) as store:
        store.recover()
for last in map(int, sys.argv[3:]):
    written = []
    def may_write():
        written.append(1)
        return len(written) <= last
    with closing(KubernetesStore(client)) as store:
        claims = [store.get("DeviceClaim", "default", f"torn-{last}-{name}") for name in "ab"]
    with closing(KubernetesStore(client, may_write=may_write)) as store:
        try:
            store.commit([
                Change(Key.of(one), one["metadata"]["resourceVersion"], {"podNames": ["x"]}, {"devalloc.io/x": "x"})
                for one in claims
            ])
        except StoreError:
            pass
"""
WRITES = (1, 3, 5, 6, 7)
"""After which of its writes a controller is gone that writes two claims as one: with the record, a mark and a status
each, the record again, which is the point from which it counts, a mark off each, and the record off."""


class World:
    """A node, its users, and controllers that come and go."""

    def __init__(self, cluster: Cluster, bed: Bed, folder: Path) -> None:
        self.cluster, self.bed, self.folder = cluster, bed, folder
        self.controllers: list[Process] = []

    def controller(self, version: Version) -> Process:
        """One more replica."""
        process = Process(self.cluster, self.folder, f"controller-{len(self.controllers)}", "20s")
        process.version, process.kubeconfig = version, kube_rights.controller_kubeconfig(self.cluster)
        self.controllers.append(process)
        process.start()
        return process

    def leads(self, process: Process) -> None:
        until(lambda: leader_process(self.cluster, [process]), f"{process.name} leads", context=process.output)

    def plugin(self, version: Version, ready: str, uid: str) -> Any:
        return self.bed.start("--publish=pools", f"--pod-uid={uid}", ready=ready, version=version)

    def claim(self, *names: str, count: int = 1, group: str = "") -> None:
        annotations = {meta.GROUP: group} if group else {}
        spec = {"claims": [{"deviceClass": "upgrade", "requests": {"count": count}}]}
        for name in names:
            body = {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DeviceClaim"}
            answer = self.cluster.create(
                CLAIMS, {**body, "metadata": {"name": name, "annotations": annotations}, "spec": spec}
            )
            assert answer.ok, answer.message

    def given(self, *names: str) -> None:
        output = lambda: "\n".join(process.output()[-3000:] for process in self.controllers)  # noqa: E731
        until(lambda: {*names} <= holders(self.cluster).keys(), f"{names} have devices", context=output)

    def refused(self, name: str) -> str:
        return why_not(self.cluster.get(f"{CLAIMS}/{name}").content) or ""

    def conditions(self, name: str) -> list[Object]:
        """The conditions of a machine."""
        path = f"{MACHINES}/namespaces/default/virtualmachines/{name}"
        conditions: list[Object] = self.cluster.get(path).content.get("status", {}).get("conditions", [])
        return conditions

    @contextmanager
    def node(self) -> Iterator[NodeStub]:
        with grpc.insecure_channel(f"unix:{self.bed.state / 'node.sock'}") as channel:
            yield NodeStub(channel)

    def prepare(self, name: str) -> None:
        wanted = pb.PrepareClaimRequest(claim=pb.ClaimRef(namespace="default", name=name))
        with self.node() as stub:
            reply = stub.PrepareClaim(wanted, timeout=60, wait_for_ready=True)
        assert reply.result.outcome == pb.Result.DONE, reply.result

    def unprepare(self, name: str) -> None:
        wanted = pb.UnprepareClaimRequest(claim=pb.ClaimRef(namespace="default", name=name))
        with self.node() as stub:
            reply = stub.UnprepareClaim(wanted, timeout=60, wait_for_ready=True)
        assert reply.result.outcome == pb.Result.DONE, reply.result

    def prepared(self) -> dict[str, int]:
        with self.node() as stub:
            claims = stub.ListClaims(pb.ListClaimsRequest(), timeout=60, wait_for_ready=True).claims
        return {one.claim.name: one.state for one in claims}


@pytest.fixture(scope="module")
def furnished(cluster: Cluster) -> Cluster:
    """With the release before."""
    install(previous(), cluster)
    return cluster


@pytest.fixture
def world(furnished: Cluster, tmp_path: Path) -> Iterator[World]:
    cluster = furnished
    with memory_folder() as folder:
        host = FakeHost(Path(folder) / "host", folders=(str(tmp_path / "cdi"),))
        for number, address in enumerate(GPUS):
            host.add(pci_cards.gpu(address, iommu_group=number, drm=f"card{number}"))
        kubeconfig = kube_rights.kubeconfig(cluster, NODE)
        with plugin_bed(host, NODE, Path(folder), tmp_path / "cdi", tmp_path / "kubelet", kubeconfig) as bed:
            world = World(cluster, bed, tmp_path)
            try:
                yield world
            finally:
                for process in world.controllers:
                    process.close()


def test_each_part_works_beside_parts_of_the_other_version_and_after_them(cluster: Cluster, world: World) -> None:
    before, history, host = installed(cluster), History(cluster), world.bed.host.snapshot()
    spec = {"constraints": "device.kind == 'gpu'"}
    body = {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DeviceClass"}
    assert cluster.create(f"{DEVMGMT}/deviceclasses", {**body, "metadata": {"name": "upgrade"}, "spec": spec}).ok

    # The release before, alone.
    old_plugin = world.plugin(previous(), "serving devalloc.node.v1", "old")
    old = world.controller(previous())
    world.claim("one")
    world.claim("pair-1", "pair-2", group="pair")
    world.claim("big", count=9)
    assert cluster.create(f"{MACHINES}/namespaces/default/virtualmachines", machine("web", "2", "2Gi", "big")).ok
    world.given("one", "pair-1", "pair-2")
    until(lambda: world.refused("big"), "what is too big is refused")
    until(lambda: world.conditions("web"), "and what waits for it reports that")
    world.prepare("one")

    # This version is installed; what runs is still the release before.
    outcomes = install(PRESENT, cluster)
    assert {words.rpartition(" ")[2] for words in outcomes.values()} <= {
        "created",
        "configured",
        "unchanged",
        "deleted",
    }
    assert refuses_or_drops(cluster) == {}
    world.prepare("pair-1")

    # Its controller takes over, as in a rolling update; the node still runs the release before.
    new = world.controller(PRESENT)
    until(lambda: "standing by" in new.output(), "it stands by", context=new.output)
    assert old.end() == 0, old.output()
    world.leads(new)
    world.claim("two")
    world.given("two")
    world.prepare("two")

    # The node's new plugin starts beside the old one, and takes its sockets and claims over.
    new_plugin = world.plugin(PRESENT, "this one takes over when that ends", "new")
    old_plugin.stop()
    new_plugin.wait_for("now serving")
    assert world.prepared() == dict.fromkeys(("one", "pair-1", "two"), pb.Claim.PREPARED)
    world.unprepare("one")
    world.prepare("pair-2")

    # Roll back: the release before is installed, while this version still runs.
    assert all(words.rpartition(" ")[2] != "created" for words in install(previous(), cluster).values())
    left = installed(cluster)
    newer = {name for name in left if name.startswith("customresourcedefinitions/")} - before.keys()
    assert newer == NEWER_KINDS, "their objects stay"
    assert {name: left[name] for name in left.keys() - newer} == before
    assert refuses_or_drops(cluster) == {}
    assert cluster.delete(f"{CLAIMS}/one").ok
    world.claim("three")
    world.given("three")
    world.prepare("three")

    # Its controller leads again, and then its plugin is back.
    again = world.controller(previous())
    assert new.end() == 0, new.output()
    world.leads(again)
    new_plugin.stop()
    world.plugin(previous(), "serving devalloc.node.v1", "old-again")
    wanted = ("pair-1", "pair-2", "three", "two")
    assert world.prepared() == dict.fromkeys(wanted, pb.Claim.PREPARED)
    for name in wanted:
        world.unprepare(name)
        assert cluster.delete(f"{CLAIMS}/{name}").ok
    until(lambda: not set(wanted) & holders(cluster).keys(), "all is given back")
    assert world.bed.host.snapshot() == host
    world.claim("four")
    world.given("four")
    assert again.end() == 0, again.output()
    assert cluster.get(LEASE).ok
    history.close()
    assert history.judge().wrong == []


@pytest.mark.parametrize("way", ["up", "back"])
def test_what_one_version_was_writing_as_one_is_finished_or_put_back_by_the_other(furnished: Cluster, way: str) -> None:
    one, other = (previous(), PRESENT) if way == "up" else (PRESENT, previous())
    claims = [f"torn-{last}-{name}" for last in WRITES for name in "ab"]
    body = {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DeviceClaim"}
    spec = {"claims": [{"deviceClass": "nobodys"}]}
    for name in claims:
        assert furnished.create(CLAIMS, {**body, "metadata": {"name": name}, "spec": spec}).ok
    kubeconfig = str(furnished.kubeconfig("admin"))

    def call(version: Version, *words: str) -> None:
        command = version.python("-c", TORN, kubeconfig, *words)
        done = run(command, env=version.environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def claim_states() -> dict[str, tuple[Any, bool]]:
        """Of each claim its pods, and whether it is being written with another."""
        items = {name: furnished.get(f"{CLAIMS}/{name}").content for name in claims}
        return {
            name: (obj.get("status", {}).get("podNames"), meta.TRANSACTION in obj["metadata"].get("annotations", {}))
            for name, obj in items.items()
        }

    call(one, "tear", *map(str, WRITES))
    left = claim_states()
    assert {marked for _, marked in left.values()} == {True, False}, left
    call(other, "recover")
    now = claim_states()
    assert not any(marked for _, marked in now.values()), now
    pods = {last: [now[f"torn-{last}-{name}"][0] for name in "ab"] for last in WRITES}
    assert all(first == second for first, second in pods.values()), pods
    assert {tuple(first or ()) for first, _ in pods.values()} == {(), ("x",)}, f"some counted, and some did not: {pods}"
    records = furnished.get(f"/api/v1/namespaces/devalloc-system/configmaps?labelSelector={meta.TRANSACTION}")
    assert records.content["items"] == []
    for name in claims:
        assert furnished.delete(f"{CLAIMS}/{name}").ok

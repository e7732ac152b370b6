"""A node whose plugin has ended is seen by all verbs, of an embedded store and of a cluster."""

from __future__ import annotations

import itertools
import os
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.serving import node_lease
from devalloc.api.views import MachineView
from devalloc.cli import target
from devalloc.cli.served_cluster import ServedCluster
from devalloc.cli.served_store import ServedStore
from devalloc.controller.pool_publisher import PublishLock
from devalloc.store import paths
from devalloc.store.kubernetes import KubernetesStore
from devalloc.store.kubernetes.resources import CORE_KINDS, OWN_KINDS
from devalloc.store.paths import hold_store
from devalloc.store.sqlite import SQLiteStore
from devalloc.usage.overview.cache import OverviewCache
from tests.support.cli_shell import Shell, text
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.fleet_manifests import gpu_claim
from tests.support.host_pools import host, machine
from tests.support.terminal import Terminal

LEASES = "/apis/coordination.k8s.io/v1/namespaces/devalloc-system/leases"
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-31T12:00:00Z"}
SILENCE = "no node plugin serves node a now: start it again (`devalloc node`, `devalloc up`)"


@pytest.fixture
def shell(devalloc: Shell) -> Shell:
    """A store with a machine that runs on node a, as its plugin wrote it."""
    pool = host("a", cpus=4)
    pool["metadata"]["labels"] = {meta.PUBLISHED_BY: "inventory"}
    assert devalloc("apply", "-f", "-", stdin=text(pool, host("b", cpus=4), machine("web", "1", "1Gi"))).code == 0
    with closing(SQLiteStore(devalloc.store)) as store:
        web = store.get("VirtualMachine", "default", "web")
        held = {"finalizers": [meta.NODE_FINALIZER], "annotations": {meta.PREPARED_ON: "a"}}
        web = store.replace({**web, "metadata": {**web["metadata"], **held}})
        status = {"phase": "Running", "nodeName": "a", "pid": 4711, "machineID": "run-1", "conditions": [READY]}
        store.replace_status({**web, "status": status})
    return devalloc


@pytest.fixture
def unserved(shell: Shell) -> Shell:
    """The same after the plugin was killed: the kernel releases its lock, and nothing else says so."""
    PublishLock(shell.store, "a", is_plugin=True).close()
    return shell


def stored(devalloc: Shell) -> Any:
    with closing(SQLiteStore(devalloc.store)) as store:
        return store.get("VirtualMachine", "default", "web")


def test_while_the_plugin_runs_all_is_as_it_says(shell: Shell) -> None:
    with closing(PublishLock(shell.store, "a", is_plugin=True)):
        assert shell("get", "nodes", "a").out.split()[-4:] == ["Ready", "1", "1", "0"]
        assert "Running" in shell("get", "vms").out


def test_a_machine_that_waits_on_a_node_without_a_plugin_says_so(devalloc: Shell) -> None:
    """`devalloc up` of a user who is not root places machines, and starts none."""
    waiting = {**machine("web", "1", "1Gi")}
    waiting["spec"] = {**waiting["spec"], "nodeName": "a"}
    devalloc("apply", "-f", "-", stdin=text(host("a", cpus=4), waiting))
    (row,) = [line.split() for line in devalloc("get", "vms").out.splitlines() if line.startswith("web")]
    assert "NodeNotServed" in row
    assert "NodeNotServed" in devalloc("top").out
    message = devalloc("get", "vm/web", "-o", "jsonpath={.status.message}").out
    assert "no node plugin runs on node a: run `devalloc up` there as root" in message
    assert not stored(devalloc).get("status"), "nothing of it is written"
    moved = devalloc("migrate", "vm/web")
    assert (moved.code, moved.out) == (1, "")
    assert moved.err.startswith("error: virtualmachine default/web cannot move: no node plugin runs on node a: run ")
    with closing(PublishLock(devalloc.store, "a", is_plugin=True)):
        assert "NodeNotServed" not in devalloc("get", "vms").out
        moved = devalloc("migrate", "vm/web")
        words = "no `devalloc up` runs on this store; start it, and repeat the command"
        assert moved.err == f"error: virtualmachine default/web cannot move: {words}\n"
    assert devalloc("get", "migrations", "-o", "name").out == "", "neither has written anything"


def test_a_node_that_never_had_a_plugin_is_not_called_silent(shell: Shell) -> None:
    """Pools of examples and tests are of no host."""
    assert "Running" in shell("get", "vms").out
    assert "NotServed" not in shell("get", "nodes").out


def test_apply_says_on_a_terminal_that_nothing_answers_the_store(
    devalloc: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "web.yaml").write_text(text(machine("web", "1", "1Gi")))
    terminal = Terminal(monkeypatch)
    note = "no `devalloc up` runs on this store: what you applied is answered when one does"
    monkeypatch.setenv("DEVALLOC_STORE", str(devalloc.store))
    assert note in terminal("apply", "-f", tmp_path / "web.yaml")
    with hold_store(devalloc.store):
        assert note not in terminal("apply", "-f", tmp_path / "web.yaml")
    assert devalloc("apply", "-f", tmp_path / "web.yaml").err == "", "programs read stderr"


@pytest.mark.parametrize(("user", "is_shown"), [(1000, True), (0, False)])
def test_a_user_is_shown_that_root_has_another_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user: int, is_shown: bool
) -> None:
    """Devices take `sudo devalloc up`. In another terminal one easily forgets the sudo, and gets a store of one's own,
    in which nothing is ever answered."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(paths, "ROOT_STORE", tmp_path / "root" / "devalloc.db" if user else tmp_path / "own.db")
    own = paths.default_path({"XDG_STATE_HOME": str(tmp_path)}, uid=user)
    with closing(ServedStore(tmp_path / "other.db")) as other, closing(ServedStore(own)) as store:
        monkeypatch.setattr(os, "geteuid", lambda: user)
        assert target.unanswered_note(store, "") == "no `devalloc up` runs on this store", "root has none"
        paths.ROOT_STORE.parent.mkdir(exist_ok=True)
        note = f" (root has its own in {tmp_path}/root: sudo devalloc …)" if is_shown else ""
        assert target.unanswered_note(store, "") == f"no `devalloc up` runs on this store{note}"
        assert target.unanswered_note(other, "") == "no `devalloc up` runs on this store", "it was named"
    own.unlink()
    assert f"there is no store at {own}{note}; create one with " in Shell(own)("get", "claims").err


@pytest.mark.parametrize("command", [["get", "claims"], ["get", "claim/train"], ["get", "vms"], ["top", "--once"]])
def test_a_list_says_on_a_terminal_that_nothing_answers_the_store(
    devalloc: Shell, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    waiting = (machine("web", "1", "1Gi"), gpu_claim("train"))
    assert devalloc("apply", "-f", "-", stdin=text(*waiting)).code == 0
    terminal = Terminal(monkeypatch)
    monkeypatch.setenv("DEVALLOC_STORE", str(devalloc.store))
    note = "no `devalloc up` runs on this store: claims and machines are answered when one does"
    assert note in terminal(*command)
    quiet = devalloc(*command)
    assert note not in quiet.out + quiet.err, "programs read it"
    with hold_store(devalloc.store):
        assert note not in terminal(*command)
    devalloc.allocate()
    assert note not in terminal(*command), "everything has an answer"


def test_tables_show_it(unserved: Shell) -> None:
    nodes = unserved("get", "nodes").out.splitlines()
    assert nodes[1].split(maxsplit=5) == ["a", "NotServed", "1", "1", "0", SILENCE]
    assert nodes[2].split()[:2] == ["b", "Ready"]
    row = unserved("get", "vms").out.splitlines()[1].split()
    assert (row[1], row[-2]) == ("Unknown", "NodeNotServed")
    top = unserved("top", "--once").out
    assert SILENCE in top
    assert "Unknown" in top
    status = unserved("get", "vm/web", "-o", "json").json["status"]
    assert status["message"] == f"{SILENCE}; the machine was Running"
    assert status["pid"] == 4711
    (ready,) = status["conditions"]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "Unknown", "NodeNotServed")
    assert unserved("wait", "vm/web", "--for", "condition=Ready", "--timeout", "10ms").code != 0


def test_explain_and_wait_say_it(unserved: Shell) -> None:
    explained = unserved("explain", "vm/web")
    assert (explained.code, f"It may not run: NodeNotServed: {SILENCE}" in explained.out) == (1, True), explained.out
    waited = unserved("wait", "vm/web", "--timeout", "10ms")
    assert f"it is Unknown: {SILENCE}" in waited.err


def test_migrate_says_it_at_once(unserved: Shell) -> None:
    refused = unserved("migrate", "vm/web", "--timeout", "1h")
    assert (refused.code, refused.err) == (1, f"error: virtualmachine default/web cannot move: {SILENCE}\n")
    assert unserved("get", "migrations").out == "", "nothing was created"


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--force", "--dry-run"]])
def test_drain_says_it_at_once(unserved: Shell, more: list[str]) -> None:
    refused = unserved("drain", "node/a", "--timeout", "1h", *more)
    expected = f"nothing can leave node a, which must release it: {SILENCE}; if its host is off: devalloc fence node/a"
    assert (refused.code, refused.err) == (1, f"error: {expected}\n")
    assert "Cordoned" not in unserved("get", "nodes").out, "nothing was written"


def test_a_forced_drain_writes_what_is_to_happen_and_gives_nothing_away(unserved: Shell) -> None:
    """As with `kubectl drain` of a node whose kubelet is gone: what is asked for waits for the node."""
    drained = unserved("drain", "node/a", "--force", "--timeout", "1h")
    assert drained.code == 1
    off = "if its host is off: devalloc fence node/a"
    assert f"warning: what it holds may still run, and stays until its plugin is back: {SILENCE}; {off}" in drained.err
    assert "virtualmachine default/web asked to leave" in drained.out
    assert "virtualmachine default/web has not left within 0 s; it will do so later" in drained.err
    web = stored(unserved)
    assert web["metadata"]["annotations"][meta.EVICT] == "a"
    assert (MachineView(web).holder, MachineView(web).node) == ("a", "a"), "no other node has it"
    assert unserved("get", "migrations").out == "", "who is to send its memory does not run"
    unserved.allocate()
    assert (MachineView(stored(unserved)).holder, MachineView(stored(unserved)).node) == ("a", "a")
    assert ": draining" in unserved("get", "nodes", "a").out, "it gets nothing new"
    assert unserved("uncordon", "node/a").code == 0
    assert meta.EVICT not in stored(unserved)["metadata"]["annotations"], "it was taken back"


def test_a_node_that_nothing_is_held_of_can_be_drained_all_the_same(unserved: Shell) -> None:
    with closing(SQLiteStore(unserved.store)) as store:
        web = stored(unserved)
        store.replace({**web, "metadata": {**web["metadata"], "finalizers": [], "annotations": {}}})
        store.delete("VirtualMachine", "default", "web")
    assert unserved("drain", "node/a").code == 0


def test_no_verb_writes_the_shown_status(unserved: Shell) -> None:
    """A verb that changes the object leaves the status as the node wrote it."""
    before = stored(unserved)["status"]
    late = unserved("stop", "vm/web", "--timeout", "10ms")
    assert late.code == 1
    assert stored(unserved)["spec"]["running"] is False
    assert stored(unserved)["status"] == before
    assert unserved("fence", "node/a", "--yes", "--timeout", "10ms").code == 1
    assert stored(unserved)["status"] == before


def test_fencing_a_node_whose_plugin_runs_is_warned_of(shell: Shell) -> None:
    with closing(PublishLock(shell.store, "a", is_plugin=True)):
        warned = shell("fence", "node/a", "--dry-run").err
    assert warned.startswith("warning: node a is not off: process ")
    assert shell("fence", "node/a", "--dry-run").err == ""


ENDED = "on that host, `systemctl restart devalloc-node`"


class TestOnACluster:
    """The Node is Ready: its kubelet runs, and the service of devalloc does not."""

    @pytest.fixture
    def kube(self, devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKube:
        kube = FakeKube()
        paths = {resource.kind: resource for resource in (*OWN_KINDS, *CORE_KINDS)}
        pool = host("a", cpus=4)
        pool["metadata"]["labels"] = {meta.PUBLISHED_BY: "inventory"}
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, **ready} for name in "ab"]
        web = machine("web", "1", "1Gi")
        held = {"finalizers": [meta.NODE_FINALIZER], "annotations": {meta.PREPARED_ON: "a"}}
        web["metadata"] = {**web["metadata"], "namespace": "default", **held}
        for obj in (*nodes, pool, host("b", cpus=4), web):
            kube.create(paths[obj["kind"]].within(obj["metadata"].get("namespace")), obj)
        at = "/apis/devalloc.io/v1alpha1/namespaces/default/virtualmachines/web"
        status = {"phase": "Running", "nodeName": "a", "pid": 4711, "machineID": "run-1"}
        kube.replace(f"{at}/status", {**kube.get(at), "status": status})
        monkeypatch.setattr(target, "connect_cluster", lambda kubeconfig: FakeClient(kube))
        (tmp_path / "kubeconfig").touch()
        monkeypatch.setenv("DEVALLOC_KUBECONFIG", str(tmp_path / "kubeconfig"))
        return kube

    @pytest.fixture
    def dead(self, kube: FakeKube) -> FakeKube:
        """The plugin of node a was killed an hour ago."""
        kube.create(LEASES, node_lease("a", "devalloc-system", "p", datetime.now(UTC) - timedelta(hours=1)))
        return kube

    def test_a_plugin_that_runs_and_one_of_an_earlier_version_are_believed(
        self, devalloc: Shell, kube: FakeKube
    ) -> None:
        assert "Running" in devalloc("get", "vms").out, "it has no Lease"
        kube.create(LEASES, node_lease("a", "devalloc-system", "p", datetime.now(UTC)))
        assert devalloc("get", "nodes", "a").out.split()[-4:] == ["Ready", "1", "1", "0"]
        assert "Running" in devalloc("get", "vms").out

    def test_a_status_that_is_written_back_is_what_the_node_wrote(self, dead: FakeKube) -> None:
        store = ServedCluster(FakeClient(dead), within=None)  # type: ignore[arg-type]
        with closing(store):
            shown = store.get("VirtualMachine", "default", "web")
            assert (shown["status"]["phase"], shown["status"]["reason"]) == ("Unknown", "NodeNotServed")
            store.replace_status({**shown, "status": {**shown["status"], "runnerPod": "web-1"}})
        stored = dead.get("/apis/devalloc.io/v1alpha1/namespaces/default/virtualmachines/web")["status"]
        assert (stored["phase"], stored.get("reason"), stored["runnerPod"]) == ("Running", None, "web-1")

    @pytest.mark.usefixtures("dead")
    def test_tables_and_waiting_verbs_show_it(self, devalloc: Shell) -> None:
        nodes = devalloc("get", "nodes").out.splitlines()
        assert nodes[1].split(maxsplit=5)[:2] == ["a", "NotServed"]
        assert "no node plugin serves node a now (it has not reported since 20" in nodes[1]
        assert nodes[2].split()[:2] == ["b", "Ready"]
        row = devalloc("get", "vms").out.splitlines()[1].split()
        assert (row[1], row[-2]) == ("Unknown", "NodeNotServed")
        assert ENDED in devalloc("top", "--once").out
        assert ENDED in devalloc("wait", "vm/web", "--timeout", "10ms").err

    def test_migrate_and_drain_say_it_at_once_and_write_nothing(self, devalloc: Shell, dead: FakeKube) -> None:
        before = dead.get("/apis/devalloc.io/v1alpha1/namespaces/default/virtualmachines/web")
        refused = devalloc("migrate", "vm/web", "--timeout", "1h")
        assert (refused.code, "cannot move: no node plugin serves node a now (" in refused.err) == (1, True)
        refused = devalloc("drain", "node/a", "--timeout", "1h")
        assert refused.code == 1
        assert "nothing can leave node a, which must release it: no node plugin serves node a now (" in refused.err
        assert "if its host is off: devalloc fence node/a" in refused.err
        assert devalloc("stop", "vm/web", "--timeout", "10ms").code == 1
        after = dead.get("/apis/devalloc.io/v1alpha1/namespaces/default/virtualmachines/web")
        assert (after["spec"]["running"], after["status"]) == (False, before["status"])

    def test_the_page_of_the_controller_shows_it(self, kube: FakeKube) -> None:
        with closing(KubernetesStore(FakeClient(kube))) as store:  # type: ignore[arg-type]
            unserved: dict[str, str] = {}
            cache = OverviewCache(store, store, unserved=lambda: {**unserved}, clock=itertools.count(0, 100).__next__)
            assert {one.name: one.state for one in cache.latest().overview.node_statuses} == {
                "a": "Ready",
                "b": "Ready",
            }
            unserved["a"] = "no node plugin serves node a now"
            overview = cache.latest().overview
            assert {one.name: one.state for one in overview.node_statuses} == {"a": "NotServed", "b": "Ready"}
            assert [each.phase for each in overview.machines] == ["Unknown"]

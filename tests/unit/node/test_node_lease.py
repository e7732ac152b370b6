"""A node plugin shows on a cluster by a Lease that it runs."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from devalloc.api.serving import SILENT_SECONDS, lease_name, node_lease, node_of_lease, silence
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.node_leases import NodeLeases
from devalloc_node.kube import node_lease as module
from devalloc_node.kube.node_lease import NodeLease
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.waiting import until

Object = dict[str, Any]
FOLDER = "/apis/coordination.k8s.io/v1/namespaces/devalloc-system/leases"
PATH = f"{FOLDER}/devalloc-node.node-a"
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u-1"}
NOW = datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


class Plugin:
    """A plugin that renews its Lease, in a thread."""

    def __init__(self, client: FakeClient) -> None:
        self.stop = threading.Event()
        lease = NodeLease(client, "node-a", "devalloc-system", lambda: OWNER)
        self.thread = threading.Thread(target=lease.run, args=(self.stop,), daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


def holder(kube: FakeKube) -> str:
    return str(kube.get(PATH)["spec"].get("holderIdentity") or "")


def test_it_is_renewed_by_one_write_each_time_and_given_away_at_the_end(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.01)
    client = FakeClient(kube)
    plugin = Plugin(client)
    until(lambda: sum(what.startswith("update") for what in client.writes) >= 5, "it is renewed")
    assert kube.get(PATH)["metadata"]["ownerReferences"] == [OWNER], "it is deleted with its Node"
    assert holder(kube)
    reads = sum(number for (verb, _), number in client.requests().items() if verb == "get")
    assert reads == 1, "a renewal reads nothing"
    plugin.end()
    assert holder(kube) == ""


def test_a_plugin_that_ends_late_leaves_the_lease_of_the_next_one(kube: FakeKube) -> None:
    first = Plugin(FakeClient(kube))
    until(lambda: holder_or_none(kube), "it is there")
    was = holder(kube)
    second = Plugin(FakeClient(kube))
    until(lambda: holder(kube) != was, "the next one has it")
    first.end()
    assert holder(kube), "the next one runs"
    second.end()
    assert holder(kube) == ""


def holder_or_none(kube: FakeKube) -> str:
    try:
        return holder(kube)
    except ApiError:
        return ""


def test_a_plugin_without_the_right_runs_on_and_says_so_once(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.01)
    client, tries = FakeClient(kube), [0]

    def refuse(path: str) -> Object:
        tries[0] += 1
        raise ApiError(403, "Forbidden", "leases is forbidden")

    monkeypatch.setattr(client, "get", refuse)
    plugin = Plugin(client)
    until(lambda: tries[0] >= 5, "it tries again")
    plugin.end()
    assert caplog.text.count("cannot show by a Lease that this plugin runs; next try in 0 s: leases is forbidden") == 1


@pytest.mark.parametrize(
    ("lease", "why"),
    [
        (node_lease("a", "ns", "p", NOW), ""),
        (node_lease("a", "ns", "p", NOW - timedelta(seconds=SILENT_SECONDS - 1)), ""),
        (node_lease("a", "ns", "p", NOW + timedelta(hours=1)), ""),
        (
            node_lease("a", "ns", "p", NOW - timedelta(seconds=SILENT_SECONDS + 1)),
            "it has not reported since 2026-11-29T09:57:59Z",
        ),
        (node_lease("a", "ns", None, NOW), "it ended at 2026-11-29T10:00:00Z"),
        ({"spec": {"holderIdentity": "p", "renewTime": "never"}}, ""),
        ({"spec": 7}, ""),
        ({}, ""),
    ],
    ids=["new", "late", "a clock ahead", "silent", "ended", "no time", "no spec", "empty"],
)
def test_a_plugin_counts_as_ended_if_it_says_so_or_is_silent(lease: Object, why: str) -> None:
    assert silence(lease, NOW) == why


def test_the_leases_of_others_are_of_no_node() -> None:
    assert node_of_lease({"metadata": {"name": lease_name("a.example")}}) == "a.example"
    assert node_of_lease({"metadata": {"name": "devalloc-controller"}}) is None
    assert node_of_lease({}) is None


def test_all_nodes_are_read_at_once_and_what_cannot_be_read_is_not_believed_to_have_ended(kube: FakeKube) -> None:
    old = datetime.now(UTC) - timedelta(hours=1)
    for node, began in (("a", old), ("b", datetime.now(UTC))):
        kube.create(FOLDER, node_lease(node, "devalloc-system", "p", began))
    kube.create(FOLDER, {"kind": "Lease", "metadata": {"name": "devalloc-controller", "namespace": "devalloc-system"}})
    client = FakeClient(kube)
    leases = NodeLeases(client, "devalloc-system", 60.0)  # type: ignore[arg-type]
    assert list(leases.unserved()) == ["a"]
    assert list(leases.unserved()) == ["a"]
    assert sum(client.requests().values()) == 1

    def refuse(path: str) -> Object:
        raise ApiError(403, "Forbidden", "leases is forbidden")

    client.list = refuse  # type: ignore[method-assign, assignment]
    assert NodeLeases(client, "devalloc-system", 60.0).unserved() == {}  # type: ignore[arg-type]

"""Who gives out devices of resource.k8s.io in a whole cluster: kube-scheduler, and beside it devalloc's controller.

Scheduler, controller manager and kubelet are the real ones; the plugin's kernel is played, as in ``test_kubelet``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.store.kubernetes import Client
from tests.support import kube_claims
from tests.support.device_owners import watched
from tests.support.kube_claims import RULES, SLICES, allocating
from tests.support.kube_node import NODE, Node
from tests.support.kube_plugin import DRIVER, Bed
from tests.support.kube_pods import (
    OURS,
    PODS,
    RESOURCE,
    TEMPLATES,
    Pods,
    node_with_claims,
    published,
    serve,
)
from tests.support.waiting import until


@pytest.fixture(scope="module")
def ready(node: Node) -> Node:
    kube_claims.install(node.cluster)
    return node_with_claims(node)


@pytest.fixture(scope="module")
def client(ready: Node) -> Client:
    return kube_claims.controller(ready.cluster)


def unschedulable(node: Node, pod: str, path: str = PODS) -> Callable[[], str]:
    """Why kube-scheduler has no node for the pod; empty as long as it has not said so."""

    def message() -> str:
        conditions = node.cluster.get(f"{path}/{pod}").content["status"].get("conditions", [])
        refused = (c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False")
        return next((str(c["message"]) for c in refused), "")

    return message


EXAMPLE = Path(__file__).parents[2] / "examples" / "pods"
NIC, GPU, ASIDE = "node-a-0000-41-00", "node-a-0000-01-00", ".devalloc"


def pools(node: Node) -> list[str]:
    items = node.cluster.get(SLICES).content["items"]
    return sorted({item["spec"]["pool"]["name"] for item in items if item["spec"]["nodeName"] == NODE})


def rule(device: str, effect: str) -> dict[str, Any]:
    taint = {"key": "example.com/broken", "effect": effect}
    spec = {"deviceSelector": {"driver": DRIVER, "device": device}, "taint": taint}
    version = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule"}
    return version | {"metadata": {"name": f"broken-{effect.lower()}"}, "spec": spec}


# -- kube-scheduler ----------------------------------------------------------------------------------------------------


def test_rules_keep_pods_off_a_device_and_drive_them_out_of_it(bed: Bed, ready: Node, pods: Pods) -> None:
    before = bed.host.snapshot()
    serve(bed, ready)
    no_more, out = rule("0000-01-00-0", "NoSchedule"), rule("0000-01-00-0", "NoExecute")
    try:
        assert ready.cluster.create(RULES, no_more).ok
        pods.start("p1", "gpu")
        ready.wait_until("the GPU is not given", unschedulable(ready, "p1"))
        assert ready.cluster.delete(f"{RULES}/broken-noschedule").ok
        pods.seen_in_container("p1")
        assert bed.host.snapshot() != before
        assert ready.cluster.create(RULES, out).ok
        ready.wait_until("the pod is driven out", lambda: ready.cluster.get(f"{PODS}/p1").status == 404)
        ready.wait_until("its device is given back", lambda: bed.host.snapshot() == before)
    finally:
        for each in (no_more, out):
            ready.cluster.delete(f"{RULES}/{each['metadata']['name']}")


def apply_example(node: Node) -> None:
    """Classes and templates of examples/pods; its pods are only offered, for no node here has their image."""
    paths = {"DeviceClass": f"{RESOURCE}/deviceclasses", "ResourceClaimTemplate": TEMPLATES, "Pod": PODS}
    for file in ("classes", "claims", "pods"):
        for body in yaml.safe_load_all((EXAMPLE / f"{file}.yaml").read_text()):
            made = node.cluster.create(paths[body["kind"]], body, dry_run=file == "pods")
            assert made.ok or made.status == 409, made.message


# -- devalloc's controller ---------------------------------------------------------------------------------------------


def test_the_same_pod_with_its_claim_allocated_by_the_controller(
    bed: Bed, ready: Node, pods: Pods, client: Client
) -> None:
    apply_example(ready)
    before = bed.host.snapshot()
    plugin = serve(bed, ready)
    pods.start("first", "by-scheduler")
    pods.seen_in_container("first")
    plugin.stop()
    serve(bed, ready, "--allocator=devalloc")
    with allocating(client) as allocator:
        ready.wait_until("what is free is set aside", lambda: pools(ready) == [GPU + ASIDE, NIC])
        pods.start("ours", "by-controller")
        ready.wait_until("there is nothing for it yet", lambda: allocator.notes("NoMatchingDevices"))
        pods.end("first")
        ready.wait_until("now that is free, too", lambda: pools(ready) == [GPU + ASIDE, NIC + ASIDE])
        pods.start("theirs", "by-scheduler")
        seen = pods.seen_in_container("ours")
        device = pods.device("ours")
        assert seen["env"][f"DEVALLOC_PCI_{device.replace('-', '_')}"] in bed.host.vf_addresses("0000:41:00.0")
        assert "taints" in published(ready)[device]
        status = pods.claim("ours")["status"]
        assert [each["pool"] for each in status["allocation"]["devices"]["results"]] == [NIC + ASIDE]
        assert [each["name"] for each in status["reservedFor"]] == ["ours"]
        devices = ready.wait_until("its status lists its device", lambda: pods.claim("ours")["status"].get("devices"))
        assert devices[0]["pool"] == NIC + ASIDE
        ready.wait_until("it is set aside from kube-scheduler", unschedulable(ready, "theirs"))
        pods.end("ours")
        ready.wait_until("unprepare follows", lambda: bed.host.snapshot() == before)

        pods.start("again", f"card{OURS}")  # the VFs are free again, so the card is whole
        pods.seen_in_container("again")
        pods.end("again", "theirs")
    assert bed.host.snapshot() == before


def test_beside_a_busy_scheduler_no_device_has_two_owners(ready: Node, client: Client) -> None:
    """Each node offers devices to both; some claims want what is set aside, and tolerate every taint."""
    space = kube_claims.make_space(ready.cluster, "beside")
    everything = [{"operator": "Exists"}]
    of_this_test = 'device.attributes["devalloc.io"].?of.orValue("") == "beside"'
    allocator = 'device.attributes["devalloc.io"].?allocator.orValue("")'
    space.device_class("beside", f'{of_this_test} && {allocator} == "devalloc"')
    space.device_class("beside-open", f'{of_this_test} && {allocator} == ""')
    for node in ("beside-1", "beside-2"):
        space.node(node, room=50)
        for aside in (True, False):
            space.slice(node, (f"d{number}" for number in range(3)), aside=aside, of="beside")
    own, theirs = [f"mine-{number}" for number in range(8)], [f"theirs-{number}" for number in range(6)]
    try:
        with watched(ready.cluster, space.claims) as owners, allocating(client) as running:
            for name in ("greedy-1", "greedy-2"):
                space.claim(name, "beside", ours=False, tolerations=everything)
                space.pod(name, name, tolerations=everything)

            def refused() -> bool:
                items = ready.cluster.get("/api/v1/namespaces/beside/events").content["items"]
                return any("only devalloc's controller allocates" in item["message"] for item in items)

            until(refused, "kube-scheduler tries to give out what is set aside")
            for number, claim in enumerate(own):
                space.claim(claim, "beside")
                space.pod(claim, claim, tolerations=everything)
                if number < len(theirs):
                    space.claim(theirs[number], "beside-open", ours=False)
                    space.pod(theirs[number], theirs[number], tolerations=everything)

            def count(names: Iterable[str]) -> int:
                return sum(bool(owners.now.get(f"beside/{name}")) for name in names)

            def bound() -> list[str]:
                items = ready.cluster.get(space.pods).content["items"]
                names = [pod["metadata"]["name"] for pod in items if pod["spec"].get("nodeName")]
                return [name for name in names if name in own]

            until(lambda: count(own) == 6 == count(theirs), "devices are given out by both")
            until(lambda: running.notes("DevicesInUse") or running.notes("LostToCompetition"), "two have a reason")
            taken = until(lambda: len(running := bound()) == 6 and running, "pods are where their devices are")
            for name in taken[:3]:
                ready.cluster.delete(f"{space.pods}/{name}?gracePeriodSeconds=0")
            until(lambda: count(own) == 5 == len(bound()), "what is given back goes to those that waited")
        assert owners.twice == []
        assert owners.seen > 40
        pools = {name: {device.partition("/")[0] for device in held} for name, held in owners.now.items() if held}
        assert all(
            all(pool.endswith(".devalloc") == ("mine" in name) for pool in running) for name, running in pools.items()
        )
    finally:
        space.clear()
        until(lambda: not ready.cluster.get(space.claims).content["items"], "nothing is left")


def test_pods_that_share_a_claim_end_on_the_node_that_suits_them(ready: Node, client: Client) -> None:
    """devalloc sees that the first node is full, and learns from kube-scheduler that the second is forbidden."""
    space = kube_claims.make_space(ready.cluster, "suits")
    everything = [{"operator": "Exists"}]
    space.device_class("suits", 'device.attributes["devalloc.io"].?of.orValue("") == "suits"')
    for node in ("suits-1", "suits-2", "suits-3"):
        space.node(node, room=50, **{"kubernetes.io/hostname": node})
        space.slice(node, ["d0"], of="suits")
    whole = {"containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "64"}}}]}
    space.pod("full", nodeName="suits-1", tolerations=everything, **whole)
    space.create(space.pods, _labelled(space.pod_of("near", nodeName="suits-2", tolerations=everything)))
    term = {"labelSelector": {"matchLabels": {"app": "near"}}, "topologyKey": "kubernetes.io/hostname"}
    away = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    quarter = {"containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "16"}}}]}

    def bound(*names: str) -> set[str]:
        return {ready.cluster.get(f"{space.pods}/{name}").content["spec"].get("nodeName", "") for name in names}

    try:
        space.claim("shared", "suits")
        with allocating(client) as running:
            for name in ("p", "q"):
                space.pod(name, "shared", tolerations=everything, affinity=away, **quarter)
            until(lambda: bound("p", "q") == {"suits-3"}, "both run where they may")
            until(lambda: space.node_of("shared") == "suits-3", "their claim is there, too")
            assert all("suits-2" in note for note in running.notes("SentBack"))
            assert len(running.notes("SentBack")) == 1
            space.claim("none-left", "suits")
            space.pod("r", "none-left", tolerations=everything, affinity=away, nodeSelector={"size": "none"})
            until(lambda: running.notes("NoSuitableNode"), "its claim has the reason")
    finally:
        space.clear()


def _labelled(pod: dict[str, Any]) -> dict[str, Any]:
    return {**pod, "metadata": {**pod["metadata"], "labels": {"app": "near"}}}

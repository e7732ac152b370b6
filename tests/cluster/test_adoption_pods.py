"""Pods with devices of a driver that is not ours, from claim to container: devalloc allocates, kube-scheduler binds,
and the kubelet calls the driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devalloc.cli.main import run
from devalloc.controller.reconcile.resource_claims import adoption
from devalloc.store.kubernetes import Client
from tests.support import kube_claims
from tests.support.foreign_driver import ForeignDriver, foreign_driver
from tests.support.kube_claims import FOREIGN_DRIVER, Space, allocating
from tests.support.kube_images import IMAGE
from tests.support.kube_node import Node
from tests.support.waiting import until


@pytest.fixture(scope="module")
def client(node: Node) -> Client:
    kube_claims.install(node.cluster, adoption=True)
    return kube_claims.controller(node.cluster)


@pytest.fixture
def space(node: Node, client: Client) -> Iterator[Space]:
    made = kube_claims.make_space(node.cluster, "foreign-pods")
    made.device_class("foreign-gpu", f'device.driver == "{FOREIGN_DRIVER}"')
    yield made
    made.clear()
    until(lambda: not node.cluster.get(made.pods).content["items"], "the pods are gone")


@pytest.fixture
def driver(node: Node, space: Space) -> Iterator[ForeignDriver]:
    with foreign_driver(node, space, 3) as running:
        yield running


def start(space: Space, name: str) -> None:
    """A pod whose container gets all devices of its claim."""
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": ["tell", "/dev/null"],
        "resources": {"claims": [{"name": name}]},
    }
    space.pod(name, name, containers=[container], hostNetwork=True, terminationGracePeriodSeconds=1)


def test_a_pod_runs_with_the_devices_of_a_foreign_driver_that_devalloc_gave_it(
    node: Node, space: Space, client: Client, driver: ForeignDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a pod of kube-scheduler that runs on, from before the driver was adopted."""
    monkeypatch.setattr(adoption, "RELEASE_SECONDS", 1.0)
    config = f"--kubeconfig={node.cluster.kubeconfig('admin')}"
    space.claim("theirs", "foreign-gpu", ours=False)
    start(space, "theirs")
    node.wait_until("the pod of kube-scheduler runs", lambda: node.output("theirs", space.name))
    with allocating(client):
        assert run(["adopt", f"driver/{FOREIGN_DRIVER}", config]) == 0
        space.claim("ours", "foreign-gpu", 2)
        start(space, "ours")
        (line, *_) = node.wait_until("the pod of devalloc runs", lambda: node.output("ours", space.name))
        given = space.given("ours")
        assert given | space.given("theirs") == {"gpu-0", "gpu-1", "gpu-2"}
        for device in given:
            assert f'"GPU_DEVICE_{device.removeprefix("gpu-")}":"{device}"' in line
        assert sorted(driver.prepared.values(), key=len) == [[*space.given("theirs")], sorted(given)]
        space.cluster.delete(f"{space.pods}/ours")
        until(lambda: len(driver.prepared) == 1, "the kubelet has the driver unprepare them")
        until(lambda: not space.given("ours"), "kube-controller-manager takes them back")
        assert run(["unadopt", f"driver/{FOREIGN_DRIVER}", config]) == 0

"""What verbs advise about a cluster: `devalloc up` is for a host without one, and is no remedy there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devalloc.cli import target
from devalloc.store.kubernetes.resources import CORE_KINDS, OWN_KINDS
from tests.support.cli_shell import Result, Shell, claim, device_class, pool, text
from tests.support.fake_kube import FakeClient, FakeKube

Object = dict[str, Any]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/devalloc-system/leases"


@pytest.fixture
def cluster(devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a verb on a cluster that has these objects, with or without a controller that leads."""

    def run(*words: str, objects: tuple[Object, ...] = (), leads: bool = False) -> Result:
        kube, paths = FakeKube(), {resource.kind: resource for resource in (*OWN_KINDS, *CORE_KINDS)}
        for one in objects:
            kube.create(paths[one["kind"]].within(one["metadata"].get("namespace")), one)
        if leads:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            kube.create(LEASES, {"metadata": {"name": "devalloc-controller"}, "spec": {"renewTime": now}})
            kube.create(
                "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
                {"metadata": {"name": "devalloc-controller"}, "subjects": [{"namespace": "devalloc-system"}]},
            )
        monkeypatch.setattr(target, "connect_cluster", lambda kubeconfig: FakeClient(kube))
        (tmp_path / "kubeconfig").touch()
        return devalloc(*words, "--kubeconfig", str(tmp_path / "kubeconfig"))

    return run


TRAIN = claim("train", namespace="default")


def test_a_claim_that_fits_and_has_no_answer_needs_the_controller(cluster: Callable[..., Result]) -> None:
    fitting = (pool(), device_class(), TRAIN)

    without = cluster("explain", "train", "-n", "default", objects=fitting).out
    leading = cluster("explain", "train", "-n", "default", objects=fitting, leads=True).out

    assert "What to do: no controller: none is installed" in without
    assert "What to do: wait a moment; if nothing happens, check that devalloc's controller is running." in leading
    assert "devalloc up" not in without + leading


@pytest.mark.parametrize("verb", [("explain", "train"), ("describe", "claim/train")])
def test_where_there_are_no_devices_nodes_are_to_publish_some(
    cluster: Callable[..., Result], verb: tuple[str, ...]
) -> None:
    shown = cluster(*verb, "-n", "default", objects=(device_class(), TRAIN)).out

    assert "What to do: Publish devices: let the node plugin run on nodes that have some" in shown
    assert "devalloc up" not in shown


def test_a_wait_for_a_claim_that_a_controller_is_about_to_answer_asks_for_time(cluster: Callable[..., Result]) -> None:
    waits = ("wait", "claim/train", "--for=allocated", "--timeout", "0.01s", "-n", "default")
    shown = cluster(*waits, objects=(pool(), device_class(), TRAIN), leads=True)

    assert "it has no answer yet: wait longer (--timeout)" in shown.err
    assert "devalloc up" not in shown.err


def test_a_list_of_no_nodes_says_where_nodes_of_slices_are(cluster: Callable[..., Result], devalloc: Shell) -> None:
    note = "no nodes with pools, machines or claims"
    of_slices = "; nodes that publish ResourceSlices only are not listed: kubectl get resourceslices"

    assert cluster("get", "nodes").err == f"{note}{of_slices}\n"
    devalloc("apply", "-f", "-", stdin=text(device_class()))
    assert devalloc("get", "nodes").err == f"{note}\n"

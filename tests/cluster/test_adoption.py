"""Devices of a driver that is not ours, allocated by devalloc's controller beside a real kube-scheduler.

The slices are those that the example driver of kubernetes-sigs publishes; nothing of it knows of devalloc.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from devalloc.api.adopted_pools import ADOPTED_AT, rule_manifest
from devalloc.api.dedicated_pools import ALLOCATOR_KEY
from devalloc.cli.main import run
from devalloc.controller.reconcile.resource_claims import adoption
from devalloc.programs.controller_settings import ControllerSettings
from devalloc.store.kubernetes import ApiError, Client
from devalloc.usage.overview import fleet_monitor
from tests.support import kube_build, kube_claims, kube_controllers, kube_node
from tests.support.controllers import Controller
from tests.support.go_build import Progress, Unavailable
from tests.support.kube_api import SCHEDULER, Cluster, Processes, running
from tests.support.kube_claims import CLASSES, FOREIGN_DRIVER, RULES, Space, allocating, ready_node
from tests.support.waiting import until

RULE = f"devalloc-{FOREIGN_DRIVER}"
Devalloc = Callable[..., list[str]]


@pytest.fixture(scope="module")
def own(progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane of its own: its policies are about DeviceTaintRules of the whole cluster."""
    processes = Processes(tmp_path_factory.mktemp("processes"))
    try:
        programs = kube_build.node_binaries(progress)
        with running(kube_build.binaries(progress), tmp_path_factory.mktemp("kubernetes")) as cluster:
            controllers = "--controllers=resourceclaim-controller,namespace-controller,serviceaccount-controller"
            kube_controllers.start(cluster, programs, processes, controllers)
            kube_node.start_scheduler(cluster, programs, processes)
            kube_claims.install(cluster, adoption=True)
            yield cluster
    except Unavailable as reason:
        pytest.skip(f"no Kubernetes: {reason}")
    finally:
        processes.stop()


@pytest.fixture(scope="module")
def client(own: Cluster) -> Client:
    return kube_claims.controller(own)


@pytest.fixture(scope="module")
def space(own: Cluster) -> Space:
    """Two nodes with four GPUs each of the other driver, and its class."""
    made = kube_claims.make_space(own, "adopting")
    made.device_class("gpu", f'device.driver == "{FOREIGN_DRIVER}"')
    for node in ("gpu-1", "gpu-2"):
        ready_node(own, node)
        made.foreign_slice(node, 4)
    return made


@pytest.fixture
def devalloc(own: Cluster, capfd: pytest.CaptureFixture[str]) -> Devalloc:
    """The command as an admin types it; the lines it prints."""

    def call(*arguments: str, code: int = 0) -> list[str]:
        capfd.readouterr()
        ended = run([*arguments, f"--kubeconfig={own.kubeconfig('admin')}"])
        captured = capfd.readouterr()
        assert ended == code, captured.err + captured.out
        return [*captured.out.splitlines(), *captured.err.splitlines()]

    return call


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One API server and little to do: no need to wait as in a large cluster."""
    monkeypatch.setattr(adoption, "SETTLE_SECONDS", 1.0)
    monkeypatch.setattr(adoption, "RELEASE_SECONDS", 1.0)


def node_of(space: Space, pod: str) -> str:
    """Where kube-scheduler bound a pod."""
    return str(space.cluster.get(f"{space.pods}/{pod}").content["spec"].get("nodeName") or "")


def is_bound(space: Space, pod: str) -> bool:
    return bool(node_of(space, pod))


def condition(space: Space, pod: str) -> str:
    """Why kube-scheduler does not place a pod."""
    conditions = space.cluster.get(f"{space.pods}/{pod}").content["status"].get("conditions") or ()
    return next((str(each.get("message")) for each in conditions if each["type"] == "PodScheduled"), "")


def end(space: Space, *pods: str) -> None:
    """Delete pods; kube-controller-manager gives back what their claims have."""
    for name in pods:
        space.cluster.delete(f"{space.pods}/{name}?gracePeriodSeconds=0")


def test_the_devices_of_an_adopted_driver_are_allocated_by_devalloc(
    space: Space, client: Client, devalloc: Devalloc
) -> None:
    space.claim("before", "gpu", ours=False)
    space.pod("before", "before")
    until(lambda: is_bound(space, "before"), "kube-scheduler allocates while nothing is adopted")
    with allocating(client) as allocator:
        space.claim("early", "gpu")
        space.pod("early", "early")
        (note,) = until(lambda: allocator.notes("NotAdopted"), "its Event says why it waits")
        assert note.startswith(f"8 devices match, none is adopted ({FOREIGN_DRIVER}); devalloc adopt driver/")
        lines = devalloc("adopt", f"driver/{FOREIGN_DRIVER}")
        assert f"driver/{FOREIGN_DRIVER}: 8 devices in 2 pools of 2 nodes, 1 in use" in lines
        assert "note: 1 claim of kube-scheduler keeps its devices: adopting/before" in lines
        until(lambda: is_bound(space, "early"), "the pod is bound to the node of its devices")
        assert node_of(space, "early") == space.node_of("early")
        given = space.get("early")["status"]["allocation"]
        (result,) = given["devices"]["results"]
        assert (result["driver"], result["pool"]) == (FOREIGN_DRIVER, space.node_of("early"))
        assert not space.given("before") & space.given("early") or space.node_of("before") != space.node_of("early")
        space.claim("plain", "gpu", ours=False)
        space.pod("plain", "plain")
        until(lambda: "cannot allocate all claims" in condition(space, "plain"), "kube-scheduler has none for it")
        (row,) = [line.split() for line in devalloc("adopt") if line.startswith(FOREIGN_DRIVER)]
        assert (row[1], row[2], row[4:]) == ("all", "since", ["2/8", "adopting", "2"])

        lines = devalloc("unadopt", f"driver/{FOREIGN_DRIVER}")
        assert lines[-1] == f"driver/{FOREIGN_DRIVER} is kube-scheduler's again"
        assert devalloc("adopt") == ["nothing is adopted"]
        until(lambda: is_bound(space, "plain"), "kube-scheduler allocates again")
        assert space.given("early"), "what has devices keeps them"
    held = [(space.node_of(name), device) for name in ("before", "early", "plain") for device in space.given(name)]
    assert len(set(held)) == 3
    end(space, "before", "early", "plain")


def adopted(devalloc: Devalloc, *pools: str) -> None:
    devalloc("adopt", f"driver/{FOREIGN_DRIVER}", *(["--pools", *pools] if pools else []))


def test_a_rule_that_is_deleted_by_hand_ends_with_the_controllers_consent(
    space: Space, client: Client, devalloc: Devalloc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "RELEASE_SECONDS", 5.0)
    with allocating(client) as allocator:
        adopted(devalloc)
        began = time.monotonic()
        assert space.cluster.delete(f"{RULES}/{RULE}").ok
        space.claim("late", "gpu")
        space.pod("late", "late")
        until(lambda: allocator.notes("NotAdopted"), "nothing is allocated any more")
        assert time.monotonic() - began < 5
        rule = space.cluster.get(f"{RULES}/{RULE}").content
        assert rule["metadata"]["deletionTimestamp"], "it keeps kube-scheduler off until its watches have caught up"
        until(lambda: space.cluster.get(f"{RULES}/{RULE}").status == 404, "the controller lets it go")
        assert time.monotonic() - began > 4
        assert not space.given("late")
    end(space, "late")


def test_one_pool_of_a_driver_is_adopted_and_the_others_stay_with_kube_scheduler(
    space: Space, client: Client, devalloc: Devalloc
) -> None:
    with allocating(client):
        adopted(devalloc, "gpu-2")
        for name in ("ours", "theirs"):
            space.claim(name, "gpu", ours=name == "ours")
            space.pod(name, name)
        until(lambda: is_bound(space, "ours") and is_bound(space, "theirs"), "both allocators work")
        assert (node_of(space, "ours"), node_of(space, "theirs")) == ("gpu-2", "gpu-1")
        assert [line.split()[:2] for line in devalloc("adopt")[1:]] == [[FOREIGN_DRIVER, "gpu-2"]]
        refused = devalloc("unadopt", f"driver/{FOREIGN_DRIVER}", "--pools", "gpu-1", code=1)
        assert refused == [f"error: pool gpu-1 of driver {FOREIGN_DRIVER} is not adopted; see: devalloc adopt"]
        devalloc("unadopt", f"driver/{FOREIGN_DRIVER}")
    end(space, "ours", "theirs")


def test_claims_get_the_label_of_their_namespace_or_of_their_class(
    own: Cluster, space: Space, client: Client, devalloc: Devalloc
) -> None:
    def label(name: str, where: Space) -> str | None:
        value: str | None = where.get(name)["metadata"].get("labels", {}).get(ALLOCATOR_KEY)
        return value

    chosen = kube_claims.make_space(own, "chosen")
    namespace = own.get("/api/v1/namespaces/chosen").content
    chosen.claim("old", "gpu", ours=False)
    namespace["metadata"]["labels"][ALLOCATOR_KEY] = "devalloc"
    assert own.replace("/api/v1/namespaces/chosen", namespace).ok
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    body |= {"metadata": {"name": "annotated", "annotations": {ALLOCATOR_KEY: "devalloc"}}}
    space.create(CLASSES, {**body, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'none'"}}]}})

    def is_labelled() -> bool:
        made = own.create(chosen.claims, chosen.claim_of("probe", "gpu", ours=False), dry_run=True).content
        return bool(made["metadata"].get("labels"))

    until(is_labelled, "the policy counts")
    chosen.claim("new", "gpu", ours=False)
    out = chosen.claim_of("out", "gpu", ours=False)
    out["metadata"]["labels"] = {ALLOCATOR_KEY: "kube-scheduler"}
    chosen.create(chosen.claims, out)
    assert (label("new", chosen), label("out", chosen), label("old", chosen)) == ("devalloc", "kube-scheduler", None)

    def is_of_class() -> bool:
        made = own.create(space.claims, space.claim_of("probe", "annotated", ours=False), dry_run=True).content
        return bool(made["metadata"].get("labels"))

    until(is_of_class, "the class's annotation counts")
    with allocating(client):
        adopted(devalloc)
        for name in ("new", "old", "out"):
            chosen.pod(name, name)
        until(lambda: is_bound(chosen, "new") and is_bound(chosen, "old"), "also one from before the label")
        until(lambda: "cannot allocate all claims" in condition(chosen, "out"), "its own label is another one")
        devalloc("unadopt", f"driver/{FOREIGN_DRIVER}")
        until(lambda: is_bound(chosen, "out"), "kube-scheduler allocates it again")
    end(chosen, "new", "old", "out")


def test_the_api_server_checks_writers_of_allocations_and_of_rules(
    own: Cluster, space: Space, client: Client, devalloc: Devalloc
) -> None:
    """Whatever kube-scheduler has chosen before it saw the rule, and whatever a stranger writes on rules."""
    scheduler = own.as_user(SCHEDULER)
    result = {"request": "r", "driver": FOREIGN_DRIVER, "pool": "gpu-1", "device": "gpu-3"}
    given = {"allocation": {"devices": {"results": [result]}}}
    for name in ("judged", "judged-ours"):
        space.claim(name, "gpu", ours=name == "judged-ours")

    def write(who: Cluster, claim: str) -> str:
        body = {**space.get(claim), "status": given}
        return who.replace(f"{space.claims}/{claim}/status", body, dry_run=True).message

    assert write(scheduler, "judged") == ""
    with pytest.raises(ApiError, match="of adopted drivers"):
        client.replace(f"{space.claims}/judged-ours/status", {**space.get("judged-ours"), "status": given})
    with allocating(client):
        adopted(devalloc)
        assert f"driver {FOREIGN_DRIVER} is adopted by devalloc (DeviceTaintRule {RULE})" in write(scheduler, "judged")
        body = {**space.get("judged-ours"), "status": given}
        assert client.replace(f"{space.claims}/judged-ours/status", body, {"dryRun": "All"})
        rule = own.get(f"{RULES}/{RULE}").content
        for changed, words in (
            ({"spec": {**rule["spec"], "deviceSelector": {"driver": "other"}}}, "what a rule adopts does not change"),
            (
                {"metadata": {**rule["metadata"], "annotations": {ADOPTED_AT: "2020-01-01T00:00:00Z"}}},
                "only devalloc's",
            ),
            ({"metadata": {**rule["metadata"], "labels": {}}}, "what a rule adopts does not change"),
        ):
            assert words in own.replace(f"{RULES}/{RULE}", {**rule, **changed}, dry_run=True).message
        device = rule_manifest("other.example.com")
        device["spec"]["deviceSelector"]["device"] = "one"
        assert "names a driver and no device" in own.create(RULES, device, dry_run=True).message
        node = own.as_user("system:node:node-a")
        assert "cannot create resource" in node.create(RULES, rule_manifest("other.example.com"), dry_run=True).message
        devalloc("unadopt", f"driver/{FOREIGN_DRIVER}")
    until(lambda: write(scheduler, "judged") == "", "the policy follows the rule")


def test_a_device_with_two_owners_is_an_alarm_whatever_its_driver(
    own: Cluster, space: Space, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was with a rule and no policy: here an admin writes the second allocation."""
    monkeypatch.setattr(fleet_monitor, "INTERVAL_SECONDS", 0.5)
    result = {"request": "r", "driver": FOREIGN_DRIVER, "pool": "gpu-1", "device": "gpu-0"}
    for name in ("first", "second"):
        space.claim(name, "gpu", ours=False)
        status = {"allocation": {"devices": {"results": [result]}}}
        assert own.replace(f"{space.claims}/{name}/status", {**space.get(name), "status": status}).ok
    process = Controller(client, ControllerSettings(name="alarmed", listen=None, resource_claims=True))
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    try:

        def alarmed() -> set[str]:
            items = own.get(f"/apis/events.k8s.io/v1/namespaces/{space.name}/events").content["items"]
            return {each["regarding"]["name"] for each in items if each["reason"] == "SeveralOwners"}

        until(lambda: alarmed() == {"first", "second"}, "both claims have the Event")
        metric = 'devalloc_devices_with_several_owners{dialect="ResourceSlice"} 1.0'
        assert metric in process.metrics.text().decode()
    finally:
        process.stop()
        thread.join(60)
    for name in ("first", "second"):
        assert own.replace(f"{space.claims}/{name}/status", {**space.get(name), "status": {}}).ok

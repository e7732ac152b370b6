"""Controllers on a real API server: one answers, whatever is killed, stands still or goes away."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devalloc.controller.leader import election
from devalloc.controller.leader.lease import LeaseLost
from devalloc.controller.reconcile.release import release_claim
from devalloc.controller.settings import FencingSettings
from devalloc.programs.controller_settings import ControllerSettings
from devalloc.store.fencing import UncertainWrites, fence_objects
from devalloc.store.kubernetes import ApiError, Client
from tests.support import kube_build, kube_crds, kube_rights
from tests.support.claim_history import PREPARED, History, holders, unanswered
from tests.support.claim_judge import why_not
from tests.support.claim_storm import SERVER, ClaimStorm
from tests.support.controller_processes import DEVMGMT, LEASE, controllers, leader_process, lease_holder, prepare
from tests.support.controllers import Controller
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.go_build import Progress, Unavailable
from tests.support.host_pools import host, machine
from tests.support.kube_api import Cluster, running
from tests.support.waiting import until

Object = dict[str, Any]
CLAIMS = f"{DEVMGMT}/namespaces/default/deviceclaims"
MACHINES = "/apis/devalloc.io/v1alpha1/namespaces/default/virtualmachines"
POOLS = f"{DEVMGMT}/devicepools"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


@pytest.fixture(scope="module")
def server(progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server of this module alone, which is killed as well."""
    try:
        with running(kube_build.binaries(progress), tmp_path_factory.mktemp("controllers"), *SERVER) as cluster:
            kube_crds.install(cluster)
            prepare(cluster)
            assert cluster.create(f"{DEVMGMT}/deviceclasses", gpu_class()).ok
            yield cluster
    except Unavailable as reason:
        pytest.skip(f"no Kubernetes API server: {reason}")


@pytest.fixture
def cluster(server: Cluster) -> Iterator[Cluster]:
    """Without claims and pools, before and after."""
    yield server
    for path in (MACHINES, CLAIMS, POOLS, EVENTS):
        for obj in server.get(path).content["items"]:
            one = f"{path}/{obj['metadata']['name']}"
            if obj["metadata"].get("finalizers"):
                server.replace(one, {**obj, "metadata": {**obj["metadata"], "finalizers": []}})
            server.delete(one)
    server.delete(LEASE)


def create(cluster: Cluster, *objects: Object) -> None:
    for obj in objects:
        path = {"DevicePool": POOLS, "VirtualMachine": MACHINES}.get(obj["kind"], CLAIMS)
        answer = cluster.create(path, obj)
        assert answer.ok, answer.message


def available(cluster: Cluster) -> object:
    """What the pool p says."""
    return cluster.get(f"{POOLS}/p").content.get("status", {}).get("availableDevices")


def events(cluster: Cluster) -> list[tuple[str, str, str]]:
    """Name, type and reason of each."""
    items = cluster.get(EVENTS).content["items"]
    return [(event["regarding"]["name"], event["type"], event["reason"]) for event in items]


# -- one process -------------------------------------------------------------------------------------------------------


def test_claims_are_answered_and_events_tell_the_refused_why(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, gpu_pool("p", devices=2), gpu_claim("a"), gpu_claim("pair-1", group="pair"))
    create(cluster, gpu_claim("pair-2", group="pair"), gpu_claim("zlast"))
    with controllers(cluster, tmp_path, 1) as (process,):
        until(lambda: not unanswered(cluster), "every claim has an answer")
        until(lambda: len(events(cluster)) >= 4, "and an event")
        held, recorded = holders(cluster), events(cluster)
        assert sum(len(devices) for devices in held.values()) == 2
        for name in ("a", "pair-1", "pair-2", "zlast"):
            reasons = {(type_, reason) for who, type_, reason in recorded if who == name}
            assert (("Normal", "Allocated") in reasons) == (name in held), (name, reasons)
            assert (name in held) or any(type_ == "Warning" for type_, _ in reasons)
        until(lambda: available(cluster) == 0, "the pool says that nothing is left")
        gone = next(iter(held))
        assert cluster.delete(f"{CLAIMS}/{gone}").ok
        until(lambda: gone not in holders(cluster) and not unanswered(cluster), "what waited is looked at again")
        assert process.end() == 0, process.output()
        assert lease_holder(cluster) == "", "the next one need not wait"


def test_nothing_is_written_while_nothing_happens(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, gpu_pool("p", devices=1), gpu_claim("a"), gpu_claim("b"))

    def note(value: str) -> str:
        obj = cluster.get(f"{CLAIMS}/a").content
        obj["metadata"]["annotations"]["n"] = value
        return str(cluster.replace(f"{CLAIMS}/a", obj).content["metadata"]["resourceVersion"])

    def versions() -> dict[str, str]:
        objects = [o["metadata"] for path in (CLAIMS, POOLS, EVENTS) for o in cluster.get(path).content["items"]]
        return {metadata["uid"]: metadata["resourceVersion"] for metadata in objects}

    with controllers(cluster, tmp_path, 1):
        until(lambda: not unanswered(cluster) and available(cluster) == 0, "all is answered and written")
        note("1")  # the loser of a batch finds, in the next one, the device in use
        until(lambda: ("b", "Warning", "DevicesInUse") in events(cluster), "and told")
        before, uid = versions(), cluster.get(f"{CLAIMS}/a").content["metadata"]["uid"]
        # What does not matter to it wakes it up, and it still writes nothing.
        noted = note("2")
        create(cluster, gpu_claim("c"))
        until(lambda: ("c", "Warning", "DevicesInUse") in events(cluster), "what comes after that is answered")
        after = versions()
        assert {each: after[each] for each in before} == {**before, uid: noted}


def test_a_controller_that_lost_the_lease_ends_with_1(cluster: Cluster, tmp_path: Path) -> None:
    with controllers(cluster, tmp_path, 1) as (process,):
        until(lambda: leader_process(cluster, [process]), "it leads")

        def take() -> bool:
            current = cluster.get(LEASE).content
            spec = {**current["spec"], "holderIdentity": "somebody"}
            return cluster.replace(LEASE, {**current, "spec": spec}).ok

        until(take, "another holder takes it")
        assert process.wait() == 1
        assert "start it again" in process.output()
        assert lease_holder(cluster) == "somebody", "it is not its own to give back"


# -- two ---------------------------------------------------------------------------------------------------------------


class Gated(Client):
    """Requests that are on their way for as long as the test wants."""

    def __init__(self, load: Callable[[], Any]) -> None:
        super().__init__(load)
        self.is_held: Callable[[str, Object], bool] = lambda path, body: False
        self.gate = threading.Event()
        self.waiting = threading.Event()
        self.answers: list[str] = []

    def replace(self, path: str, body: Object, params: Mapping[str, str] | None = None) -> Object:
        if not self.gate.is_set() and self.is_held(path, body):
            self.waiting.set()
            assert self.gate.wait(300)
            try:
                answer = super().replace(path, body, params)
            except Exception as error:
                self.answers.append(f"refused: {error}")
                raise
            self.answers.append("done")
            return answer
        return super().replace(path, body, params)


def run_controller(
    cluster: Cluster, name: str, client: Client, *, seconds: float = 60.0, skew: float = 0.0
) -> tuple[Controller, threading.Thread, list[object]]:
    """In a thread: how it ended is in the list. ``skew``: by how much its clock is ahead."""
    ended: list[object] = []
    controller = Controller(client, ControllerSettings(name=name, lease=seconds, listen=None))
    controller.lease._clock = lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + skew

    def run() -> None:
        try:
            controller.run()
            ended.append("stopped")
        except BaseException as error:
            ended.append(error)
        finally:
            controller.close()  # one who loses the lease leaves that to the end of its process

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return controller, thread, ended


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "without the seal"])
def test_what_an_old_leader_still_sends_is_refused(
    cluster: Cluster, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked at its clock, and then its last request was on its way for very long. By then another one leads and has
    given the device to another claim, whose answer to the first claim is on its way as well.

    Without the seal this history has a device with two owners: the test can tell.
    """
    if not sealed:
        monkeypatch.setattr(election, "fence_objects", lambda store, stamp, stop: 0)
    else:
        assert election.fence_objects is fence_objects
    history = History(cluster)
    old, new = (Gated.connect(cluster.kubeconfig("admin")) for _ in range(2))
    assert isinstance(old, Gated)
    assert isinstance(new, Gated)
    old.is_held = lambda path, body: path.endswith("/deviceclaims/late/status")
    new.is_held = lambda path, body: path.endswith("/late/status") and why_not(body) is not None
    create(cluster, gpu_pool("p", devices=1), gpu_claim("late"))
    first, thread, ended = run_controller(cluster, "old", old)
    try:
        assert old.waiting.wait(120)
        first.lease._clock = lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + 3600
        until(lambda: ended, "it sees by its clock that it does not lead any more")
        assert isinstance(ended[0], LeaseLost)
        assert cluster.delete(LEASE).ok  # which is as if so long had passed for the other one as well
        create(cluster, gpu_claim("soon", priority="5"))
        second, other, _ = run_controller(cluster, "new", new)
        try:
            until(lambda: "soon" in holders(cluster), "the new leader has given the device away")
            old.gate.set()
            until(lambda: any("late" in answer or answer == "done" for answer in old.answers), "the old request came")
            new.gate.set()
            until(lambda: not unanswered(cluster), "every claim has an answer")
        finally:
            new.gate.set()
            second.stop()
            other.join(120)
    finally:
        old.gate.set()
        first.stop()
        thread.join(120)
    history.close()
    doubles = history.judge().doubles
    if sealed:
        assert doubles == []
        assert [*holders(cluster)] == ["soon"]
        assert any("refused" in answer for answer in old.answers)
    else:
        assert doubles, "else this test would show nothing"


# -- what happens meanwhile --------------------------------------------------------------------------------------------


@contextmanager
def controlling(cluster: Cluster, **settings: float) -> Iterator[tuple[Controller, Gated]]:
    """One that leads, in this process."""
    client = Gated.connect(cluster.kubeconfig("admin"))
    assert isinstance(client, Gated)
    controller, thread, _ = run_controller(cluster, "one", client, **settings)
    try:
        until(lambda: controller.controller.state == "leading", "it leads")
        yield controller, client
    finally:
        client.gate.set()
        controller.stop()
        thread.join(120)


@pytest.mark.parametrize("audience", ["devalloc", ""])
def test_health_is_for_all_and_metrics_for_those_who_can_read_them(cluster: Cluster, audience: str) -> None:
    at: list[tuple[str, int]] = []
    client = Client.connect(cluster.kubeconfig("admin"))
    settings = ControllerSettings(name="one", lease=60.0, listen=("127.0.0.1", 0), token_audience=audience)
    controller = Controller(client, settings, on_listening=at.append)
    thread = threading.Thread(target=controller.run, daemon=True)
    thread.start()

    def ask(path: str, token: str | None = None) -> tuple[int, str]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"http://{at[0][0]}:{at[0][1]}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    try:
        create(cluster, gpu_pool("p", devices=2), gpu_claim("a"))
        until(lambda: "a" in holders(cluster), "it leads, and answers")
        assert ask("/healthz") == (200, "ok")
        assert ask("/readyz") == (200, f"leading, as {controller.lease.holder}")
        assert ask("/metrics")[0] == 401
        assert ask("/metrics", "made-up")[0] == 401
        reader = scraper(cluster, audience)
        if audience:
            assert ask("/metrics", cluster.token)[0] == 401, "it is for the API server"
            assert ask("/metrics", scraper(cluster, ""))[0] == 401, "that of a pod is for the API server, too"
            assert ask("/metrics", scraper(cluster, "other"))[0] == 401
            assert cluster_refuses(cluster, reader), "a thief of the token can do nothing else with it"
        else:
            assert ask("/metrics", cluster.tokens["system:node:node-a"])[0] == 403
            assert ask("/metrics", cluster.token)[0] == 200
        until(lambda: "devalloc_claims" in ask("/metrics", reader)[1], "a round is over")
        metrics = ask("/metrics", reader)[1]
        for line in ('devalloc_claims{state="allocated"} 1.0', "devalloc_leading 1.0", "devalloc_devices 2.0"):
            assert line in metrics
        assert 'devalloc_api_requests_total{code="200",verb="update"}' in metrics
    finally:
        controller.stop()
        thread.join(120)


def test_usage_of_both_dialects_is_counted_and_shown(cluster: Cluster) -> None:
    at: list[tuple[str, int]] = []
    client = Client.connect(cluster.kubeconfig("admin"))
    settings = ControllerSettings(name="one", lease=60.0, listen=("127.0.0.1", 0), token_audience="")
    controller = Controller(client, settings, on_listening=at.append)
    thread = threading.Thread(target=controller.run, daemon=True)
    thread.start()

    def ask(path: str) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {cluster.token}"}
        request = urllib.request.Request(f"http://{at[0][0]}:{at[0][1]}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def used() -> set[tuple[str, str, str]]:
        code, text = ask("/usage?by=device&month=this")
        assert code == 200, text
        return {(row["kind"], row["deviceClass"], row["device"]) for row in json.loads(text)["usage"]}

    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}
    theirs = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "r"}, "spec": spec}
    try:
        # A pool that no other test names: usage of this month stays when claims and pools go.
        create(cluster, gpu_pool("counted", devices=1), gpu_claim("a"))
        made = cluster.create(path, theirs)
        assert made.ok, made.message
        results = [{"request": "gpu", "driver": "devalloc.io", "pool": "counted-too", "device": "d7"}]
        status = {"allocation": {"devices": {"results": results}}}
        answer = cluster.replace(f"{path}/r/status", made.content | {"status": status})
        assert answer.ok, answer.message
        expected = {("DeviceClaim", "gpu", "counted/d0"), ("ResourceClaim", "any", "devalloc.io/counted-too/d7")}
        until(lambda: at and expected <= used(), "both are counted")
        name = 'devalloc_usage_device_seconds_total{device_class="any",held="whole",kind="ResourceClaim"'
        until(lambda: name in ask("/metrics")[1], "a counter")
        assert ask("/usage?by=nothing")[0] == ask("/usage?month=soon")[0] == 400
        assert json.loads(ask("/usage?namespace=nobody")[1])["usage"] == []
    finally:
        cluster.delete(f"{path}/r")
        controller.stop()
        thread.join(120)


def scraper(cluster: Cluster, audience: str) -> str:
    """A token of an account that may read metrics."""
    named = {"metadata": {"name": "scraper"}}
    subject = {"kind": "ServiceAccount", "name": "scraper", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "scraper"}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    cluster.create("/api/v1/namespaces/default/serviceaccounts", named)
    rules = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    cluster.create(f"{rbac}/clusterroles", named | {"rules": rules})
    cluster.create(f"{rbac}/clusterrolebindings", named | {"subjects": [subject], "roleRef": role})
    return kube_rights.token(cluster, "scraper", namespace="default", audience=audience or None)


def cluster_refuses(cluster: Cluster, token: str) -> bool:
    return replace(cluster, token=token).get("/version").status == 401


def test_a_machine_and_its_claims_are_placed_together_or_get_a_reason(cluster: Cluster) -> None:
    large, small = machine("large", "4", "1Gi"), machine("small", "1", "1Gi", "a")
    create(cluster, host("h", cpus=2), gpu_pool("p", devices=1, node="h"), gpu_claim("a"), small, large)
    with controlling(cluster):
        until(
            lambda: {("small", "Normal", "Placed"), ("large", "Warning", "NodesTooSmall")} <= {*events(cluster)}, "told"
        )
        assert holders(cluster) == {"a": ("p/d0",)}
        for name, value in (("small", "True"), ("large", "False")):
            obj = cluster.get(f"{MACHINES}/{name}").content
            condition, ready = obj["status"]["conditions"]
            assert (condition["type"], condition["status"]) == ("Placed", value)
            assert (ready["type"], ready["status"]) == ("Ready", "False"), "no node runs it"
            assert condition["observedGeneration"] == obj["metadata"]["generation"]
            assert "devalloc.io/transaction" not in obj["metadata"].get("annotations", {})
        since = condition["lastTransitionTime"]
        obj["spec"]["memory"] = {"min": "2Gi", "max": "8Gi"}
        changed = cluster.replace(f"{MACHINES}/large", obj)
        assert changed.ok, changed.message
        generation = changed.content["metadata"]["generation"]
        condition, _ = until(
            lambda: [
                one
                for one in cluster.get(f"{MACHINES}/large").content["status"]["conditions"]
                if one["observedGeneration"] == generation
            ],
            "the condition is of the spec as it is now",
        )
        assert condition["lastTransitionTime"] == since, "its status did not change"


def test_a_claim_that_goes_in_the_middle_of_an_answer_takes_only_its_own_with_it(cluster: Cluster) -> None:
    with controlling(cluster) as (_, client):
        client.is_held = lambda path, body: "/deviceclaims/gone" in path
        create(cluster, gpu_pool("p", devices=1), gpu_claim("gone", priority="5"), gpu_claim("stays"))
        assert client.waiting.wait(120)
        assert cluster.delete(f"{CLAIMS}/gone").ok
        client.gate.set()
        until(lambda: holders(cluster) == {"stays": ("p/d0",)}, "the other one gets the device")


def test_what_a_crashed_node_had_stays_its_own_until_its_finalizer_is_gone(cluster: Cluster) -> None:
    create(cluster, gpu_pool("p", devices=1), gpu_claim("left"))
    with controlling(cluster):
        until(lambda: holders(cluster), "it has its device")
        current = cluster.get(f"{CLAIMS}/left").content
        metadata = {**current["metadata"], "finalizers": [PREPARED]}
        metadata["annotations"] = {**metadata["annotations"], "devalloc.io/prepared-on": "n"}
        assert cluster.replace(f"{CLAIMS}/left", {**current, "metadata": metadata}).ok
        assert cluster.delete(f"{CLAIMS}/left").ok
        create(cluster, gpu_claim("next"))
        until(lambda: ("next", "Warning", "DevicesInUse") in events(cluster), "no other claim gets it")
        current = cluster.get(f"{CLAIMS}/left").content
        assert "deletionTimestamp" in current["metadata"]
        assert cluster.replace(f"{CLAIMS}/left", {**current, "metadata": {**current["metadata"], "finalizers": []}}).ok
        until(lambda: holders(cluster) == {"next": ("p/d0",)}, "now one does")


def test_claims_of_a_node_that_is_gone_for_good_are_released_as_documented(
    cluster: Cluster, progress: Progress
) -> None:
    """Its Node was deleted, so Kubernetes deletes its pools; no one is there to release it. docs/controller.md."""
    kubectl = [kube_build.kubectl(progress), f"--kubeconfig={cluster.kubeconfig('admin')}"]
    create(cluster, gpu_pool("p", devices=2, node="gone"), host("gone", cpus=2))
    create(cluster, gpu_claim("left"), gpu_claim("moves"), machine("vm", "1", "1Gi", "left"))
    with controlling(cluster) as (controller, _):
        until(lambda: holders(cluster).keys() == {"left", "moves"}, "they have its devices")
        for path in (f"{CLAIMS}/left", f"{CLAIMS}/moves", f"{MACHINES}/vm"):
            until(lambda path=path: has_by_node(cluster, path, "gone"), "the node has it")
        for pool in ("p", "gone-host"):
            assert cluster.delete(f"{POOLS}/{pool}").ok
        create(cluster, gpu_pool("q", devices=1, node="other"))
        until(lambda: ("left", "Warning", "DeviceLost") in events(cluster), "the loss is an event")
        for kind, path in (("dclaim", f"{CLAIMS}/left"), ("vmachine", f"{MACHINES}/vm")):
            assert cluster.delete(path).ok
            assert "deletionTimestamp" in cluster.get(path).content["metadata"], "it stays"
            patch = [*kubectl, "patch", kind, path.rpartition("/")[2], "--type=merge"]
            subprocess.run([*patch, "-p", '{"metadata":{"finalizers":null}}'], check=True, capture_output=True)
            assert cluster.get(path).status == 404
        assert release_claim(controller.store, "default", "moves", abandon=True) == "released"
        until(lambda: holders(cluster) == {"moves": ("q/d0",)}, "it has a device of a node that is there")


def test_what_a_lost_node_has_goes_to_other_nodes_when_its_node_is_tainted_as_out_of_service(cluster: Cluster) -> None:
    """As Kubernetes does it with pods: not while it is only lost, and not while its kubelet reports."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "lost"}}
    path = "/api/v1/nodes/lost"
    assert cluster.create("/api/v1/nodes", node).ok
    report_ready(cluster, "lost", "True")
    create(cluster, gpu_pool("p", devices=2, node="lost"), host("lost", cpus=2))
    create(cluster, gpu_claim("of-vm"), gpu_claim("prepared"), machine("vm", "1", "1Gi", "of-vm"))
    with controlling(cluster):
        until(lambda: holders(cluster).keys() == {"of-vm", "prepared"}, "they have its devices")
        for held in (f"{CLAIMS}/of-vm", f"{CLAIMS}/prepared", f"{MACHINES}/vm"):
            until(lambda held=held: has_by_node(cluster, held, "lost"), "the node has it")
        create(cluster, gpu_pool("q", devices=3, node="other"), host("other", cpus=2))
        taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
        current = cluster.get(path).content
        assert cluster.replace(path, {**current, "spec": {**current["spec"], "taints": [taint]}}).ok
        create(cluster, gpu_claim("probe"))
        until(lambda: "probe" in holders(cluster), "a round was made with the taint")
        before = holders(cluster)
        assert (before["of-vm"][0][:2], before["prepared"][0][:2]) == ("p/", "p/"), "its kubelet reports"
        report_ready(cluster, "lost", "Unknown")

        def moved() -> bool:
            now = holders(cluster)
            taken = {name: now.get(name, ("",))[0][:2] for name in ("of-vm", "prepared", "probe")}
            return {*taken.values()} == {"q/"} and cluster.get(f"{MACHINES}/vm").content["status"].get(
                "nodeName"
            ) == "other"

        until(moved, "all of it is on the other node")
        vm = cluster.get(f"{MACHINES}/vm").content
        assert not vm["metadata"].get("finalizers")
        assert vm["metadata"]["annotations"]["devalloc.io/fenced-from"] == "lost"
        until(lambda: ("vm", "Warning", "NodeFenced") in events(cluster), "an Event tells it")
    assert cluster.delete(path).ok


def test_a_lost_node_is_switched_off_by_the_program_and_then_fenced(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("dark", "bright"):
        assert cluster.create("/api/v1/nodes", {"kind": "Node", "metadata": {"name": name}}).ok
        report_ready(cluster, name, "True")
    create(cluster, gpu_pool("p", devices=1, node="dark"), gpu_claim("a"))
    calls, program = tmp_path / "calls", tmp_path / "off"
    program.write_text(f'#!/bin/sh\necho "$1 $DEVALLOC_NODE" >> {calls}\n[ -e {tmp_path}/works ]\n')
    program.chmod(0o755)
    fencing = FencingSettings(program, after=0.1, one_in=1)
    client = Client.connect(cluster.kubeconfig("admin"))
    controller = Controller(client, ControllerSettings(name="one", lease=60.0, listen=None, fencing=fencing))
    thread = threading.Thread(target=controller.run, daemon=True)
    thread.start()
    try:
        until(lambda: "a" in holders(cluster), "it is allocated")
        until(lambda: has_by_node(cluster, f"{CLAIMS}/a", "dark"), "the node has it")
        (tmp_path / "works").touch()
        report_ready(cluster, "dark", "Unknown")
        until(lambda: "a" not in holders(cluster), "it is taken away")
        assert calls.read_text() == "dark dark\n"
        taints = cluster.get("/api/v1/nodes/dark").content["spec"]["taints"]
        assert "node.kubernetes.io/out-of-service" in [taint["key"] for taint in taints]
        assert 'devalloc_fencing_calls_total{result="fenced"} 1.0' in controller.metrics.text().decode()
    finally:
        controller.stop()
        thread.join(120)
        for name in ("dark", "bright"):
            cluster.delete(f"/api/v1/nodes/{name}")


def test_a_machine_leaves_a_lost_node_only_when_the_program_has_switched_it_off(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The program fails first, and is then still at work for a while: neither lets the machine go."""
    program, calls = tmp_path / "off", tmp_path / "calls"
    script = f'echo "$1 $DEVALLOC_NODE" >> {calls}; [ -e {tmp_path}/works ] || exit 1'
    program.write_text(f"#!/bin/sh\n{script}; while [ ! -e {tmp_path}/done ]; do sleep 0.1; done\n")
    program.chmod(0o755)

    def was_called(times: int) -> bool:
        return calls.exists() and calls.read_text() == "dark dark\n" * times

    def has_device(claim: str) -> bool:
        return claim in holders(cluster)

    options = ("--fencing-command", str(program), "--fencing-after", "1s", "--fencing-one-in", "1")
    for name in ("dark", "bright"):
        assert cluster.create("/api/v1/nodes", {"kind": "Node", "metadata": {"name": name}}).ok
        report_ready(cluster, name, "True")
    with controllers(cluster, tmp_path, 1, *options):
        create(cluster, host("dark", cpus=2), machine("vm"))
        until(lambda: machine_node(cluster) == "dark", "it is placed")
        until(lambda: has_by_node(cluster, f"{MACHINES}/vm", "dark"), "the node has it")
        create(cluster, host("bright", cpus=2), gpu_pool("p", devices=2, node="bright"))
        report_ready(cluster, "dark", "Unknown")
        for probe, number in (("after-failure", 1), ("while-it-works", 2)):
            until(partial(was_called, number), "it is called")
            create(cluster, gpu_claim(probe))
            until(partial(has_device, probe), "a round is made")
            assert machine_node(cluster) == "dark"
            assert cluster.get(f"{MACHINES}/vm").content["metadata"]["annotations"]["devalloc.io/prepared-on"] == "dark"
            (tmp_path / "works").touch()
        (tmp_path / "done").touch()
        until(lambda: machine_node(cluster) == "bright", "it is on the other node")
        assert was_called(2), "one call that failed, and one that did not"
        taints = cluster.get("/api/v1/nodes/dark").content["spec"]["taints"]
        assert "node.kubernetes.io/out-of-service" in [taint["key"] for taint in taints]
    for name in ("dark", "bright"):
        cluster.delete(f"/api/v1/nodes/{name}")


def report_ready(cluster: Cluster, node: str, value: str) -> None:
    """What the kubelet of a node reports; ``Unknown``: what Kubernetes writes when the node's Lease has ended."""
    path = f"/api/v1/nodes/{node}"
    status = {"conditions": [{"type": "Ready", "status": value, "reason": "Test"}]}
    assert cluster.replace(f"{path}/status", {**cluster.get(path).content, "status": status}).ok


def machine_node(cluster: Cluster) -> object:
    """Where the machine vm is."""
    return cluster.get(f"{MACHINES}/vm").content.get("status", {}).get("nodeName")


def test_a_namespace_that_is_deleted_keeps_what_nodes_have_and_gives_back_the_rest(cluster: Cluster) -> None:
    """As Kubernetes does it: nothing new can be made in it, Events included, and all its objects are deleted."""
    space = "/api/v1/namespaces/doomed"
    claims = f"{DEVMGMT}/namespaces/doomed/deviceclaims"
    assert cluster.create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "doomed"}}).ok
    create(cluster, gpu_pool("p", devices=2))
    with controlling(cluster):
        for name in ("bound", "free"):
            assert cluster.create(claims, gpu_claim(name, namespace="doomed")).ok
        until(lambda: holders(cluster).keys() == {"bound", "free"}, "they have devices")
        until(lambda: has_by_node(cluster, f"{claims}/bound", "n"), "a node has one of them")
        assert cluster.delete(space).ok
        create(cluster, gpu_claim("next", count=2))
        for name in ("bound", "free"):
            assert cluster.delete(f"{claims}/{name}").ok
        until(lambda: available(cluster) == 1, "what no node has is free")
        until(lambda: ("next", "Warning", "DevicesInUse") in events(cluster), "and the other device is not")
        current = cluster.get(f"{claims}/bound").content
        assert cluster.replace(f"{claims}/bound", {**current, "metadata": {**current["metadata"], "finalizers": []}}).ok
        until(lambda: holders(cluster).keys() == {"next"}, "it is, when the node has let go")
    spec = {"metadata": {"name": "doomed"}, "spec": {"finalizers": []}}
    assert cluster.replace(f"{space}/finalize", {"apiVersion": "v1", "kind": "Namespace", **spec}).ok


def has_by_node(cluster: Cluster, path: str, node: str) -> bool:
    """A node notes that it has something of a claim or machine."""
    current = cluster.get(path).content
    noted = {**current["metadata"].get("annotations", {}), "devalloc.io/prepared-on": node}
    return cluster.replace(
        path, {**current, "metadata": {**current["metadata"], "finalizers": [PREPARED], "annotations": noted}}
    ).ok


def test_it_goes_on_when_the_api_server_comes_back(cluster: Cluster) -> None:
    """Which has forgotten what its watches were to tell: they begin anew."""
    create(cluster, gpu_pool("p", devices=2), gpu_claim("a"))
    with controlling(cluster, seconds=300.0) as (controller, _):
        until(lambda: "a" in holders(cluster), "it answers")
        assert cluster.server is not None
        cluster.server.kill()
        time.sleep(1)
        cluster.server.start(cluster)
        create(cluster, gpu_claim("b"))
        until(lambda: "b" in holders(cluster), "it answers again")
        assert cluster.keeper is not None
        cluster.keeper.kill()
        cluster.keeper.start(cluster)
        create(cluster, gpu_claim("c"))
        until(lambda: not unanswered(cluster), "etcd was restarted, and it answers again")
        assert controller.controller.state == "leading"


def test_clocks_of_the_two_need_not_agree(cluster: Cluster) -> None:
    create(cluster, gpu_pool("p", devices=2), gpu_claim("a"))
    with controlling(cluster, seconds=30.0) as (first, _):
        until(lambda: "a" in holders(cluster), "it answers")
        other = Gated.connect(cluster.kubeconfig("admin"))
        assert isinstance(other, Gated)
        second, thread, _ = run_controller(cluster, "two", other, seconds=30.0, skew=86_400.0)
        try:
            until(lambda: "held by one-" in second.controller.summary, "it has looked at the lease")
            for _ in range(2):
                seen = second.controller.beat
                until(lambda seen=seen: second.controller.beat > seen, "it looks again")
            assert (first.controller.state, second.controller.state) == ("leading", "waiting")
            first.stop()
            until(lambda: second.controller.state == "leading", "it was given back")
            create(cluster, gpu_claim("b"))
            until(lambda: "b" in holders(cluster), "the second one answers")
        finally:
            second.stop()
            thread.join(120)


@pytest.mark.parametrize("settled", [True, False], ids=["settled", "left in doubt"])
def test_a_write_whose_answer_was_lost_is_not_done_later(
    cluster: Cluster, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's own: the connection broke, and the request arrives when another claim has the device."""
    if not settled:
        monkeypatch.setattr(UncertainWrites, "note", lambda self, keys: None)
    history, lost, has_another = History(cluster), list[tuple[str, Object]](), threading.Event()

    class Broken(Gated):
        def replace(self, path: str, body: Object, params: Mapping[str, str] | None = None) -> Object:
            if path.endswith("/deviceclaims/late/status") and not self.gate.is_set():
                lost.append((path, body))
                raise ApiError(0, "NoAnswer", "connection reset")
            if path.endswith("/late/status") and why_not(body) is not None:
                assert self.waiting.wait(300)
            # After a write of its labels, what was lost would be refused as well.
            if path.endswith("/late") and has_another.is_set() and not settled:
                assert self.waiting.wait(300)
            return super().replace(path, body, params)

    client = Broken.connect(cluster.kubeconfig("admin"))
    assert isinstance(client, Broken)
    create(cluster, gpu_pool("p", devices=1), gpu_claim("late"))
    controller, thread, _ = run_controller(cluster, "one", client)
    try:
        until(lambda: lost, "it has sent a request that stays without an answer")
        has_another.set()
        create(cluster, gpu_claim("soon", priority="5"))
        until(lambda: "soon" in holders(cluster), "the device goes to another claim")
        refused = cluster.replace(*lost[0]).status
        client.gate.set()
        client.waiting.set()
        until(lambda: not unanswered(cluster), "every claim has an answer")
    finally:
        client.gate.set()
        client.waiting.set()
        controller.stop()
        thread.join(120)
    history.close()
    doubles = history.judge().doubles
    if settled:
        assert (refused, doubles) == (409, [])
    else:
        assert doubles, "else this test would show nothing"


def test_no_device_has_two_owners_whatever_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    """Claims, machines with theirs, and pods with ResourceClaims. The long form: `make controllers-soak`."""
    tally = ClaimStorm(cluster, tmp_path, seed=20261122).run(count=100, seconds=25)
    assert tally.wrong == [], str(tally)
    assert tally.verdict.grants > 10, str(tally)
    assert tally.verdict.joint > 0, str(tally)
    done = {"kill the leader", "stop the leader", "restart the API server", "have the leader heard late"}
    assert done <= tally.did.keys(), str(tally)
    assert set(tally.ends) <= {0, 1, -signal.SIGKILL, -signal.SIGTERM}, str(tally)

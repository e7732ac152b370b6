"""Controllers on a real API server: one answers, whatever is killed, stands still or goes away."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from devalloc.controller import leading
from devalloc.controller.cluster import Cluster as Controller
from devalloc.controller.cluster import ClusterSettings
from devalloc.controller.lease import Lost
from devalloc.controller.seal import seal
from devalloc.store.kubernetes import ApiError, Client
from tests.support import kube_build, kube_crds
from tests.support.claim_history import History, holders, unanswered
from tests.support.claim_storm import Storm
from tests.support.controllers import DEVMGMT, NAMESPACE, controllers, holder, leads, prepare, until
from tests.support.fleets import gpu_claim, gpu_class, gpu_pool
from tests.support.go_build import Progress, Unavailable
from tests.support.kube import Cluster, running

Object = dict[str, Any]
CLAIMS = f"{DEVMGMT}/namespaces/default/deviceclaims"
POOLS = f"{DEVMGMT}/devicepools"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


@pytest.fixture(scope="module")
def server(progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server of this module alone, which is killed as well."""
    try:
        with running(kube_build.binaries(progress), tmp_path_factory.mktemp("controllers")) as cluster:
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
    for kind in ("deviceclaims", "devicepools"):
        for obj in server.get(f"{DEVMGMT}/{kind}").content["items"]:
            scope = f"namespaces/{obj['metadata']['namespace']}/" if "namespace" in obj["metadata"] else ""
            path = f"{DEVMGMT}/{scope}{kind}/{obj['metadata']['name']}"
            if obj["metadata"].get("finalizers"):
                server.replace(path, {**obj, "metadata": {**obj["metadata"], "finalizers": []}})
            server.delete(path)
    server.delete(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/devalloc-controller")


def create(cluster: Cluster, *objects: Object) -> None:
    for obj in objects:
        path = POOLS if obj["kind"] == "DevicePool" else CLAIMS
        answer = cluster.create(path, obj)
        assert answer.ok, answer.message


def available(cluster: Cluster) -> object:
    """What the pool p says."""
    return cluster.get(f"{POOLS}/p").content.get("status", {}).get("availableDevices")


def events(cluster: Cluster) -> list[tuple[str, str, str]]:
    """Name, type and reason of each."""
    found = cluster.get(EVENTS).content["items"]
    return [(event["regarding"]["name"], event["type"], event["reason"]) for event in found]


# -- one process -------------------------------------------------------------------------------------------------------


def test_claims_are_answered_and_events_tell_the_refused_why(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, gpu_pool("p", devices=2), gpu_claim("a"), gpu_claim("pair-1", group="pair"))
    create(cluster, gpu_claim("pair-2", group="pair"), gpu_claim("zlast"))
    with controllers(cluster, tmp_path, 1) as (process,):
        until(lambda: not unanswered(cluster), "every claim has an answer")
        until(lambda: len(events(cluster)) >= 4, "and an event")
        held, told = holders(cluster), events(cluster)
        assert sum(len(devices) for devices in held.values()) == 2
        for name in ("a", "pair-1", "pair-2", "zlast"):
            reasons = {(type_, reason) for who, type_, reason in told if who == name}
            assert (("Normal", "Allocated") in reasons) == (name in held), (name, reasons)
            assert (name in held) or any(type_ == "Warning" for type_, _ in reasons)
        until(lambda: available(cluster) == 0, "the pool says that nothing is left")
        gone = next(iter(held))
        assert cluster.delete(f"{CLAIMS}/{gone}").ok
        until(lambda: gone not in holders(cluster) and not unanswered(cluster), "what waited is looked at again")
        assert process.end() == 0, process.said()
        assert holder(cluster) == "", "the next one need not wait"


def test_nothing_is_written_while_nothing_happens(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, gpu_pool("p", devices=1), gpu_claim("a"), gpu_claim("b"))

    def label(value: str) -> str:
        obj = cluster.get(f"{CLAIMS}/a").content
        obj["metadata"]["labels"] = {"l": value}
        return str(cluster.replace(f"{CLAIMS}/a", obj).content["metadata"]["resourceVersion"])

    def versions() -> dict[str, str]:
        found = [o["metadata"] for path in (CLAIMS, POOLS, EVENTS) for o in cluster.get(path).content["items"]]
        return {metadata["uid"]: metadata["resourceVersion"] for metadata in found}

    with controllers(cluster, tmp_path, 1):
        until(lambda: not unanswered(cluster) and available(cluster) == 0, "all is answered and written")
        label("1")  # the loser of a batch finds, in the next one, the device in use
        until(lambda: ("b", "Warning", "DevicesInUse") in events(cluster), "and told")
        before, uid = versions(), cluster.get(f"{CLAIMS}/a").content["metadata"]["uid"]
        # What does not matter to it wakes it up, and it still writes nothing.
        labelled = label("2")
        time.sleep(4)
        assert versions() == {**before, uid: labelled}


# -- two ---------------------------------------------------------------------------------------------------------------


def test_the_other_goes_on_when_the_leader_is_killed_or_stands_still(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, gpu_pool("p", devices=3), gpu_claim("a"))
    with controllers(cluster, tmp_path, 2) as processes:
        until(lambda: "a" in holders(cluster), "the first claim has its device")
        first = until(lambda: leads(cluster, processes), "one leads")
        first.signal(signal.SIGKILL)
        create(cluster, gpu_claim("b"))
        until(lambda: "b" in holders(cluster), "the other one answered")
        second = leads(cluster, processes)
        assert second is not None
        assert second is not first
        first.start()
        second.signal(signal.SIGSTOP)
        create(cluster, gpu_claim("c"))
        until(lambda: "c" in holders(cluster), "the first one answers again")
        second.signal(signal.SIGCONT)
        until(lambda: second._process and second._process.poll() is not None, "who lost the lease ends")
        assert second._process is not None
        assert second._process.returncode == 1
        assert "is to be started again" in second.said() or "to be started again" in second.said()


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


def run_controller(cluster: Cluster, name: str, client: Client) -> tuple[Controller, threading.Thread, list[object]]:
    """In a thread: how it ended is in the list."""
    ended: list[object] = []
    controller = Controller(client, ClusterSettings(name, seconds=4, deadline=2.5))

    def run() -> None:
        try:
            controller.run()
            ended.append("stopped")
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return controller, thread, ended


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "without the seal"])
def test_what_an_old_leader_still_sends_is_refused(
    cluster: Cluster, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked at its clock, and then its last request was on its way for very long. By then another one leads and has
    given the device to somebody else, whose answer to the first claim is on its way as well.

    Without the seal this history has a device with two owners: the test can tell.
    """
    if not sealed:
        monkeypatch.setattr(leading, "seal", lambda store, stamp, stop: 0)
    else:
        assert leading.seal is seal
    history = History(cluster)
    old, new = (Gated.connect(cluster.kubeconfig("admin")) for _ in range(2))
    assert isinstance(old, Gated)
    assert isinstance(new, Gated)
    old.is_held = lambda path, body: path.endswith("/deviceclaims/late/status") or "/leases/" in path
    new.is_held = lambda path, body: (
        path.endswith("/late") and "devalloc.io/reason" in body["metadata"].get("annotations", {})
    )
    create(cluster, gpu_pool("p", devices=1), gpu_claim("late"))
    first, thread, ended = run_controller(cluster, "old", old)
    try:
        assert old.waiting.wait(120)
        until(lambda: ended, "it sees by its clock that it does not lead any more")
        assert isinstance(ended[0], Lost)
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


@pytest.mark.parametrize("settled", [True, False], ids=["sealed", "without the seal"])
def test_a_write_whose_answer_was_lost_is_not_done_later(
    cluster: Cluster, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's own: the connection broke, and the request arrives when the device has gone to somebody else."""
    if not settled:
        monkeypatch.setattr(Controller, "_settle", lambda self, stop: None)
    history, lost = History(cluster), list[tuple[str, Object]]()

    class Broken(Gated):
        def replace(self, path: str, body: Object, params: Mapping[str, str] | None = None) -> Object:
            if path.endswith("/deviceclaims/late/status") and not self.gate.is_set():
                lost.append((path, body))
                raise ApiError(0, "NoAnswer", "connection reset")
            if path.endswith("/late") and "devalloc.io/reason" in body["metadata"].get("annotations", {}):
                assert self.waiting.wait(300)
            return super().replace(path, body, params)

    client = Broken.connect(cluster.kubeconfig("admin"))
    assert isinstance(client, Broken)
    create(cluster, gpu_pool("p", devices=1), gpu_claim("late"))
    controller, thread, _ = run_controller(cluster, "one", client)
    try:
        until(lambda: lost, "it has sent what nobody answers")
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
    """The long form: `make controllers-soak`."""
    tally = Storm(cluster, tmp_path, seed=20261122).run(claims=120, seconds=35)
    assert tally.wrong == [], str(tally)
    assert tally.verdict.grants > 40, str(tally)
    assert {"kill the leader", "stop the leader", "restart the API server"} <= tally.did.keys(), str(tally)

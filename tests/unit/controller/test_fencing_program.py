"""When lost nodes are powered off by a program, and when not."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.fencing import fence_statements, fenced_nodes
from devalloc.controller.fencing_program import NodeFencer, run_program
from devalloc.controller.settings import FencingSettings
from devalloc.store import Change, Key, NotFound, Object, Unavailable
from devalloc.store.kubernetes import KubernetesStore
from devalloc_solver import testing
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.waiting import until

SETTINGS = FencingSettings(Path("/opt/power-off"), after=300.0)
NODES = "/api/v1/nodes"


class Fleet:
    """Nodes of a cluster, and a fencer with a program that is not called."""

    def __init__(self, count: int, **settings: Any) -> None:
        self.kube = FakeKube()
        self.store = KubernetesStore(FakeClient(self.kube))  # type: ignore[arg-type]
        self.leads, self.code, self.now = True, 0, 1000.0
        self.calls: list[str] = []
        for number in range(count):
            name = f"node-{number}"
            self.store.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}})
            self.set_ready(name, "True")
            self.store.create(testing.pool(f"card-{name}", name, "toy", devices=[testing.device("slot-0")]))
            self.store.create(testing.claim(name, testing.request("toy"), namespace="default"))
            claim = self.store.get("DeviceClaim", "default", name)
            status = {"allocations": [{"devicePoolName": f"card-{name}", "deviceName": "slot-0"}]}
            notes = {meta.ALLOCATED_NODE: name}
            self.store.commit([Change(Key.of(claim), claim["metadata"]["resourceVersion"], status, notes)])
        self.fencer = NodeFencer(
            self.store,
            FencingSettings(Path("/opt/power-off"), **{"after": 300.0, **settings}),
            lambda: self.leads,
            clock=lambda: self.now,
            call=self.call,
        )

    def call(
        self, command: Sequence[str], variables: Mapping[str, str], seconds: float, stop: threading.Event
    ) -> tuple[int, str]:
        assert (command[0], variables["DEVALLOC_NODE"]) == ("/opt/power-off", command[1])
        self.calls.append(command[1])
        return self.code, "done"

    def set_ready(self, name: str, value: str) -> None:
        with self.kube.changed:
            node = self.kube.objects[f"{NODES}/{name}"]
            conditions = [{"type": "Ready", "status": value, "reason": "Test"}]
            self.kube._put(f"{NODES}/{name}", {**node, "status": {"conditions": conditions}}, "MODIFIED")

        def is_seen() -> bool:
            listed = {one["metadata"]["name"]: one for one in self.store.list("Node").objects}
            return bool(listed[name].get("status", {}).get("conditions") == conditions)

        until(is_seen, "the store sees it")

    def look(self, seconds: float = 0.0) -> list[str]:
        """The calls of the program by one look, so many seconds later."""
        self.now += seconds
        before = len(self.calls)
        self.fencer.look(threading.Event())
        return self.calls[before:]

    def fenced(self) -> list[str]:
        def nodes() -> list[Object]:
            return [self.store.get("Node", None, one["metadata"]["name"]) for one in self.store.list("Node").objects]

        return sorted(fence_statements(nodes()))


Fleets = Callable[..., Fleet]


@pytest.fixture
def fleets() -> Iterator[Fleets]:
    """Makes fleets, whose stores are closed in the end."""
    with ExitStack() as stores:

        def fleet(count: int, **settings: Any) -> Fleet:
            made = Fleet(count, **settings)
            stores.callback(made.store.close)
            return made

        yield fleet


def test_a_node_is_powered_off_when_it_was_lost_for_the_whole_time_and_is_then_fenced(fleets: Fleets) -> None:
    fleet = fleets(5)
    fleet.set_ready("node-1", "Unknown")
    assert (fleet.look(), fleet.look(299), fleet.fenced()) == ([], [], [])
    assert (fleet.look(1), fleet.fenced()) == (["node-1"], ["node-1"])
    assert fleet.look(1000) == [], "once"
    assert fleet.fencer.counts.results == {"fenced": 1, "failed": 0, "withheld": 0}


def test_the_time_begins_anew_if_the_node_answers_in_between(fleets: Fleets) -> None:
    fleet = fleets(5)
    for value in ("Unknown", "True", "Unknown"):
        fleet.set_ready("node-1", value)
        assert fleet.look(200) == []
    assert fleet.look(299) == []
    assert fleet.look(1) == ["node-1"]


def test_a_kubelet_that_reports_that_it_is_not_well_is_not_lost(fleets: Fleets) -> None:
    fleet = fleets(5)
    fleet.set_ready("node-1", "False")
    assert (fleet.look(), fleet.look(10_000)) == ([], [])


def test_a_fault_that_hits_many_nodes_powers_none_off(fleets: Fleets) -> None:
    fleet = fleets(10)
    for number in range(3):  # two would be one in five
        fleet.set_ready(f"node-{number}", "Unknown")
    assert (fleet.look(), fleet.look(10_000), fleet.look(10_000)) == ([], [], [])
    assert fleet.fencer.counts.results["withheld"] == 1, "counted when it begins"
    fleet.set_ready("node-2", "True")
    assert [*fleet.look(1), *fleet.look(1)] == ["node-0", "node-1"]
    fleet.set_ready("node-2", "Unknown")
    assert (fleet.look(), fleet.look(10_000)) == ([], []), "those that are fenced count"


def test_the_only_node_is_not_powered_off(fleets: Fleets) -> None:
    fleet = fleets(1)
    fleet.set_ready("node-0", "Unknown")
    assert (fleet.look(), fleet.look(10_000)) == ([], []), "no other node shows that the fault is not this cluster's"


def test_a_node_that_holds_nothing_of_devalloc_is_not_powered_off(fleets: Fleets) -> None:
    fleet = fleets(5)
    fleet.store.delete("DeviceClaim", "default", "node-1")
    until(lambda: len(fleet.store.list("DeviceClaim").objects) == 4, "it is gone")
    fleet.set_ready("node-1", "Unknown")
    assert (fleet.look(), fleet.look(10_000)) == ([], [])


def test_a_program_that_fails_is_called_again_later_and_its_node_is_not_fenced(fleets: Fleets) -> None:
    fleet = fleets(5)
    fleet.set_ready("node-1", "Unknown")
    fleet.code = 7
    fleet.look()
    assert fleet.look(300) == ["node-1"]
    assert (fleet.look(29), fleet.look(1), fleet.look(59), fleet.look(1)) == ([], ["node-1"], [], ["node-1"])
    assert fleet.fenced() == []
    fleet.code = 0
    assert fleet.look(120) == ["node-1"]
    assert fleet.fenced() == ["node-1"]


def test_a_controller_that_does_not_lead_calls_nothing(fleets: Fleets) -> None:
    fleet = fleets(5)
    fleet.set_ready("node-1", "Unknown")
    fleet.look()
    fleet.leads = False
    assert fleet.look(400) == []


def test_a_leader_that_lost_its_lease_meanwhile_states_nothing(fleets: Fleets) -> None:
    fleet = fleets(5)
    fleet.set_ready("node-1", "Unknown")
    fleet.look()
    call = fleet.fencer._call

    def losing(*args: Any) -> tuple[int, str]:
        fleet.leads = False
        return call(*args)

    fleet.fencer._call = losing
    assert (fleet.look(300), fleet.fenced()) == (["node-1"], [])


def test_the_api_server_is_asked_once_more_before_a_node_is_powered_off(fleets: Fleets) -> None:
    """The API server is asked directly: the node may be back, and the watch late."""
    fleet = fleets(5)
    fleet.set_ready("node-1", "Unknown")
    fleet.look()
    real = fleet.store.get

    def fresh(kind: str, namespace: str | None, name: str) -> Object:
        if kind == "Node":
            raise NotFound(f"Node {name}")
        return real(kind, namespace, name)

    fleet.store.get = fresh  # type: ignore[method-assign]
    assert fleet.look(300) == []


def test_a_node_of_which_it_cannot_be_stated_that_it_is_off_has_time_to_come_back(fleets: Fleets) -> None:
    fleet = fleets(5)
    fleet.set_ready("node-1", "Unknown")
    fleet.look()

    def refused(obj: Object) -> Object:
        raise Unavailable("the API server does not answer")

    fleet.store.replace = refused  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        fleet.look(300)
    assert fleet.calls == ["node-1"]
    assert [fleet.look(5) for _ in range(3)] == [[]] * 3, "it boots"


@pytest.mark.parametrize("seed", range(20))
def test_never_more_than_one_in_n_nodes_are_off_and_none_that_answered_lately(seed: int, fleets: Fleets) -> None:
    choose = random.Random(seed)
    fleet = fleets(6, one_in=3, after=100.0)
    since: dict[str, float] = {}
    for _ in range(80):
        name = f"node-{choose.randrange(6)}"
        if (value := choose.choice(("Unknown", "Unknown", "True"))) == "True":
            since.pop(name, None)
        else:
            since.setdefault(name, fleet.now)
        fleet.set_ready(name, value)
        fleet.code = choose.choice((0, 0, 1))
        off = set(fleet.fenced()) | since.keys()
        for called in fleet.look(choose.choice((0, 10, 50))):
            assert called in since, "it did not answer"
            assert fleet.now - since[called] >= 100
            assert len(off) <= 2, "one in three of six"


class TestProgram:
    def test_gets_the_name_and_nothing_else_of_the_controller(self, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.setenv("DEVALLOC_SECRET", "token")
        program = tmp_path / "off"
        program.write_text('#!/bin/sh\necho "$# $1 $DEVALLOC_NODE <$DEVALLOC_SECRET>"\nexit 3\n')
        program.chmod(0o700)
        variables = {"PATH": "/bin:/usr/bin", "DEVALLOC_NODE": "node-a"}
        code, output = run_program([str(program), "a; rm -rf $HOME"], variables, 60.0, threading.Event())
        assert (code, output) == (3, "1 a; rm -rf $HOME node-a <>\n")

    def test_is_killed_with_its_children_when_its_time_is_over(self, tmp_path: Path) -> None:
        pids = tmp_path / "pids"
        program = tmp_path / "off"
        program.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {pids}\nwait\n")
        program.chmod(0o700)
        stop = threading.Event()

        def stop_when_it_runs() -> None:
            until(lambda: pids.exists() and pids.read_text(), "it runs")
            stop.set()

        threading.Thread(target=stop_when_it_runs).start()
        code, output = run_program([str(program)], {"PATH": "/bin:/usr/bin"}, 600.0, stop)
        assert (code, output) == (-1, "the controller stops")
        child = Path(f"/proc/{int(pids.read_text())}")
        until(lambda: not child.exists() or "Z" in (child / "stat").read_text().split()[2], "its child is gone")
        code, output = run_program([str(program)], {"PATH": "/bin:/usr/bin"}, 0.0, threading.Event())
        assert (code, output) == (-1, "it took longer than 0 s")

    def test_that_cannot_be_started_is_a_failure(self, tmp_path: Path) -> None:
        code, output = run_program([str(tmp_path / "none")], {}, 1.0, threading.Event())
        assert (code, "No such file" in output) == (-1, True)


def test_a_taint_on_a_node_that_is_ready_takes_nothing_away() -> None:
    taint = {"key": meta.OUT_OF_SERVICE, "effect": "NoExecute"}

    def node(status: str | None) -> Object:
        conditions = [] if status is None else [{"type": "Ready", "status": status}]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "a"},
            "spec": {"taints": [taint]},
            "status": {"conditions": conditions},
        }

    assert [bool(fenced_nodes([node(status)])) for status in ("True", "False", "Unknown", None)] == [
        False,
        True,
        True,
        True,
    ]
    assert all(fence_statements([node(status)]) for status in ("True", "False", "Unknown", None))

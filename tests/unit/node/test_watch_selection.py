"""A node that watches only its own claims and machines: when it does, what it hears, and what a lost label costs it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from devalloc.api.kinds import ALLOCATABLE_KINDS
from devalloc.api.meta import LABELS_NODES, NODE_LABEL
from devalloc.store import Event, EventType, Key, Listing, Object, Store
from devalloc.store.kubernetes import ApiError, KubernetesStore
from devalloc_node.kube.watch_selection import OwnObjects
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.minimal_manifests import claim
from tests.support.toy_machines import vm
from tests.support.waiting import until
from tests.unit.node.test_vms import World, world

__all__ = ["world"]


# -- when it does ------------------------------------------------------------------------------------------------------


@dataclass
class Controller:
    """The Lease, as a node reads it, and what the node then selects."""

    answer: Any = None
    selected: list[str] = field(default_factory=list)

    def get(self, path: str) -> Object:
        assert path == "/apis/coordination.k8s.io/v1/namespaces/ns/leases/devalloc-controller"
        if isinstance(self.answer, ApiError):
            raise self.answer
        promised, transitions = self.answer
        noted = {} if promised is None else {"annotations": {LABELS_NODES: promised}}
        return {"metadata": {"name": "devalloc-controller", **noted}, "spec": {"leaseTransitions": transitions}}

    def select(self, kinds: tuple[str, ...], labels: str) -> None:
        assert kinds == ALLOCATABLE_KINDS
        self.selected.append(labels)


def test_a_node_selects_while_the_controller_promises_labels() -> None:
    controller = Controller()
    own = OwnObjects(controller, controller, "node-a", "ns")
    label = f"{NODE_LABEL}=node-a"
    for answer, selected in (
        ((None, 3), []),
        (ApiError(404, "NotFound", "no Lease"), []),
        (("3", 3), [label]),
        (("3", 3), [label]),
        (ApiError(503, "", "busy"), [label]),
        (("3", 4), [label, ""]),  # a leader of an earlier version
        (("5", 5), [label, "", label]),
        (ApiError(403, "Forbidden", "no"), [label, "", label, ""]),
    ):
        controller.answer = answer
        own.look()
        assert controller.selected == selected
    assert not own.is_selective


# -- what it hears -----------------------------------------------------------------------------------------------------


@contextmanager
def cluster() -> Iterator[tuple[KubernetesStore, KubernetesStore]]:
    """A user's store, and that of a node."""
    kube = FakeKube()
    with (
        closing(KubernetesStore(FakeClient(kube))) as users,  # type: ignore[arg-type]
        closing(KubernetesStore(FakeClient(kube), node="n")) as node,  # type: ignore[arg-type]
    ):
        yield users, node


def labelled(obj: Object, value: str | None) -> Object:
    changed = copy.deepcopy(obj)
    changed["metadata"]["labels"] = {} if value is None else {NODE_LABEL: value}
    return changed


def listed(store: Store) -> list[str]:
    return [obj["metadata"]["name"] for obj in store.list("DeviceClaim").objects]


def test_only_what_has_the_label_is_listed_and_watched() -> None:
    with cluster() as (users, node):
        node.select(ALLOCATABLE_KINDS, f"{NODE_LABEL}=n")
        own, other = (users.create(labelled(claim(name), name)) for name in ("n", "m"))
        assert listed(node) == ["n"]
        since = node.list("DeviceClaim").resource_version
        users.replace(labelled(other, "o"))
        users.create(claim("none"))
        left = users.replace(labelled(own, "m"))
        users.replace(labelled(left, "n"))
        heard: list[Event] = []

        def is_back() -> bool:
            heard.extend(node.watch("DeviceClaim", heard[-1].resource_version if heard else since, timeout=0))
            return bool(heard) and heard[-1].type is not EventType.DELETED

        until(is_back)
        assert {event.object["metadata"]["name"] for event in heard} == {"n"}
        assert listed(node) == ["n"]
        assert node.get("DeviceClaim", "default", "m")["metadata"]["name"] == "m", "by its name any can be read"


def test_the_selection_can_change_while_it_watches() -> None:
    """All objects, its own, and all again: nothing changed meanwhile, and nothing stays away for that."""
    with cluster() as (users, node):
        for name in ("m", "n"):
            users.create(labelled(claim(name), name))
        assert listed(node) == ["m", "n"]
        for selector, names in ((f"{NODE_LABEL}=n", ["n"]), ("", ["m", "n"]), (f"{NODE_LABEL}=n", ["n"])):
            node.select(ALLOCATABLE_KINDS, selector)
            until(lambda names=names: listed(node) == names)  # type: ignore[misc]
        users.create(labelled(claim("more"), "n"))
        until(lambda: listed(node) == ["more", "n"])


def test_what_a_node_writes_on_an_object_of_another_is_not_its_own() -> None:
    with cluster() as (users, node):
        node.select(ALLOCATABLE_KINDS, f"{NODE_LABEL}=n")
        users.create(claim("a"))
        assert listed(node) == []
        node.get("DeviceClaim", "default", "a")
        assert listed(node) == []


# -- what a lost label costs -------------------------------------------------------------------------------------------


class OwnStore:
    """A store as a node sees it that watches only what it has a label for: the names in ``own``."""

    def __init__(self, store: Any, own: set[str]) -> None:
        self._store = store
        self.own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self, kinds: Any = None, namespace: str | None = None) -> Listing:
        everything = self._store.list(kinds, namespace)
        chosen = [
            obj
            for obj in everything.objects
            if obj["kind"] not in ALLOCATABLE_KINDS or obj["metadata"]["name"] in self.own
        ]
        return Listing(chosen, everything.resource_version)


@pytest.fixture
def own_world(world: World) -> World:
    world.store = OwnStore(world.store, {"web"})  # type: ignore[assignment]
    world.loop = world.new_loop()
    return world


def runs(world: World) -> bool:
    machine = world.machines.get("default/web")
    return machine is not None and machine.runs


def test_a_machine_says_what_is_with_claims_that_are_not_its_nodes(own_world: World) -> None:
    own_world.claim("data")
    own_world.apply(vm("web", "data", "none"))
    own_world.round()
    assert own_world.reason() == "ClaimNotAllocated"
    assert "default/none does not exist" in own_world.status()["message"]


def test_a_machine_whose_label_is_lost_runs_on_and_is_looked_after(own_world: World) -> None:
    own_world.apply(vm())
    own_world.round()
    assert runs(own_world)
    own_world.store.own.clear()  # type: ignore[attr-defined]
    own_world.round(times=3)
    assert runs(own_world)
    own_world.restart()
    own_world.round(times=3)
    assert runs(own_world)
    own_world.apply({**vm(), "spec": {**vm()["spec"], "running": False}})
    own_world.round(times=2)
    assert own_world.phase() == "Stopped"


def test_of_an_object_that_left_the_selection_it_is_asked_whether_it_is_gone(own_world: World) -> None:
    made = own_world.apply(vm())
    event = Event(EventType.DELETED, made, "1")
    loop = own_world.loop
    assert loop._as_it_is(event).type is EventType.MODIFIED
    own_world.store.delete(*Key.of(made))
    assert loop._as_it_is(event) is event
    again = own_world.apply(vm())
    assert again["metadata"]["uid"] != made["metadata"]["uid"]
    assert loop._as_it_is(event) is event, "another object has the name"

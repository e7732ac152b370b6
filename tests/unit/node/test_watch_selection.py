"""A node that watches only its own claims and machines: when it does, what it hears, and what a lost label costs it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.api.kinds import ALLOCATABLE_KINDS
from devalloc.api.meta import ALLOCATED_NODE, LABELS_NODES, NODE_FINALIZER, NODE_LABEL, PREPARED_ON
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.store import Event, EventType, Key, Listing, Object, Store
from devalloc.store.kubernetes import ApiError, KubernetesStore
from devalloc_machines.vms.migration_objects import hand_over_object, take_moved_object
from devalloc_node.claims.store_grants import StoreGrants, claim_ref
from devalloc_node.kube.watch_selection import OwnObjects
from devalloc_node.operations.change_feed import machine_change
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.fleet_manifests import fill
from tests.support.host_pools import host, machine
from tests.support.machine_allocator import machine_allocator
from tests.support.migration_nodes import migration, take
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
def cluster(name: str = "n") -> Iterator[tuple[KubernetesStore, KubernetesStore]]:
    """A user's store, and that of a node of this name."""
    kube = FakeKube()
    with (
        closing(KubernetesStore(FakeClient(kube))) as users,  # type: ignore[arg-type]
        closing(KubernetesStore(FakeClient(kube), node=name)) as node,  # type: ignore[arg-type]
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


def test_an_object_of_another_node_stays_unwatched_after_a_read() -> None:
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


def test_a_machine_reports_claims_that_do_not_belong_to_its_node(own_world: World) -> None:
    own_world.claim("data")
    own_world.apply(vm("web", "data", "none"))
    own_world.round()
    assert own_world.reason() == "ClaimNotAllocated"
    assert "default/none does not exist" in own_world.status()["message"]


def test_a_claim_that_belonged_to_another_node_is_read_again(own_world: World) -> None:
    """It watches no more what it has seen of it."""
    own_world.store.own.add("data")  # type: ignore[attr-defined]
    own_world.claim("data", "b/slot-0", node="node-b")
    own_world.apply(vm("web", "data"))
    own_world.round()
    assert own_world.reason() == "ClaimElsewhere"
    own_world.store.own.remove("data")  # type: ignore[attr-defined]
    own_world.allocate("data", "a/slot-0")
    own_world.now += 60  # its next try: no event says so
    own_world.loop.worker.round()
    assert runs(own_world)


def test_one_look_at_a_machine_reads_each_claim_of_another_node_once(own_world: World) -> None:
    names = ("data", "more", "none")
    for name in names[:2]:
        own_world.claim(name)
    own_world.apply(vm("web", *names))
    reads = count_claim_reads(own_world)
    own_world.round()
    assert own_world.reason() == "ClaimNotAllocated"
    assert reads == Counter(names)


def test_a_change_that_does_not_concern_the_machine_reads_no_claim(own_world: World) -> None:
    """Users can change labels, and guests can cause events, as often as they like."""
    names = ("data", "none")
    own_world.claim("data")
    made = own_world.apply(vm("web", *names))
    own_world.round()
    reads = count_claim_reads(own_world)
    for change in range(5):
        made = own_world.store.get(*Key.of(made))
        labels = {"edition": str(change)}
        made = own_world.store.replace({**made, "metadata": {**made["metadata"], "labels": labels}})
        own_world.loop.worker.tell(Event(EventType.MODIFIED, made, "1"), machine_change("default/web"))
        own_world.loop.worker.round()
    assert not reads
    own_world.now += 60
    own_world.loop.worker.round()
    assert reads == Counter(names), "its next try reads them"


def count_claim_reads(world: World) -> Counter[str]:
    """How often each claim is read from now on, by its name."""
    reads: Counter[str] = Counter()
    get = world.store.get

    def counted(kind: str, namespace: str | None, name: str) -> Object:
        if kind == "DeviceClaim":
            reads[name] += 1
        return get(kind, namespace, name)

    world.store.get = counted  # type: ignore[method-assign]
    return reads


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


def test_the_node_checks_whether_an_object_that_left_the_selection_is_gone(own_world: World) -> None:
    made = own_world.apply(vm())
    event = Event(EventType.DELETED, made, "1")
    loop = own_world.loop
    assert loop._as_it_is(event).type is EventType.MODIFIED
    own_world.store.delete(*Key.of(made))
    assert loop._as_it_is(event) is event
    again = own_world.apply(vm())
    assert again["metadata"]["uid"] != made["metadata"]["uid"]
    assert loop._as_it_is(event) is event, "another object has the name"


# -- what it heard before a machine arrived ----------------------------------------------------------------------------


@dataclass
class Arrival:
    """A machine that is being sent to this node, whose loop heard of it when it was still the other node's."""

    world: World
    users: Store
    """That of the controller and the users: of all objects."""

    def machine(self) -> Object:
        return self.users.get("VirtualMachine", "default", "web")

    def label(self) -> None:
        """What a controller does on a cluster."""
        allocator = machine_allocator(self.users, settings=AllocatorSettings(labels_nodes=True))
        for _ in range(3):
            allocator.round()

    def begin(self) -> None:
        """It runs on node-b, and this node has a QEMU that waits for its memory."""
        fill(self.users, host("node-b", cpus=4), machine("web", "1", "1Gi"))
        self.label()
        take(self.users, "web", "node-b", machineID="run-0")
        fill(self.users, host("node-a", cpus=4), migration("move"))
        self.label()
        content, machines = decode(self.machine()).object, self.world.machines
        waiting = machines._new(content, is_paused=False)  # type: ignore[arg-type]
        machines.views["default/web"] = replace(waiting, id="run-0", is_moving=True)
        self.world.round()

    def arrive(self) -> None:
        """The source hands it over, this node takes it, and lets it run."""
        hand_over_object(self.users, self.machine())
        moved_by = self.users.get("VirtualMachineMigration", "default", "move")["metadata"]["uid"]
        assert take_moved_object(self.world.store, self.machine(), moved_by, "node-a")
        machines = self.world.machines
        machines.views["default/web"] = replace(machines.views["default/web"], is_moving=False)

    def hear(self) -> None:
        """The loop hears that it runs here, and nothing from the store yet."""
        self.world.loop.worker.tell(machine_change("default/web"))
        self.world.loop.worker.round()

    def runs_on(self) -> bool:
        """Whether it is the run that arrived."""
        here = self.world.machines.get("default/web")
        return here is not None and here.runs and here.id == "run-0"


@pytest.fixture(params=["embedded", "cluster", "cluster, own objects"])
def arrival(request: pytest.FixtureRequest, world: World) -> Iterator[Arrival]:
    if request.param == "embedded":
        made = Arrival(world, world.store)
        made.begin()
        yield made
        return
    with cluster("node-a") as (users, node):
        if request.param == "cluster, own objects":
            node.select(ALLOCATABLE_KINDS, f"{NODE_LABEL}=node-a")
        world.store = node  # type: ignore[assignment]
        world.loop = world.new_loop()
        made = Arrival(world, users)
        made.begin()
        yield made


def test_a_machine_that_arrives_runs_on_whatever_the_node_heard_of_it_before(arrival: Arrival) -> None:
    arrival.arrive()
    arrival.hear()
    assert arrival.runs_on()
    arrival.label()
    arrival.world.round(times=2)
    assert arrival.runs_on()
    assert arrival.machine()["status"]["phase"] == "Running"


def test_a_machine_that_arrives_after_the_plugin_was_killed_runs_on(arrival: Arrival) -> None:
    arrival.world.restart()
    arrival.world.round()
    arrival.arrive()
    arrival.hear()
    assert arrival.runs_on()


def stopped(arrival: Arrival) -> bool:
    return not arrival.world.machines.views["default/web"].runs


def gone(arrival: Arrival) -> bool:
    return "default/web" not in arrival.world.machines.views


def stop(arrival: Arrival) -> None:
    now = arrival.machine()
    arrival.users.replace({**now, "spec": {**now["spec"], "running": False}})


def delete(arrival: Arrival) -> None:
    arrival.users.delete("VirtualMachine", "default", "web")


@pytest.mark.parametrize(("change", "is_done"), [(stop, stopped), (delete, gone)])
def test_a_change_by_its_user_after_the_arrival_is_done_at_once(
    arrival: Arrival, change: Callable[[Arrival], None], is_done: Callable[[Arrival], bool]
) -> None:
    """Without the next look at everything: the controller labels it anew as soon as the node has taken it."""
    with arrival.world.running(arrival.users):
        arrival.arrive()
        arrival.world.notifier.beat(machine_change("default/web"))
        until(lambda: arrival.machine()["status"].get("pid"))
        assert arrival.runs_on()
        change(arrival)
        until(lambda: is_done(arrival))


def test_the_devices_that_come_along_with_a_machine_are_prepared_before_it_arrives(arrival: Arrival) -> None:
    """Claim and machine are still the other node's, and this node does not watch them."""
    made = arrival.users.create(labelled(claim("card"), "node-b"))
    held = {"finalizers": [NODE_FINALIZER], "annotations": {ALLOCATED_NODE: "node-b", PREPARED_ON: "node-b"}}
    made = arrival.users.replace({**made, "metadata": {**made["metadata"], **held}})
    made = arrival.users.replace_status({**made, "status": {"allocations": [device_of("b")]}})
    now, booked = arrival.machine(), {"name": "card", "uid": made["metadata"]["uid"], "allocations": [device_of("a")]}
    moving = {**now["status"]["migrationState"], "claims": [booked]}
    arrival.users.replace_status({**now, "status": {**now["status"], "migrationState": moving}})
    grants = StoreGrants(arrival.world.store, "node-a")
    assert [one.pool for one in grants.get(claim_ref(made)).devices] == ["a"]
    arrival.arrive()
    assert [one.pool for one in grants.get(claim_ref(made)).devices] == ["a"], "before the controller knows"


def device_of(pool: str) -> Object:
    return {"devicePoolName": pool, "deviceName": "slot-0"}

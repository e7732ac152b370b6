"""The loops together: this host's pools come first, one process at a time, and they end when told."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.api.meta import PUBLISHED_BY, STANDALONE
from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem
from devalloc.controller import cordon as cordons
from devalloc.controller.host_inventory import InventorySource
from devalloc.controller.pool_publisher import INVENTORY, PoolPublisher, PublishLock, PublishResult, StillNamed
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.resource_claims.stored import StoredClaimAllocator
from devalloc.inventory import watch
from devalloc.inventory.config import DeviceRecords
from devalloc.inventory.discover import Discovery
from devalloc.programs import store_loops
from devalloc.store import StoreLocked, Unavailable, Unusable
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import solve_manifests
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool, held
from tests.support.host_pools import machine
from tests.support.store_loops import StoreLoops
from tests.support.waiting import LONG, until

Object = dict[str, Any]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the devices as often as asked."""
    monkeypatch.setattr(watch, "WatchSettings", partial(watch.WatchSettings, quiet=0.01, min_interval=0.05))


class Host:
    """What an inventory finds, to be changed by the test."""

    def __init__(self, *pools: Object) -> None:
        self.pools = pools
        self.looks = 0
        self.error: Exception | None = None
        self.problems: list[Problem] = []
        self.held: frozenset[str] = frozenset()
        """What it was told that claims hold, at the last look."""

    def discover(self, state: DeviceRecords) -> Discovery:
        self.looks += 1
        self.held = state.held
        if self.error is not None:
            raise self.error
        decoded = [decode(pool).object for pool in self.pools]
        return Discovery([pool for pool in decoded if isinstance(pool, DevicePool)], self.problems)


@contextmanager
def running(
    store: SQLiteStore,
    host: Host | InventorySource | None,
    name: str = "n",
    previous: str | None = None,
    **settings: Any,
) -> Iterator[StoreLoops]:
    inventory = InventorySource(name, host.discover, previous_name=previous) if isinstance(host, Host) else host
    up = StoreLoops(store.path, inventory, **{"resync": 1000.0, **settings})  # nothing here waits for a resync
    errors: list[BaseException] = []

    def run() -> None:
        try:
            up.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield up
    finally:
        up.stop()
        thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def decoded(pool: Object) -> DevicePool:
    obj = decode(pool).object
    assert isinstance(obj, DevicePool)
    return obj


def pools(store: SQLiteStore) -> set[str]:
    return {obj["metadata"]["name"] for obj in store.list("DevicePool").objects}


def test_publishes_then_answers_and_follows_changes(store: SQLiteStore) -> None:
    host = Host(gpu_pool("p", devices=1))
    store.create(gpu_class())
    store.create(gpu_claim("a"))
    with running(store, host) as up:
        until(lambda: held(store, "a") == ["p/d0"])
        host.pools = (gpu_pool("p", devices=1), gpu_pool("q"))
        up.rescan()
        until(lambda: pools(store) == {"p", "q"})


def test_a_host_that_was_renamed_has_its_devices_once(store: SQLiteStore) -> None:
    for other in (gpu_pool("by-hand", node="x"), gpu_pool("network", node=None)):
        store.create(other)
    PoolPublisher(store, "host-b").publish([decoded(gpu_pool("of-host-b", node="host-b"))])
    copied = gpu_pool("copied", node="x")
    store.create({**copied, "metadata": {**copied["metadata"], "labels": {PUBLISHED_BY: INVENTORY, STANDALONE: "y"}}})
    others = {"by-hand", "network", "of-host-b", "copied"}
    with running(store, Host(gpu_pool("old"))):
        until(lambda: pools(store) == {"old", *others})
    shown: list[PublishResult] = []
    with running(store, Host(gpu_pool("new", node="m")), "m", on_published=shown.append):
        until(lambda: pools(store) == {"new", *others})
    assert shown[:2] == [PublishResult(deleted=("old",)), PublishResult(created=("new",))]


def test_pools_that_the_node_plugin_published_under_its_previous_name_are_withdrawn(store: SQLiteStore) -> None:
    for node in ("n", "host-b"):
        PoolPublisher(store, node).publish([decoded(gpu_pool(f"of-{node}", node=node))])
    with running(store, Host(gpu_pool("new", node="m")), "m", previous="n"):
        until(lambda: pools(store) == {"new", "of-host-b"})
    with running(store, Host(gpu_pool("new", node="m")), "m", previous="m") as up:
        up.rescan()
        assert pools(store) == {"new", "of-host-b"}


def test_a_host_that_was_renamed_does_not_start_while_its_devices_are_in_use(store: SQLiteStore) -> None:
    store.create(gpu_class())
    store.create(gpu_claim("a"))
    with running(store, Host(gpu_pool("old"))):
        until(lambda: held(store, "a") == ["old/d0"])

    def refuses(why: str) -> None:
        with pytest.raises(StillNamed, match=why):
            StoreLoops(store.path, InventorySource("m", Host(gpu_pool("new", node="m")).discover)).run()
        assert pools(store) == {"old"}

    refuses(r"node n, not m, and are in use: claim default/a\. Start it with --node-name n\.")
    store.delete("DeviceClaim", "default", "a")
    with closing(PublishLock(store.path, "n", is_plugin=False)) as turn:
        assert turn.acquire()
        refuses("a process that publishes the devices of node n")
    target = cordons.find_target(store, "pool/old")
    cordons.set_cordon(store, target, "a fan is broken")
    refuses("pool old, which is cordoned")
    cordons.set_cordon(store, target, None)
    store.create(machine("web", nodeName="n"))
    refuses("machine default/web")
    store.delete("VirtualMachine", "default", "web")
    with running(store, Host(gpu_pool("new", node="m")), "m"):
        until(lambda: pools(store) == {"new"})


def test_no_claim_gets_a_device_that_vanished_while_up_was_stopped(store: SQLiteStore) -> None:
    with running(store, Host(gpu_pool("gone"))):
        until(lambda: pools(store) == {"gone"})
    store.create(gpu_class())
    store.create(gpu_claim("a"))
    with running(store, Host(gpu_pool("p"))):
        until(lambda: held(store, "a"))
        assert held(store, "a") == ["p/d0"]


def test_claims_on_other_pools_do_not_wait_for_a_host_that_cannot_be_read(store: SQLiteStore) -> None:
    host = Host()
    host.error = OSError("no /sys")
    for obj in (gpu_pool("network", node=None), gpu_class(), gpu_claim("a")):
        store.create(obj)
    with running(store, host):
        until(lambda: held(store, "a") == ["network/d0"])


def test_a_host_that_cannot_be_read_is_not_a_host_without_devices(store: SQLiteStore) -> None:
    host = Host(gpu_pool("p"))
    with running(store, host) as up:
        until(lambda: pools(store) == {"p"})
        host.pools, host.problems = (), [Problem("there is no sysfs")]
        for _ in range(2):  # the second look begins when what the first one saw is dealt with
            looks = host.looks
            up.rescan()
            until(lambda looks=looks: host.looks > looks)
        assert pools(store) == {"p"}, "what is published stays"
        host.pools, host.problems = (gpu_pool("q"),), []
        up.rescan()
        until(lambda: pools(store) == {"q"})
    with running(store, Host()):
        until(lambda: pools(store) == set())


def test_a_deleted_or_edited_pool_is_published_again(store: SQLiteStore) -> None:
    with running(store, Host(gpu_pool("p"))):
        until(lambda: pools(store) == {"p"})
        store.delete("DevicePool", None, "p")
        until(lambda: pools(store) == {"p"})
        pool = store.get("DevicePool", None, "p")
        until(lambda: "status" in store.get("DevicePool", None, "p"))
        pool = store.get("DevicePool", None, "p")
        store.replace({**pool, "spec": {**pool["spec"], "devices": []}})
        until(lambda: store.get("DevicePool", None, "p")["spec"] == gpu_pool("p")["spec"])


def test_the_inventory_knows_what_claims_hold_but_not_what_admins_look_at(store: SQLiteStore) -> None:
    admin_claim = {**gpu_claim("looks"), "spec": {"claims": [{"deviceClass": "admin"}]}}
    for obj in (gpu_class(), gpu_class("admin", adminAccess=True), gpu_claim("holds"), admin_claim):
        store.create(obj)
    host = Host(gpu_pool("p"))
    with running(store, host) as up:
        until(lambda: held(store, "holds") and held(store, "looks") == ["p/d0", "p/d1"])
        looks = host.looks
        up.rescan()
        until(lambda: host.looks > looks)
        assert host.held == {"d0"}, "what an admin looks at may be in use"
        store.delete("DevicePool", None, "p")
        looks = host.looks
        until(lambda: host.looks > looks)
        assert host.held == {"d0"}, "nor is it forgotten with the pool"


def test_without_inventory_it_answers_claims_only(store: SQLiteStore) -> None:
    for obj in (gpu_pool(), gpu_class(), gpu_claim("a")):
        store.create(obj)
    with running(store, None) as up:
        up.rescan()
        until(lambda: held(store, "a") == ["p/d0"])


def test_a_second_one_is_refused_and_the_first_goes_on(store: SQLiteStore) -> None:
    lock = store.path.parent / "devalloc.db.lock"
    with running(store, None):
        until(lambda: lock.exists() and lock.read_text())  # the first has it locked, and not only made it
        with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
            StoreLoops(store.path, None).run()
        for obj in (gpu_pool(), gpu_class(), gpu_claim("a")):
            store.create(obj)
        until(lambda: held(store, "a"))


def test_one_with_the_plugin_is_the_only_plugin_of_its_node(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second plugin would start the machines of the node again, and could delete the pool of its capacity."""
    monkeypatch.setattr(store_loops, "PublishLock", partial(PublishLock, wait=0.0))
    second = InventorySource("n", Host().discover, with_plugin=True)
    first = InventorySource("n", (host := Host(gpu_pool("p"))).discover, with_plugin=True)
    with running(store, first) as up:
        until(lambda: pools(store) == {"p"})
        with pytest.raises(StoreLocked, match=rf"process {os.getpid()} .*plugin of node n .*--node-name"):
            PublishLock(store.path, "n", is_plugin=True, wait=0.0)
        with closing(PublishLock(store.path, "n", is_plugin=False)) as turn:  # such as a dry run
            assert not turn.acquire()
        host.pools = (gpu_pool("p"), gpu_pool("q"))
        up.rescan()
        until(lambda: pools(store) == {"p", "q"})
    with closing(PublishLock(store.path, "n", is_plugin=True, wait=60.0)):
        with pytest.raises(StoreLocked, match="plugin of node n"):
            StoreLoops(store.path, second).run()
        assert pools(store) == {"p", "q"}
        with running(store, Host()) as up:
            up.rescan()
        assert pools(store) == {"p", "q"}, "`devalloc up --no-node` leaves the pools to the plugin"


@pytest.mark.parametrize("ends", [True, False])
def test_another_plugin_can_begin_when_that_of_this_process_has_ended(
    store: SQLiteStore, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    ended = threading.Event()
    monkeypatch.setattr(store_loops, "PLUGIN_SECONDS", 60.0 if ends else 0.05)

    def plugin(stop: threading.Event) -> None:
        stop.wait()
        with pytest.raises(StoreLocked):
            PublishLock(store.path, "n", is_plugin=True, wait=0.0)
        calls.append("plugin stopped")
        if not ends:
            ended.wait(60)

    def loop(_: object, stop: threading.Event) -> None:
        stop.wait()
        calls.append("loop ended")

    inventory = InventorySource("n", Host(gpu_pool("p")).discover, with_plugin=True)
    try:
        with running(store, inventory, plugin=plugin, extra_loops=[loop]):
            until(lambda: pools(store) == {"p"})
        assert calls == ["loop ended", "plugin stopped"]
        if not ends:
            with pytest.raises(StoreLocked):
                PublishLock(store.path, "n", is_plugin=True, wait=0.0)
        else:
            PublishLock(store.path, "n", is_plugin=True, wait=0.0).close()
    finally:
        ended.set()


def test_a_damaged_store_is_refused(store: SQLiteStore) -> None:
    store.create(gpu_claim("a"))
    store._connection.execute("UPDATE objects SET content = '{'")
    with pytest.raises(Unusable, match="DeviceClaim default/a"):
        StoreLoops(store.path, None).run()


def test_a_loop_that_cannot_go_on_ends_it_with_the_error(store: SQLiteStore) -> None:
    def solve(*arguments: object, **settings: object) -> dict[str, Any]:
        raise Unusable("beyond repair")

    with pytest.raises(Unusable, match="beyond repair"):
        StoreLoops(store.path, None, solve=solve).run()


@pytest.mark.parametrize("allocator", [DeviceClaimAllocator, StoredClaimAllocator])
def test_the_watchdog_sees_a_round_of_either_allocator_that_hangs(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, allocator: type[DeviceClaimAllocator | StoredClaimAllocator]
) -> None:
    over = threading.Event()
    monkeypatch.setattr(allocator, "round", lambda self: over.wait(60))
    with running(store, None) as up:
        until(lambda: any(began() is not None for began in up.progress.rounds), "a round goes on")
        over.set()


def test_stops_in_the_middle_of_a_long_solve_and_writes_nothing_of_it(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devalloc.programs.store_loops.GRACE_SECONDS", 0.05)
    thinking, enough, over = threading.Event(), threading.Event(), threading.Event()

    def solve(documents: Iterable[Object], **settings: Any) -> dict[str, Any]:
        thinking.set()
        enough.wait()
        return solve_manifests(documents, **settings)

    for obj in (gpu_pool(), gpu_class(), gpu_claim("a")):
        store.create(obj)
    before = store.list()
    with running(store, None, solve=solve, on_round=lambda done: over.set()) as up:
        assert thinking.wait(60)
    assert store.list() == before
    with pytest.raises(StoreLocked):  # the abandoned thread could still write: no other may
        StoreLoops(store.path, None).run()
    enough.set()
    assert over.wait(60)
    assert store.list() == before, "an answer that came too late"
    del up  # until here the lock is held


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_it_ends_and_says_why_when_the_folder_of_its_store_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process could run on whatever comes in its place."""
    folder = tmp_path / "state"
    up = StoreLoops(
        folder / "store.db", InventorySource("n", Host(gpu_pool()).discover), on_round=lambda done: rmtree(folder)
    )

    with pytest.raises(Unavailable, match=r"state was removed or replaced .* start `devalloc up` again"):
        up.run()

    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == len(set(texts)), "each is said once"
    assert [record for record in caplog.records if record.exc_info] == []


def test_it_looks_for_the_folder_of_its_store_also_while_messages_come_all_the_time(tmp_path: Path) -> None:
    folder, over = tmp_path / "state", threading.Event()
    up = StoreLoops(folder / "store.db", None, on_round=lambda done: rmtree(folder))

    def ask() -> None:
        while not over.wait(0.01):
            up.rescan()

    asking = threading.Thread(target=ask)
    ending = threading.Timer(LONG, up.stop)  # if it does not end by itself
    asking.start()
    ending.start()
    try:
        with pytest.raises(Unavailable, match="was removed or replaced"):
            up.run()
    finally:
        over.set()
        ending.cancel()
        asking.join()


def test_another_folder_in_its_place_is_not_taken_for_the_store(tmp_path: Path) -> None:
    folder = tmp_path / "state"

    def replace_it(done: object) -> None:
        if not (tmp_path / "away").exists():
            folder.rename(tmp_path / "away")
            SQLiteStore(folder / "store.db").close()

    with pytest.raises(Unavailable, match="was removed or replaced"):
        StoreLoops(folder / "store.db", None, on_round=replace_it).run()

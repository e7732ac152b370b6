"""One server holds the lease; another has it when it was given away or not renewed for as long as it is good."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.controller.leader.lease import LeaseLost
from devalloc.machines.permits.leadership import ProcessLeadership, permits_lease
from devalloc.store import Listing, Object
from devalloc.store.sqlite import SQLiteStore
from tests.support.virtual_time import Clock


def test_it_is_taken_from_one_that_does_not_renew_it(store: SQLiteStore) -> None:
    clock = Clock()
    first, second = (permits_lease(store, name, seconds=10, clock=clock) for name in ("first", "second"))
    assert first.take()
    assert not second.take()
    clock.now = 9
    first.renew()
    assert first.is_valid
    assert not second.take(), "seen anew at 9"
    clock.now = 18.9
    assert not second.take()
    assert first.is_valid
    clock.now = 19.1
    assert not first.is_valid, "no other server can have it before"
    assert second.take()
    with pytest.raises(LeaseLost):
        first.renew()
    assert not first.is_valid


def test_a_lease_that_is_given_away_is_free_at_once(store: SQLiteStore) -> None:
    first, second = permits_lease(store, "first"), permits_lease(store, "second")
    assert first.take()
    first.give()
    assert second.take()
    first.give()
    second.renew()


def test_the_only_server_of_a_store_does_not_wait(store: SQLiteStore) -> None:
    dead, new = permits_lease(store, "dead"), permits_lease(store, "new", alone=True)
    assert dead.take()
    assert new.take()
    with pytest.raises(LeaseLost):
        dead.check([store.get("Lease", "default", "devalloc-permits")])
    new.check([store.get("Lease", "default", "devalloc-permits")])
    with pytest.raises(LeaseLost):
        new.check([])


def test_of_two_that_take_it_at_once_one_has_it(store: SQLiteStore) -> None:
    both = [permits_lease(store, name, alone=True) for name in ("a", "b")]
    read = store.list

    def raced(*of: Any) -> Listing:
        record = read(*of)
        store.list = read  # type: ignore[method-assign]
        assert both[1].take()
        return record

    assert both[1].take()
    store.list = raced  # type: ignore[method-assign]
    assert not both[0].take()
    both[1].renew()


def leases(store: SQLiteStore) -> list[Object]:
    return store.list("Lease").objects


def test_servers_of_several_nodes_do_not_keep_each_other_out(store: SQLiteStore) -> None:
    first, second, again = (
        permits_lease(store, name, node=node) for name, node in (("1", "a"), ("2", "b"), ("3", "a"))
    )
    assert first.take()
    assert second.take()
    assert not again.take()
    for lease in (first, second):
        lease.renew()
        lease.check(leases(store))
        assert not any(lease.is_meant(obj) for obj in leases(store) if obj["metadata"]["name"] != lease.name)


@pytest.mark.parametrize(("has", "wants"), [(None, "a"), ("a", None)])
def test_a_server_of_all_nodes_and_one_of_a_node_are_never_both_there(
    store: SQLiteStore, has: str | None, wants: str | None
) -> None:
    clock = Clock()
    first = permits_lease(store, "first", node=has, seconds=10, clock=clock)
    second = permits_lease(store, "second", node=wants, seconds=10, clock=clock)
    assert first.take()
    assert not second.take()
    clock.now = 9
    first.renew()
    clock.now = 11
    assert not second.take()
    clock.now = 21.1
    assert second.take(), "the first one was not renewed"
    with pytest.raises(LeaseLost):
        first.check(leases(store))
    second.check(leases(store))
    second.give()
    assert first.take()


def test_a_server_of_all_nodes_and_one_of_a_node_that_begin_at_once_both_give_way(store: SQLiteStore) -> None:
    """Each had looked before the other one wrote."""
    every, single = permits_lease(store, "every"), permits_lease(store, "single", node="a")
    read, nothing = store.list, store.list("Lease")
    assert every.take()
    store.list = lambda *of: nothing  # type: ignore[method-assign]
    assert single.take()
    store.list = read  # type: ignore[method-assign]
    for lease in (every, single):
        with pytest.raises(LeaseLost, match="a permit server for"):
            lease.check(leases(store))
    for obj in leases(store):
        if obj["metadata"]["name"] != every.name:
            with pytest.raises(LeaseLost):
                every.check_one(obj, gone=False)
            every.check_one(obj, gone=True)
    every.give()
    single.check(leases(store))


@pytest.mark.parametrize(
    "spec", [None, [], {"holderIdentity": 5}, {"holderIdentity": "x", "leaseDurationSeconds": 10**12}]
)
def test_a_damaged_lease_is_taken_in_the_end(store: SQLiteStore, spec: Any) -> None:
    clock = Clock()
    metadata = {"name": "devalloc-permits", "namespace": "default"}
    store.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata})
    stored = store.get("Lease", "default", "devalloc-permits")
    store.replace({**stored, "spec": spec})
    lease = permits_lease(store, "new", clock=clock)
    lease.take()
    clock.now = 3601
    assert lease.take()


def test_a_server_in_a_process_that_leads_has_that_one_s_right() -> None:
    leads = True
    right = ProcessLeadership("holder", lambda: leads)
    assert right.take()
    right.renew()
    right.check([])
    leads = False
    assert not right.take()
    assert not right.is_valid
    with pytest.raises(LeaseLost):
        right.check([])

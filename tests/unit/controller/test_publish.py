"""Publishing: the store says what the host has, and nothing that is not the host's is touched."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.decode import decode
from devalloc.api.meta import PUBLISHED_BY
from devalloc.api.pool import DevicePool
from devalloc.controller.pool_publisher import INVENTORY, PoolPublisher, PoolsRefused, PublishResult
from devalloc.store import Event, EventType, StoreError
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import gpu_pool
from tests.support.refusing_store import DENIED, RefusingStore

Object = dict[str, Any]


def device_pools(*manifests: Object) -> list[DevicePool]:
    pools = [pool for pool in (decode(manifest).object for manifest in manifests) if isinstance(pool, DevicePool)]
    assert len(pools) == len(manifests)
    return pools


def specs(store: SQLiteStore) -> dict[str, Object]:
    return {obj["metadata"]["name"]: obj["spec"] for obj in store.list("DevicePool").objects}


@pytest.fixture
def publisher(store: SQLiteStore) -> PoolPublisher:
    return PoolPublisher(store, "n")


def test_creates_updates_and_deletes(store: SQLiteStore, publisher: PoolPublisher) -> None:
    assert publisher.publish(device_pools(gpu_pool("a"), gpu_pool("b"))) == PublishResult(created=("a", "b"))
    assert specs(store) == {"a": gpu_pool("a")["spec"], "b": gpu_pool("b")["spec"]}
    assert publisher.publish(device_pools(gpu_pool("a"), gpu_pool("b", devices=1))) == PublishResult(updated=("b",))
    assert len(specs(store)["b"]["devices"]) == 1
    assert publisher.publish(device_pools(gpu_pool("c"))) == PublishResult(created=("c",), deleted=("a", "b"))
    assert specs(store).keys() == {"c"}
    assert publisher.publish([]) == PublishResult(deleted=("c",))


def test_a_card_of_another_kind_replaces_the_pool_and_stays_cordoned(
    store: SQLiteStore, publisher: PoolPublisher
) -> None:
    publisher.publish(device_pools(gpu_pool("a")))
    old = store.get("DevicePool", None, "a")
    cordoned = {"devalloc.io/cordoned": '{"*": "repair"}'}
    old = store.replace({**old, "metadata": {**old["metadata"], "annotations": cordoned}})
    accelerator = gpu_pool("a")
    accelerator["spec"]["driver"] = "accelerator.devalloc.io"
    assert publisher.publish(device_pools(accelerator)) == PublishResult(created=("a",))
    new = store.get("DevicePool", None, "a")
    assert new["spec"]["driver"] == "accelerator.devalloc.io"
    assert new["metadata"]["uid"] != old["metadata"]["uid"], "the CRD keeps the driver of a pool"
    assert new["metadata"]["annotations"] == cordoned


def test_writes_only_what_changed(store: SQLiteStore, publisher: PoolPublisher) -> None:
    publisher.publish(device_pools(gpu_pool("a"), gpu_pool("b", model="A100")))
    before = store.list()
    assert publisher.publish(device_pools(gpu_pool("a"), gpu_pool("b", model="A100"))) == PublishResult()
    assert (
        PoolPublisher(store, "n").publish(device_pools(gpu_pool("a"), gpu_pool("b", model="A100"))) == PublishResult()
    )
    assert store.list() == before


def test_leaves_other_nodes_and_hand_made_pools_alone(store: SQLiteStore, publisher: PoolPublisher) -> None:
    PoolPublisher(store, "other").publish(device_pools(gpu_pool("theirs", node="other")))
    store.create(gpu_pool("handmade"))
    store.create(gpu_pool("network", node=None))
    before = store.list()
    publisher.publish(device_pools(gpu_pool("mine")))
    publisher.publish([])
    assert store.list().objects == before.objects


@pytest.mark.parametrize("node", ["n", "other"])
def test_does_not_take_over_a_pool_of_the_same_name(
    store: SQLiteStore, publisher: PoolPublisher, caplog: pytest.LogCaptureFixture, node: str
) -> None:
    theirs = store.create(gpu_pool("a", node=node, owner="somebody"))
    assert publisher.publish(device_pools(gpu_pool("a"), gpu_pool("b"))) == PublishResult(
        created=("b",), refused=("a",)
    )
    assert store.get("DevicePool", None, "a") == theirs
    assert "DevicePool a exists and was not published by the inventory of node n" in caplog.text
    publisher.publish([])
    assert store.get("DevicePool", None, "a") == theirs


def test_keeps_what_others_put_on_its_pools(store: SQLiteStore, publisher: PoolPublisher) -> None:
    publisher.publish(device_pools(gpu_pool("a")))
    pool = store.get("DevicePool", None, "a")
    pool["metadata"]["annotations"] = {"devalloc.io/cordon": "true"}
    pool["metadata"]["labels"]["rack"] = "7"
    pool = store.replace(pool)
    store.replace_status({**pool, "status": {"availableDevices": 1}})
    publisher.publish(device_pools(gpu_pool("a", devices=1)))
    after = store.get("DevicePool", None, "a")
    assert after["metadata"]["annotations"] == {"devalloc.io/cordon": "true"}
    assert after["metadata"]["labels"] == {"rack": "7", PUBLISHED_BY: INVENTORY}
    assert after["status"] == {"availableDevices": 1}


def test_knows_when_a_pool_of_its_own_was_overwritten(store: SQLiteStore, publisher: PoolPublisher) -> None:
    publisher.publish(device_pools(gpu_pool("a")))
    pool = store.get("DevicePool", None, "a")
    assert not publisher.is_overwritten(Event(EventType.ADDED, pool, "1"))
    status = store.replace_status({**pool, "status": {"availableDevices": 1}})
    assert not publisher.is_overwritten(Event(EventType.MODIFIED, status, "1"))
    edited = store.replace({**status, "spec": {**pool["spec"], "devices": []}})
    assert publisher.is_overwritten(Event(EventType.MODIFIED, edited, "1"))
    assert publisher.publish(device_pools(gpu_pool("a"))) == PublishResult(updated=("a",))
    assert not publisher.is_overwritten(Event(EventType.MODIFIED, store.get("DevicePool", None, "a"), "1"))
    assert publisher.is_overwritten(Event(EventType.DELETED, store.delete("DevicePool", None, "a"), "1"))
    assert publisher.publish(device_pools(gpu_pool("a"))) == PublishResult(created=("a",))
    publisher.publish([])
    assert not publisher.is_overwritten(Event(EventType.DELETED, edited, "1"))
    assert not publisher.is_overwritten(Event(EventType.MODIFIED, gpu_pool("handmade"), "1"))


def test_a_store_that_fails_is_an_error(store: SQLiteStore, publisher: PoolPublisher) -> None:
    store._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError):
        publisher.publish(device_pools(gpu_pool("a")))


def test_a_pool_that_is_refused_does_not_block_the_others(store: SQLiteStore) -> None:
    refusing: Any = RefusingStore(store, a=DENIED)
    publisher = PoolPublisher(refusing, "n")
    with pytest.raises(PoolsRefused, match="the label team is missing"):
        publisher.publish(device_pools(gpu_pool("a"), gpu_pool("b")))
    assert specs(store).keys() == {"b"}
    refusing.refused.clear()
    assert publisher.publish(device_pools(gpu_pool("a"), gpu_pool("b"))) == PublishResult(created=("a",))


def test_while_a_pool_cannot_be_deleted_others_are_updated_and_none_is_new(store: SQLiteStore) -> None:
    """Its card may be the one that is new in another slot: it is never there twice."""
    refusing: Any = RefusingStore(store, a=DENIED)
    publisher = PoolPublisher(refusing, "n")
    PoolPublisher(store, "n").publish(device_pools(gpu_pool("a"), gpu_pool("b")))
    with pytest.raises(PoolsRefused, match="the label team is missing"):
        publisher.publish(device_pools(gpu_pool("b", devices=1), gpu_pool("c")))
    assert specs(store) == {"a": gpu_pool("a")["spec"], "b": gpu_pool("b", devices=1)["spec"]}
    refusing.refused.clear()
    assert publisher.publish(device_pools(gpu_pool("c"))) == PublishResult(created=("c",), deleted=("a", "b"))


pool_sets = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2), max_size=4)


@settings(max_examples=25, deadline=None)
@given(rounds=st.lists(pool_sets, min_size=1, max_size=4), foreign=st.sets(st.sampled_from("abcd")))
def test_whatever_came_before_the_last_inventory_counts(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[dict[str, int]], foreign: set[str]
) -> None:
    store = SQLiteStore(tmp_path_factory.mktemp("store") / "db")
    for name in foreign:
        store.create(gpu_pool(name, node="other", devices=5))
    for wanted in rounds:
        PoolPublisher(store, "n").publish(
            device_pools(*(gpu_pool(name, devices=count) for name, count in wanted.items()))
        )
    expected = {name: gpu_pool(name, devices=count)["spec"] for name, count in rounds[-1].items()}
    expected |= {name: gpu_pool(name, node="other", devices=5)["spec"] for name in foreign}
    assert specs(store) == expected
    store.close()

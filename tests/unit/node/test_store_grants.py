"""What a node reads from an allocated DeviceClaim: devices, shares, admin access and whose configuration is whose."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.release import release_claim
from devalloc.store import Object, Unavailable
from devalloc.store.sqlite import SQLiteStore
from devalloc_node.claims.store_grants import StoreGrants, claim_ref
from devalloc_node.errors import Denied, Failed
from devalloc_node.model.grant import GrantedDevice
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool
from tests.support.node_errors import raises

NODE = "n"


def config(name: str, vlan: int) -> Object:
    return {
        "apiVersion": meta.DEVALLOC,
        "kind": "VfConfig",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"vlan": vlan},
    }


def reference(name: str, **more: str) -> dict[str, str]:
    return {"apiVersion": meta.DEVALLOC, "kind": "VfConfig", "name": name, **more}


def class_with(name: str, *configs: str, admin: bool = False) -> Object:
    made = gpu_class(name)
    made["spec"]["configs"] = [reference(each, namespace="default") for each in configs]
    if admin:
        made["spec"]["adminAccess"] = True
    return made


def allocated(store: SQLiteStore, *details: Any, **fields: Any) -> Object:
    """A claim of these details, allocated."""
    claim = gpu_claim("c")
    claim["spec"] = {"claims": list(details), **fields}
    store.create(claim)
    DeviceClaimAllocator(store).round()
    made = store.get("DeviceClaim", "default", "c")
    assert made["status"]["allocations"], made
    return made


def granted(store: SQLiteStore, claim: Object) -> tuple[GrantedDevice, ...]:
    return StoreGrants(store, NODE).get(claim_ref(claim)).devices


def names(device: GrantedDevice) -> tuple[list[str], list[str]]:
    """Of the class's and of the claim's configuration objects."""
    return (
        [each["metadata"]["name"] for each in device.class_configs],
        [each["metadata"]["name"] for each in device.claim_configs],
    )


def test_whole_devices_shares_and_alternatives(store: SQLiteStore) -> None:
    pool = gpu_pool("p", devices=3, node=NODE)
    for device in pool["spec"]["devices"]:
        device["resources"] = [{"name": "memory", "capacity": "4Gi", "blockSize": "1Gi"}]
    fill(store, pool, gpu_class())
    claim = allocated(
        store,
        {"deviceClass": "gpu", "requests": {"count": 1}},
        {"oneOf": [{"deviceClass": "gpu", "requests": {"count": 9}}, {"deviceClass": "gpu"}]},
        {"deviceClass": "gpu", "requests": {"memory": "1Gi"}},
    )
    devices = granted(store, claim)
    assert [(each.requests, each.share, each.admin) for each in devices] == [
        (("0",), None, False),
        (("1",), None, False),
        (("2",), "2", False),
    ]
    assert {each.pool for each in devices} == {"p"}
    assert len({each.device for each in devices}) == 3


def test_admin_access_is_that_of_the_allocation(store: SQLiteStore) -> None:
    fill(store, gpu_pool("p", devices=1, node=NODE), gpu_class(), class_with("watch", admin=True))
    claim = allocated(store, {"deviceClass": "watch"}, {"deviceClass": "gpu"})
    assert [each.admin for each in granted(store, claim)] == [True, False]
    # An edit of the class or of the claim changes nothing until it is released (S18).
    watching = store.get("DeviceClass", None, "watch")
    del watching["spec"]["adminAccess"]
    store.replace(watching)
    edited = store.get("DeviceClaim", "default", "c")
    edited["spec"]["claims"].reverse()
    store.replace(edited)
    assert [each.admin for each in granted(store, claim)] == [True, False]


def test_each_device_gets_the_configuration_of_its_own_class_and_detail(store: SQLiteStore) -> None:
    fill(
        store,
        gpu_pool("p", devices=3, node=NODE),
        *(config(name, vlan) for vlan, name in enumerate(("one", "two", "mine", "yours"))),
        class_with("first", "one"),
        class_with("second", "two"),
    )
    claim = allocated(
        store,
        {"deviceClass": "first", "configs": [reference("mine")]},
        {"deviceClass": "second", "configs": [reference("yours")]},
    )
    assert [names(each) for each in granted(store, claim)] == [(["one"], ["mine"]), (["two"], ["yours"])]
    # What a class says later, or that it is gone, changes nothing of an allocation.
    store.delete("DeviceClass", None, "second")
    assert [names(each)[0] for each in granted(store, claim)] == [["one"], ["two"]]


def test_a_device_whose_class_has_no_configuration_gets_none_of_another_class(store: SQLiteStore) -> None:
    fill(store, gpu_pool("p", devices=3, node=NODE), config("one", 1), class_with("first", "one"), class_with("plain"))
    claim = allocated(store, {"deviceClass": "plain"}, {"deviceClass": "first"}, {})
    assert [names(each)[0] for each in granted(store, claim)] == [[], ["one"], []]


def test_of_a_type_that_several_classes_have_the_one_that_took_the_device_counts(store: SQLiteStore) -> None:
    configs = [config(name, vlan) for vlan, name in enumerate(("one", "two"))]
    classes = [class_with("first", "one"), class_with("second", "two")]
    for made, model in zip(classes, ("a", "b"), strict=True):
        made["spec"] |= {"deviceType": "gpu", "constraints": f"device.model == '{model}'"}
    pools = [gpu_pool(model, devices=1, node=NODE, model=model) for model in ("a", "b")]
    fill(store, *pools, *configs, *classes)
    claim = allocated(store, {"deviceType": "gpu", "requests": {"count": 2}})
    assert {each.pool: names(each)[0] for each in granted(store, claim)} == {"a": ["one"], "b": ["two"]}


def test_an_editor_of_a_claim_does_not_choose_the_configuration_of_its_classes(store: SQLiteStore) -> None:
    """Such as to leave its VLAN (T6): of the class only what the status says counts, which editors do not write."""
    fill(
        store,
        gpu_pool("p", devices=3, node=NODE),
        *(config(name, vlan) for vlan, name in enumerate(("one", "two"))),
        class_with("first", "one"),
        class_with("second", "two"),
        class_with("plain"),
    )
    claim = allocated(store, {"deviceClass": "first"}, {"deviceClass": "second"})
    spec = {"claims": [{"deviceClass": "plain"}, {"deviceClass": "first"}]}
    for forged in (
        {meta.ALLOCATED_SPEC: json.dumps(spec)},
        {meta.ALLOCATION_DETAILS: '["1","0"]'},
        {meta.ALLOCATED_SPEC: "null", meta.ALLOCATION_DETAILS: "null"},
    ):
        now = store.get("DeviceClaim", "default", "c")
        now["metadata"]["annotations"] |= forged
        store.replace(now)
        assert [names(each)[0] for each in granted(store, claim)] == [["one"], ["two"]]


def test_a_configuration_for_all_devices_needs_no_more_words(store: SQLiteStore) -> None:
    fill(store, gpu_pool("p", devices=2, node=NODE), config("one", 1), class_with("first", "one"))
    claim = allocated(store, {"deviceClass": "first", "requests": {"count": 2}})
    assert claim["status"]["classConfigs"] == [store.get("VfConfig", "default", "one")]
    assert "classConfigAllocations" not in claim["status"]
    assert [names(each)[0] for each in granted(store, claim)] == [["one"], ["one"]]


def test_a_configuration_whose_class_is_unclear_is_refused(store: SQLiteStore) -> None:
    fill(store, gpu_pool("p", devices=2, node=NODE), config("one", 1), class_with("first", "one"), class_with("plain"))
    claim = allocated(store, {"deviceClass": "first"}, {"deviceClass": "plain"})
    indexes = claim["status"]["classConfigAllocations"]
    assert indexes == [[0]]
    for damaged in (
        *({"classConfigAllocations": written} for written in ("all", {"0": 0}, [0], [["0"]], [[True]], [[0], [1]])),
        {"classConfigs": ["not an object", config("one", 1)]},
        {"allocations": [{"devicePoolName": "p"}, *claim["status"]["allocations"]]},  # which it does not count from
    ):
        now = store.get("DeviceClaim", "default", "c")
        store.replace_status({**now, "status": claim["status"] | damaged})
        with pytest.raises(
            Denied, match=r"status.classConfigAllocations of claim default/c does not match its status.classConfigs"
        ):
            granted(store, claim)


def test_what_others_wrote_into_annotations_gives_no_admin_access(store: SQLiteStore) -> None:
    fill(store, gpu_pool("p", devices=1, node=NODE), gpu_class())
    claim = allocated(store, {"deviceClass": "gpu"})
    for text in ("", "[", '["7"]', "[0]", '["0.0"]', '{"0": 1}', '["0", "0"]', '["../0"]'):
        now = store.get("DeviceClaim", "default", "c")
        now["metadata"]["annotations"][meta.ALLOCATION_DETAILS] = text
        store.replace(now)
        (device,) = granted(store, claim)
        assert (device.requests, device.admin) == ((), False)


def test_a_claim_of_another_node_or_uid_or_without_devices_is_denied(store: SQLiteStore) -> None:
    fill(store, gpu_pool("p", devices=1, node=NODE), gpu_class())
    claim = allocated(store, {"deviceClass": "gpu"})
    with raises(Denied, "ClaimElsewhere"):
        StoreGrants(store, "other").get(claim_ref(claim))
    release_claim(store, "default", "c")
    with raises(Denied, "ClaimNotAllocated"):
        granted(store, claim)


def test_a_claim_counts_as_held_until_it_is_let_go(store: SQLiteStore) -> None:
    fill(store, gpu_pool("p", devices=1, node=NODE), gpu_class())
    ref = claim_ref(allocated(store, {"deviceClass": "gpu"}))
    grants = StoreGrants(store, NODE)
    assert list(grants.held()) == []
    grants.get(ref)
    assert list(grants.held()) == [ref]
    assert list(StoreGrants(store, "other").held()) == []
    grants.let_go(ref)
    assert list(grants.held()) == []
    assert not grants.is_gone(ref)
    store.delete("DeviceClaim", "default", "c")
    assert grants.is_gone(ref)
    grants.let_go(ref)


def test_another_claim_of_the_name_means_that_the_first_is_gone(store: SQLiteStore) -> None:
    fill(store, gpu_pool("p", devices=1, node=NODE), gpu_class())
    ref = claim_ref(allocated(store, {"deviceClass": "gpu"}))
    store.delete("DeviceClaim", "default", "c")
    store.create(gpu_claim("c"))
    assert StoreGrants(store, NODE).is_gone(ref)


def test_a_store_that_does_not_answer_says_nothing(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, gpu_pool("p", devices=1, node=NODE), gpu_class())
    ref = claim_ref(allocated(store, {"deviceClass": "gpu"}))

    def fail(*arguments: object) -> None:
        raise Unavailable("the disk is gone")

    for method in ("get", "list", "identity"):
        monkeypatch.setattr(store, method, fail)
    grants = StoreGrants(store, NODE)
    for ask in (lambda: grants.is_gone(ref), grants.held, grants.identity, lambda: grants.get(ref)):
        with pytest.raises(Failed):
            ask()


def test_another_store_at_the_same_path_has_another_identity(tmp_path: Path) -> None:
    path = tmp_path / "devalloc.db"
    with closing(SQLiteStore(path)) as store:
        identity = StoreGrants(store, NODE).identity()
        store.backup(tmp_path / "copy.db")
    with closing(SQLiteStore(path)) as store:
        assert StoreGrants(store, NODE).identity() == identity
    path.unlink()
    with closing(SQLiteStore(path)) as store:
        assert StoreGrants(store, NODE).identity() != identity
    with closing(SQLiteStore(tmp_path / "copy.db")) as store:
        assert StoreGrants(store, NODE).identity() == identity


def test_a_claim_belongs_to_the_node_that_holds_it_or_has_its_devices(store: SQLiteStore) -> None:
    fill(store, gpu_pool("p", devices=1, node=NODE), gpu_class())
    claim, grants = allocated(store, {"deviceClass": "gpu"}), StoreGrants(store, NODE)
    ref = claim_ref(claim)

    def of() -> set[str]:
        return {node for node in (NODE, "m") if StoreGrants(store, "new").belongs_to_node(ref, node)}

    assert of() == {NODE}, "it has devices there"
    grants.get(ref)
    assert of() == {NODE}, "it is held there"
    now = store.get("DeviceClaim", "default", "c")
    now["metadata"]["annotations"][meta.FENCED_FROM] = NODE
    store.replace(now)
    assert of() == set(), "it was taken away"
    grants.let_go(ref)
    store.delete("DeviceClaim", "default", "c")
    assert of() == set()

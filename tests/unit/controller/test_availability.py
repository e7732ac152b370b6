"""availableDevices: devices of which one more claim could get at least a part."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.api.device_class import DeviceClass
from devalloc.api.device_records import DeviceRecord
from devalloc.api.pool import DevicePool
from devalloc.controller.reconcile import availability
from devalloc.controller.reconcile.availability import (
    DeviceUse,
    PoolCounter,
    device_names_held_on,
    device_uses,
    held_devices,
)
from devalloc.controller.reconcile.availability import available_devices as available_in
from tests.support.fleet_manifests import gpu_claim, gpu_class

Object = dict[str, Any]

CARD = {
    "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
    "kind": "DevicePool",
    "metadata": {"name": "card"},
    "spec": {
        "driver": "gpu.devalloc.io",
        "resources": [{"name": "slices", "capacity": "5", "blockSize": "2"}],  # two blocks of 2
        "devices": [
            {"name": "whole", "requests": {"slices": "4"}},
            {"name": "half-a", "requests": {"slices": "2"}, "resources": [{"name": "memory", "capacity": "4Gi"}]},
            {"name": "half-b", "requests": {"slices": "1"}, "resources": [{"name": "memory", "capacity": "4Gi"}]},
            {"name": "half-c", "requests": {"slices": "2"}},
            {"name": "impossible", "requests": {"unknown": "1"}},
            {"name": "broken", "attributes": [{"name": "devalloc.io/unavailable", "stringValue": "in use"}]},
        ],
    },
}


def in_group(name: str, group: str | None) -> Object:
    marks = [{"name": "devalloc.io/compatibilityGroup", "stringValue": group}] if group else []
    return {"name": name, "attributes": marks}


IN_GROUPS = [in_group("a1", "a"), in_group("a2", "a"), in_group("b", "b"), in_group("free", None)]
RECORDED = DeviceRecord(draws=(), group="a")


def available(pool: Object, *claims: Object, classes: tuple[Object, ...] = (gpu_class(),)) -> int:
    decoded = decode(pool).object
    assert isinstance(decoded, DevicePool)
    by_name = {c.metadata.name: c for c in (decode(c).object for c in classes) if isinstance(c, DeviceClass)}
    return len(available_in(decoded, device_uses(held_devices(claims, by_name)).get("card", {})))


def holding(device: str, memory: str | None = None, **claim: Any) -> Object:
    entry: Object = {"devicePoolName": "card", "deviceName": device}
    if memory is not None:
        entry["allocations"] = [{"name": "memory", "allocation": memory}]
    return {**gpu_claim(f"holds-{device}", **claim), "status": {"allocations": [entry]}}


@pytest.mark.parametrize(
    ("claims", "count"),
    [
        ([], 4),
        ([holding("whole")], 0),
        ([holding("half-c")], 2),  # the other halves; the whole card is gone
        ([holding("half-a"), holding("half-b")], 0),
        ([holding("half-a", "1Gi")], 3),  # half-a has memory left
        ([holding("half-a", "1Gi"), holding("half-a", "3Gi")], 2),
        ([holding("half-a", "9Gi")], 2),  # more held than there is means nothing left
        ([holding("half-b", "1Gi"), holding("half-c")], 1),
        ([holding("impossible")], 4),
        ([holding("gone")], 0),  # what it drew is not known, so nothing else is to be had
    ],
)
def test_counts_what_is_left(claims: list[Object], count: int) -> None:
    assert available(CARD, *claims) == count


def test_admin_claims_hold_nothing() -> None:
    admin = gpu_class("gpu", adminAccess=True)
    assert available(CARD, holding("whole"), classes=(admin,)) == 4
    mixed = holding("whole", **{"allocation-details": '["1"]'})
    mixed["spec"]["claims"].append({"deviceClass": "other"})
    assert available(CARD, mixed, classes=(admin, gpu_class("other"))) == 0
    mixed["metadata"]["annotations"]["devalloc.io/allocation-details"] = '["0"]'
    assert available(CARD, mixed, classes=(admin, gpu_class("other"))) == 4
    mixed["metadata"]["annotations"]["devalloc.io/allocation-details"] = '["0.0"]'  # there is no oneOf
    assert available(CARD, mixed, classes=(admin, gpu_class("other"))) == 0, "what fits no detail is held"


def test_a_claim_that_cannot_be_read_holds_what_its_status_names() -> None:
    """The solver does not give it away either."""
    assert available(CARD, {**holding("whole"), "spec": {"claims": "none"}}) == 0


def test_what_claims_hold_on_a_node() -> None:
    here, pinned = {"allocated-node": "n", "node": "m"}, {"node": "n"}
    claims = [holding("a", **here), holding("b", "1Gi", **pinned), holding("c", node="m"), holding("d")]
    unreadable = {**holding("e", **here), "spec": None}
    assert device_names_held_on("n", [gpu_class(), *claims, unreadable, gpu_claim("waits", **pinned)]) == {"a", "b"}
    assert device_names_held_on("n", [gpu_class(adminAccess=True), *claims]) == set(), "who only looks on holds nothing"


def test_devices_of_another_compatibility_group_are_not_available() -> None:
    pool = {**CARD, "spec": {"driver": "d", "devices": IN_GROUPS}}
    assert available(pool) == 4
    assert available(pool, holding("a1")) == 2
    assert available(pool, holding("free")) == 3


@pytest.mark.parametrize(
    ("records", "left"),
    [
        ([RECORDED], {"a1", "a2", "free"}),
        ([RECORDED, RECORDED], {"a1", "a2", "free"}),
        ([RECORDED, None], {"free"}),
        ([None], {"free"}),
        ([RECORDED, DeviceRecord(group="a")], {"free"}),
    ],
)
def test_a_missing_device_is_of_a_known_group_if_each_of_its_claims_recorded_it(
    records: list[DeviceRecord | None], left: set[str]
) -> None:
    pool = decode({**CARD, "spec": {"driver": "d", "devices": IN_GROUPS}}).object
    assert isinstance(pool, DevicePool)
    assert available_in(pool, {"gone": DeviceUse(records=records)}) == left


def numbered_pool(number: int, devices: int = 3) -> Object:
    names = [{"name": f"d{each}"} for each in range(devices)]
    metadata = {"name": f"p{number}"}
    return {**CARD, "metadata": metadata, "spec": {"driver": "gpu.devalloc.io", "devices": names}}


def holder(name: str, pool: int, device: int, *, is_admin: bool = False) -> Object:
    claim = gpu_claim(name)
    if is_admin:
        claim["metadata"]["annotations"] = {"devalloc.io/admin-classes": '["gpu"]'}
    entry: Object = {"devicePoolName": f"p{pool}", "deviceName": f"d{device}"}
    return {**claim, "status": {"allocations": [entry]}}


@pytest.mark.parametrize("seed", range(4))
def test_counts_after_changes_are_those_of_a_first_count(seed: int) -> None:
    """Claims, pools and classes that come, change and go, and pools that share a name; claims settle for a time."""
    dice = Random(seed)
    settled: dict[str, Object] = {}
    counter, documents = PoolCounter(), {"class": gpu_class(), "p0": numbered_pool(0)}
    for turn in range(120):
        number, place = dice.randrange(5), f"c{dice.randrange(9)}"
        change = dice.randrange(10)
        if change < 5:
            documents[place] = holder(place, number, dice.randrange(3), is_admin=dice.random() < 0.1)
        elif change < 7:
            documents.pop(place, None)
        elif change < 9:
            documents[f"p{number}-{change}"] = numbered_pool(number, dice.randrange(4))
        else:
            documents["class"] = gpu_class("gpu", adminAccess=True) if dice.random() < 0.3 else gpu_class()
            documents.pop(f"p{number}-7", None)
        present = [*documents.values()]
        changed = [name for name, claim in settled.items() if documents.get(name) is not claim or dice.random() < 0.1]
        counter.unsettle(settled.pop(name) for name in changed)
        given = [doc for name, doc in documents.items() if name not in settled]
        assert counter.count(given) == PoolCounter().count(present), turn
        resting = {name: doc for name, doc in documents.items() if name[0] == "c" and dice.random() < 0.2}
        resting |= {place: holder(place, number, 0)} if place not in documents and dice.random() < 0.2 else {}
        resting = {name: doc for name, doc in resting.items() if name not in settled and name != "class"}
        counter.settle(resting.values())
        settled |= resting
        documents |= resting


def test_a_count_after_a_claim_reads_no_other_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [gpu_class(), *map(numbered_pool, range(9)), *(holder(f"c{n}", n % 9, n // 9) for n in range(20))]
    counter, read = PoolCounter(), []
    counter.count(documents)

    def reading(document: Object) -> Any:
        read.append(document["metadata"]["name"])
        return decode(document)

    monkeypatch.setattr(availability, "decode", reading)
    counter.count([*documents, holder("new", 8, 2)])
    assert read == ["gpu", "new", "p8"]

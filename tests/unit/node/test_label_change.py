"""A node that is labelled anew takes back what it published before, and offers nothing that is held from then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from devalloc.api import meta
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.pool import Attribute, Device, DevicePool, DevicePoolSpec
from devalloc.inventory.config import DeviceRecords
from devalloc.inventory.discover import Discovery
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc_node.kube.label_change import (
    OF_POOLS,
    OF_SLICES,
    POOLS,
    DialectMigration,
    PublishDialect,
    warn_of_previous_name,
)
from tests.support.fake_kube import FakeClient, FakeKube

SLICES = OF_SLICES.objects
CARDS = ("node-a-0000-01-00", "node-a-0000-02-00")
OURS = {meta.PUBLISHED_BY: "inventory"}
IN_USE = "in use: {} default/a, from when the node published {}"
RESERVED = "reserved: the boot display"


def card(name: str) -> DevicePool:
    devices = [Device(name="free"), Device(name="busy", attributes=[Attribute.of(meta.UNAVAILABLE, RESERVED)])]
    spec = DevicePoolSpec(node_name="node-a", driver="gpu.devalloc.io", devices=devices)
    return DevicePool(metadata=ObjectMeta(name=name), spec=spec)


@dataclass
class Bed:
    """The node node-a, which published otherwise before."""

    dialect: PublishDialect
    kube: FakeKube = field(default_factory=FakeKube)
    recorded: dict[str, str] = field(default_factory=dict)
    looks: list[list[str]] = field(default_factory=list)
    """What was published otherwise, at each look at the devices."""

    def __post_init__(self) -> None:
        self.client = FakeClient(self.kube)
        self.former = self.started()

    def started(self, client: Any = None) -> DialectMigration:
        client = self.client if client is None else client
        recorded = lambda: self.recorded  # noqa: E731
        return DialectMigration(client, self.dialect, "node-a", "devalloc.io", self.discover, recorded, settle=0)

    def discover(self, devices: DeviceRecords) -> Discovery:
        self.looks.append(self.published())
        return Discovery([*map(card, CARDS)], [])

    def published(self) -> list[str]:
        return [at.rpartition("/")[2] for at in self.kube.objects if at.startswith(f"{self.dialect.objects}/")]

    def publishes(self, name: str, node: str | None = "node-a", **more: Any) -> None:
        spec = {"driver": "devalloc.io", **({"nodeName": node} if node else {}), **more.pop("spec", {})}
        metadata = {"name": name, "labels": OURS, **more}
        kind = {POOLS: "DevicePool", SLICES: "ResourceSlice"}[self.dialect.objects]
        self.kube.create(self.dialect.objects, {"kind": kind, "metadata": metadata, "spec": spec})

    def allocates(self, pool: str, name: str = "a", driver: str = "devalloc.io", **more: Any) -> str:
        """Returns the path of the claim."""
        path = f"{self.dialect.group}/namespaces/default/{self.dialect.claim.lower()}s"
        self.kube.create(path, {"kind": self.dialect.claim, "metadata": {"name": name, "namespace": "default"}})
        given: dict[str, Any] = {"allocations": [{"devicePoolName": pool, "deviceName": "free"}]}
        if self.dialect is OF_SLICES:
            result = {"driver": driver, "pool": pool, "device": "free", "request": "r", **more}
            given = {"allocation": {"devices": {"results": [result]}}}
        self.says(f"{path}/{name}", given)
        return f"{path}/{name}"

    def says(self, path: str, status: Mapping[str, Any]) -> None:
        self.kube.replace(f"{path}/status", {**self.kube.get(path), "status": status})

    def offered(self) -> dict[str, Sequence[str]]:
        """By pool, why its devices are not offered; empty for those that are."""
        pools = self.former.look(DeviceRecords()).pools
        return {
            pool.metadata.name: [
                next((str(each.value) for each in device.attributes if each.name == meta.UNAVAILABLE), "")
                for device in pool.spec.devices
            ]
            for pool in pools
        }


ALL_OFFERED = {name: ["", RESERVED] for name in CARDS}


@pytest.fixture(params=[OF_POOLS, OF_SLICES], ids=lambda dialect: dialect.plural)
def bed(request: pytest.FixtureRequest) -> Bed:
    return Bed(request.param)


def in_use(bed: Bed, claim: str = "") -> dict[str, Sequence[str]]:
    why = IN_USE.format(claim or bed.dialect.claim, bed.dialect.plural)
    return ALL_OFFERED | {CARDS[0]: [why, f"{RESERVED}; {why}"]}


def test_pools_of_the_other_dialect_are_withdrawn_before_a_look_at_the_devices(bed: Bed) -> None:
    for name in CARDS:
        bed.publishes(name)
    assert bed.offered() == ALL_OFFERED
    assert bed.looks == [[]]


def test_the_node_logs_what_it_published_under_its_previous_name(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_previous_name(cast(Client, bed.client), bed.dialect.objects, "node-a")
    assert not caplog.messages
    bed.publishes("of-node-a")
    bed.publishes("of-node-b", "node-b")
    warn_of_previous_name(cast(Client, bed.client), bed.dialect.objects, "node-a")
    (message,) = caplog.messages
    assert f"still has {bed.dialect.plural.lower()} of node node-a" in message
    assert message.endswith("of-node-a. If this host has their devices, delete them or the Node node-a")
    assert bed.published() == ["of-node-a", "of-node-b"]


def test_pools_and_slices_of_others_stay(bed: Bed) -> None:
    bed.publishes("of-node-b", "node-b")
    bed.publishes("of-no-node", None)
    expected = {"of-node-b", "of-no-node"}
    if bed.dialect is OF_POOLS:
        bed.publishes("made-by-hand", labels={})
        expected.add("made-by-hand")
    else:
        bed.publishes("of-another-driver", spec={"driver": "gpu.example.com"})
        expected.add("of-another-driver")
    bed.offered()
    assert {*bed.published()} == expected
    assert bed.client.writes == []


def test_a_pool_that_is_cordoned_keeps_its_note_and_no_device() -> None:
    bed = Bed(OF_POOLS)
    bed.publishes(CARDS[0], annotations={meta.CORDONED_NODE: "broken fan"}, spec={"devices": [{"name": "free"}]})
    bed.offered()
    pool = bed.kube.get(f"{POOLS}/{CARDS[0]}")
    assert pool["spec"] == {"driver": "devalloc.io", "nodeName": "node-a"}
    assert pool["metadata"]["annotations"] == {meta.CORDONED_NODE: "broken fan"}
    writes = len(bed.client.writes)
    bed.former = bed.started()
    bed.offered()
    assert len(bed.client.writes) == writes, "another start writes nothing"


def test_the_card_of_an_allocated_device_is_offered_when_the_claim_let_go(bed: Bed) -> None:
    path = bed.allocates(CARDS[0])
    assert bed.offered() == in_use(bed)
    assert bed.offered() == in_use(bed), "also later"
    bed.says(path, {})
    assert bed.offered() == ALL_OFFERED


def test_a_claim_of_the_same_name_is_another_one(bed: Bed) -> None:
    path = bed.allocates(CARDS[0])
    assert bed.offered() == in_use(bed)
    there = bed.kube.get(path)["metadata"]
    bed.kube.delete(path, there["uid"], there["resourceVersion"])
    assert bed.offered() == ALL_OFFERED
    bed.allocates(CARDS[0])
    assert bed.offered() == ALL_OFFERED, "nothing of this node is there that it could have been given"


def test_claims_on_other_nodes_hold_nothing_here(bed: Bed) -> None:
    bed.allocates("node-b-0000-01-00")
    assert bed.offered() == ALL_OFFERED
    requests_before = bed.client.requests()
    bed.offered()
    assert bed.client.requests() == requests_before, "all claims are listed once"


def test_of_resourceclaims_other_drivers_and_admin_access_hold_nothing() -> None:
    bed = Bed(OF_SLICES)
    bed.allocates(CARDS[0], "other", driver="gpu.example.com")
    bed.allocates(CARDS[0], "admin", adminAccess=True)
    assert bed.offered() == ALL_OFFERED


def test_devices_that_were_set_aside_are_the_same() -> None:
    bed = Bed(OF_SLICES)
    bed.allocates(f"{CARDS[0]}.devalloc")
    assert bed.offered() == in_use(bed)


def test_what_the_journal_has_prepared_is_held_though_the_claim_is_gone(bed: Bed) -> None:
    bed.recorded[CARDS[0]] = f"{bed.dialect.claim} default/a"
    assert bed.offered() == in_use(bed)
    bed.recorded.clear()
    assert bed.offered() == ALL_OFFERED


class Refusing(FakeClient):
    """Nothing can be listed below a path that begins so."""

    def __init__(self, kube: FakeKube, error: ApiError, beginning: str = "") -> None:
        super().__init__(kube)
        self.error, self.beginning = error, beginning

    def list(self, path: str, params: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        if path.startswith(self.beginning):
            raise self.error
        return super().list(path, params)


@pytest.mark.parametrize("status", [403, 404])
def test_a_cluster_that_does_not_know_or_show_the_other_dialect_is_no_obstacle(bed: Bed, status: int) -> None:
    bed.publishes(CARDS[0])
    bed.recorded[CARDS[0]] = f"{bed.dialect.claim} default/a"
    bed.former = bed.started(Refusing(bed.kube, ApiError(status, "", "no")))
    assert bed.offered() == in_use(bed), "but for what the node itself knows"


@pytest.mark.parametrize("which", [lambda dialect: dialect.objects, lambda dialect: dialect.claims])
def test_nothing_is_offered_while_the_api_server_does_not_answer(
    bed: Bed, which: Callable[[PublishDialect], str]
) -> None:
    bed.publishes(CARDS[0])
    bed.allocates(CARDS[0])
    client = Refusing(bed.kube, ApiError(503, "", "not now"), which(bed.dialect))
    bed.former = bed.started(client)
    for _ in range(2):
        with pytest.raises(ApiError, match="not now"):
            bed.former.look(DeviceRecords())
    client.beginning = "nothing"
    assert bed.offered() == in_use(bed)
    assert bed.published() == []


def test_a_write_that_is_refused_is_made_again_before_anything_is_offered(bed: Bed) -> None:
    for name in CARDS:
        bed.publishes(name)

    def refuse(number: int, what: str) -> None:
        if number == 1:
            raise ApiError(500, "", "not now")

    bed.client.before = refuse
    with pytest.raises(ApiError, match="not now"):
        bed.former.look(DeviceRecords())
    assert (len(bed.published()), bed.looks) == (1, [])
    assert bed.offered() == ALL_OFFERED
    assert bed.published() == []

"""A claim whose device is gone shows in red wherever claims are shown, and is counted (S18)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from devalloc.api.views import claim_state
from devalloc.cli.render.cells import state_cell
from devalloc.cli.render.fleet import overview_tables, summary_line
from devalloc.cli.render.output import StyledText
from devalloc.controller.event_recorder import EventRecorder
from devalloc.controller.metrics import ControllerMetrics
from devalloc.controller.reconcile.availability import count_fleet
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.store.sqlite import SQLiteStore
from devalloc.usage.overview import Overview, build_overview
from devalloc.usage.overview.cache import CachedOverview
from devalloc.usage.overview.claims import DRIVER
from devalloc.usage.overview.metrics import FleetCollector
from devalloc.usage.page.view import PageQuery, overview_view
from devalloc_solver.testing import device, pool
from tests.support import fleet_manifests
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, held

Object = dict[str, Any]


def card(*names: str) -> Object:
    draws = {"whole": 4, "h1": 2, "h2": 2}
    devices = [device(name, requests={"slices": draws[name]}) for name in names]
    return pool("card", "n", fleet_manifests.DRIVER, devices=devices, resources={"slices": 4})


@pytest.fixture
def documents(store: SQLiteStore) -> list[Object]:
    """What a store has after a claim got the whole card, the card came back without it, and another claim came."""
    fill(store, gpu_class(), card("whole"), gpu_claim("holder"))
    allocator = DeviceClaimAllocator(store)
    allocator.round()
    republish(store, "h1", "h2")
    fill(store, gpu_claim("waiter"))
    allocator.round()
    return list(store.list().objects)


def republish(store: SQLiteStore, *names: str) -> None:
    current = store.get("DevicePool", None, "card")
    store.replace({**current, "spec": card(*names)["spec"]})


def claim_named(documents: list[Object], name: str) -> Object:
    return next(doc for doc in documents if doc["kind"] == "DeviceClaim" and doc["metadata"]["name"] == name)


def lost_devices_of(overview: Overview) -> dict[str, float]:
    seen = CachedOverview("1", overview, datetime.now(UTC))
    recorder = EventRecorder(FakeClient(FakeKube()), "one")
    fleet = FleetCollector(lambda: True, lambda: True, lambda: seen)
    text = ControllerMetrics(lambda: True, recorder, dict, parts=[fleet]).text().decode()
    (family,) = (one for one in text_string_to_metric_families(text) if one.name == "devalloc_lost_devices")
    return {sample.labels["kind"]: sample.value for sample in family.samples}


def test_the_controller_gives_nothing_that_overlaps(store: SQLiteStore, documents: list[Object]) -> None:
    assert held(store, "holder") == ["card/whole"]
    assert held(store, "waiter") == []
    message = claim_named(documents, "waiter")["metadata"]["annotations"]["devalloc.io/message"]
    assert "default/holder holds device card/whole, which no longer exists" in message
    republish(store, "whole", "h1", "h2")
    DeviceClaimAllocator(store).round()
    assert (held(store, "holder"), held(store, "waiter")) == (["card/whole"], [])


def test_a_pool_that_lost_its_counters_has_nothing_available_until_they_are_back(store: SQLiteStore) -> None:
    fill(store, gpu_class(), card("whole", "h1", "h2"), gpu_claim("holder"))
    allocator = DeviceClaimAllocator(store)
    allocator.round()
    assert held(store, "holder")
    current = store.get("DevicePool", None, "card")
    without = pool("card", "n", fleet_manifests.DRIVER, devices=[device(name) for name in ("whole", "h1", "h2")])
    store.replace({**current, "spec": without["spec"]})
    fill(store, gpu_claim("waiter"))
    allocator.round()
    assert held(store, "waiter") == []
    (counted,) = count_fleet(list(store.list().objects), Memo(), ()).pools
    assert counted.available == frozenset()
    store.delete("DeviceClaim", "default", "holder")
    allocator.round()
    assert held(store, "waiter")


def test_get_shows_it_in_red(documents: list[Object]) -> None:
    assert state_cell(claim_state(claim_named(documents, "holder"))) == StyledText("DeviceLost", "red")


def test_it_is_allocated_again_once_the_device_is_back(store: SQLiteStore, documents: list[Object]) -> None:
    republish(store, "whole")
    DeviceClaimAllocator(store).round()
    assert claim_state(claim_named(list(store.list().objects), "holder")) == "Allocated"


def test_top_names_claim_and_device_in_red(documents: list[Object]) -> None:
    overview = build_overview(documents)
    assert "Claims: 1 allocated, 1 pending; 1 lost device." in summary_line(overview)
    (table,) = (one for one in overview_tables(overview, wide=False) if one.title == "Claims whose devices are gone")
    red = [StyledText(text, "red") for text in ("DeviceLost", "card/whole")]
    assert table.rows == [["default/holder", red[0], "n", red[1]]]


def test_the_page_counts_it(documents: list[Object]) -> None:
    tiles = {
        tile.name: (tile.number, tile.style) for tile in overview_view(build_overview(documents), PageQuery()).tiles
    }
    assert tiles["Devices lost"] == (1, "unavailable")
    assert (tiles["Available"][0], tiles["Excluded"][0]) == (0, 2), "nothing of the card is to be had"


def test_without_lost_devices_the_overview_mentions_none(store: SQLiteStore) -> None:
    fill(store, gpu_class(), card("whole"), gpu_claim("holder"))
    DeviceClaimAllocator(store).round()
    overview = build_overview(list(store.list().objects))
    assert "lost" not in summary_line(overview)
    assert lost_devices_of(overview) == {"DeviceClaim": 0, "ResourceClaim": 0}


def test_it_is_a_metric(documents: list[Object]) -> None:
    assert lost_devices_of(build_overview(documents)) == {"DeviceClaim": 1, "ResourceClaim": 0}


def resource_documents(*there: str, slices: int = 1) -> list[Object]:
    kind = {"apiVersion": "resource.k8s.io/v1"}
    spec = {
        "driver": DRIVER,
        "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": slices},
        "devices": [{"name": name} for name in there],
    }
    results = [{"request": "r", "driver": DRIVER, "pool": "p", "device": "d0"}]
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 1}}]
    return [
        {**kind, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec},
        {
            **kind,
            "kind": "ResourceClaim",
            "metadata": {"namespace": "default", "name": "r"},
            "spec": {"devices": {"requests": requests}},
            "status": {"allocation": {"devices": {"results": results}}},
        },
    ]


def other_pool(name: str) -> list[Object]:
    first = resource_documents("d0")[0]
    return [{**first, "spec": {**first["spec"], "pool": {**first["spec"]["pool"], "name": name}}}]


@pytest.mark.parametrize(
    ("documents", "state", "count"),
    [
        (resource_documents("d0"), "Allocated", 0),
        (resource_documents("d1"), "DeviceLost", 1),
        ([*other_pool("q"), resource_documents("d1")[1]], "DeviceLost", 1),
        (resource_documents("d1")[1:], "Allocated", 0),
        (resource_documents("d1", slices=2), "Allocated", 0),
    ],
    ids=["there", "gone", "no pool", "no slice can be read", "being published"],
)
def test_a_resource_claim_is_shown_the_same(documents: list[Object], state: str, count: int) -> None:
    overview = build_overview(documents)
    assert [(claim.state, len(claim.lost)) for claim in overview.claims] == [(state, count)]
    assert lost_devices_of(overview)["ResourceClaim"] == count

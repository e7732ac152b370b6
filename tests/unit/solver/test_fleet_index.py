"""What the index keeps beside the best places: classes with nodes, the census, and what expressions say plainly."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.api.meta import GROUP, NODE, ONLY_CLASS, PRIORITY
from devalloc_solver import Fleet, testing
from devalloc_solver.cel.device_claims.reads import equalities
from devalloc_solver.dialects.device_claims.fleet import DeviceClaimFleet
from devalloc_solver.dialects.device_claims.manifest_records import (
    ClaimRecord,
    DeviceClaimReader,
    ManifestRecord,
    read_manifest,
)
from devalloc_solver.explain.funnel import MAX_USERS, SHOWN
from devalloc_solver.fleet import node_index
from devalloc_solver.fleet.equal_devices import (
    UNSHARED,
    EqualDevices,
    EqualDevicesIndex,
    GroupAttributes,
    columns_of_node,
)
from devalloc_solver.fleet.fleet_stats import NETWORK, EqualClaims, FleetStats
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot, join_pools
from tests.support.manifests import claim
from tests.support.random_fleets import documents


def test_a_spec_that_was_read_before_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of claims that differ in their names alone the second costs the reading of its metadata."""
    names = []

    def note(manifest: dict[str, Any]) -> ManifestRecord:
        names.append(manifest["metadata"]["name"])
        return read_manifest(manifest)

    monkeypatch.setattr("devalloc_solver.dialects.device_claims.manifest_records.read_manifest", note)
    reader = DeviceClaimReader()
    for name, count in (("a", 1), ("b", 1), ("c", 2), ("d", 2), ("e", 1)):
        document = reader.read(claim(name, {"requests": {"count": count}}))
        assert [problem.name for problem in document.problems] == [name], "each is warned that any device will do"
        assert isinstance(document, ClaimRecord)
        parsed = document.model
        assert (parsed.metadata.name, str(parsed.spec.claims[0].requests["count"])) == (name, str(count))
    assert names == ["a", "c"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"team": "a"}},
        {"annotations": {"team": 1}},
        {"annotations": {1: "team"}},
        {"annotations": "none"},
        {"namespace": "other"},
        {"namespace": "No"},
        {"namespace": 5},
        {"name": "No"},
        {"name": 7},
        {"labels": {"team": 1}},
        {"labels": {"team": "a"}, "uid": "0-1", "resourceVersion": "7", "generation": 2},
        {"uid": ""},
        {"resourceVersion": 7},
        {"generation": 2**63},
        {"generation": True},
        {"creationTimestamp": "2026-01-31T12:00:00Z"},
        {"creationTimestamp": "2026-02-31T12:00:00Z"},
        {"annotations": {PRIORITY: "7", GROUP: "", NODE: "n"}},
        {"annotations": {PRIORITY: "high"}},
        {"finalizers": ["devalloc.io/node"], "deletionTimestamp": "2026-01-31T12:00:00Z"},
    ],
    ids=str,
)
def test_metadata_is_checked_as_strictly_with_a_spec_that_was_read_before(metadata: dict[str, Any]) -> None:
    warm, manifest = DeviceClaimReader(), claim("c", {"requests": {"count": 1}})
    warm.read(claim("before", {"requests": {"count": 1}}))
    manifest["metadata"] |= metadata
    first, again = (reader.read(deepcopy(manifest)) for reader in (DeviceClaimReader(), warm))
    assert (again.problems, again.object) == (first.problems, first.object)
    if isinstance(again, ClaimRecord):
        of_model = ("key", "namespace", "priority", "group", "pinned_node", "is_allocated", "is_deleting", "spec")
        assert all(getattr(again, name) == getattr(again.model, name) for name in of_model)
        assert again.warnings == tuple(problem.message for problem in again.problems)


def test_a_large_spec_is_read_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tenants write takes no more room than MAX_SPECS times MAX_SPEC_SIZE."""
    monkeypatch.setattr("devalloc_solver.fleet.claim_reader.MAX_SPEC_SIZE", 200)
    reader = DeviceClaimReader()
    for count, size in ((1, 1), (50, 1)):
        details = [{"requests": {"count": 1}}] * count
        for name in "ab":
            parsed = reader.read(claim(name, *details))
            assert isinstance(parsed, ClaimRecord)
            assert len(parsed.spec.claims) == count
        assert len(reader._specs) == size


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("device.a == 'x' || 'y' == device.a", {"a": {"x", "y"}}),
        ("device.a == 'x' || device.a in ['y', 'z'] || device.a == 'x'", {"a": {"x", "y", "z"}}),
        ("(device.a == 'x' && device.b == 1) || (device.b == 2 && device.a == 'y')", {"a": {"x", "y"}, "b": {1, 2}}),
        ("(device.a == 'x' && device.b == 1) || device.a == 'y'", {"a": {"x", "y"}}),
        ("(device.a == 'x' || device.a == 'y') && device.b == 1", {"a": {"x", "y"}, "b": {1}}),
        ("device.a == 'x' || device.b == 'y'", {}),
        ("device.a == 'x' || device.a != 'y'", {}),
        ("device.a == 'x' || true", {}),
        ("!(device.a == 'x' || device.a == 'y')", {}),
    ],
)
def test_what_all_alternatives_say_is_plain(expression: str, expected: dict[str, set[str | int]]) -> None:
    assert {name: {*values} for name, values in equalities(expression)} == expected


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=300))
def test_the_first_claims_are_in_order(changes: list[tuple[bool, int]]) -> None:
    claims, expected = EqualClaims(), set()
    for number, (comes, key) in enumerate(changes):
        if comes:
            claims.add(key)
            expected.add(key)
        else:
            claims.remove(key)
            expected.discard(key)
        if number % 3 == 0:
            assert claims.first() == sorted(expected)[:MAX_USERS]
    assert claims.first() == sorted(expected)[:MAX_USERS]


@pytest.mark.parametrize("spare", [0, 1_000])
@pytest.mark.parametrize("seed", range(12))
def test_a_census_that_keeps_up_counts_what_is_there(seed: int, spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims and pools come and go, and the census is asked now and then, for all or for the half of it."""
    monkeypatch.setattr(node_index, "SPARE_LOGGED_CLASSES", spare)
    random = Random(seed)
    fleet = Fleet.from_manifests(documents(random))
    warm = fleet._backend({"kind": "DeviceClaim"})
    assert isinstance(warm, DeviceClaimFleet)
    state = warm._state
    stats = state.refusals.stats
    held: list[tuple[str, str]] = []
    for number in range(60):
        if held and random.random() < 0.4:
            key = held.pop(random.randrange(len(held)))
            if key in state.allocations:
                fleet.release(*key)
        else:
            document = random.choice(documents(random))
            if document["kind"] == "DeviceClaim":
                document["metadata"]["name"] += f"-{number}"
                answer = fleet.allocate(document)
                held += [(answer["namespace"], answer["name"])] * answer["allocated"]
            elif random.random() < 0.3:
                fleet.update(document)
        assert {*state.index.log.classes(state.index.classes.by_index)} == {
            each for each in state.index.classes.by_index.values() if each.ranks
        }
        stats.update()
        if random.random() < 0.3:
            stats.claims()
        if random.random() < 0.3:
            _check(stats)
    _check(stats)


def _check(stats: FleetStats) -> None:
    index = stats.index
    records = [*index.records.values(), *([index.network] if index.network is not None else [])]
    assert dict(stats.states()) == Counter(state for record in records for state in record.states)
    sizes: Counter[int] = Counter()
    for kind in (kind for record in records for kind in record.kinds):
        sizes[kind.index] += kind.one.ghost is None  # which is no device that there is
    assert dict(stats.sizes()) == dict(sizes)
    places = sorted(
        ((), NETWORK if record.name is None else record.rank, device, kind.index)
        for record in records
        for device, kind in enumerate(record.kinds)
    )
    firsts = {number: [place[:3] for place in places if place[3] == number][:SHOWN] for number in sizes}
    assert dict(stats.firsts()) == firsts
    _check_order(stats, records)
    _check_order(FleetStats(index, stats.holders, lambda pool: pool.index % 2 == 1), records)
    assert [record.name for record in stats.in_order()] == [
        record.name for record in sorted(records, key=lambda each: NETWORK if each.name is None else each.rank)
    ]

    def kind_of(node: str | None, device: int) -> int:
        record = index.network if node is None else index.records[node]
        assert record is not None
        return record.kinds[device].index

    def holds(key: object) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(Counter(kind_of(node, device) for node, device, _ in index.held[key]).items()))

    keys = {key for own in stats.holders.values() for key in own}
    assert {key: held for held, claims in stats.claims().items() for key in claims.keys} == {
        key: holds(key) for key in keys
    }
    emptiest: dict[int, tuple[int, int]] = {}
    firsts: dict[int, int] = {}
    for record in index.records.values():
        assert record.member_of is not None
        tenants = tuple(sorted(holds(key) for key in stats.holders.get(record.name, ())))
        (sort,) = [each for each in stats.sorts_of(record.member_of) if record.rank in each.ranks]
        assert (sort.node, sort.tenants) == (record.member_of, tenants)
        kind, own = record.member_of.kind.index, (sum(map(len, record.uses)), record.rank)
        emptiest[kind] = min(emptiest.get(kind, own), own)
        firsts[kind] = min(firsts.get(kind, own[1]), own[1])
    assert sum(len(s.ranks) for n, _ in stats.classes() for s in stats.sorts_of(n)) == len(index.records)
    assert dict(stats.examples()) == {kind: (firsts[kind], rank) for kind, (_, rank) in emptiest.items()}


def _check_order(stats: FleetStats, records: Sequence[NodeRecord]) -> None:
    """The first devices of each kind, without some, in the order of nodes or of drivers and names of pools."""
    stats.update()

    def place(record: NodeRecord, device: int) -> tuple[tuple[object, ...], int, int]:
        number = record.snapshot.devices[device].pool
        pool, kind = record.snapshot.pools[number], record.pools[number]
        names = () if stats.is_last is None else (stats.is_last(kind), pool.driver, pool.name)
        return names, NETWORK if record.name is None else record.rank, device

    by_kind: dict[EqualDevices, dict[tuple[str | None, int], tuple[tuple[object, ...], int, int]]] = defaultdict(dict)
    for record in records:
        for device, kind in enumerate(record.kinds):
            by_kind[kind][record.name, device] = place(record, device)
    for kind, places in by_kind.items():
        assert stats.firsts()[kind.index] == sorted(places.values())[:SHOWN]
        for apart in (
            Random(kind.index).sample([*places], len(places) // 2),
            [*sorted(places, key=places.__getitem__)[:2]],
        ):
            others = sorted(one for key, one in places.items() if key not in apart)
            assert list(stats.first_of(kind, set(apart))) == others[:SHOWN]


def _columns_device_by_device(snapshot: Snapshot) -> dict[str, tuple[tuple[int, ...], tuple[object, ...]]]:
    columns: dict[str, list[tuple[int, object]]] = {}
    for position, device in enumerate(snapshot.devices):
        for name, value in device.attributes.items():
            columns.setdefault(name, []).append((position, value))
    return {name: (tuple(p for p, _ in own), tuple(v for _, v in own)) for name, own in columns.items()}


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)), max_size=6))
def test_columns_of_a_node_are_those_of_its_devices(attributes: list[dict[str, int]]) -> None:
    """Reading devices of equal attributes together changes nothing, whatever is mixed."""
    devices = tuple(Device(n, 0, f"d{n}", own, {}, (), None) for n, own in enumerate(attributes))
    snapshot = join_pools([Pool(0, "n", "p", "driver", {}, devices)])

    assert columns_of_node(snapshot) == _columns_device_by_device(snapshot)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)), max_size=6))
def test_marks_say_which_devices_share_a_value(attributes: list[dict[str, int]]) -> None:
    devices = tuple(Device(n, 0, f"d{n}", own, {}, (), None) for n, own in enumerate(attributes))
    snapshot = join_pools([Pool(0, "n", "p", "driver", {}, devices)])
    index = EqualDevicesIndex(GroupAttributes(frozenset("ab"), frozenset()))

    kinds = index.read(snapshot, columns_of_node(snapshot))

    for name in "ab":
        values = [own.get(name) for own in attributes]
        for kind, value in zip(kinds, values, strict=True):
            mark = kind.marks.get(name)
            if value is None:
                assert mark is None
            elif values.count(value) == 1:
                assert mark == UNSHARED
            else:
                assert {k.marks[name] for k, v in zip(kinds, values, strict=True) if v == value} == {mark}
                assert mark not in {k.marks.get(name) for k, v in zip(kinds, values, strict=True) if v != value}


def test_what_was_worked_out_of_a_node_goes_with_it() -> None:
    """Nothing else has changed, and so nothing but its going makes the others be looked at anew."""
    index = EqualDevicesIndex(GroupAttributes(frozenset(["rack"]), frozenset()))
    columns = {}
    for node, values in {"n1": ["a", "a", "long-name"], "n2": ["a"]}.items():
        devices = tuple(Device(n, 0, f"d{n}", {"rack": ("text", one)}, {}, (), None) for n, one in enumerate(values))
        columns[node] = columns_of_node(join_pools([Pool(0, node, "p", "driver", {}, devices)]))
        index.enter(node, columns[node])
    before = index.edition
    assert (index.repeats("rack"), index.longest("rack")) == ({"n1": 2, "n2": 1}, len("long-name"))
    index.leave("n1", columns["n1"])
    assert (index.repeats("rack"), index.longest("rack")) == ({"n2": 1}, len("a"))
    assert index.edition != before, "what others have worked out of it is out of date as well"


_NODE = st.lists(st.dictionaries(st.sampled_from(["a", "b", "c", ONLY_CLASS]), st.integers(0, 1)), max_size=3)


@given(st.lists(_NODE, max_size=8), st.sampled_from(["", "c"]))
def test_nodes_that_are_read_at_once_are_of_the_kinds_of_their_devices(
    nodes: list[list[dict[str, int]]], scattered: str
) -> None:
    """Whatever of a device decides its kind also decides whether its node was read before."""
    choice = GroupAttributes(frozenset(["b", "c", ONLY_CLASS]), frozenset(scattered))
    index, one_by_one = EqualDevicesIndex(choice), EqualDevicesIndex(choice)
    for attributes in nodes:
        devices = tuple(Device(n, 0, f"d{n}", own, {}, (), None) for n, own in enumerate(attributes))
        snapshot = join_pools([Pool(0, "n", "p", "driver", {}, devices)])

        kinds = index.read(snapshot, columns_of_node(snapshot))

        assert [kind.index for kind in kinds] == [kind.index for kind in one_by_one._read_devices(snapshot)]


def test_devices_of_pools_that_were_replaced_are_forgotten() -> None:
    """Each new kind of node makes a new class; what was noted of the old ones must not keep their devices."""
    fleet = Fleet.from_manifests([])
    for number in range(1_000):
        attributes = {f"a{number}-{index}": "v" for index in range(3)}
        fleet.update(testing.pool("p", "n", devices=[testing.device("d", attributes=attributes)]))
    gc.collect()
    assert sum(isinstance(each, Device) for each in gc.get_objects()) < 500

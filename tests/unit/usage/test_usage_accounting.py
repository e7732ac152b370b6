"""Usage is counted to the millisecond, once, across months, restarts and other processes."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.store import AlreadyExists, Conflict, Listing, NotFound, Object, StoreError
from devalloc.store.errors import Key
from devalloc.usage.accounting import UsageAccountant, accountant
from devalloc.usage.accounting.holdings import UsageKey, holdings_of
from devalloc.usage.accounting.ledger import (
    MAX_LABELS,
    OTHER,
    MonthRecord,
    UsageLedger,
    UsageTotal,
    folded,
    month_end,
    month_of,
    month_start,
    previous_month,
)
from devalloc.usage.accounting.records import MAX_ROWS_BYTES, parse_record, read_records, record_data
from devalloc.usage.accounting.report import grouped, parse_month, read_report, report_json
from tests.support.examples import examples

DAY = 86_400_000
START = month_start("2026-11") + 27 * DAY


@dataclass
class ConfigMaps:
    """What is written down: it outlives processes."""

    objects: dict[str, Object] = field(default_factory=dict)
    version: int = 0
    fails: bool = False

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        self._check()
        if name not in self.objects:
            raise NotFound(name)
        return self.objects[name]

    def create(self, obj: Object) -> Object:
        self._check()
        if obj["metadata"]["name"] in self.objects:
            raise AlreadyExists(obj["metadata"]["name"])
        return self._put(obj)

    def replace(self, obj: Object) -> Object:
        self._check()
        name = obj["metadata"]["name"]
        if name not in self.objects:
            raise NotFound(name)
        if self.objects[name]["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise Conflict({Key(obj["kind"], obj["metadata"]["namespace"], name): "it has changed"})
        return self._put(obj)

    def _check(self) -> None:
        if self.fails:
            raise StoreError("it does not answer")

    def _put(self, obj: Object) -> Object:
        self.version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        stored = {**obj, "metadata": metadata}
        self.objects[metadata["name"]] = stored
        return stored


@dataclass
class Objects:
    """What there is; only its lists are read."""

    by_name: dict[str, Object] = field(default_factory=dict)
    version: int = 0
    fails: bool = False

    def list(self, kinds: Any = None, namespace: str | None = None) -> Listing:
        if self.fails:
            raise StoreError("it does not answer")
        listed = [obj for obj in self.by_name.values() if kinds is None or obj["kind"] == kinds]
        return Listing([] if kinds == [] else listed, str(self.version))

    def put(self, obj: Object) -> None:
        self.version += 1
        self.by_name[obj["metadata"]["uid"]] = obj

    def drop(self, uid: str) -> None:
        self.version += 1
        self.by_name.pop(uid, None)


def rfc3339(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def device_claim(uid: str, device: str, machine: str, since: int | None, namespace: str = "team-a") -> Object:
    entry = {"devicePoolName": "card", "deviceName": device}
    status: Object = {"allocations": [entry], "podNames": [machine] if machine else []}
    if since is not None:
        status["conditions"] = [{"type": "Allocated", "status": "True", "lastTransitionTime": rfc3339(since)}]
    return {
        "kind": "DeviceClaim",
        "metadata": {"name": uid, "namespace": namespace, "uid": uid},
        "spec": {"claims": [{"deviceClass": "gpu"}]},
        "status": status,
    }


def resource_claim(uid: str, device: str, pod: str, since: int | None, namespace: str = "team-a") -> Object:
    result = {"request": "gpu", "driver": "devalloc.io", "pool": "card", "device": device}
    allocation: Object = {"devices": {"results": [result]}}
    if since is not None:
        allocation["allocationTimestamp"] = rfc3339(since)
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": uid, "namespace": namespace, "uid": uid},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {"allocation": allocation, "reservedFor": [{"name": pod}] if pod else []},
    }


def machine(uid: str, cpus: int, gib: int, phase: str = "Running") -> Object:
    amounts = {"cpus": str(cpus), "memory": f"{gib}Gi"}
    return {
        "kind": "VirtualMachine",
        "metadata": {"name": uid, "namespace": "team-a", "uid": uid},
        "spec": {},
        "status": {"phase": phase, "machineID": "run", "observed": amounts},
    }


@dataclass
class Stretch:
    """Of the oracle: something was held from ``start`` to ``end``, or is."""

    key: UsageKey
    base: str
    start: int
    stated: int | None
    amounts: tuple[int, int] = (0, 0)
    end: int | None = None


def sum_of(totals: Iterable[UsageTotal]) -> UsageTotal:
    return reduce(UsageTotal.plus, totals, UsageTotal())


class World:
    """A fleet, the process that counts, and what the count must be."""

    def __init__(self) -> None:
        self.now = START
        self.objects, self.maps = Objects(), ConfigMaps()
        self.stretches: list[Stretch] = []
        self.saved: int | None = None
        self.held_when_saved: set[str] = set()
        self.accountant = self.new()

    def new(self) -> UsageAccountant:
        store: Any = self.objects
        return UsageAccountant([store], self.maps, "me", clock=lambda: self.now / 1000)

    def look(self) -> None:
        self.accountant.tick()

    def open(self, base: str) -> Stretch | None:
        return next((each for each in self.stretches if each.base == base and each.end is None), None)

    def begin(self, key: UsageKey, base: str, stated: int | None, amounts: tuple[int, int] = (0, 0)) -> None:
        self.end(base)
        self.stretches.append(Stretch(key, base, self.now, stated, amounts))

    def end(self, base: str) -> None:
        if (stretch := self.open(base)) is not None:
            stretch.end = self.now

    def save(self) -> None:
        self.look()
        self.accountant.save()
        self.saved = self.now if self.maps.objects else None  # nothing is written while nothing is held
        self.held_when_saved = {each.base for each in self.stretches if each.end is None}

    def restart(self) -> None:
        """The process is gone since some time after it wrote last; another one begins now."""
        self.accountant = self.new()
        self.look()
        if self.saved is None:  # nothing was written: it begins from nothing
            held = [each for each in self.stretches if each.end is None]
            self.stretches = [Stretch(each.key, each.base, self.now, each.stated, each.amounts) for each in held]
            return
        counted = []
        for each in self.stretches:
            if each.end is not None:
                each.end = min(each.end, self.saved)
                counted += [each] if each.start < each.end else []
            elif each.start < self.saved:
                counted.append(each)
            else:  # it began, or its user changed, since that was written
                begins = max(self.saved, each.stated) if each.stated is not None else None
                if begins is None:
                    begins = self.saved if each.base in self.held_when_saved else self.now
                counted.append(Stretch(each.key, each.base, begins, each.stated, each.amounts))
        self.stretches = counted

    def expected(self) -> dict[tuple[str, UsageKey], UsageTotal]:
        totals: dict[tuple[str, UsageKey], UsageTotal] = defaultdict(UsageTotal)
        for each in self.stretches:
            start, end = each.start, self.now if each.end is None else each.end
            while start < end:
                month = month_of(start)
                until = min(end, month_end(month))
                span = until - start
                device = span if each.key.device else 0
                more = UsageTotal(device, 0, each.amounts[0] * span, each.amounts[1] * span)
                totals[month, each.key] = totals[month, each.key].plus(more)
                start = until
        return dict(totals)

    def counted(self) -> dict[tuple[str, UsageKey], UsageTotal]:
        self.save()
        return {
            (record.month, key): total
            for _, record in read_records(self.maps, "default")
            for key, total in record.rows.items()
        }


SLOTS = range(3)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["take", "take", "free", "move", "scale", "stop", "save", "save", "look", "restart", "silence"]
        ),
        st.sampled_from(SLOTS),
        st.sampled_from([1, 7, 1000, 61_000, 3_600_000, DAY, 5 * DAY, 40 * DAY]),
        st.booleans(),
        st.sampled_from(["web", "db", ""]),
    ),
    max_size=30,
)


def act(world: World, what: str, slot: int, says_when: bool, user: str) -> None:
    uid, vm = f"claim-{slot}", f"vm-{slot}"
    kind, make = (("DeviceClaim", device_claim), ("ResourceClaim", resource_claim))[slot % 2]
    there = world.open(uid)
    if what == "take" or (what == "move" and there is not None):
        stated = world.now if says_when else None
        if what == "move" and there is not None:
            stated = there.stated
        elif there is not None:
            return
        world.objects.put(make(uid, f"gpu-{slot}", user, stated))
        if there is None or there.key.machine != user:
            world.begin(
                UsageKey(kind, "team-a", user, "gpu", f"{'devalloc.io/' * (kind == 'ResourceClaim')}card/gpu-{slot}"),
                uid,
                stated,
            )
    elif what == "free":
        world.objects.drop(uid)
        world.end(uid)
    elif what == "scale":
        amounts = (1 + (world.now // 7) % 3, 2)
        world.objects.put(machine(vm, *amounts))
        key = UsageKey("VirtualMachine", "team-a", vm, "", "")
        if (running := world.open(vm)) is None or running.amounts != (amounts[0] * 1000, amounts[1] << 30):
            world.begin(key, vm, None, (amounts[0] * 1000, amounts[1] << 30))
    elif what == "stop":
        world.objects.put(machine(vm, 1, 1, "Stopped"))
        world.end(vm)
    elif what == "save":
        world.save()
    elif what == "restart":
        world.restart()
    elif what == "silence":  # the store does not answer for a moment
        world.objects.fails = True
        with pytest.raises(StoreError):
            world.look()
        world.objects.fails = False


@settings(max_examples=examples(60, 0.5), deadline=None)
@given(STEPS)
def test_every_millisecond_counts_once_whatever_is_restarted(
    steps: list[tuple[str, int, int, bool, str]],
) -> None:
    world = World()
    world.look()
    for what, slot, pause, says_when, user in steps:
        act(world, what, slot, says_when, user)
        world.look()
        world.now += pause
    assert world.counted() == world.expected()
    by_device: dict[str, int] = defaultdict(int)
    for (_, key), total in world.counted().items():
        by_device[key.device] += total.whole
    assert all(whole <= world.now - START for device, whole in by_device.items() if device)
    # Counters agree with the rows, month by month.
    records = [record for _, record in read_records(world.maps, "default")]
    newest = max(records, key=lambda one: one.until, default=MonthRecord("2026-11", START))
    assert sum_of(newest.counters.values()) == sum_of(world.counted().values())


def test_a_claim_that_goes_on_through_a_restart_has_no_gap_and_one_that_went_has_no_more_than_was_seen() -> None:
    world = World()
    act(world, "take", 0, False, "web")
    act(world, "take", 2, False, "db")
    world.save()
    world.now += 600_000
    act(world, "free", 2, False, "")
    world.now += 600_000
    world.restart()
    world.now += 1000
    rows = {key.device: total.whole for (_, key), total in world.counted().items()}
    assert rows == {"card/gpu-0": 1_201_000}


@pytest.mark.parametrize("saves", [False, True])
def test_a_clock_that_is_set_ahead_is_no_time_for_which_anything_was_held(saves: bool) -> None:
    objects, ticks, wall = Objects(), [0.0], [START / 1000]
    counting = UsageAccountant(
        [objects],  # type: ignore[list-item]
        ConfigMaps(),
        "me",
        clock=lambda: wall[0],
        ticks=lambda: ticks[0],
    )

    def after(seconds: float, jump: float = 0.0) -> None:
        ticks[0] += seconds
        wall[0] += seconds + jump
        (counting.save if saves else counting.tick)()

    objects.put(device_claim("a", "gpu-0", "m", None))
    counting.tick()
    after(10)
    after(7, jump=40 * 86400)  # into another month
    after(3, jump=4)  # what keeps the clock right moves it a little: counts as time
    after(0, jump=-3600)  # and nothing until it is there again
    after(3600)
    after(5)
    counting.save()
    assert [total.whole for total in counting.counters.values()] == [(10 + 7 + 3 + 4 + 5) * 1000]


def test_pools_of_the_same_name_of_two_drivers_are_two() -> None:
    claims = [resource_claim(uid, "gpu-0", "pod", START) for uid in "ab"]
    claims[1]["status"]["allocation"]["devices"]["results"][0]["driver"] = "gpu.example.com"
    names = {each.key.device for each in holdings_of(claims).values()}
    assert names == {"devalloc.io/card/gpu-0", "gpu.example.com/card/gpu-0"}


def test_what_the_store_does_not_answer_about_is_still_held() -> None:
    world = World()
    act(world, "take", 0, True, "web")
    world.look()
    world.now += 5000
    world.objects.fails = True
    with pytest.raises(StoreError):
        world.look()
    world.now += 5000
    world.objects.fails = False
    assert [total.whole for total in world.counted().values()] == [10_000]


def test_a_process_that_saw_nothing_yet_writes_nothing() -> None:
    world = World()
    act(world, "take", 0, False, "web")
    world.save()
    world.now += 60_000
    world.objects.fails = True
    late = world.new()
    with pytest.raises(StoreError):
        late.tick()
    late.save()
    world.objects.fails = False
    world.restart()
    assert [total.whole for total in world.counted().values()] == [60_000]


def test_of_two_processes_the_one_that_wrote_first_counts() -> None:
    world = World()
    act(world, "take", 0, False, "web")
    world.save()
    other = world.new()
    other.tick()
    world.now += 1000
    other.tick()
    other.save()
    world.now += 1000
    world.look()
    world.accountant.save()  # a conflict: it goes on from what the other one wrote
    world.now += 1000
    world.look()
    assert [total.whole for total in world.counted().values()] == [3000]


def test_counters_are_those_that_are_written_and_never_go_back() -> None:
    world = World()
    act(world, "take", 0, False, "web")
    world.look()
    world.now += 10_000
    world.look()
    assert world.accountant.counters == {}
    world.save()
    label = ("DeviceClaim", "team-a", "gpu")
    assert world.accountant.counters[label].whole == 10_000
    world.now += 40 * DAY
    world.restart()
    assert world.accountant.counters[label].whole == 10_000
    world.save()
    assert world.accountant.counters[label].whole == 10_000 + 40 * DAY


def test_a_failed_write_loses_nothing() -> None:
    world = World()
    act(world, "take", 0, False, "web")
    world.save()
    world.now += 40 * DAY  # two months end meanwhile
    world.maps.fails = True
    world.look()
    with pytest.raises(StoreError):
        world.accountant.save()
    world.maps.fails = False
    assert world.counted() == world.expected()


def test_a_clock_that_was_ahead_is_logged_once_and_its_records_can_be_deleted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    act(world, "take", 0, False, "web")
    world.save()
    world.now += DAY  # so the clock says, for a moment
    world.save()
    world.now -= DAY
    for _ in range(3):
        world.now += 1000
        world.save()
    (message,) = [record.getMessage() for record in caplog.records]
    assert "delete the ConfigMap default/devalloc-usage-11" in message
    assert [total.whole for total in world.counted().values()] == [DAY], "no moment counts twice"
    world.maps.objects.clear()
    world.accountant.save()  # it sees that, and begins again
    world.look()
    world.now += 5000
    assert [total.whole for total in world.counted().values()] == [5000]


# Bounds.


class Time:
    """Of a process that waits, and whose writes take time of a CPU."""

    def __init__(self) -> None:
        self.now = self.cpu = 0.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.cpu


@pytest.mark.parametrize(("cpu", "rate", "apart"), [(0.0, 10**9, 2), (0.5, 10**9, 10), (0.0, 50, 22)])
def test_what_costs_more_is_written_less_often(
    monkeypatch: pytest.MonkeyPatch, cpu: float, rate: int, apart: int
) -> None:
    """In ten minutes, in each second of which something changes."""
    clock, world = Time(), World()
    monkeypatch.setattr(accountant, "time", clock)
    monkeypatch.setattr(accountant, "SAVE_BYTES_PER_SECOND", rate)
    put = world.maps._put

    def costly(obj: Object) -> Object:
        clock.cpu += cpu
        return put(obj)

    monkeypatch.setattr(world.maps, "_put", costly)

    class Stop(threading.Event):
        def is_set(self) -> bool:
            return clock.now >= 600

        def wait(self, timeout: float | None = None) -> bool:
            clock.now += timeout or 0
            world.now += round((timeout or 0) * 1000)
            act(world, "take" if round(clock.now) % 2 else "free", 0, False, "web")
            return self.is_set()

    for number in range(10):
        act(world, "take", 10 + number, False, f"web-{number}")
    world.new().run(Stop())
    assert 600 / apart * 0.6 < world.maps.version < 600 / apart * 1.2


def rows_of(count: int) -> dict[UsageKey, UsageTotal]:
    return {
        UsageKey("DeviceClaim", f"team-{n % 50}", f"vm-{n % 300}", f"class-{n % 7}", f"card-{n}/gpu"): UsageTotal(
            n * n, n
        )
        for n in range(count)
    }


@pytest.mark.parametrize("most", [3, 10, 100, 2999, 3000])
def test_few_rows_have_the_same_sums_and_the_largest_keep_their_names(most: int) -> None:
    rows = rows_of(3000)
    short = folded(rows, most)
    assert len(short) <= most
    assert sum_of(short.values()) == sum_of(rows.values())
    if most >= 100:
        largest = max(rows, key=lambda key: rows[key].whole)
        assert short[largest] == rows[largest]
        assert any(key.device == OTHER and key.namespace != OTHER for key in short) or most == 3000


def test_one_namespace_with_many_names_takes_no_names_of_others() -> None:
    others = {
        UsageKey("DeviceClaim", f"team-{n % 50}", f"vm-{n}", "gpu", f"card-{n}/gpu"): UsageTotal(1) for n in range(200)
    }
    flood = {
        UsageKey("DeviceClaim", "flood", f"vm-{n}", "gpu", f"card-{n}/cpu"): UsageTotal(1000) for n in range(10_000)
    }
    short = folded(others | flood, 5_000)
    assert len(short) <= 5_000
    assert {key: total for key, total in short.items() if key.namespace != "flood"} == others
    assert sum_of(short.values()) == sum_of((others | flood).values())


def test_a_month_fits_into_a_config_map() -> None:
    record = MonthRecord("2026-11", START, rows_of(8000), {}, frozenset(f"{n:016x}" for n in range(50_000)))
    data = record_data(record, "me")
    assert len(data["rows"]) <= MAX_ROWS_BYTES
    assert sum(map(len, data.values())) < 1 << 20
    again = parse_record({"metadata": {"name": "x"}, "data": data})
    assert again is not None
    assert sum_of(again.rows.values()) == sum_of(record.rows.values())


def test_what_is_written_is_read_as_it_was() -> None:
    label = ("DeviceClaim", "a", "b")
    record = MonthRecord("2026-11", START, rows_of(10), {label: UsageTotal(1, 2, 3, 4)}, frozenset({"ab"}))
    assert parse_record({"metadata": {"name": "x"}, "data": record_data(record, "me")}) == record


@pytest.mark.parametrize(
    "data", [None, {}, {"month": "x"}, {"month": "2026-11", "untilMilliseconds": "1", "rows": "["}]
)
def test_what_cannot_be_read_counts_as_nothing(data: Any) -> None:
    assert parse_record({"metadata": {"name": "x"}, "data": data}) is None


def test_rows_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devalloc.usage.accounting.ledger.MAX_ROWS", 20)
    ledger = UsageLedger(None, START)
    claims = [device_claim(f"u{n}", f"gpu-{n}", "", None) for n in range(100)]
    ledger.observe(holdings_of(claims), START)
    rows = ledger.record(START + 1000).rows
    assert len(rows) <= 20
    assert sum_of(rows.values()).whole == 100_000


def test_counters_have_a_bound() -> None:
    ledger = UsageLedger(None, START)
    claims = [device_claim(f"u{n}", f"gpu-{n}", "", None, namespace=f"team-{n}") for n in range(MAX_LABELS + 50)]
    ledger.observe(holdings_of(claims), START)
    counters = ledger.record(START + 1000).counters
    assert len(counters) == MAX_LABELS + 1
    assert counters["DeviceClaim", OTHER, OTHER].whole == 50_000


def test_a_counter_whose_namespace_is_gone_makes_room_for_another_one() -> None:
    ledger = UsageLedger(None, START)
    old = [device_claim(f"u{n}", f"gpu-{n}", "", None, namespace=f"team-{n}") for n in range(MAX_LABELS)]
    ledger.observe(holdings_of(old), START)
    new = [device_claim(f"new{n}", f"gpu-{n}", "", None, namespace=f"new-{n}") for n in range(2)]
    ledger.observe(holdings_of([old[0], new[0]]), START + 1000)
    assert ("DeviceClaim", "new-0", "gpu") not in ledger.record(START + 2000).counters, "all were held in this month"
    later = START + 40 * DAY
    ledger.observe(holdings_of([old[0], new[1]]), later)
    counters = ledger.record(later + 1000).counters
    assert len(counters) == MAX_LABELS + 1
    assert counters["DeviceClaim", "team-0", "gpu"].whole == later + 1000 - START, "one that is held stays"
    assert counters["DeviceClaim", "new-1", "gpu"].whole == 1000


# What is held.


def keys(objects: Iterable[Object]) -> list[tuple[str, str, str, bool]]:
    holdings = holdings_of(objects).values()
    return sorted((each.key.device, each.key.device_class, each.key.machine, each.is_share) for each in holdings)


def test_classes_of_entries_come_from_the_allocated_spec() -> None:
    claim = device_claim("u", "gpu-0", "", None)
    claim["metadata"]["annotations"] = {
        "devalloc.io/allocation-details": '["1.1","0","2"]',
        "devalloc.io/allocated-spec": '{"claims":[{"deviceClass":"nic"},{"oneOf":[{"deviceClass":"h100"},'
        '{"deviceClass":"a2"}]},{"deviceClass":"watch"}]}',
        "devalloc.io/admin-classes": '["watch"]',
    }
    amounts = [{"name": "memory", "allocation": "1"}]
    claim["status"]["allocations"] = [
        {"devicePoolName": "p", "deviceName": "a", "allocations": amounts},
        {"devicePoolName": "p", "deviceName": "b"},
        {"devicePoolName": "p", "deviceName": "c"},
    ]
    user = machine("vm", 1, 1, "Stopped") | {"spec": {"claims": ["u"]}}
    assert keys([claim, user]) == [("p/a", "a2", "vm", True), ("p/b", "nic", "vm", False)]


def test_resource_claims_name_their_classes_and_pods() -> None:
    claim = resource_claim("u", "gpu-0", "pod-a", None)
    claim["spec"]["devices"]["requests"].append(
        {"name": "any", "firstAvailable": [{"name": "big", "deviceClassName": "h100"}]}
    )
    results = claim["status"]["allocation"]["devices"]["results"]
    results.append({"request": "any/big", "pool": "card", "device": "gpu-1", "shareID": "s"})
    results.append({"request": "gpu", "pool": "card", "device": "gpu-2", "adminAccess": True})
    claim["status"]["reservedFor"] += [{"name": f"pod-{n}"} for n in "bcde"]
    assert keys([claim]) == [
        ("card/gpu-1", "h100", "pod-a,pod-b,pod-c,+2", True),
        ("devalloc.io/card/gpu-0", "gpu", "pod-a,pod-b,pod-c,+2", False),
    ]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda claim: claim["status"].update(allocations="no"),
        lambda claim: claim["status"].update(allocations=[None, {"devicePoolName": 1}]),
        lambda claim: claim.update(status=None),
        lambda claim: claim["metadata"].update(annotations={"devalloc.io/transaction": "x"}),
    ],
)
def test_what_is_malformed_or_may_be_taken_back_is_not_held(spoil: Callable[[Object], Any]) -> None:
    claim = device_claim("u", "gpu-0", "", None)
    spoil(claim)
    assert keys([claim]) == []


# Questions.


def test_a_report_shows_the_gpu_hours_of_last_month_by_user() -> None:
    world = World()
    act(world, "take", 0, True, "web")
    act(world, "scale", 0, True, "")
    world.look()
    world.now = month_end("2026-11") + 3_600_000
    world.save()
    last = parse_month("last", world.now)
    report = grouped(read_report(world.maps, "default", last), "device")
    hours = (month_end("2026-11") - START) / 1000
    assert [row for row in report_json(report)["usage"] if "device" in row] == [
        {
            "kind": "DeviceClaim",
            "namespace": "team-a",
            "machine": "web",
            "deviceClass": "gpu",
            "device": "card/gpu-0",
            "deviceSeconds": hours,
        }
    ]
    by_team = report_json(grouped(report, "namespace"))
    assert by_team["until"] == "2026-12-01T00:00:00Z"
    (team,) = by_team["usage"]
    assert (team["deviceSeconds"], team["memoryByteSeconds"]) == (hours, hours * (2 << 30))
    assert grouped(report, "machine", "nobody").rows == {}
    assert read_report(world.maps, "default", "2025-11").until is None


def test_months() -> None:
    assert month_end("2026-12") == month_start("2027-01")
    assert previous_month("2026-01") == "2025-12"
    assert parse_month("2026-3", 0) == "2026-03"
    for text in ("", "2026", "2026-13", "next", "2026-11-27"):
        with pytest.raises(ValueError, match=r"does not match|unconverted"):
            parse_month(text, 0)


@pytest.mark.parametrize(("cpus", "gib", "held"), [(2, 4, (2000, 4 << 30)), (2, 0, (2000, 0)), (0, 4, (0, 4 << 30))])
def test_a_machine_of_which_one_amount_is_unknown_is_billed_for_the_other(
    cpus: int, gib: int, held: tuple[int, int]
) -> None:
    (holding,) = holdings_of([machine("m", cpus, gib)]).values()
    assert (holding.cpu, holding.memory) == held


def test_a_machine_of_which_nothing_is_seen_holds_nothing() -> None:
    assert not holdings_of([machine("m", 0, 0)])

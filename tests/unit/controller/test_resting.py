"""What waits in vain costs a round nothing, and claims of other namespaces do not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.findings import sentences
from devalloc.api.meta import REASON
from devalloc.api.views import order_of
from devalloc.controller.reconcile import device_claims, resting, round_solver
from devalloc.controller.reconcile.decision import IN_CONDITIONS
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.postponed import PostponedUnits, Unit
from devalloc.controller.reconcile.resting import RestingObjects
from devalloc.controller.reconcile.round_solver import RoundSolver
from devalloc.store import Key
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import Fleet, WaitingBook, testing
from devalloc_solver.check import celpy_engine
from tests.support.allocator_rounds import settle
from tests.support.call_count import calls
from tests.support.fleet_manifests import annotations, fill, gpu_claim, gpu_class, gpu_pool, held
from tests.support.host_pools import host, machine
from tests.support.machine_allocator import machine_allocator

Object = dict[str, Any]


class Loop:
    """A store and its loop; rounds are made by hand."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.store, self.settings = SQLiteStore(path / "store.db"), AllocatorSettings(**settings)
        self.allocator = machine_allocator(self.store, settings=self.settings)
        fill(self.store, gpu_pool("p", devices=2, model="x"), gpu_pool("q", node="m", model="y"), gpu_class())

    def settle(self) -> None:
        settle(self.allocator)

    def looked_at(self, act: Callable[[], object]) -> set[str]:
        """The claims that rounds look at after something happened."""
        names: set[str] = set()
        look = self.allocator._input

        def noted(objects: Any) -> Any:
            names.update(key.name for key in objects if key.kind == "DeviceClaim")
            return look(objects)

        self.allocator._input = noted  # type: ignore[method-assign]
        act()
        self.settle()
        self.allocator._input = look  # type: ignore[method-assign]
        return names


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    made = Loop(tmp_path)
    yield made
    made.store.close()


def of_model(claim: Object, model: str) -> Object:
    claim["spec"]["claims"][0]["constraints"] = f"device.model == '{model}'"
    return claim


def test_claims_that_wait_cost_the_answer_to_another_one_nothing(loop: Loop) -> None:
    costs = []
    for count in (30, 300):
        fill(loop.store, *(of_model(gpu_claim(f"w{count}-{n}", 3 + n % 5, namespace="a"), "x") for n in range(count)))
        loop.settle()
        for name in ("first", "second"):  # all is built at the first
            loop.store.create(of_model(gpu_claim(name, namespace="b"), "y"))
            cost = calls(loop.allocator.round)
            assert held(loop.store, name, "b")
            loop.settle()
            loop.store.delete("DeviceClaim", "b", name)
            loop.settle()
        costs.append(cost)
    assert costs[1] - costs[0] < 0.1 * costs[0]


def test_a_claim_is_looked_at_again_when_devices_that_it_could_use_are_free(loop: Loop) -> None:
    fill(loop.store, of_model(gpu_claim("has-x", 2), "x"), of_model(gpu_claim("has-y", 2), "y"))
    loop.settle()
    fill(loop.store, of_model(gpu_claim("x"), "x"), of_model(gpu_claim("y"), "y"))
    loop.settle()
    names = loop.looked_at(lambda: loop.store.delete("DeviceClaim", "default", "has-x"))
    assert names == {"x"}
    assert held(loop.store, "x")


def test_a_refusal_for_want_of_a_class_is_found_anew_when_it_comes_although_no_device_is_free(loop: Loop) -> None:
    fill(loop.store, of_model(gpu_claim("has-x", 2), "x"), of_model(gpu_claim("has-y", 2), "y"))
    waiter = gpu_claim("w")
    waiter["spec"]["claims"][0]["deviceClass"] = "later"
    fill(loop.store, waiter)
    loop.settle()
    assert annotations(loop.store, "w")["reason"] == "ClassNotFound"
    fill(loop.store, gpu_class("later"))
    loop.settle()
    assert annotations(loop.store, "w")["reason"] == "DevicesInUse"


def test_a_refusal_for_want_of_devices_is_found_anew_when_a_new_kind_comes_that_is_held(loop: Loop) -> None:
    pool = testing.pool("r", "k", "later.io", devices=[testing.device("d")])
    holder, waiter = gpu_claim("holder"), gpu_claim("w")
    for claim in (holder, waiter):
        claim["spec"]["claims"][0]["deviceClass"] = "later"
    fill(loop.store, pool, testing.device_class("later", driver="later.io"), holder)
    loop.settle()
    assert held(loop.store, "holder")
    loop.store.delete("DevicePool", None, "r")
    fill(loop.store, waiter)
    loop.settle()
    loop.allocator = machine_allocator(loop.store, settings=AllocatorSettings())  # it has never seen such a device
    loop.settle()
    assert annotations(loop.store, "w")["reason"] == "NoMatchingDevices"
    fill(loop.store, pool)
    loop.settle()
    assert annotations(loop.store, "w")["reason"] == "DevicesInUse"


def test_an_edit_of_a_claim_that_waits_is_answered(loop: Loop) -> None:
    fill(loop.store, gpu_claim("w", 5))
    loop.settle()
    there = loop.store.get("DeviceClaim", "default", "w")
    loop.store.replace({**there, "spec": gpu_claim("w", 1)["spec"]})
    loop.settle()
    assert held(loop.store, "w")


def test_a_group_that_waits_is_looked_at_as_a_whole_when_a_member_comes_changes_or_goes(loop: Loop) -> None:
    fill(loop.store, gpu_claim("one", group="g"), gpu_claim("two", 2, group="g"))
    loop.settle()
    assert loop.looked_at(lambda: loop.store.create(gpu_claim("other"))) == {"other"}
    names = loop.looked_at(lambda: loop.store.create(gpu_claim("three", 9, group="g")))
    assert names == {"one", "two", "three"}
    loop.store.delete("DeviceClaim", "default", "three")
    there = loop.store.get("DeviceClaim", "default", "two")
    loop.store.replace({**there, "spec": gpu_claim("two", 1)["spec"]})
    loop.settle()
    assert held(loop.store, "one")
    assert held(loop.store, "two")


def test_a_claim_that_joins_a_group_that_waits_gets_nothing_by_itself(loop: Loop) -> None:
    fill(loop.store, gpu_claim("one", group="g"), gpu_claim("two", 2, group="g"))
    loop.settle()
    fill(loop.store, gpu_claim("three", group="g"))
    loop.settle()
    assert annotations(loop.store, "three")["reason"] == "GroupUnsatisfiable"
    assert not held(loop.store, "three")


def quota(most: int) -> Object:
    hard = {"gpu.deviceclass.devmgmtproto.k8s.io/devices": str(most)}
    metadata = {"name": "q", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}


def test_what_a_quota_keeps_out_is_looked_at_when_it_allows_more_or_something_is_given_back(loop: Loop) -> None:
    fill(loop.store, quota(1), gpu_claim("a"))
    loop.settle()
    fill(loop.store, gpu_claim("b"), gpu_claim("c"))
    loop.settle()
    assert annotations(loop.store, "b")["reason"] == "QuotaExceeded"
    assert loop.looked_at(lambda: loop.store.create(gpu_claim("other", namespace="x"))) == {"a", "other"}
    loop.store.delete("DeviceClaim", "default", "a")
    loop.settle()
    assert held(loop.store, "b")
    assert not held(loop.store, "c")
    there = loop.store.get("ResourceQuota", "default", "q")
    loop.store.replace({**there, "spec": quota(2)["spec"]})
    loop.settle()
    assert held(loop.store, "c")


def test_what_a_quota_keeps_out_is_looked_at_when_the_allocator_releases_a_claim(loop: Loop) -> None:
    fill(loop.store, quota(1), gpu_claim("a"))
    loop.settle()
    fill(loop.store, gpu_claim("b"))
    loop.settle()
    assert annotations(loop.store, "b")["reason"] == "QuotaExceeded"
    there = loop.store.get("DeviceClaim", "default", "a")
    released = of_model(gpu_claim("a", release="asked"), "none")
    notes = {**there["metadata"]["annotations"], **released["metadata"]["annotations"]}
    loop.store.replace({**there, "metadata": {**there["metadata"], "annotations": notes}, "spec": released["spec"]})
    loop.settle()
    assert not held(loop.store, "a")
    assert held(loop.store, "b")


def test_once_a_full_quota_keeps_out_a_claim_that_devices_became_free_for_its_equals_are_looked_at_too(
    loop: Loop,
) -> None:
    fill(loop.store, quota(3), of_model(gpu_claim("other", namespace="o"), "x"))
    loop.settle()
    names = [f"w{number:02}" for number in range(40)]
    fill(loop.store, *(of_model(gpu_claim(name, 2), "x") for name in names))
    loop.settle()
    loop.store.create(of_model(gpu_claim("has", 2), "y"))
    loop.settle()
    assert {annotations(loop.store, name)["reason"] for name in names} == {"DevicesInUse"}
    loop.store.delete("DeviceClaim", "o", "other")
    for _ in range(2):
        loop.allocator.round()
    assert {annotations(loop.store, name)["reason"] for name in names} == {"QuotaExceeded"}
    loop.store.delete("DeviceClaim", "default", "has")
    loop.settle()
    assert held(loop.store, "w00")


def test_thousands_of_claims_that_are_given_back_at_once_cost_no_more_each_however_many_rest() -> None:
    costs = []
    for count in (1000, 4000):
        rests = RestingObjects(RoundSolver())
        waiting = {Key("DeviceClaim", "a", f"w{number}"): gpu_claim(f"w{number}", namespace="a")
                   for number in range(count)}  # fmt: skip
        entries = {"allocations": [{"devicePoolName": "p", "deviceName": "d"}]}
        holding = {Key("DeviceClaim", "a", f"h{number}"): {**gpu_claim(f"h{number}", namespace="a"), "status": entries}
                   for number in range(count)}  # fmt: skip
        for key in waiting:
            rests._enter(Unit(key), [key], waiting, {}, by_admission=True)
        look = partial(rests.look, waiting, {**waiting, **holding}, holding.keys())
        costs.append(calls(partial(assert_that_a_hundred_are_looked_at, look)))
    assert costs[1] < 5 * costs[0], "four times as many"


def assert_that_a_hundred_are_looked_at(look: Callable[[], Mapping[Key, object]]) -> None:
    assert len(look()) == resting.MAX_NEW


class OnlyLookedUp(dict[Key, Any]):
    """Objects whose number costs nothing, because no round walks through them."""

    def __iter__(self) -> Any:
        raise AssertionError("all objects were walked through")

    keys = values = items = __iter__  # type: ignore[assignment]


def test_what_rests_costs_a_round_nothing_and_what_changed_is_looked_at_in_order() -> None:
    rests = RestingObjects(RoundSolver())
    claims = {Key("DeviceClaim", "a", f"w{number}"): gpu_claim(f"w{number}", namespace="a") for number in range(500)}
    objects = OnlyLookedUp(claims)
    first = rests.look(objects, {}, claims.keys())
    for key in first:
        rests._enter(Unit(key), [key], first, {}, by_admission=True)
    rests._awake, rests._postponed = set(), PostponedUnits()  # as if the others rested as well
    assert rests.look(objects, objects, ()) == {}

    new = Key("DeviceClaim", "a", "a"), Key("DeviceClaim", "a", "z"), next(iter(first))
    changed = OnlyLookedUp({**claims, **{key: gpu_claim(key.name, namespace="a") for key in new}})
    active = rests.look(changed, objects, new)

    assert list(active) == sorted(new), "one that rested is looked at because it is another one now"


def test_of_a_namespace_with_very_many_new_claims_a_round_looks_at_the_first(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting, "MAX_NEW", 10)
    claims = [gpu_claim(f"w{number:02}", 5, namespace="a") for number in range(25)]
    fill(loop.store, *claims, gpu_claim("b", namespace="b"))
    done = loop.allocator.round()
    assert [key.name for key in done.granted] == ["b"]
    assert (done.claims, done.waiting) == (26, 25)
    assert loop.allocator.loop.is_again
    loop.settle()
    assert all(annotations(loop.store, claim["metadata"]["name"], "a")["reason"] for claim in claims)


def test_a_round_looks_first_at_claims_of_namespaces_for_which_the_last_ones_did_less(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting, "MAX_NEW", 4)
    loop.settle()
    fill(loop.store, *(gpu_claim(f"v{number}", 5, namespace="a") for number in range(4)))
    loop.allocator.round()
    names = [(namespace, f"w{number}") for namespace in "ab" for number in range(4)]
    fill(loop.store, *(gpu_claim(name, 5, namespace=namespace) for namespace, name in names))
    loop.allocator.round()
    answered = [namespace for namespace, name in names if annotations(loop.store, name, namespace).get("reason")]
    assert answered == ["a", "b", "b", "b"]
    loop.settle()
    assert all(annotations(loop.store, name, namespace)["reason"] for namespace, name in names)


def test_no_claim_goes_before_one_of_higher_priority_that_a_round_left_out(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting, "MAX_NEW", 2)
    urgent = [gpu_claim(f"w{number}", namespace="a", priority="5") for number in range(4)]
    fill(loop.store, *urgent, gpu_claim("b", namespace="b"))
    loop.settle()
    assert all(held(loop.store, claim["metadata"]["name"], "a") for claim in urgent)
    assert not held(loop.store, "b", "b")


def test_a_round_looks_at_few_large_groups_and_at_claims_of_others(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "MAX_NEW", 6)
    loop.settle()
    members = [gpu_claim(f"{group}{number}", 5, "a", group=group) for group in "ghij" for number in range(5)]
    fill(loop.store, *members, gpu_claim("other", namespace="b"))
    looked_at = [each["metadata"]["name"] for each in members]
    loop.allocator.round()
    reasons = [annotations(loop.store, name, "a").get("reason") for name in looked_at]
    assert (len(reasons) - reasons.count(None), bool(held(loop.store, "other", "b"))) == (5, True)
    loop.settle()
    assert all(annotations(loop.store, name, "a")["reason"] for name in looked_at)


def test_a_group_whose_members_come_one_by_one_while_it_is_left_to_a_later_round_is_answered_as_a_whole(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting, "MAX_NEW", 3)
    loop.settle()
    fill(loop.store, *(gpu_claim(f"a{number}", 5) for number in range(5)), gpu_claim("g1", group="g"))
    loop.allocator.round()
    loop.store.create(gpu_claim("g2", 9, group="g"))
    loop.allocator.round()
    assert not held(loop.store, "g1"), "the other one fits nowhere"
    loop.settle()
    assert annotations(loop.store, "g1")["reason"]


def test_members_of_a_group_are_not_looked_at_without_new_ones_that_are_left_to_a_later_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resting, "MAX_NEW", 3)
    rests, name = RestingObjects(RoundSolver()), "DeviceClaim"
    first = {Key(name, "default", "g1"): gpu_claim("g1", group="g")}
    assert rests.look(first, {}, first.keys()) == first
    more = [*(gpu_claim(f"a{number}") for number in range(4)), gpu_claim("g2", group="g")]
    objects = {**first, **{Key(name, "default", each["metadata"]["name"]): each for each in more}}
    looks = [rests.look(objects, first, objects.keys() - first.keys()), rests.look(objects, objects, ())]
    assert [sorted({"g1", "g2"} & {key.name for key in look}) for look in looks] == [[], ["g1", "g2"]]


class ScriptedSolver:
    """One of which a unit is to be asked for each time."""

    def __init__(self, unit: Unit) -> None:
        self.waiting = WaitingBook()
        self.unit = unit

    def wake(self, *, has_new: bool) -> set[Hashable]:
        return {self.unit}

    def rest(self, *args: Any, **options: Any) -> bool:
        return True


def test_a_unit_that_a_second_change_could_help_waits_once_behind_more_urgent_ones() -> None:
    claims = [gpu_claim("w"), gpu_claim("urgent", priority="5")]
    objects = {Key("DeviceClaim", "default", claim["metadata"]["name"]): claim for claim in claims}
    key, urgent = objects
    rests = RestingObjects(ScriptedSolver(Unit(key)))
    rests._enter(Unit(key), [key], objects, {}, by_admission=False)
    rests._postpone(Unit(urgent), order_of(objects[urgent]), {urgent: objects[urgent]})
    for _ in range(2):
        assert rests.wake({}, objects) is None
        assert rests.claims == 2
    rests._postponed.withdraw(urgent)
    assert rests.wake({}, objects) == {key: objects[key]}
    assert not rests._postponed, "it is looked at now"


def test_machines_rest_that_no_node_has_room_for_until_one_has(loop: Loop) -> None:
    fill(loop.store, host("n", cpus=2), *(machine(f"m{number}", "4", "1Gi") for number in range(150)))
    loop.settle()
    loop.settle()
    assert loop.allocator._resting is not None
    assert len(loop.allocator._resting) == 150
    loop.store.create(host("big", cpus=4))
    loop.settle()
    assert loop.store.get("VirtualMachine", "default", "m0")["status"]["nodeName"] == "big"


def test_machines_rest_while_no_node_has_published_anything_for_them(loop: Loop) -> None:
    fill(loop.store, *(machine(f"m{number}", "1", "1Gi") for number in range(150)))
    loop.settle()
    loop.settle()
    assert loop.allocator._resting is not None
    assert len(loop.allocator._resting) == 150
    loop.store.create(host("n", cpus=2))
    loop.settle()
    placed = [each for each in loop.store.list("VirtualMachine").objects if each["status"].get("nodeName")]
    assert [each["metadata"]["name"] for each in placed] == ["m0", "m1"]


def test_machines_that_rest_are_placed_once_the_pool_of_a_node_can_be_read(loop: Loop) -> None:
    readable = host("n", cpus=2)
    fill(loop.store, {**readable, "spec": {**readable["spec"], "devices": 3}}, machine("m"))
    loop.settle()
    loop.settle()
    assert loop.allocator._resting is not None
    assert len(loop.allocator._resting) == 1
    loop.store.replace({**loop.store.get("DevicePool", None, readable["metadata"]["name"]), "spec": readable["spec"]})
    loop.settle()
    assert loop.store.get("VirtualMachine", "default", "m")["status"]["nodeName"] == "n"


def test_a_sentence_for_many_claims_is_made_once_in_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, made = Loop(tmp_path, hides_names=True), []
    fitting = sentences._fitting
    monkeypatch.setattr(
        sentences, "_fitting", lambda finding, width: (made.append(finding), fitting(finding, width))[1]
    )
    fill(loop.store, *(gpu_claim(f"held-{number}", namespace="secret") for number in range(4)))
    loop.settle()
    fill(loop.store, *(gpu_claim(f"w{number}", namespace="a") for number in range(20)))
    made.clear()
    sentences._fitted.cache_clear()
    loop.allocator.round()
    assert 1 <= len(made) <= 4, "for an admin and for the tenant"
    assert "secret" not in annotations(loop.store, "w0", "a")["message"]
    loop.store.close()


def test_claims_that_hold_devices_and_say_so_cost_the_answer_to_another_one_nothing(loop: Loop) -> None:
    loop.store.create(gpu_pool("r", devices=100, node="o"))
    fill(loop.store, *(gpu_claim(f"c{number}") for number in range(100)))
    loop.settle()
    assert loop.looked_at(lambda: loop.store.create(gpu_claim("one"))) == {"one"}
    assert loop.looked_at(lambda: loop.store.delete("DeviceClaim", "default", "c7")) == set()
    assert loop.looked_at(lambda: loop.store.create(gpu_claim("two"))) == {"two"}
    assert held(loop.store, "two")
    assert loop.allocator.round().allocated == 101


@pytest.mark.parametrize("kind", ["cordon", "quota", "class", "node", "machine"])
def test_claims_that_hold_devices_are_looked_at_again_when_others_than_claims_change(loop: Loop, kind: str) -> None:
    fill(loop.store, gpu_claim("one"), gpu_claim("two"))
    loop.settle()
    assert loop.looked_at(lambda: loop.store.create(gpu_claim("three"))) == {"three"}

    def change() -> None:
        if kind == "cordon":
            pool = loop.store.get("DevicePool", None, "q")
            notes = {"devalloc.io/cordoned": '{"*": "repair"}'}
            loop.store.replace({**pool, "metadata": {**pool["metadata"], "annotations": notes}})
            return
        new = {"quota": quota(9), "class": gpu_class("new"), "node": host(), "machine": machine("m")}
        loop.store.create(new[kind])

    assert loop.looked_at(change) >= {"one", "two", "three"}


@pytest.mark.parametrize("obj", [quota(9), machine("m")], ids=lambda obj: obj["kind"])
def test_claims_that_hold_devices_do_not_rest_while_quotas_or_machines_count_them(loop: Loop, obj: Object) -> None:
    fill(loop.store, obj, gpu_claim("one"))
    loop.settle()
    assert loop.looked_at(lambda: loop.store.create(gpu_claim("two"))) == {"one", "two"}


def test_a_claim_that_rests_with_its_devices_is_looked_at_when_it_changes(loop: Loop) -> None:
    fill(loop.store, gpu_claim("one"), gpu_claim("two"))
    loop.settle()
    one = loop.store.get("DeviceClaim", "default", "one")
    loop.looked_at(lambda: loop.store.replace({**one, "spec": gpu_claim("one", 2)["spec"]}))
    assert annotations(loop.store, "one")["reason"] == "SpecChanged"
    one = loop.store.get("DeviceClaim", "default", "one")
    notes = {**one["metadata"]["annotations"], "devalloc.io/release": "asked"}
    loop.store.replace({**one, "metadata": {**one["metadata"], "annotations": notes}})
    loop.settle()
    assert len(held(loop.store, "one")) == 2


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_late_count_of_what_is_available_knows_claims_that_rested_and_changed(tmp_path: Path, is_gone: bool) -> None:
    times = [0.0]
    store = SQLiteStore(tmp_path / "store.db")
    allocator = machine_allocator(store, settings=AllocatorSettings(availability=5.0), clock=lambda: times[-1])
    fill(store, gpu_pool("p", devices=4), gpu_class(), gpu_claim("one"), gpu_claim("two", 2))
    for seconds in (10.0, 20.0, 30.0):
        version = allocator.round().resource_version
        times.append(seconds)
    assert store.get("DevicePool", None, "p")["status"]["availableDevices"] == 1
    if is_gone:
        store.delete("DeviceClaim", "default", "two")
    else:
        two = store.get("DeviceClaim", "default", "two")
        store.replace({**two, "metadata": {**two["metadata"], "labels": {"some": "label"}}})
    stop, publish = threading.Event(), allocator._publish_availability
    allocator._is_behind = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocator, "_publish_availability", lambda state: (publish(state), stop.set()))
        allocator._wait(version, stop)
    assert store.get("DevicePool", None, "p")["status"]["availableDevices"] == (3 if is_gone else 1)
    for seconds in (40.0, 50.0):
        times.append(seconds)
        allocator.round()
    assert store.get("DevicePool", None, "p")["status"]["availableDevices"] == (3 if is_gone else 1)
    store.close()


def test_what_rests_counts_as_waiting(loop: Loop) -> None:
    fill(loop.store, *(gpu_claim(f"w{number}", 5) for number in range(3)))
    loop.settle()
    loop.store.create(gpu_claim("new"))
    done = loop.allocator.round()
    assert (done.claims, done.allocated, done.waiting) == (4, 1, 3)
    assert Key("DeviceClaim", "default", "new") in done.granted


def test_what_changed_before_a_round_failed_is_answered_by_the_next(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.settle()
    loop.settle()
    loop.store.create(gpu_claim("new"))
    with monkeypatch.context() as patch:
        patch.setattr(device_claims, "take_from_fenced", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loop.allocator.round()
    loop.settle()
    assert held(loop.store, "new")


def test_a_claim_whose_time_is_over_while_a_round_reads_is_asked_for_in_that_round(tmp_path: Path) -> None:
    loop, seconds = Loop(tmp_path), [0.0]
    resting_objects = loop.allocator._resting
    assert resting_objects is not None
    resting_objects.solver.waiting.clock = lambda: seconds[0]
    fill(loop.store, gpu_claim("w", 5))
    loop.settle()
    loop.settle()
    (unit,) = resting_objects._members
    assert resting_objects.solver.waiting.pause(unit), "as if its expressions took too long"
    read = loop.allocator.loop.reading.look

    def slow() -> Any:
        seconds[0] = 61.0
        return read()

    loop.allocator.loop.reading.look = slow  # type: ignore[method-assign]
    assert loop.looked_at(loop.allocator.round) == {"w"}
    loop.store.close()


def test_a_claim_whose_expression_is_disputed_keeps_nothing_from_others_and_costs_rounds_nothing(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(celpy_engine.Expression, "holds", lambda *_: False)
    disputed = gpu_claim("disputed", 2, priority="9")
    disputed["spec"]["claims"][0]["constraints"] = "device.model != 'z'"
    fill(loop.store, disputed, gpu_claim("one", 2), gpu_claim("two", 2))
    loop.settle()
    assert annotations(loop.store, "disputed")["reason"] == "CheckFailed"
    assert held(loop.store, "one")
    assert held(loop.store, "two")
    loop.settle()
    assert loop.looked_at(lambda: loop.store.create(gpu_claim("new"))) == {"new"}


def test_a_claim_with_expensive_expressions_is_solved_less_and_less_often_until_it_changes(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, rests = [0.0], loop.allocator._resting
    assert rests is not None
    pauses = rests.solver.waiting._pauses
    rests.solver.waiting.clock = lambda: now[0]
    monkeypatch.setattr(round_solver, "costs_too_much", lambda answer: not answer["allocated"])
    loop.store.create(gpu_claim("w", 5))
    seconds = []
    for _ in range(7):
        loop.settle()
        loop.settle()
        (pause,) = pauses.values()
        seconds.append(pause.until - now[0])
        now[0] = pause.until
    assert seconds == [60, 120, 240, 480, 960, 960, 960]

    there = loop.store.get("DeviceClaim", "default", "w")
    loop.store.replace({**there, "spec": gpu_claim("w", 6)["spec"]})
    loop.settle()
    loop.settle()
    assert [pause.until - now[0] for pause in pauses.values()] == [60], "another claim, which costs something else"
    loop.store.delete("DeviceClaim", "default", "w")
    loop.settle()
    assert pauses == {}


def test_claims_that_a_change_could_help_do_not_go_before_more_urgent_ones_either(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting, "MAX_NEW", 2)
    fill(loop.store, *(of_model(gpu_claim(f"has{number}"), "x") for number in range(2)))
    loop.settle()
    loop.store.create(of_model(gpu_claim("rests", namespace="b"), "x"))
    loop.settle()
    urgent = [of_model(gpu_claim(f"w{number}", namespace="a", priority="5"), "y") for number in range(3)]
    fill(loop.store, *urgent, of_model(gpu_claim("w3", namespace="a", priority="5"), "x"))
    loop.store.delete("DeviceClaim", "default", "has0")
    loop.settle()
    assert held(loop.store, "w3", "a")
    assert not held(loop.store, "rests", "b")


def test_a_machine_that_rests_has_the_room_of_the_only_other_one(loop: Loop) -> None:
    fill(loop.store, host("n", cpus=2), machine("first", "2", "1Gi"))
    loop.settle()
    loop.store.create(machine("second", "2", "1Gi"))
    loop.settle()
    loop.settle()
    assert loop.allocator._resting is not None
    assert len(loop.allocator._resting) == 1
    loop.store.delete("VirtualMachine", "default", "first")
    loop.settle()
    assert loop.store.get("VirtualMachine", "default", "second")["status"]["nodeName"] == "n"


# -- after a start -----------------------------------------------------------------------------------------------------


FIRST = {"w0", "w1", "w10", "w11"}
"""Of these the claims of which a start finds the reasons anew at once."""


def of_shapes(count: int) -> list[Object]:
    """Claims that ask for different things, of which no node has enough."""
    return [of_model(gpu_claim(f"w{number}", 3 + number), "x") for number in range(count)]


def restarted(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The claims that the first round of another allocator asks for."""
    requested: set[str] = set()
    allocate_all = Fleet.allocate_all

    def noted(self: Fleet, claims: Any, *limits: Any, **options: Any) -> Any:
        claims = [*claims]
        requested.update(claim["metadata"]["name"] for claim in claims)
        return allocate_all(self, claims, *limits, **options)

    monkeypatch.setattr(Fleet, "allocate_all", noted)
    loop.allocator = machine_allocator(loop.store, settings=loop.settings)
    loop.allocator.round()
    monkeypatch.undo()
    return requested


def test_few_refusals_that_are_recorded_and_still_hold_are_found_anew_at_once_at_a_start(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(loop.store, *of_shapes(20))
    loop.settle()
    before = loop.store.list("DeviceClaim").objects
    assert restarted(loop, monkeypatch) == FIRST
    assert loop.store.list("DeviceClaim").objects == before
    fill(loop.store, of_model(gpu_claim("new"), "x"))
    loop.settle()
    assert held(loop.store, "new")


def test_claims_that_fit_or_never_had_an_answer_are_asked_for_at_a_start(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(loop.store, gpu_claim("has", 2), *of_shapes(20), of_model(gpu_claim("y", 2), "y"), gpu_claim("of-none"))
    loop.settle()
    fill(loop.store, of_model(gpu_claim("later", 9), "y"))
    loop.store.delete("DeviceClaim", "default", "has")
    assert {"later"} <= restarted(loop, monkeypatch) - FIRST <= {"later", "y", "of-none"}
    assert annotations(loop.store, "later")["reason"] == "NotEnoughDevices"
    assert all(held(loop.store, name) for name in ("y", "of-none"))


def test_a_refusal_is_found_anew_at_a_start_if_there_are_such_devices_now(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(loop.store, *of_shapes(20), of_model(gpu_claim("z", 3), "z"))
    loop.settle()
    assert annotations(loop.store, "z")["reason"] == "NoMatchingDevices"
    fill(loop.store, gpu_pool("r", node="k", model="z"))
    assert restarted(loop, monkeypatch) == {*FIRST, "z"}
    assert annotations(loop.store, "z")["reason"] == "NotEnoughDevices"


def test_what_is_recorded_of_another_spec_does_not_hold_at_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path, form=IN_CONDITIONS)
    fill(loop.store, *of_shapes(20))
    loop.settle()
    there = loop.store.get("DeviceClaim", "default", "w7")
    loop.store.replace({**there, "spec": gpu_claim("w7", 70)["spec"]})
    assert restarted(loop, monkeypatch) == {*FIRST, "w7"}
    assert "70" in loop.store.get("DeviceClaim", "default", "w7")["status"]["conditions"][0]["message"]
    loop.store.close()


def test_what_is_recorded_of_a_group_does_not_hold_once_its_claim_has_left_it(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group is named in an annotation, which is no part of a generation."""
    fill(loop.store, *of_shapes(20))
    loop.settle()
    there = loop.store.get("DeviceClaim", "default", "w7")
    notes = {**there["metadata"]["annotations"], REASON: "GroupUnsatisfiable"}
    loop.store.replace({**there, "metadata": {**there["metadata"], "annotations": notes}})
    assert restarted(loop, monkeypatch) == {*FIRST, "w7"}
    assert annotations(loop.store, "w7")["reason"] == "NotEnoughDevices"


def test_what_is_recorded_is_found_anew_soon_after_a_start(loop: Loop) -> None:
    claims = (gpu_claim(f"w{number}", priority=f"-{number + 1}") for number in range(20))
    fill(loop.store, *(of_model(claim, "x") for claim in (gpu_claim("old", 2), *claims)))
    loop.settle()
    assert "default/old" in annotations(loop.store, "w7")["message"]
    loop.store.delete("DeviceClaim", "default", "old")
    fill(loop.store, of_model(gpu_claim("another", 2), "x"))
    loop.allocator = machine_allocator(loop.store, settings=loop.settings)
    loop.allocator.round()
    assert "default/old" in annotations(loop.store, "w7")["message"]
    for _ in range(10):
        loop.settle()
    assert "default/another" in annotations(loop.store, "w7")["message"]

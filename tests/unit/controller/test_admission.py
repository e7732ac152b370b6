"""Counts of devices for each class and namespace, and who may have admin access."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest

from devalloc.api.claim import DeviceClaim, DeviceClaimStatus
from devalloc.api.decode import decode
from devalloc.api.object_meta import ObjectMeta
from devalloc.controller.reconcile.device_claims import AllocatorListener
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.release import release_claim
from devalloc.store import Event, EventType, Store
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import solve_manifests
from devalloc_solver.pipeline import admission, quota
from tests.support.fleet_manifests import annotations, fill, gpu_claim, gpu_class, gpu_pool, held
from tests.support.host_pools import host, machine, node_by_machine, status
from tests.support.machine_allocator import machine_allocator

Object = dict[str, Any]
COUNTED = "gpu.deviceclass.devmgmtproto.k8s.io/devices"
LABELLED = AllocatorSettings(admin_namespaces="labelled")


def limit(most: object, device_class: str = "gpu", *, name: str = "compute", namespace: str = "default") -> Object:
    """A ResourceQuota."""
    hard = {f"{device_class}.deviceclass.devmgmtproto.k8s.io/devices": most, "pods": "10"}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}


def claim(name: str, *details: Object, **annotations: str) -> Object:
    """A claim of these entries."""
    return {**gpu_claim(name, **annotations), "spec": {"claims": list(details)}}


def space(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def used(store: Store, name: str = "compute") -> Object:
    status: Object = store.get("ResourceQuota", "default", name).get("status", {})
    return {key.partition(".")[0]: number for key, number in status.get("used", {}).items()}


def reason(store: Store, name: str) -> str | None:
    return annotations(store, name).get("reason")


class TestCounts:
    def test_earlier_claims_get_what_a_quota_allows_and_later_ones_a_reason(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=8), gpu_class(), limit("3"))
        fill(store, gpu_claim("a", 2), gpu_claim("b", 2), gpu_claim("c"), gpu_claim("d", namespace="other"))
        machine_allocator(store).round()
        assert {name: len(held(store, name)) for name in "abc"} == {"a": 2, "b": 0, "c": 1}
        assert held(store, "d", "other") != []
        assert reason(store, "b") == "QuotaExceeded"
        assert annotations(store, "b")["message"] == (
            "quota default/compute allows 3 devices of class gpu; others hold them or come first; "
            "delete one, or have it raised"
        )
        assert used(store) == {"gpu": "3"}

    @pytest.mark.parametrize("name", [field.alias or name for name, field in ObjectMeta.model_fields.items()])
    def test_null_is_as_good_as_absent(self, store: SQLiteStore, name: str) -> None:
        claims = [gpu_claim("a"), gpu_claim("b"), gpu_claim("c")]
        for one in claims[:2] if name != "name" else ():
            one["metadata"][name] = None
        fill(store, gpu_pool(devices=8), gpu_class(), limit(1), *claims)
        machine_allocator(store).round()
        stored = store.list("DeviceClaim").objects
        given = {one["metadata"]["name"]: len(one.get("status", {}).get("allocations", ())) for one in stored}
        assert given == {"a": 1, "b": 0, "c": 0}
        assert used(store) == {"gpu": "1"}

    @pytest.mark.parametrize("name", [field.alias or name for name, field in DeviceClaimStatus.model_fields.items()])
    def test_null_is_as_good_as_absent_in_a_status(self, store: SQLiteStore, name: str) -> None:
        fill(store, gpu_pool(devices=8), gpu_class(), limit(1), gpu_claim("a"), gpu_claim("b"), gpu_claim("c"))
        for one in "ab":
            store.replace_status({**store.get("DeviceClaim", "default", one), "status": {name: None}})
        machine_allocator(store).round()
        assert {one: len(held(store, one)) for one in "abc"} == {"a": 1, "b": 0, "c": 0}
        assert used(store) == {"gpu": "1"}

    def test_what_a_claim_holds_counts_though_the_rest_of_it_cannot_be_read(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=8), gpu_class(), limit(2), gpu_claim("a", 2))
        machine_allocator(store).round()
        status = {**store.get("DeviceClaim", "default", "a")["status"], "conditions": "nothing"}
        store.replace_status({**store.get("DeviceClaim", "default", "a"), "status": status})
        fill(store, gpu_claim("b"))
        machine_allocator(store).round()
        assert (len(held(store, "a")), held(store, "b")) == (2, [])
        assert reason(store, "b") == "QuotaExceeded"
        assert used(store) == {"gpu": "2"}

    def test_released_devices_no_longer_count_in_the_quota(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=8), gpu_class(), limit(2), gpu_claim("a", 2), gpu_claim("b", 2))
        allocator = machine_allocator(store)
        allocator.round()
        assert (len(held(store, "a")), reason(store, "b")) == (2, "QuotaExceeded")
        store.delete("DeviceClaim", "default", "a")
        allocator.round()
        assert (len(held(store, "b")), reason(store, "b")) == (2, None)
        release_claim(store, "default", "b")
        store.delete("DeviceClaim", "default", "b")
        allocator.round()
        assert used(store) == {"gpu": "0"}

    def test_a_waiting_claim_is_not_written_when_others_get_or_release_devices(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=8), gpu_class(), limit(2))
        fill(store, *(gpu_claim(name, 2) for name in "abcdef"))
        allocator = machine_allocator(store)
        allocator.round()
        before = store.get("DeviceClaim", "default", "f")
        for name in "abc":
            store.delete("DeviceClaim", "default", name)
            allocator.round()
        assert len(held(store, "d")) == 2
        assert store.get("DeviceClaim", "default", "f") == before

    def test_priority_comes_before_age(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=8), gpu_class(), limit(1), gpu_claim("old"), gpu_claim("high", priority="5"))
        machine_allocator(store).round()
        assert (held(store, "old"), len(held(store, "high"))) == ([], 1)

    def test_a_claim_that_waits_for_something_else_takes_nothing_from_later_ones(self, store: SQLiteStore) -> None:
        waits = [gpu_claim(name, 2, node="nowhere") for name in ("a", "b", "c")]
        fill(store, gpu_pool(devices=8), gpu_class(), limit(2), *waits, gpu_claim("d"), gpu_claim("e", 2))
        allocator = machine_allocator(store)
        allocator.round()
        assert {name: reason(store, name) for name in "abc"} == dict.fromkeys("abc", "NodeUnavailable")
        assert (len(held(store, "d")), reason(store, "e")) == (1, "QuotaExceeded")
        allocator.round()
        reasons = {name: reason(store, name) for name in "abc"}
        assert reasons == dict.fromkeys("abc", "NodeUnavailable"), "nothing has changed that could help them"
        version = store.list().resource_version
        allocator.round()
        assert store.list().resource_version == version, "and then there is nothing to write"

    def test_no_number_of_waiting_claims_keeps_others_from_their_turn(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=3), gpu_class(), limit(1))
        fill(store, *(gpu_claim(f"a{number:02}", node="nowhere") for number in range(40)), gpu_claim("z"))
        machine_allocator(store).round()
        assert held(store, "z") == ["p/d0"]
        assert {reason(store, f"a{number:02}") for number in range(40)} == {"NodeUnavailable"}

    def test_a_loser_of_the_batch_takes_nothing_of_the_quota(self, store: SQLiteStore) -> None:
        """The first of this namespace loses to one of another, and the room in the quota is its neighbour's."""
        fill(store, gpu_pool(devices=1), gpu_pool("q", 1, node="m"), gpu_class(), limit(1))
        high = gpu_claim("high", namespace="other", priority="9", node="n")
        fill(store, high, gpu_claim("a", node="n"), gpu_claim("b", node="m"))
        allocator = machine_allocator(store)
        allocator.round()
        assert held(store, "high", "other") == ["p/d0"]
        assert (held(store, "b"), reason(store, "a")) == (["q/d0"], None)
        allocator.round()
        assert reason(store, "a") == "QuotaExceeded"

    def test_a_lowered_quota_takes_nothing_away(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=8), gpu_class(), gpu_claim("a", 4), limit(8))
        allocator = machine_allocator(store)
        allocator.round()
        tight = store.get("ResourceQuota", "default", "compute")
        store.replace({**tight, "spec": limit(1)["spec"]})
        fill(store, gpu_claim("b"))
        allocator.round()
        assert (len(held(store, "a")), held(store, "b")) == (4, [])
        assert used(store) == {"gpu": "4"}

    def test_the_strictest_of_several_quotas_counts(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=8), gpu_class(), limit(8), limit(1, name="tight"), gpu_claim("a", 2))
        machine_allocator(store).round()
        assert annotations(store, "a")["message"] == (
            "quota default/tight allows 1 device of class gpu, and this claim may get up to 2; "
            "ask for less, or have it raised"
        )

    def test_groups_get_all_or_nothing_of_it(self, store: SQLiteStore) -> None:
        other = claim("c", {"deviceClass": "nic"}, group="g")
        fill(store, gpu_pool(devices=8), gpu_class(), gpu_class("nic"), limit(3), other)
        fill(store, gpu_claim("a", 2, group="g"), gpu_claim("b", 2, group="g"), gpu_claim("d", 3))
        machine_allocator(store).round()
        assert len(held(store, "d")) == 3, "the group takes nothing of what it may not have"
        assert {name: reason(store, name) for name in "abc"} == {
            "a": "QuotaExceeded",
            "b": "QuotaExceeded",
            "c": "GroupUnsatisfiable",
        }
        assert "its group may get up to 4; ask for less, or have it raised" in annotations(store, "a")["message"]
        assert "default/a of its group gets nothing: quota" in annotations(store, "c")["message"]

    def test_a_long_reason_is_the_same_wherever_it_is_read(self, store: SQLiteStore) -> None:
        """At most 120 characters, in answers as in annotations."""
        name = "a-claim-with-a-rather-long-name"
        fill(store, gpu_pool(), gpu_class(), gpu_class("nic"), limit(1), gpu_claim(name, 2, group="g"))
        fill(store, claim("c", {"deviceClass": "nic"}, group="g"))
        answers = {each["name"]: each for each in solve_manifests(store.list().objects)["claims"]}
        machine_allocator(store).round()
        message = answers["c"]["message"]
        assert message == annotations(store, "c")["message"]
        assert message is not None
        assert message.endswith("…; ask for less, or have it raised")
        assert len(message) <= 120

    def test_a_machine_waits_with_its_claims_and_says_why(self, store: SQLiteStore) -> None:
        small = machine("web", "1", "1Gi")
        small["spec"]["claims"] = ["a", "b"]
        fill(store, host("n", cpus=4), gpu_pool(devices=8), gpu_class(), limit(1), gpu_claim("a"), gpu_claim("b"))
        fill(store, small)
        machine_allocator(store).round()
        assert node_by_machine(store) == {}
        assert (held(store, "a"), held(store, "b")) == ([], [])
        assert "quota default/compute allows 1 device of class" in status(store, "web")["message"]
        store.replace({**store.get("ResourceQuota", "default", "compute"), "spec": limit(2)["spec"]})
        machine_allocator(store).round()
        assert (node_by_machine(store), len(held(store, "a")), len(held(store, "b"))) == ({"web": "n"}, 1, 1)

    @pytest.mark.parametrize(
        ("detail", "most"),
        [
            ({"deviceClass": "gpu"}, 1),
            ({"deviceClass": "gpu", "requests": {"count": 4}}, 4),
            ({"deviceClass": "gpu", "requests": {"count": 1}, "limits": {"count": 3}}, 3),
            ({"deviceClass": "gpu", "requests": {"memory": "1Gi"}, "limits": {"count": 2}}, 2),
            ({"deviceClass": "gpu", "requests": {"memory": "1Gi"}}, "spec.claims[0]"),
            ({"deviceClass": "other", "requests": {"count": 4}}, 0),
            ({"deviceType": "card", "requests": {"count": 4}}, 4),
            ({"deviceType": "none", "requests": {"count": 4}}, 0),
            ({"constraints": "device.kind == 'gpu'", "requests": {"count": 4}}, 4),
            ({"oneOf": [{"deviceClass": "gpu"}, {"deviceClass": "gpu", "requests": {"count": 5}}]}, 5),
            (
                {"oneOf": [{"deviceClass": "other"}, {"deviceClass": "gpu", "requests": {"m": 1}}]},
                "spec.claims[0].oneOf[1]",
            ),
            ({"deviceClass": "watch", "requests": {"count": 4}}, 0),
        ],
    )
    def test_what_a_claim_may_get_at_most(self, detail: Object, most: int | str) -> None:
        classes = quota.classes_among(
            [gpu_class(deviceType="card"), gpu_class("watch", adminAccess=True, deviceType="card")]
        )
        read = decode(claim("a", detail)).object
        assert isinstance(read, DeviceClaim)
        assert quota.max_devices(read, "gpu", classes) == most
        assert quota.max_devices(read, "watch", classes) == 0, "admin access counts nothing"

    def test_the_refusal_of_an_open_count_asks_for_a_limit(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), limit(8), claim("a", {"deviceClass": "gpu", "requests": {"memory": "1Gi"}}))
        machine_allocator(store).round()
        assert annotations(store, "a")["message"] == (
            "spec.claims[0]: quota default/compute counts devices of class gpu; set limits.count to how many it may get"
        )

    @pytest.mark.parametrize("most", ["many", -1, None, [], {"a": 1}])
    def test_a_quota_that_cannot_be_read_allows_nothing(self, store: SQLiteStore, most: object) -> None:
        fill(store, gpu_pool(), gpu_class(), limit(most), gpu_claim("a"))
        machine_allocator(store).round()
        assert reason(store, "a") == "QuotaExceeded"

    @pytest.mark.parametrize("status", [{"hard": 1, "used": []}, {"used": None}])
    def test_a_status_that_cannot_be_read_is_written_anew(self, store: SQLiteStore, status: Any) -> None:
        fill(store, gpu_pool(), gpu_class(), limit(1), gpu_claim("a"))
        store.replace_status({**store.get("ResourceQuota", "default", "compute"), "status": status})
        machine_allocator(store).round()
        assert store.get("ResourceQuota", "default", "compute")["status"]["used"] == {COUNTED: "1"}

    @pytest.mark.parametrize("spec", ["x", None, {"hard": "x"}, {"hard": None}])
    def test_a_quota_that_says_nothing_bounds_nothing(self, store: SQLiteStore, spec: Any) -> None:
        fill(store, gpu_pool(), gpu_class(), {**limit(0), "spec": spec}, gpu_claim("a"))
        machine_allocator(store).round()
        assert len(held(store, "a")) == 1

    def test_quotas_of_pods_and_what_others_count_are_left_alone(self, store: SQLiteStore) -> None:
        scoped = limit(0, name="scoped")
        scoped["spec"]["scopes"] = ["BestEffort"]
        fill(store, gpu_pool(), gpu_class(), limit(1), scoped, gpu_claim("a"))
        theirs = store.get("ResourceQuota", "default", "compute")
        store.replace_status({**theirs, "status": {"hard": {"pods": "10"}, "used": {"pods": "7"}}})
        machine_allocator(store).round()
        assert len(held(store, "a")) == 1
        stored = store.get("ResourceQuota", "default", "compute")["status"]
        assert stored == {"hard": {"pods": "10", COUNTED: "1"}, "used": {"pods": "7", COUNTED: "1"}}

    def test_no_choice_of_claims_gets_more_than_is_allowed(self, store: SQLiteStore) -> None:
        """Random claims come and go; what is held never exceeds a quota, and what fits in it is not refused for it."""
        random = Random("counts")
        fill(store, gpu_pool(devices=40), gpu_class(), gpu_class("nic"), limit(7), limit(4, "nic", name="net"))
        allocator = machine_allocator(store)
        refusals = 0
        for step in range(25):
            for number in range(random.randrange(3)):
                names = random.choices(["gpu", "nic"], k=random.randrange(1, 3))
                details = [{"deviceClass": name, "requests": {"count": random.randrange(1, 4)}} for name in names]
                group = {"group": f"g{step}"} if random.random() < 0.4 else {}
                fill(store, claim(f"c{step}-{number}", *details, **group))
            claims = store.list("DeviceClaim").objects
            if claims and random.random() < 0.5:
                store.delete("DeviceClaim", "default", random.choice(claims)["metadata"]["name"])
            allocator.round()
            count = {"gpu": 0, "nic": 0}
            waiting = []
            for one in store.list("DeviceClaim").objects:
                entries = one["spec"]["claims"]
                if one.get("status", {}).get("allocations"):
                    for entry in entries:
                        count[entry["deviceClass"]] += entry["requests"]["count"]
                else:
                    waiting.append(one)
            assert count["gpu"] <= 7
            assert count["nic"] <= 4
            assert {**used(store), **used(store, "net")} == {name: str(number) for name, number in count.items()}
            for one in waiting:
                refusals += 1
                assert annotations(store, one["metadata"]["name"])["reason"] in ("QuotaExceeded", "GroupUnsatisfiable")
                if "annotations" in one["metadata"] and "devalloc.io/group" in one["metadata"]["annotations"]:
                    continue
                requested = {
                    name: sum(e["requests"]["count"] for e in one["spec"]["claims"] if e["deviceClass"] == name)
                    for name in count
                }
                assert count["gpu"] + requested["gpu"] > 7 or count["nic"] + requested["nic"] > 4, one["metadata"][
                    "name"
                ]
        assert refusals > 5

    def test_solving_files_counts_as_well(self) -> None:
        from devalloc.machines.schedule.what_if import solve_with_machines

        answer = solve_with_machines([gpu_pool(), gpu_class(), limit(1), gpu_claim("a"), gpu_claim("b")])
        assert [(one["name"], one["allocated"], one["reason"]) for one in answer["claims"]] == [
            ("a", True, None),
            ("b", False, "QuotaExceeded"),
        ]
        assert answer["problems"] == []

    def test_without_quotas_the_solver_is_asked_once_and_of_everything(self) -> None:
        calls = []

        def solve(documents: list[Object]) -> Object:
            calls.append(documents)
            return solve_manifests(documents)

        documents = [gpu_pool(), gpu_class(), gpu_claim("a"), space("default")]
        admission.solve_admitted(documents, solve)
        assert calls == [documents[:3]], "but of what is nothing to it"


class TestAdminAccess:
    @pytest.fixture
    def watched(self, store: SQLiteStore) -> SQLiteStore:
        fill(store, gpu_pool(), gpu_class(), gpu_class("watch", adminAccess=True))
        fill(store, claim("w", {"deviceClass": "watch"}), gpu_claim("a", group="g"))
        fill(store, claim("v", {"oneOf": [{"deviceClass": "gpu"}, {"deviceClass": "watch"}]}, group="g"))
        return store

    def test_everywhere_unless_asked_for(self, watched: SQLiteStore) -> None:
        machine_allocator(watched).round()
        assert held(watched, "w") == ["p/d0", "p/d1"]

    def test_in_labelled_namespaces_only(self, watched: SQLiteStore) -> None:
        fill(watched, space("default", **{"devalloc.io/admin-access": "yes"}))
        allocator = machine_allocator(watched, settings=LABELLED)
        allocator.round()
        assert {name: reason(watched, name) for name in "wva"} == {
            "w": "AdminAccessDenied",
            "v": "AdminAccessDenied",
            "a": "GroupUnsatisfiable",
        }
        assert annotations(watched, "w")["message"] == (
            'class watch gives admin access; an admin must label namespace default devalloc.io/admin-access: "true"'
        )
        labelled = watched.get("Namespace", None, "default")
        metadata = {**labelled["metadata"], "labels": {"devalloc.io/admin-access": "true"}}
        watched.replace({**labelled, "metadata": metadata})
        allocator.round()
        assert [len(held(watched, name)) for name in "wva"] == [2, 1, 1]

    def test_a_holder_keeps_its_devices(self, watched: SQLiteStore) -> None:
        machine_allocator(watched).round()
        machine_allocator(watched, settings=LABELLED).round()
        assert (len(held(watched, "w")), reason(watched, "w")) == (2, None)

    def test_a_namespace_that_is_not_known_is_not_labelled(self, watched: SQLiteStore) -> None:
        machine_allocator(watched, settings=LABELLED).round()
        assert reason(watched, "w") == "AdminAccessDenied"


class TestWhatWakes:
    """Of namespaces and quotas a cluster changes much that no answer depends on."""

    @pytest.mark.parametrize(
        ("before", "after", "wakes"),
        [
            (space("default"), space("default", team="a"), False),
            (space("default"), space("default", **{"devalloc.io/admin-access": "true"}), True),
            (limit(1), limit(2), True),
            (limit(1), {**limit(1), "status": {"used": {"pods": "3", COUNTED: "0"}}}, False),
            (limit(1), {**limit(1), "status": {"used": {COUNTED: "7"}}}, True),
            (limit(1), None, True),
            (space("default"), None, False),
        ],
    )
    def test_only_what_is_read_does(
        self, store: SQLiteStore, before: Object, after: Object | None, wakes: bool
    ) -> None:
        fill(store, before)
        allocator = machine_allocator(store, settings=AllocatorSettings(resync=0.01))
        allocator.round()
        event = Event(EventType.DELETED if after is None else EventType.MODIFIED, after or before, "99")
        assert allocator._matters(event) is wakes

    def test_a_concurrent_writer_of_a_quota_costs_one_more_round(self, store: SQLiteStore) -> None:
        """The quota controller of a cluster writes the status of a new quota while it is looked at first."""
        fill(store, limit(1))
        stop, rounds = threading.Event(), []

        def solve(documents: Any, **settings: Any) -> Object:
            if not rounds:
                theirs = store.get("ResourceQuota", "default", "compute")
                store.replace_status({**theirs, "status": {"hard": {"pods": "10"}}})
            return solve_manifests(documents)

        def progress(done: object) -> None:
            rounds.append(done)
            if used(store) == {"gpu": "0"}:
                stop.set()

        loop = machine_allocator(
            store, settings=AllocatorSettings(resync=3600), solve=solve, listener=AllocatorListener(progress)
        )
        thread = threading.Thread(target=loop.run, args=(stop,), daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        assert len(rounds) == 2
        assert store.get("ResourceQuota", "default", "compute")["status"]["hard"]["pods"] == "10"

    def test_a_quota_that_is_raised_is_answered_at_once(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(), gpu_class(), limit(0), gpu_claim("a"))
        stop, rounds = threading.Event(), []

        def progress(done: object) -> None:
            rounds.append(done)
            if len(rounds) == 1:
                assert reason(store, "a") == "QuotaExceeded"
                store.replace({**store.get("ResourceQuota", "default", "compute"), "spec": limit(1)["spec"]})
            elif held(store, "a"):
                stop.set()

        loop = machine_allocator(store, settings=AllocatorSettings(resync=60), listener=AllocatorListener(progress))
        thread = threading.Thread(target=loop.run, args=(stop,), daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        assert held(store, "a") == ["p/d0"]

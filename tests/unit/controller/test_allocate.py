"""The allocator: what one round writes, what it must never write, and that it settles."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.api.meta import REASON
from devalloc.api.views import ClaimView
from devalloc.controller.reconcile import loop as reconcile_loop
from devalloc.controller.reconcile.decision import IN_CONDITIONS, AnswerForm
from devalloc.controller.reconcile.device_claims import AllocatorListener, DeviceClaimAllocator, DeviceClaimRound
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.release import release_claim
from devalloc.controller.reconcile.stored_claims import effective_documents
from devalloc.store import Change, CommitOutcomes, Event, Fence, NoSpace, SkippedForSpace, Store, Unavailable, Unusable
from devalloc.store.kubernetes import KubernetesStore
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import solve_manifests
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.fleet_manifests import annotations, fill, gpu_claim, gpu_class, gpu_pool, held, owners
from tests.support.waiting import until

Object = dict[str, Any]
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


class TestAnswers:
    def test_a_claim_gets_its_devices_and_what_goes_with_them(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a"))
        done = DeviceClaimAllocator(store).round()
        assert held(store, "a") == ["p/d0"]
        noted = annotations(store, "a")
        assert noted["allocated-node"] == "n"
        assert json.loads(noted["allocation-details"]) == ["0"]
        assert json.loads(noted["allocated-spec"]) == gpu_claim("a")["spec"]
        assert "reason" not in noted
        assert (done.claims, done.allocated, done.waiting) == (1, 1, 0)
        assert (done.pools, done.devices, done.available) == (1, 2, 1)
        assert [key.name for key in done.granted] == ["a"]

    def test_a_claim_notes_which_hardware_it_got(self, store: SQLiteStore) -> None:
        """Its node compares: firmware may number the buses anew."""
        fill(store, gpu_pool("p", 1, serial="S1", vendorID="0x10de", model="x"), gpu_class(), gpu_claim("a"))
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        noted = annotations(store, "a")["allocated-identities"]
        assert json.loads(noted) == {"p/d0": {"serial": "S1", "vendorID": "0x10de"}}
        fill(store, gpu_pool("q", 1), gpu_claim("b"))
        allocator.round()
        assert held(store, "b") == ["q/d0"]
        assert "allocated-identities" not in annotations(store, "b"), "its pool shows nothing of it"

    def test_a_released_claim_is_not_reported_as_granted(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a"))
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        now = store.get("DeviceClaim", "default", "a")
        now["metadata"]["annotations"]["devalloc.io/release"] = "asked"
        store.replace(now)
        done = allocator.round()
        assert (done.granted, held(store, "a")) == ([], [])

    def test_a_condition_comes_and_goes_with_its_devices(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a", 2), gpu_claim("b"))
        allocator = DeviceClaimAllocator(store, settings=AllocatorSettings(form=IN_CONDITIONS), now=lambda: NOW)
        allocator.round()
        condition, ready = store.get("DeviceClaim", "default", "a")["status"]["conditions"]
        assert ready == {**condition, "type": "Ready"}, "for tools that know no other condition"
        assert condition == {
            "type": "Allocated",
            "status": "True",
            "lastTransitionTime": "2026-01-31T12:00:00Z",
            "reason": "Allocated",
            "message": "p/d0, d1 on node n",
            "observedGeneration": 1,
        }
        assert decode(store.get("DeviceClaim", "default", "a")).problems == []
        allocator.round()  # says who has won
        version = store.list().resource_version
        allocator.round()
        assert store.list().resource_version == version
        release_claim(store, "default", "a")
        assert "status" not in store.get("DeviceClaim", "default", "a")

    def test_on_a_cluster_a_refusal_is_a_condition_and_no_annotation(self, store: SQLiteStore) -> None:
        """The status and the annotations would be two requests."""
        fill(store, gpu_pool(), gpu_class(), gpu_claim("big", 9))
        allocator = DeviceClaimAllocator(store, settings=AllocatorSettings(form=IN_CONDITIONS), now=lambda: NOW)
        allocator.round()
        claim = store.get("DeviceClaim", "default", "big")
        condition, ready = claim["status"]["conditions"]
        assert ready == {**condition, "type": "Ready"}
        assert condition == {
            "type": "Allocated",
            "status": "False",
            "lastTransitionTime": "2026-01-31T12:00:00Z",
            "reason": "NotEnoughDevices",
            "message": solve_manifests(store.list().objects)["claims"][0]["message"],
            "observedGeneration": 1,
        }
        assert "annotations" not in claim["metadata"]
        assert decode(claim).problems == []

    def test_an_unchanged_answer_is_no_write(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("big", 9), gpu_claim("fits"))
        allocator = DeviceClaimAllocator(store, settings=AllocatorSettings(form=IN_CONDITIONS))
        allocator.round()
        allocator.round()
        version = store.list().resource_version
        for loop in (allocator, DeviceClaimAllocator(store, settings=AllocatorSettings(form=IN_CONDITIONS))):
            loop.round()
            assert store.list().resource_version == version

    def test_a_condition_names_the_generation_that_was_answered_and_when_its_status_changed(
        self, store: SQLiteStore
    ) -> None:
        times = iter(NOW.replace(minute=minute) for minute in range(60))
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a", 9))
        allocator = DeviceClaimAllocator(store, settings=AllocatorSettings(form=IN_CONDITIONS), now=lambda: next(times))

        def answer() -> tuple[str, int, str]:
            allocator.round()
            condition = store.get("DeviceClaim", "default", "a")["status"]["conditions"][0]
            return condition["status"], condition["observedGeneration"], condition["lastTransitionTime"][14:16]

        assert answer() == ("False", 1, "00")
        store.replace({**store.get("DeviceClaim", "default", "a"), "spec": gpu_claim("a", 8)["spec"]})
        assert answer() == ("False", 2, "00")
        store.replace({**store.get("DeviceClaim", "default", "a"), "spec": gpu_claim("a", 1)["spec"]})
        assert answer() == ("True", 3, "02")

    def test_a_problem_of_its_devices_is_the_reason_of_a_true_condition(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a"))
        allocator = DeviceClaimAllocator(store, settings=AllocatorSettings(form=IN_CONDITIONS))
        allocator.round()
        store.replace({**store.get("DeviceClaim", "default", "a"), "spec": gpu_claim("a", 2)["spec"]})
        allocator.round()
        claim = store.get("DeviceClaim", "default", "a")
        states = {(one["type"], one["status"], one["reason"]) for one in claim["status"]["conditions"]}
        assert states == {("Allocated", "True", "SpecChanged"), ("Ready", "True", "SpecChanged")}
        assert ClaimView(claim).message.startswith("the spec was edited after the allocation")
        store.replace({**claim, "spec": gpu_claim("a")["spec"]})
        allocator.round()
        claim = store.get("DeviceClaim", "default", "a")
        assert {one["reason"] for one in claim["status"]["conditions"]} == {"Allocated"}
        assert ClaimView(claim).reason == ""

    def test_a_reason_in_an_annotation_of_an_earlier_version_gives_way_to_the_condition(
        self, store: SQLiteStore
    ) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("big", 9))
        DeviceClaimAllocator(store).round()
        before = store.get("DeviceClaim", "default", "big")
        assert ClaimView(before).reason == before["metadata"]["annotations"][REASON] == "NotEnoughDevices"
        DeviceClaimAllocator(store, settings=AllocatorSettings(form=IN_CONDITIONS)).round()
        now = store.get("DeviceClaim", "default", "big")
        assert (ClaimView(now).reason, ClaimView(now).message) == (ClaimView(before).reason, ClaimView(before).message)
        assert "annotations" not in now["metadata"]

    def test_reasons_can_be_in_conditions_and_annotations(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("big", 9))
        form = AnswerForm(in_conditions=True, in_annotations=True)
        DeviceClaimAllocator(store, settings=AllocatorSettings(form=form)).round()
        claim = store.get("DeviceClaim", "default", "big")
        assert claim["metadata"]["annotations"][REASON] == claim["status"]["conditions"][0]["reason"]

    def test_for_the_solver_a_claim_that_says_why_it_waits_has_no_status(self, store: SQLiteStore) -> None:
        """Specs of such claims are read once for all that ask for the same."""
        fill(store, gpu_pool(), gpu_class(), gpu_claim("big", 9))
        DeviceClaimAllocator(store, settings=AllocatorSettings(form=IN_CONDITIONS)).round()
        claim = store.get("DeviceClaim", "default", "big")
        assert "status" in claim
        assert all("status" not in document for document in effective_documents([claim]))

    def test_conditions_of_others_stay(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a"))
        claim = store.get("DeviceClaim", "default", "a")
        others = {"type": "Billed", "status": "True"}
        store.replace_status({**claim, "status": {"conditions": [others, {"type": "Allocated", "status": "False"}]}})
        DeviceClaimAllocator(store, settings=AllocatorSettings(form=IN_CONDITIONS)).round()
        stored = store.get("DeviceClaim", "default", "a")["status"]["conditions"]
        states = [(each["type"], each["status"]) for each in stored]
        assert states == [("Billed", "True"), ("Allocated", "True"), ("Ready", "True")]

    def test_an_embedded_store_has_none_because_the_release_before_would_not_know_them(
        self, store: SQLiteStore
    ) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a"))
        DeviceClaimAllocator(store).round()
        assert store.get("DeviceClaim", "default", "a")["status"].keys() == {"allocations"}

    def test_a_reason_names_no_claims_of_other_namespaces_on_a_cluster(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(), gpu_class(), *(gpu_claim(name, 1, "team-b") for name in ("secret", "plan")))
        allocator = DeviceClaimAllocator(store, settings=AllocatorSettings(hides_names=True))
        allocator.round()
        fill(store, gpu_claim("waits", 2, "team-a"), gpu_claim("waits", 2, "team-b"))
        allocator.round()
        message = annotations(store, "waits", "team-a")["message"]
        assert message.endswith("; wait for 2 claims of other namespaces")
        assert "team-b/secret" in annotations(store, "waits", "team-b")["message"]
        version = store.list().resource_version
        allocator.round()
        DeviceClaimAllocator(store, settings=AllocatorSettings(hides_names=True)).round()
        assert store.list().resource_version == version, "what is said already costs no write"
        DeviceClaimAllocator(store).round()
        assert "team-b/secret" in annotations(store, "waits", "team-a")["message"]

    def test_what_kubectl_shows_of_a_claim_is_mended(self, store: SQLiteStore) -> None:
        """Claims of versions that did not write it, and what another writer put there."""
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a", 2))
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        assert annotations(store, "a")["allocated-devices"] == "p/d0, d1"
        for text in (None, "none at all"):
            claim = store.get("DeviceClaim", "default", "a")
            noted = {**claim["metadata"]["annotations"], "devalloc.io/allocated-devices": text}
            noted = {name: value for name, value in noted.items() if value is not None}
            store.replace({**claim, "metadata": {**claim["metadata"], "annotations": noted}})
            allocator.round()
            assert annotations(store, "a")["allocated-devices"] == "p/d0, d1"

    def test_a_claim_without_devices_says_why_until_it_has_them(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), gpu_claim("a"))
        allocator = DeviceClaimAllocator(store)
        done = allocator.round()
        assert (done.allocated, done.waiting) == (0, 1)
        assert annotations(store, "a")["reason"] == "NoMatchingDevices"
        assert annotations(store, "a")["message"]
        store.create(gpu_pool())
        allocator.round()
        assert held(store, "a") == ["p/d0"]
        assert annotations(store, "a").keys() == {
            "allocated-node",
            "allocated-devices",
            "allocation-details",
            "allocated-spec",
        }

    def test_an_invalid_claim_has_a_reason_and_stops_no_other(self, store: SQLiteStore) -> None:
        wrong = gpu_claim("wrong")
        wrong["spec"]["claims"][0]["deviceClas"] = "gpu"
        unnamed = {**gpu_claim("undecodable"), "spec": "nonsense"}
        fill(store, gpu_pool(), gpu_class(), wrong, unnamed, gpu_claim("z"), {**gpu_pool("bad"), "spec": 3})
        done = DeviceClaimAllocator(store).round()
        assert held(store, "z") == ["p/d0"]
        assert annotations(store, "wrong")["reason"] == "ClaimInvalid"
        assert "deviceClas" in annotations(store, "wrong")["message"]
        assert annotations(store, "undecodable")["reason"] == "ClaimInvalid"
        assert any("DevicePool bad" in problem for problem in done.problems)

    @pytest.mark.parametrize(
        "status",
        [
            {"allocations": "p/d1"},
            {"allocations": ["p/d1", {"devicePoolName": "p"}]},
            {"allocations": [{"devicePoolName": "p", "deviceName": "d1"}], "deviceStatuses": ["good"]},
            {"allocations": [{"devicePoolName": "p", "deviceName": "d1"}], "deviceStatuses": {"conditions": 1}},
        ],
    )
    def test_nor_does_one_with_an_invalid_status(self, store: SQLiteStore, status: Any) -> None:
        fill(store, gpu_pool(devices=2), gpu_class(), gpu_claim("odd"), gpu_claim("a"))
        store.replace_status({**store.get("DeviceClaim", "default", "odd"), "status": status})
        problems = DeviceClaimAllocator(store).round().problems
        assert held(store, "a") == ["p/d0"]
        assert store.get("DeviceClaim", "default", "odd")["status"] == status
        assert problems[0].startswith("DeviceClaim default/odd status.")

    def test_configs_are_copied_as_of_the_allocation(self, store: SQLiteStore) -> None:
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c"}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}}
        wanting = gpu_claim("a")
        wanting["spec"]["claims"][0]["configs"] = [reference]
        fill(store, gpu_pool(), gpu_class(configs=[{**reference, "namespace": "default"}]), wanting)
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        assert annotations(store, "a")["reason"] == "ConfigNotFound"
        made = store.create({**config, "data": {"x": "1"}})
        allocator.round()
        store.replace({**made, "data": {"x": "2"}})
        allocator.round()
        status = store.get("DeviceClaim", "default", "a")["status"]
        for copies in (status["classConfigs"], status["claimConfigs"]):
            assert [copy["data"] for copy in copies] == [{"x": "1"}]

    def test_an_answer_already_true_writes_nothing(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("a"), gpu_claim("b"), {**gpu_claim("c"), "spec": {}})
        allocator = DeviceClaimAllocator(store)
        allocator.round()  # b loses to a
        allocator.round()  # b finds the device in use
        before = store.list()
        allocator.round()
        DeviceClaimAllocator(store).round()
        assert store.list() == before

    def test_what_others_wrote_on_a_claim_stays(self, store: SQLiteStore) -> None:
        annotated = gpu_claim("a", priority="5")
        annotated["metadata"] |= {"labels": {"l": "1"}, "finalizers": ["f"]}
        fill(store, gpu_class(), annotated)
        noted = store.get("DeviceClaim", "default", "a")
        store.replace_status({**noted, "status": {"podNames": ["vm-1"]}})
        store.create(gpu_pool())
        DeviceClaimAllocator(store).round()
        after = store.get("DeviceClaim", "default", "a")
        assert after["status"]["podNames"] == ["vm-1"]
        assert after["metadata"]["labels"] == {"l": "1"}
        assert after["metadata"]["finalizers"] == ["f"]
        assert after["metadata"]["annotations"]["devalloc.io/priority"] == "5"

    def test_a_claim_being_deleted_is_not_answered_and_holds_what_it_has(self, store: SQLiteStore) -> None:
        for name in ("a", "b"):
            obj = gpu_claim(name)
            obj["metadata"]["finalizers"] = ["f"]
            store.create(obj)
        fill(store, gpu_class(), gpu_pool(devices=1))
        store.delete("DeviceClaim", "default", "b")
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        assert (held(store, "a"), held(store, "b"), annotations(store, "b")) == (["p/d0"], [], {})
        store.delete("DeviceClaim", "default", "a")
        store.create(gpu_claim("c"))
        allocator.round()
        assert held(store, "c") == []
        last = store.get("DeviceClaim", "default", "a")
        del last["metadata"]["finalizers"]
        store.replace(last)
        allocator.round()
        assert held(store, "c") == ["p/d0"]

    def test_available_devices_are_counted(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=3), gpu_class(), gpu_claim("a", count=2), gpu_pool("q", devices=1))
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        counts = {o["metadata"]["name"]: o["status"]["availableDevices"] for o in store.list("DevicePool").objects}
        assert counts in ({"p": 1, "q": 1}, {"p": 3, "q": 1})
        release_claim(store, "default", "a")
        store.delete("DeviceClaim", "default", "a")
        allocator.round()
        assert store.get("DevicePool", None, "p")["status"] == {"availableDevices": 3}


class TestGroups:
    def test_all_members_or_none(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("a", group="vm"), gpu_claim("b", group="vm"))
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        assert owners(store) == {}
        store.create(gpu_pool("q", devices=2))
        allocator.round()
        assert sorted(held(store, "a") + held(store, "b")) == ["q/d0", "q/d1"]

    def test_a_group_whose_member_changed_meanwhile_waits_as_a_whole(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=9), gpu_class(), gpu_claim("single"))
        fill(store, *(gpu_claim(name, group="vm") for name in "abc"))
        once = iter([lambda: store.delete("DeviceClaim", "default", "b")])
        allocator = DeviceClaimAllocator(store, solve=meanwhile(lambda: next(once, lambda: None)()))
        done = allocator.round()
        assert held(store, "single")
        assert held(store, "a") == held(store, "c") == []
        assert {key.name for key in done.stale} == {"a", "b", "c"}
        allocator.round()
        assert held(store, "a")
        assert held(store, "c")


def meanwhile(
    act: Callable[[], object], solve: Callable[..., dict[str, Any]] = solve_manifests
) -> Callable[..., dict[str, Any]]:
    """The solver, with something happening while it thinks."""

    def interrupted(documents: Iterable[Object], **settings: Any) -> dict[str, Any]:
        answer = solve(documents, **settings)
        act()
        return answer

    return interrupted


class TestExclusivity:
    def test_two_allocators_never_give_one_device_twice(self, store: SQLiteStore) -> None:
        """The second decides on the same state as the first and commits after it."""
        fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("a"))
        other = DeviceClaimAllocator(store)

        def first() -> None:
            store.create(gpu_claim("b", priority="9"))
            other.round()

        done = DeviceClaimAllocator(store, solve=meanwhile(first)).round()
        assert owners(store) == {"p/d0": 1}
        assert done.granted == []

    def test_nor_when_the_other_touches_no_claim_of_ours(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("a"), gpu_claim("b"))
        status = {"allocations": [{"devicePoolName": "p", "deviceName": "d0"}]}

        def other() -> None:
            store.replace_status({**store.get("DeviceClaim", "default", "b"), "status": status})

        def solve(documents: Iterable[Object], **settings: Any) -> dict[str, Any]:
            return solve_manifests([doc for doc in documents if doc["metadata"]["name"] != "b"], **settings)

        assert DeviceClaimAllocator(store, solve=meanwhile(other, solve)).round().granted == []
        assert owners(store) == {"p/d0": 1}

    @pytest.mark.parametrize("what", ["released and given away", "pool gone", "device gone", "class changed"])
    def test_a_decision_on_a_state_that_is_over_is_not_written(self, store: SQLiteStore, what: str) -> None:
        fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("a"))

        def change() -> None:
            match what:
                case "released and given away":
                    store.create(gpu_claim("b", priority="9"))
                    DeviceClaimAllocator(store).round()
                case "pool gone":
                    store.delete("DevicePool", None, "p")
                case "device gone":
                    store.replace({**store.get("DevicePool", None, "p"), "spec": gpu_pool(devices=0)["spec"]})
                case "class changed":
                    store.replace({**store.get("DeviceClass", None, "gpu"), "spec": {"driver": "other"}})

        DeviceClaimAllocator(store, solve=meanwhile(change)).round()
        assert held(store, "a") == []

    def test_what_nodes_say_of_their_devices_costs_no_decision(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=3), gpu_class(), gpu_claim("a"))
        DeviceClaimAllocator(store).round()
        fill(store, gpu_claim("b"), gpu_claim("c"))

        def report_pods() -> None:
            claim = store.get("DeviceClaim", "default", "a")
            store.replace_status({**claim, "status": {**claim["status"], "podNames": ["vm-1"]}})

        done = DeviceClaimAllocator(store, solve=meanwhile(report_pods)).round()
        assert sorted(key.name for key in done.granted) == ["b", "c"]
        assert (owners(store), done.stale) == ({"p/d0": 1, "p/d1": 1, "p/d2": 1}, [])

    def test_nor_does_a_decision_wait_for_ever_while_they_do(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=2), gpu_class(), gpu_claim("a"))
        DeviceClaimAllocator(store).round()
        store.create(gpu_claim("b"))
        numbers = iter(range(1000))

        class Busy:
            """A store in which a node says something before every commit."""

            def __getattr__(self, name: str) -> Any:
                if name == "commit_each":
                    claim = store.get("DeviceClaim", "default", "a")
                    names = [str(next(numbers))]
                    store.replace_status({**claim, "status": {**claim["status"], "podNames": names}})
                return getattr(store, name)

        assert DeviceClaimAllocator(Busy()).round().granted == []  # type: ignore[arg-type]
        assert next(numbers) < 20

    def test_many_allocators_at_once(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=6), gpu_class(), *(gpu_claim(f"c{n}") for n in range(9)))

        def run() -> None:
            with closing(SQLiteStore(store.path)) as own_store:
                for _ in range(4):
                    DeviceClaimAllocator(own_store).round()

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(owners(store).values()) == [1] * 6


class PassedOver:
    """A store that notes which events of its watch its reader passed over, and asked for the next one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.objects: list[Object] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def watch(self, *arguments: Any, **named: Any) -> Iterator[Event]:
        with closing(self._store.watch(*arguments, **named)) as events:
            for event in events:
                yield event
                self.objects.append(event.object)


class Loop:
    """An allocator that runs in a thread, and its rounds."""

    def __init__(
        self, store: Store, progress: Callable[[DeviceClaimRound], None] = lambda done: None, **settings: Any
    ) -> None:
        self.rounds: list[DeviceClaimRound] = []
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.store = PassedOver(store)
        self.progress = progress
        allocator = DeviceClaimAllocator(self.store, listener=AllocatorListener(self.note), **settings)  # type: ignore[arg-type]
        self.thread = threading.Thread(target=self.run, args=(allocator,))

    def run(self, allocator: DeviceClaimAllocator) -> None:
        try:
            allocator.run(self.stop)
        except BaseException as error:
            self.error = error

    def note(self, done: DeviceClaimRound) -> None:
        self.rounds.append(done)
        self.progress(done)

    def until(self, condition: Callable[[], bool], what: str = "it comes about") -> None:
        until(condition, what, context=lambda: (self.error, self.rounds))

    def passes_over(self, is_one: Callable[[Object], bool]) -> None:
        """Until it has been told of such an object, and waits for more: it has no round for that."""
        self.until(lambda: any(map(is_one, self.store.objects)), "an event of such an object is passed over")

    def __enter__(self) -> Loop:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


class TestLoop:
    def test_answers_what_comes_and_gives_on_what_goes(self, store: SQLiteStore) -> None:
        with Loop(store) as loop:
            fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("a"))
            loop.until(lambda: held(store, "a") == ["p/d0"])
            store.create(gpu_claim("b"))
            loop.until(lambda: "reason" in annotations(store, "b"))
            store.delete("DeviceClaim", "default", "a")
            loop.until(lambda: held(store, "b") == ["p/d0"])

    def test_its_own_writes_do_not_wake_it(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("a"), gpu_claim("b"))
        with Loop(store) as loop:
            loop.until(lambda: "reason" in annotations(store, "b"))
            loop.passes_over(lambda obj: "devalloc.io/reason" in obj["metadata"].get("annotations", {}))
            assert len(loop.rounds) == 2, "a claim that got nothing shows the owner, once there is one"

    def test_claims_applied_together_are_solved_together(self, store: SQLiteStore) -> None:
        """The claim of lower priority comes first and does not get the only device."""
        fill(store, gpu_pool(devices=1), gpu_class())
        with Loop(store, settings=AllocatorSettings(batch=0.5)) as loop:
            loop.until(lambda: len(loop.rounds) == 1)
            store.create(gpu_claim("low"))
            store.create(gpu_claim("high", priority="1"))
            loop.until(lambda: owners(store) == {"p/d0": 1})
            assert held(store, "high") == ["p/d0"]

    def test_goes_on_after_a_round_that_failed(self, store: SQLiteStore, caplog: pytest.LogCaptureFixture) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a"))
        failures = iter([RuntimeError("boom"), RuntimeError("boom")])

        def fail() -> None:
            if error := next(failures, None):
                raise error

        with Loop(store, solve=meanwhile(fail), settings=AllocatorSettings(retry=0.01)) as loop:
            loop.until(lambda: held(store, "a") == ["p/d0"])
        assert caplog.text.count("RuntimeError: boom") == 2

    def test_of_many_problems_at_a_start_some_are_logged_and_the_rest_counted(
        self, store: SQLiteStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        claims = [gpu_claim(f"c{number:02}") for number in range(15)]
        fill(store, gpu_pool(devices=15), gpu_class(), *claims)
        DeviceClaimAllocator(store).round()
        pool = store.get("DevicePool", None, "p")
        store.replace({**pool, "spec": {**pool["spec"], "devices": []}})
        caplog.clear()
        DeviceClaimAllocator(store).round()
        lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert sum("no longer exists" in line for line in lines) == 10
        assert lines[-1] == "and 5 more problems: `devalloc solve` lists all"

    def test_an_error_of_the_store_is_one_line_for_as_long_as_it_lasts(
        self, store: SQLiteStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a"))
        failures = iter([Unavailable("disk full"), Unavailable("disk full"), Unavailable("busy")])

        def fail() -> None:
            if error := next(failures, None):
                raise error

        with Loop(store, solve=meanwhile(fail), settings=AllocatorSettings(retry=0.01)) as loop:
            loop.until(lambda: held(store, "a") == ["p/d0"])
        errors = [record for record in caplog.records if record.levelname == "ERROR"]
        assert [(record.getMessage(), record.exc_info) for record in errors] == [
            ("could not answer the claims; next try in 0 s: disk full", None),
            ("could not answer the claims; next try in 0 s: busy", None),
        ]

    @pytest.mark.parametrize("is_alone", [False, True])
    def test_claims_are_answered_soon_after_a_full_disk_has_space_again(
        self, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, is_alone: bool
    ) -> None:
        """Of a batch the store leaves some out; a unit that is alone fails as a whole."""
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a"), gpu_claim("b"))
        commit_each, full = SQLiteStore.commit_each, iter(range(3))

        def some(self: SQLiteStore, units: Sequence[Sequence[Change]], fence: Fence | None = None) -> CommitOutcomes:
            if units and next(full, None) is not None:
                if is_alone:
                    raise Unavailable("no space") from NoSpace("no space")
                left = [SkippedForSpace({change.key: "no space" for change in unit}, "no space") for unit in units]
                return CommitOutcomes(left, self.list(()).resource_version)
            return commit_each(self, units, fence)

        monkeypatch.setattr(SQLiteStore, "commit_each", some)
        monkeypatch.setattr(reconcile_loop, "_NO_SPACE_SECONDS", 0.01)
        with Loop(store, settings=AllocatorSettings(retry=600, resync=600)) as loop:
            loop.until(lambda: held(store, "a") == ["p/d0"] and held(store, "b") == ["p/d1"])

    def test_ends_when_the_store_is_beyond_use(self, store: SQLiteStore) -> None:
        def break_down() -> None:
            raise Unusable("damaged")

        with Loop(store, solve=meanwhile(break_down)) as loop:
            loop.thread.join(60)
        assert isinstance(loop.error, Unusable)

    def test_looks_again_now_and_then(self, store: SQLiteStore) -> None:
        with Loop(store, settings=AllocatorSettings(resync=0.05)) as loop:
            loop.until(lambda: len(loop.rounds) >= 3)


class TestAvailabilityNowAndThen:
    """On a cluster each write of availableDevices is a request: they wait for each other, and never for long."""

    def test_counts_from_before_the_first_pool_are_not_reported(self, store: SQLiteStore) -> None:
        """As where a round is decided again: "pools 0" was said of a cluster with pools."""
        now = [1000.0]
        allocator = DeviceClaimAllocator(store, settings=AllocatorSettings(availability=10.0), clock=lambda: now[0])
        assert allocator.round().in_words == "pools 0, devices 0 (0 available), claims 0 (0 allocated, 0 waiting)"
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a"))
        assert allocator.round().in_words == "claims 1 (1 allocated, 0 waiting)"
        now[0] += 10
        counted = "pools 1, devices 2 (1 available), claims 1 (1 allocated, 0 waiting)"
        assert allocator.round().in_words == counted

    def test_it_is_written_when_it_is_due_and_then_without_another_round(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=4), gpu_class(), gpu_claim("a"))

        def progress(done: DeviceClaimRound) -> None:
            if len(loop.rounds) == 1:
                store.create(gpu_claim("b"))

        def says(obj: Object) -> int:
            return int(obj.get("status", {}).get("availableDevices", -1)) if obj["kind"] == "DevicePool" else -1

        loop = Loop(store, progress, settings=AllocatorSettings(availability=0.4, batch=0.0, resync=600))
        with loop:
            loop.until(lambda: says(store.get("DevicePool", None, "p")) == 2, "it is written")
            loop.passes_over(lambda obj: says(obj) == 2)
        assert [done.available for done in loop.rounds] == [3, 3], "as of the last count"


def test_what_a_node_says_of_devices_is_no_reason_to_decide_again(store: SQLiteStore) -> None:
    fill(store, gpu_pool(devices=2), gpu_class(), gpu_claim("a"))
    with Loop(store, settings=AllocatorSettings(batch=0.0, resync=600)) as loop:
        loop.until(lambda: len(loop.rounds) == 1)
        claim = store.get("DeviceClaim", "default", "a")
        statuses = [{"devicePoolName": "p", "deviceName": "d0", "conditions": [{"type": "Healthy", "status": "True"}]}]
        claim = store.replace_status({**claim, "status": {**claim["status"], "deviceStatuses": statuses}})
        loop.passes_over(lambda obj: obj == claim)
        assert len(loop.rounds) == 1, "what its device is like"
        store.create(gpu_claim("b"))
        loop.until(lambda: held(store, "b") == ["p/d1"] and len(loop.rounds) == 2)
        metadata = {
            **claim["metadata"],
            "annotations": {**claim["metadata"]["annotations"], "devalloc.io/release": "x"},
        }
        store.replace({**claim, "metadata": metadata})
        loop.until(lambda: len(loop.rounds) >= 3)


def test_what_a_user_writes_while_a_group_is_being_written_wakes_the_loop() -> None:
    """After its devices count, and before the mark is taken off its claim, which the same event tells of."""
    kube = FakeKube()
    client = FakeClient(kube)
    with closing(KubernetesStore(client)) as own, closing(KubernetesStore(FakeClient(kube))) as users:  # type: ignore[arg-type]
        fill(users, gpu_pool(devices=2), gpu_class(), gpu_claim("a", group="g"), gpu_claim("b", group="g"))
        calls: list[str] = []

        def before(number: int, what: str) -> None:
            calls.append(what)
            if what.endswith("/deviceclaims/a") and calls.count(what) == 2:
                claim = users.get("DeviceClaim", "default", "a")
                assert "devalloc.io/transaction" in claim["metadata"]["annotations"]
                metadata = claim["metadata"]
                noted = {**metadata["annotations"], "devalloc.io/release": "asked"}
                users.replace({**claim, "metadata": {**metadata, "annotations": noted}})

        client.before = before
        with Loop(own, settings=AllocatorSettings(batch=0.0, resync=600)) as loop:
            loop.until(lambda: len(loop.rounds) >= 2)

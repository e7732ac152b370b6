"""Refusals that still hold: a change asks only for claims that it could help, and no more than could have a place."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from devalloc_solver import Fleet
from devalloc_solver.fleet.waiting import FIRST_REFRESHED, REFRESH_SECONDS, YIELD_SECONDS, WaitingBook
from tests.support import random_fleets
from tests.support.examples import examples
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool

Object = dict[str, Any]


class Waiting:
    """A fleet of two full kinds of devices, a book, and what is asked of the fleet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.fleet = Fleet.from_manifests([gpu_pool("p", devices=2, model="x"), gpu_pool("q", model="y"), gpu_class()])
        for number in range(4):
            assert self.fleet.allocate(gpu_claim(f"held-{number}"))["allocated"]
        self.book = WaitingBook(clock=lambda: self.seconds)
        self.questions: list[str] = []
        prospects = self.fleet.prospects

        def noted(claim: Object, deadline: float | None = None, **options: Any) -> Any:
            self.questions.append(claim["metadata"]["name"])
            return prospects(claim, deadline, **options)

        monkeypatch.setattr(self.fleet, "prospects", noted)
        self.book.catch_up(self.fleet)

    def rest(self, *claims: Object) -> None:
        for number, claim in enumerate(claims):
            answer: Any = self.fleet.allocate(claim)
            assert self.book.rest(self.fleet, claim["metadata"]["name"], (0, number), claim, answer)

    def refusal(self, claim: Object) -> Any:
        return self.book.refusal(self.fleet.waiting_key(claim))

    def still_holds(self, claim: Object, **options: bool) -> bool:
        return self.book.still_holds(self.fleet, claim, self.fleet.waiting_key(claim), **options)

    def change(self, *pools: Object, released: str = "") -> list[Any]:
        """The units that are asked for after a change."""
        self.questions.clear()
        for pool in pools:
            self.fleet.update(pool)
        if released:
            self.fleet.release("default", released)
        self.book.catch_up(self.fleet)
        return self.book.wake(self.fleet)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(monkeypatch)


def of_model(claim: Object, model: str) -> Object:
    claim["spec"]["claims"][0]["constraints"] = f"device.model == '{model}'"
    return claim


def holder_in(fleet: Fleet, pool: str) -> str:
    """A claim that holds a device of a pool."""
    answers: list[Any] = [fleet.allocate(gpu_claim(f"held-{number}")) for number in range(4)]
    return next(str(each["name"]) for each in answers if each["allocations"][0]["devicePoolName"] == pool)


def test_equal_claims_are_one_question(waiting: Waiting) -> None:
    waiting.rest(*(gpu_claim(f"w{number}") for number in range(20)))
    assert waiting.questions == ["w0"]


def test_a_claim_of_which_equals_wait_gets_the_same_answer_and_nothing_is_asked(waiting: Waiting) -> None:
    waiting.rest(gpu_claim("w"))
    waiting.questions.clear()
    answer = waiting.refusal(gpu_claim("new"))
    expected: Any = waiting.fleet.allocate(gpu_claim("new"))
    assert answer is not None
    assert {**answer, "name": "new"} == expected
    assert not waiting.questions
    for other in (gpu_claim("n", count=2), gpu_claim("n", namespace="b"), gpu_claim("n", priority="1")):
        assert waiting.refusal(other) is None


def test_what_is_free_again_asks_for_claims_that_could_use_it_and_no_others(waiting: Waiting) -> None:
    waiting.rest(of_model(gpu_claim("x"), "x"), of_model(gpu_claim("y"), "y"))
    assert waiting.change(released=holder_in(waiting.fleet, "q")) == ["y"]
    assert waiting.questions == ["y"]


def test_no_more_are_woken_than_could_have_a_place_the_first_by_order(waiting: Waiting) -> None:
    waiting.rest(*(gpu_claim(f"w{number}") for number in range(20)))
    assert waiting.change(released="held-0") == ["w0"]
    assert waiting.change(released="held-1") == ["w1"], "w0 has no answer yet"
    assert waiting.change() == [], "until these have their answers"


def of_one_model(name: str) -> Object:
    claim = gpu_claim(name, count=2)
    claim["spec"]["claims"][0]["matchAttributes"] = ["model"]
    return claim


def test_a_claim_that_still_fits_nowhere_is_not_woken(waiting: Waiting) -> None:
    waiting.rest(of_one_model("w"))
    one, other = holder_in(waiting.fleet, "p"), holder_in(waiting.fleet, "q")
    waiting.fleet.release("default", one)
    assert waiting.change(released=other) == []
    assert waiting.questions == ["w"], "two are free, of two models"
    assert waiting.refusal(of_one_model("new")) is not None, "it is known again"


def test_a_claim_for_which_a_node_has_too_few_free_devices_is_not_asked_about(waiting: Waiting) -> None:
    group = [gpu_claim("one-of-three", count=3), gpu_claim("two-of-three", count=2)]
    assert waiting.book.rest_together(waiting.fleet, "group", (0,), group)
    waiting.rest(gpu_claim("two", count=2), gpu_claim("three", count=3), of_model(gpu_claim("x", count=2), "x"))
    assert waiting.change(released="held-0") == []
    assert waiting.questions == []
    assert waiting.change(released="held-1") == ["group", "two", "x"]
    assert waiting.questions == ["two", "x"]
    assert waiting.change(released="held-2") == ["three"]


def test_free_devices_of_the_network_count_on_every_node(waiting: Waiting) -> None:
    waiting.fleet.update(gpu_pool("net", devices=1, node=None, model="x"))
    waiting.rest(gpu_claim("w", count=2))
    waiting.book.catch_up(waiting.fleet)
    waiting.book.wake(waiting.fleet)
    assert waiting.change(released="held-0") == ["w"]


@pytest.mark.parametrize("seed", range(examples(40)))
def test_no_claim_is_left_alone_that_could_have_a_place(seed: int) -> None:
    """In random fleets, with partitions, shares and devices of the network, while claims and pools come and go."""
    chance = random.Random(seed)
    documents = random_fleets.documents(chance)
    fleet, book = Fleet.from_manifests(documents), WaitingBook()
    book.catch_up(fleet)
    drawn = [one for _ in range(4) for one in random_fleets.documents(chance) if one["kind"] == "DeviceClaim"]
    claims = [
        {**one, "metadata": {**one["metadata"], "name": f"w{number}"}}
        for number, one in enumerate(drawn)
        if "status" not in one
    ]
    pools = [document for document in documents if document["kind"] == "DevicePool"]
    for _ in range(12):
        for number, claim in enumerate(claims):
            if claim["metadata"]["name"] not in book and not fleet.holds("default", claim["metadata"]["name"]):
                answer: Any = fleet.allocate(claim)
                if not answer["allocated"]:
                    book.rest(fleet, claim["metadata"]["name"], (number,), claim, answer)
        chance.choice((release, republish))(chance, fleet, claims, pools)
        book.catch_up(fleet)
        for claim in claims:
            if claim["metadata"]["name"] in book and book.refusal(fleet.waiting_key(claim)) is not None:
                prospects = fleet.prospects(claim)
                assert prospects is not None
                assert not prospects.fits
        if chance.random() < 0.5:
            for unit in book.wake(fleet):
                book.discard(unit)


def release(chance: random.Random, fleet: Fleet, claims: list[Object], pools: list[Object]) -> None:
    names = [name for claim in claims if fleet.holds("default", name := claim["metadata"]["name"])]
    for name in chance.sample(names, min(len(names), 2)):
        fleet.release("default", name)


def republish(chance: random.Random, fleet: Fleet, claims: list[Object], pools: list[Object]) -> None:
    pool = copy.deepcopy(chance.choice(pools))
    devices = pool["spec"].get("devices")
    if isinstance(devices, list) and devices:
        pool["spec"]["devices"] = chance.sample(devices, chance.randint(1, len(devices)))
    fleet.update(pool)


def test_a_pool_that_is_new_or_larger_wakes_and_one_of_another_driver_does_not(waiting: Waiting) -> None:
    waiting.rest(gpu_claim("w"))
    other = gpu_pool("nic", model="z")
    other["spec"]["driver"] = "nic.devalloc.io"
    assert waiting.change(other) == []
    assert waiting.questions == []
    assert waiting.change(gpu_pool("r", node="other", model="never seen")) == ["w"]


def test_what_is_taken_wakes_none(waiting: Waiting) -> None:
    waiting.fleet.release("default", "held-0")
    waiting.rest(gpu_claim("w", count=2))
    waiting.book.catch_up(waiting.fleet)
    waiting.book.wake(waiting.fleet)
    waiting.questions.clear()
    assert waiting.fleet.allocate(gpu_claim("new"))["allocated"]
    assert waiting.change() == []
    assert waiting.questions == []


def test_a_class_that_changes_asks_for_all_and_a_configuration_for_those_that_lack_one(waiting: Waiting) -> None:
    lacks = gpu_claim("lacks")
    reference = {"apiVersion": "devalloc.io/v1alpha1", "kind": "VfConfig", "name": "c"}
    lacks["spec"]["claims"][0]["configs"] = [reference]
    waiting.rest(gpu_claim("w"), lacks)
    config = {**reference, "metadata": {"name": "c", "namespace": "default"}, "spec": {}}
    config.pop("name")
    waiting.change(config)
    assert waiting.questions == ["lacks"]
    waiting.change(gpu_class("another"))
    assert sorted(waiting.questions) == ["lacks", "w"]


def test_namespaces_take_turns_and_the_rest_is_left_to_the_next_call(waiting: Waiting) -> None:
    many = [of_model(gpu_claim(f"a{number}", count=number + 1, namespace="a"), "x") for number in range(50)]
    waiting.rest(*many, of_model(gpu_claim("b", namespace="b"), "x"))
    waiting.questions.clear()
    waiting.fleet.update(gpu_pool("r", node="other", devices=50, model="x"))
    waiting.book.catch_up(waiting.fleet)
    waiting.book.clock = lambda: len(waiting.questions)
    waiting.book.wake(waiting.fleet, 4)
    assert len(waiting.questions) == 4
    assert "b" in waiting.questions
    assert waiting.book.is_behind


def test_a_call_wakes_no_more_than_so_many_the_most_urgent_first_and_the_next_call_the_others(waiting: Waiting) -> None:
    shapes = [of_model(gpu_claim(f"w{number}", namespace="a"), "x' || 'y' == 'y" * number) for number in (3, 1, 2)]
    for place, claim in zip((3, 1, 2), shapes, strict=True):
        answer: Any = waiting.fleet.allocate(claim)
        assert waiting.book.rest(waiting.fleet, claim["metadata"]["name"], (place,), claim, answer)
    waiting.fleet.release("default", holder_in(waiting.fleet, "p"))
    waiting.book.catch_up(waiting.fleet)
    assert waiting.book.wake(waiting.fleet, count=2) == ["w1", "w2"]
    assert waiting.book.is_behind
    assert waiting.book.wake(waiting.fleet, count=2) == ["w3"]


def test_an_old_refusal_is_solved_again_once_for_all_its_equals(waiting: Waiting) -> None:
    waiting.rest(*(gpu_claim(f"w{number}") for number in range(5)))
    waiting.seconds += REFRESH_SECONDS
    assert waiting.book.outdated(10) == [], "nothing has changed meanwhile"
    waiting.fleet.delete(gpu_claim("held-0"))
    waiting.fleet.allocate(gpu_claim("another"))
    waiting.book.catch_up(waiting.fleet)
    assert waiting.book.wake(waiting.fleet) == []
    assert waiting.book.outdated(10) == ["w0"]
    assert waiting.refusal(gpu_claim("new")) is None, "it is to be found anew"
    waiting.rest(gpu_claim("w0"))
    assert sorted(waiting.book.outdated(3) + waiting.book.outdated(3)) == ["w1", "w2", "w3", "w4"]
    assert not waiting.book.has_outdated


def test_an_old_refusal_that_still_holds_wakes_no_equal(waiting: Waiting) -> None:
    waiting.rest(*(of_model(gpu_claim(f"w{number}"), "x") for number in range(5)))
    waiting.seconds += REFRESH_SECONDS
    waiting.change(gpu_class("another"))
    assert waiting.book.outdated(10) == ["w0"]
    waiting.rest(of_model(gpu_claim("w0"), "x"))
    assert not waiting.book.has_outdated
    assert waiting.book.outdated(10) == []


def test_a_refusal_is_found_anew_at_once_when_a_pool_goes_and_when_it_is_back(waiting: Waiting) -> None:
    """A kubelet that starts deletes the slices of its node, and drivers publish them again (kueue#8748)."""
    pool, claim = gpu_pool("p", devices=2, model="x"), of_model(gpu_claim("w"), "x")
    waiting.rest(claim)
    waiting.fleet.delete(pool)
    assert waiting.change() == []
    assert waiting.book.outdated(10) == ["w"]
    waiting.rest(claim)
    assert waiting.refusal(claim)["reason"] == "NoMatchingDevices"
    assert waiting.change(pool) == [], "its devices are held"
    assert waiting.book.outdated(10) == ["w"]
    waiting.rest(claim)
    assert waiting.refusal(claim)["reason"] == "DevicesInUse"


def age(waiting: Waiting) -> None:
    """All refusals are old, and the fleet has changed since."""
    waiting.seconds += REFRESH_SECONDS
    waiting.book.catch_up(waiting.fleet)


def test_namespaces_take_turns_in_having_old_refusals_found_anew(waiting: Waiting) -> None:
    many = [of_model(gpu_claim(f"a{number}", count=number + 1, namespace="a"), "x") for number in range(20)]
    waiting.rest(*many, of_model(gpu_claim("b", namespace="b"), "x"))
    age(waiting)
    assert waiting.book.outdated(2) == ["a0", "b"]
    assert waiting.book.outdated(2) == ["a1", "a2"], "the oldest first"


def test_new_claims_go_before_old_refusals_but_not_for_long(waiting: Waiting) -> None:
    waiting.rest(gpu_claim("w0"), gpu_claim("w1", count=2), gpu_claim("w2", count=3))
    age(waiting)
    assert waiting.book.outdated(1, yields=True) == ["w0"], "none was found anew for a long time"
    assert waiting.book.outdated(1, yields=True) == []
    assert waiting.book.outdated(1) == ["w1"]
    waiting.seconds += YIELD_SECONDS
    assert waiting.book.outdated(1, yields=True) == ["w2"]


def test_as_many_old_refusals_are_found_anew_as_there_is_time_for(waiting: Waiting) -> None:
    claims = {f"w{number}": gpu_claim(f"w{number}", count=number + 1) for number in range(60)}
    waiting.rest(*claims.values())
    age(waiting)
    numbers = []
    for seconds_each in (1, 1, 1, 4, 4, 40, 40):
        units = [str(unit) for unit in waiting.book.outdated(50, seconds=12)]
        numbers.append(len(units))
        waiting.seconds += seconds_each * len(units)
        waiting.rest(*(claims[unit] for unit in units))
    assert numbers == [FIRST_REFRESHED, 8, 12, 12, 3, 3, 1]


def test_a_refusal_that_many_changes_outdate_is_found_anew_no_sooner_than_others(waiting: Waiting) -> None:
    waiting.rest(*(of_model(gpu_claim(f"w{number}", count=number + 1), "x") for number in range(3)))
    units = []
    for devices in (1, 2, 1):
        waiting.fleet.update(gpu_pool("p", devices=devices, model="x"))
        waiting.book.catch_up(waiting.fleet)
        units += waiting.book.outdated(1)
    assert units == ["w0", "w1", "w2"]


def test_a_configuration_that_comes_wakes_the_group_of_a_claim_that_lacked_it(waiting: Waiting) -> None:
    lacks = gpu_claim("lacks")
    lacks["spec"]["claims"][0]["configs"] = [{"apiVersion": "devalloc.io/v1alpha1", "kind": "VfConfig", "name": "c"}]
    assert waiting.book.rest_together(waiting.fleet, "group", (0,), [gpu_claim("other"), lacks])
    assert waiting.change() == []
    metadata = {"name": "c", "namespace": "default"}
    config = {"apiVersion": "devalloc.io/v1alpha1", "kind": "VfConfig", "metadata": metadata, "spec": {}}
    assert waiting.change(config) == ["group"]


def test_units_are_woken_again_if_an_error_kept_them_from_being_heard_of(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting.rest(gpu_claim("w0"), gpu_claim("w1", namespace="b"))
    prospects = waiting.fleet.prospects

    def fail_at_the_second(claim: Object, deadline: float | None = None) -> Any:
        if claim["metadata"]["name"] == "w1":
            raise RuntimeError
        return prospects(claim, deadline)

    with monkeypatch.context() as patch:
        patch.setattr(waiting.fleet, "prospects", fail_at_the_second)
        with pytest.raises(RuntimeError):
            waiting.change(released="held-0")
    assert waiting.book.wake(waiting.fleet) == ["w0", "w1"]


# -- refusals that are recorded on claims when a book begins -----------------------------------------------------------


def recorded(waiting: Waiting, *claims: Object, is_of_rules: bool = False) -> list[str]:
    """The claims whose recorded refusals still hold, which rest with these."""
    names = []
    for number, claim in enumerate(claims):
        name, answer = claim["metadata"]["name"], {"message": "as it was"}
        if waiting.still_holds(claim, is_of_rules=is_of_rules):
            assert waiting.book.rest(waiting.fleet, name, (0, number), claim, answer, is_recorded=True)
            names.append(name)
    return names


def test_a_recorded_refusal_holds_while_its_claim_fits_nowhere_which_equals_are_asked_once(waiting: Waiting) -> None:
    assert recorded(waiting, gpu_claim("w0"), gpu_claim("w1")) == ["w0", "w1"]
    assert waiting.questions == ["w0"]
    waiting.fleet.release("default", "held-0")
    waiting.book.catch_up(waiting.fleet)
    assert recorded(waiting, gpu_claim("w2")) == [], "one of its equals is to be asked for first"
    assert recorded(waiting, gpu_claim("w3", priority="1")) == [], "it fits"


def test_a_refusal_for_want_of_any_device_holds_only_while_there_is_none(waiting: Waiting) -> None:
    assert recorded(waiting, gpu_claim("w"), is_of_rules=True) == []
    assert recorded(waiting, of_model(gpu_claim("z"), "z")) == []
    assert recorded(waiting, of_model(gpu_claim("z"), "z"), is_of_rules=True) == ["z"]


def test_a_recorded_refusal_is_found_anew_and_all_equals_get_another_message(waiting: Waiting) -> None:
    claims = {name: gpu_claim(name) for name in ("w0", "w1", "w2")}
    recorded(waiting, claims["w0"], claims["w1"])
    assert waiting.refusal(gpu_claim("new")) is None, "no answer is known"
    assert waiting.book.outdated(10) == ["w0"]
    assert recorded(waiting, claims["w0"]) == [], "it is being found"
    waiting.rest(claims["w0"])
    assert recorded(waiting, claims["w2"]) == []
    assert waiting.refusal(claims["w2"]) is not None
    assert waiting.book.outdated(10) == ["w1"]
    assert not waiting.book.has_outdated


def test_a_claim_with_a_recorded_refusal_gets_the_message_of_an_equal_that_was_asked_for(waiting: Waiting) -> None:
    assert waiting.still_holds(gpu_claim("w0"), is_of_rules=False)
    waiting.rest(gpu_claim("w1"))
    waiting.book.rest(waiting.fleet, "w0", (0, 0), gpu_claim("w0"), {"message": "as it was"}, is_recorded=True)
    assert waiting.refusal(gpu_claim("new")) == {**waiting.fleet.allocate(gpu_claim("w1"))}
    assert waiting.book.outdated(10) == ["w0"]


def recorded_quickly(waiting: Waiting, claim: Object) -> bool:
    """Whether a recorded refusal holds, as far as that shows without expressions; it rests with that."""
    name, answer = claim["metadata"]["name"], {"message": "as it was"}
    holds = waiting.still_holds(claim, is_of_rules=False, at_best=True)
    return holds and waiting.book.rest(waiting.fleet, name, (0, 0), claim, answer, is_recorded=True)


def test_a_recorded_refusal_holds_while_no_expression_would_help_its_claim(waiting: Waiting) -> None:
    assert recorded_quickly(waiting, of_model(gpu_claim("x"), "x"))
    assert recorded_quickly(waiting, of_model(gpu_claim("z"), "z"))
    waiting.fleet.release("default", holder_in(waiting.fleet, "q"))
    waiting.book.catch_up(waiting.fleet)
    assert recorded_quickly(waiting, of_model(gpu_claim("x2", 2), "x")), "its expression does not accept what is free"
    assert not recorded_quickly(waiting, of_model(gpu_claim("y"), "y")), "it fits"


def test_a_claim_whose_expression_was_not_read_is_asked_about_by_what_could_help_it(waiting: Waiting) -> None:
    assert recorded_quickly(waiting, of_model(gpu_claim("z"), "z"))
    assert waiting.change(released=holder_in(waiting.fleet, "p")) == []
    assert waiting.questions == ["z"], "devices of a model that it does not want might be for it"
    assert waiting.change(released=holder_in(waiting.fleet, "q")) == []
    assert waiting.questions == [], "now its expression was read"


def test_the_expression_of_a_claim_is_read_when_its_recorded_refusal_is_found_anew(waiting: Waiting) -> None:
    assert recorded_quickly(waiting, of_model(gpu_claim("z"), "z"))
    waiting.rest(of_model(gpu_claim("z"), "z"))
    assert waiting.change(released=holder_in(waiting.fleet, "q")) == []
    assert waiting.questions == []

"""A claim that does not say that it wants a part of a device gets a whole one (S6b)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.pool import DevicePool
from devalloc_solver import Fleet, capacity, solve_manifests
from devalloc_solver.check import check
from devalloc_solver.check.classes import DetailRule
from devalloc_solver.check.detail import MAX_WHOLES
from devalloc_solver.fleet.waiting import WaitingBook
from tests.support.manifests import Manifest, claim, device, device_class, pool

GPU = device_class("gpu", driver="gpu.devalloc.io", deviceType="gpu")
VGPU = device_class("vgpu", driver="gpu.devalloc.io", deviceType="gpu", constraints="device.function == 'mdev'")
NIC = device_class("nic", driver="nic.devalloc.io")
RESERVED = {"devalloc.io/unavailable": "reserved: default route"}


def card(
    name: str, *, parts: int = 0, part: str = "vf", node: str = "n1", kind: str = "gpu", whole: Manifest | None = None
) -> Manifest:
    """The pool of a card: the card as a whole, and its parts. ``whole``: more attributes of the former."""
    common = {"model": "H100" if kind == "gpu" else "ConnectX"}
    devices = [device("whole", attributes={"function": "whole", **common, **(whole or {})}, requests={"parts": parts})]
    if not parts:
        devices = [device("whole", attributes={"function": "whole", **common, **(whole or {})})]
    for number in range(parts):
        own = {"function": part, "vfIndex": number} | ({"profile": "4Q"} if part == "mdev" else {})
        devices.append(device(f"part-{number}", attributes={**own, **common}, requests={"parts": 1}))
    return pool(name, node=node, driver=f"{kind}.devalloc.io", resources={"parts": parts or 1}, devices=devices)


def devices_given(*manifests: Manifest) -> dict[str, list[str]]:
    """What each claim gets of a batch: POOL/DEVICE."""
    return {each["name"]: titles(each) for each in solve_manifests(manifests)["claims"]}


def titles(answer: Manifest) -> list[str]:
    return [f"{one['devicePoolName']}/{one['deviceName']}" for one in answer["allocations"]]


def gpus(count: int, **detail: Any) -> list[Manifest]:
    return [claim(f"c{number}", {"deviceClass": "gpu", **detail}) for number in range(count)]


def test_three_claims_for_one_card_with_twenty_vfs_get_the_card_and_nothing() -> None:
    given = devices_given(GPU, card("a", parts=20), *gpus(3))
    assert given == {"c0": ["a/whole"], "c1": [], "c2": []}


def test_the_message_says_what_to_write_for_a_part() -> None:
    answers = solve_manifests([GPU, card("a", parts=20), *gpus(2)])["claims"]
    text = "20 parts need device.function == 'vf' in the constraints; delete claim"
    assert text in answers[1]["message"]


@pytest.mark.parametrize(
    "constraints",
    ["device.function == 'vf'", "device.vfIndex == 3", "device.function in ['vf', 'mdev']", "'vfIndex' in device"],
)
def test_a_claim_that_says_so_gets_a_part(constraints: str) -> None:
    assert devices_given(GPU, card("a", parts=20), *gpus(1, constraints=constraints))["c0"][0].startswith("a/part-")


def test_a_class_says_it_for_its_claims() -> None:
    given = devices_given(GPU, VGPU, card("a", parts=4, part="mdev"), claim("c", {"deviceClass": "vgpu"}))
    assert given == {"c": ["a/part-0"]}


def test_a_type_with_a_class_for_parts_still_means_a_whole_device() -> None:
    given = devices_given(GPU, VGPU, card("a", parts=4, part="mdev"), claim("c", {"deviceType": "gpu"}))
    assert given == {"c": ["a/whole"]}


def test_one_class_alone_of_a_type_that_is_for_parts_gives_parts() -> None:
    given = devices_given(VGPU, card("a", parts=4, part="mdev"), claim("c", {"deviceType": "gpu"}))
    assert given == {"c": ["a/part-0"]}


def test_partitions_of_other_publishers_are_parts_too() -> None:
    mig = card("a", parts=7)
    for each in mig["spec"]["devices"][1:]:
        each["attributes"] = [{"name": "profile", "stringValue": "1g.10gb"}]
    assert devices_given(GPU, mig, *gpus(2)) == {"c0": ["a/whole"], "c1": []}
    assert devices_given(GPU, mig, *gpus(1, constraints="device.profile == '1g.10gb'")) == {"c0": ["a/part-0"]}
    message = solve_manifests([GPU, mig, *gpus(2)])["claims"][1]["message"]
    assert "7 parts need 'profile' in device in the constraints; delete claim" in message
    silent = claim("c", {"deviceClass": "gpu"})
    assert "is a part, which the claim does not ask for" in judged(silent, "part-0", mig)[0]


def test_parts_of_another_card_are_no_substitute_while_a_whole_one_is_offered() -> None:
    split = card("a", parts=4, part="mdev", whole={"devalloc.io/unavailable": "in use: it has 4 VFs"})
    given = devices_given(GPU, split, card("b", node="n2"), *gpus(2))
    assert given == {"c0": ["b/whole"], "c1": []}


def test_parts_are_given_where_no_device_is_offered_whole() -> None:
    nic = card("a", parts=8, kind="nic", whole=RESERVED)
    assert devices_given(NIC, nic, claim("c", {"deviceClass": "nic"})) == {"c": ["a/part-0"]}


@pytest.mark.parametrize(
    ("detail", "reason"),
    [
        ({"constraints": "device.profil == '4Q' || device.model == 'A2'"}, "no whole device passes the expression"),
        ({"matchAttributes": ["profile"]}, "no whole device has the attribute"),
    ],
)
def test_whole_devices_that_the_claim_cannot_have_do_not_count(detail: Manifest, reason: str) -> None:
    split = card("a", parts=4, part="mdev", whole=RESERVED)
    for each in split["spec"]["devices"][1:]:
        each["attributes"] = [a for a in each["attributes"] if a["name"] != "model"] + [
            {"name": "model", "stringValue": "A2"}
        ]
    assert devices_given(GPU, split, card("b"), *gpus(1, **detail))["c0"] == ["a/part-0"], reason


def test_a_claim_bound_to_a_node_without_whole_devices_gets_a_part() -> None:
    split = card("a", parts=4, part="mdev", node="n2", whole=RESERVED)
    bound = claim("c", {"deviceClass": "gpu"}, annotations={"devalloc.io/node": "n2"})
    assert devices_given(GPU, split, card("b"), bound) == {"c": ["a/part-0"]}
    fleet = Fleet.from_manifests([GPU, split, card("b")])
    assert titles(fleet.allocate(claim("free", {"deviceClass": "gpu"}))) == ["b/whole"]
    assert titles(fleet.allocate(bound)) == ["a/part-0"]


def test_admin_access_sees_parts_as_before() -> None:
    admin = device_class("all", driver="gpu.devalloc.io", adminAccess=True)
    assert len(devices_given(admin, card("a", parts=4), claim("c", {"deviceClass": "all"}))["c"]) == 5


def test_capacity_counts_one_for_one_card() -> None:
    assert capacity([GPU, card("a", parts=20)], gpus(1)[0]).count == 1


class TestWarm:
    """The Fleet answers as the whole solve does, while devices come to be offered whole and cease to."""

    def test_a_card_that_is_offered_again_ends_the_parts(self) -> None:
        split = card("a", parts=4, node="n1", whole=RESERVED)
        fleet = Fleet.from_manifests([GPU, split, card("b", node="n2", whole=RESERVED)])
        assert titles(fleet.allocate(gpus(1)[0])) == ["a/part-0"]
        fleet.update(card("b", node="n2"))
        assert titles(fleet.allocate(gpus(2)[1])) == ["b/whole"]
        assert not fleet.allocate(gpus(3)[2])["allocated"]
        fleet.update(card("b", node="n2", whole=RESERVED))
        assert titles(fleet.allocate(gpus(4)[3])) == ["a/part-1"]

    def test_a_waiting_claim_is_asked_for_when_parts_come_into_reach(self) -> None:
        split = card("a", parts=4, node="n1", whole=RESERVED)
        fleet = Fleet.from_manifests([GPU, split, card("b", node="n2", whole=RESERVED)])
        fleet.update(card("b", node="n2"))  # devices of both kinds are known from now on
        assert titles(fleet.allocate(gpus(1)[0])) == ["b/whole"]
        book, waiting = WaitingBook(), gpus(2)[1]
        book.catch_up(fleet)
        assert book.rest(fleet, "c1", (0, 1), waiting, fleet.allocate(waiting))
        book.catch_up(fleet)
        assert not list(book.wake(fleet))
        fleet.update(card("b", node="n2", whole=RESERVED))
        book.catch_up(fleet)
        assert list(book.wake(fleet)) == ["c1"]
        assert titles(fleet.allocate(waiting)) == ["a/part-0"]

    @pytest.mark.parametrize("seed", range(12))
    def test_it_answers_as_the_whole_solve(self, seed: int) -> None:
        random_ = random.Random(seed)

        def random_card(number: int) -> Manifest:
            reserved = RESERVED if random_.random() < 0.5 else None
            part = random_.choice(["vf", "mdev"])
            return card(f"p{number}", parts=random_.choice([0, 2, 4]), part=part, node=f"n{number % 3}", whole=reserved)

        cards = {number: random_card(number) for number in range(5)}
        fleet, held = Fleet.from_manifests([GPU, VGPU, *cards.values()]), []
        for step in range(25):
            if random_.random() < 0.3:
                number = random_.choice([n for n in cards if f"p{n}" not in str(held)] or [9])
                cards[number] = random_card(number)
                fleet.update(cards[number])
            detail = random_.choice(
                [{"deviceClass": "gpu"}, {"deviceType": "gpu"}, {"deviceClass": "vgpu"}, {"constraints": "true"}]
            )
            pin = {"devalloc.io/node": f"n{random_.randrange(3)}"} if random_.random() < 0.3 else {}
            one = claim(f"c{step}", detail, annotations=pin)
            warm = fleet.allocate(one)
            cold = next(
                a
                for a in solve_manifests([GPU, VGPU, *cards.values(), *held, one])["claims"]
                if a["name"] == f"c{step}"
            )
            assert warm == cold
            if warm["allocated"]:
                held.append(
                    one
                    | {"status": {"allocations": warm["allocations"]}}
                    | {"metadata": one["metadata"] | {"annotations": {**pin, **warm["annotations"]}}}
                )


def judged(one: Manifest, device_name: str, *pools: Manifest) -> list[str]:
    answer = {
        **{"namespace": "default", "name": "c", "allocated": True, "node": "n1", "oneOf": [None]},
        "allocations": [{"devicePoolName": "a", "deviceName": device_name}],
        "annotations": {"devalloc.io/allocated-node": "n1", "devalloc.io/allocation-details": '["0"]'},
    }
    return check(
        [DevicePool.model_validate(each) for each in pools],
        [DeviceClass.model_validate(GPU)],
        [DeviceClaim.model_validate(one)],
        [answer],
    )


def test_the_check_refuses_a_part_that_was_not_asked_for() -> None:
    silent = claim("c", {"deviceClass": "gpu"})
    assert judged(silent, "part-0", card("a", parts=4)) == [
        "default/c: detail 0: device n1/a/part-0 is a part, which the claim does not ask for: "
        "n1/a/whole is offered whole (S6b)"
    ]
    assert judged(silent, "whole", card("a", parts=4)) == []
    assert judged(silent, "part-0", card("a", parts=4, whole=RESERVED)) == []
    assert judged(claim("c", {"constraints": "device.function == 'vf'"}), "part-0", card("a", parts=4)) == []


def test_a_device_without_a_function_of_its_own_is_not_one_that_its_pool_calls_whole() -> None:
    devices = [device("bare", attributes={"function": ""}), device("part-0", attributes={"function": "vf"})]
    odd = pool("a", driver="gpu.devalloc.io", attributes={"function": "whole"}, devices=devices)
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 2}})

    assert devices_given(GPU, odd, wanted) == {"c": ["a/bare", "a/part-0"]}
    assert Fleet.from_manifests([GPU, odd]).allocate(wanted)["allocated"]


def test_the_check_judges_few_whole_devices_for_the_parts_of_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    judged_devices: list[str] = []
    refusal = DetailRule.refusal
    monkeypatch.setattr(
        DetailRule, "refusal", lambda rule, pooled: (judged_devices.append(str(pooled)), refusal(rule, pooled))[1]
    )
    cards = [card(f"card-{n}", whole={"serial": f"s{n}"}) for n in range(300)]
    wanted = claim("c", {"deviceClass": "gpu", "constraints": "!has(device.serial)"})

    assert judged(wanted, "part-0", card("a", parts=4, whole={"serial": "s"}), *cards) == []
    assert len(judged_devices) <= MAX_WHOLES + 1

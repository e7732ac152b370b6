"""The check of answers against broken ones: right answers changed in each small way that makes them wrong, and at
random until they are nonsense."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim
from devalloc.api.decode import decode
from devalloc.api.device_class import DeviceClass
from devalloc.api.pool import DevicePool
from devalloc.api.quantity import Quantity
from devalloc_solver import solve_manifests
from devalloc_solver.check import CelResults, check, goal_values
from tests.support.answer_builders import answer, claim, device, device_class, echo, held_claim, pool, unallocated
from tests.support.examples import examples
from tests.support.reference_data import claim_cases, documents

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """Objects, and right answers for their claims."""

    name: str
    pools: list[DevicePool]
    classes: list[DeviceClass]
    claims: list[DeviceClaim]
    answers: list[Manifest]
    levels: list[Manifest] = field(default_factory=list)
    """The goal values that the solver reports."""

    def check(self, answers: object) -> list[str]:
        return check(self.pools, self.classes, self.claims, answers, verdicts=VERDICTS)  # type: ignore[arg-type]


VERDICTS = CelResults()
NIC = {"deviceClass": "nic"}
MEMORY = {"memory": ("16Gi", "1Gi")}

OWN = Scene(
    name="own",
    pools=[
        pool(
            "card",
            device("whole", {"kind": "gpu"}, draws={"slices": "4"}),
            device("half", {"kind": "part"}, draws={"slices": "2"}, has=MEMORY),
            device("quarter", {"kind": "part"}, draws={"slices": "1"}, has=MEMORY),
            has={"slices": "4"},
        ),
        pool("nic", device("vf0", {"kind": "vf"}), device("vf1", {"kind": "vf"}), driver="nic"),
        pool("net", device("d0", {"kind": "disk"}), node=None, driver="disk"),
        pool("far", device("g0", {"kind": "gpu"}), node="n2"),
    ],
    classes=[
        device_class("nic", driver="nic"),
        device_class("part", driver="gpu", deviceType="gpu", constraints="device.kind == 'part'"),
        device_class("watch", adminAccess=True, driver="nic"),
    ],
    claims=[
        held_claim(claim("old", NIC, node="n1"), "nic/vf0", details=["0"]),
        claim("vm-a", {"deviceType": "gpu", "requests": {"memory": "17Gi"}}, {"deviceClass": "watch"}, group="vm"),
        claim(
            "vm-b", {"oneOf": [{"deviceClass": "nic", "requests": {"count": 2}}, {"deviceClass": "nic"}]}, group="vm"
        ),
        claim("disk", {"constraints": "device.kind == 'disk'"}),
        claim("none", {"constraints": "device.kind == 'tape'"}),
    ],
    answers=[
        echo(held_claim(claim("old", node="n1"), "nic/vf0")),
        answer(
            "vm-a",
            ("card/half", {"memory": "16Gi"}),
            ("card/quarter", {"memory": "1Gi"}),
            "nic/vf0",
            "nic/vf1",
            details="0 0 1 1",
        ),
        answer("vm-b", "nic/vf1", details="0.1"),
        answer("disk", "net/d0", node=None),
        unallocated("none"),
    ],
)


CASES = {case["name"]: case for case in claim_cases()[::4]}
"""Every fourth of those with known answers."""
SCENES = [OWN.name, *CASES]


@cache
def scene(name: str) -> Scene:
    """Of a case, answered by the solver."""
    if name == OWN.name:
        return OWN
    objects = [decode(each).object for each in documents(CASES[name])]
    solution = solve_manifests(documents(CASES[name]))
    return Scene(
        name=name,
        pools=[each for each in objects if isinstance(each, DevicePool)],
        classes=[each for each in objects if isinstance(each, DeviceClass)],
        claims=[each for each in objects if isinstance(each, DeviceClaim)],
        answers=solution["claims"],
        levels=solution["objective"]["levels"],
    )


def breakages(scene: Scene) -> Iterator[tuple[str, list[Manifest]]]:
    """The answers with one thing changed that no right answer of least size survives."""
    came_in = {each.key for each in scene.claims if each.is_allocated}
    for index, right in enumerate(scene.answers):
        if not right["allocated"]:
            continue
        new = (right["namespace"], right["name"]) not in came_in
        for what, wrong in _broken(right, new=new):
            yield f"{right['name']}: {what}", [*scene.answers[:index], wrong, *scene.answers[index + 1 :]]
        yield f"{right['name']}: no answer", [*scene.answers[:index], *scene.answers[index + 1 :]]
        yield f"{right['name']}: two answers", [*scene.answers, right]


def _broken(right: Manifest, *, new: bool) -> Iterator[tuple[str, Manifest]]:
    def changed(entries: list[Manifest], indexes: list[str] | None = None) -> Manifest:
        notes = dict(right.get("annotations") or {})
        if indexes is not None:
            notes[meta.ALLOCATION_DETAILS] = json.dumps(indexes)
        return {**right, "allocations": entries, "annotations": notes}

    entries = right["allocations"]
    indexes = json.loads(right["annotations"][meta.ALLOCATION_DETAILS]) if new else [""] * len(entries)
    for at, entry in enumerate(entries):
        before, after = entries[:at], entries[at + 1 :]
        yield f"without {at}", changed(before + after, indexes[:at] + indexes[at + 1 :])
        yield f"{at} twice", changed([*before, entry, entry, *after], [*indexes[: at + 1], *indexes[at:]])
        yield f"{at} of no pool", changed([*before, {**entry, "devicePoolName": "no"}, *after])
        yield f"{at} no device", changed([*before, {**entry, "deviceName": "no"}, *after])
        for number, amount in enumerate(entry.get("allocations") or []):
            nano = Quantity.parse(amount["allocation"]).nano
            for factor, other in (("double", nano * 2), ("half", nano // 2), ("nothing", 0), ("less", nano - 1)):
                amounts = copy.deepcopy(entry["allocations"])
                amounts[number]["allocation"] = f"{other}n"
                yield f"{factor} amount {at}.{number}", changed([*before, {**entry, "allocations": amounts}, *after])
        if not entry.get("allocations"):
            amounts = [{"name": "memory", "allocation": "1"}]
            yield f"{at} with amounts", changed([*before, {**entry, "allocations": amounts}, *after])
        elif new:
            yield f"{at} without amounts", changed([*before, {**entry, "allocations": []}, *after])
    if new:
        yield "another node", {**right, "node": "no-node"}
        yield "no annotations", {**right, "annotations": {}}
        yield "oneOf too long", {**right, "oneOf": [*(right["oneOf"] or []), None]}
    else:
        yield "not allocated", {**right, "allocated": False}


@pytest.mark.parametrize("name", SCENES)
def test_right_answers_pass_and_no_small_change_does(name: str) -> None:
    one = scene(name)
    assert one.check(one.answers) == []
    passed = [what for what, answers in breakages(one) if not one.check(answers)]
    assert passed == []


@pytest.mark.parametrize("name", CASES)
def test_the_reported_goal_values_are_those_of_the_answers(name: str) -> None:
    one = scene(name)
    totals = goal_values(one.pools, one.claims, one.answers)
    reported = {(level["goal"], level.get("priority")): level["value"] for level in one.levels}
    assert reported["pools", None] == totals.pools
    assert reported["devices", None] == totals.devices
    satisfied = {level.priority: level.satisfied for level in totals.levels}
    for (goal, priority), value in reported.items():
        assert goal != "satisfied" or satisfied.pop(priority) == value
    assert not any(satisfied.values())


JUNK: list[Any] = [None, True, 0, -1, 1.5, 10**30, "", "x", "\ud800", "-1Gi", "9" * 99, [], {}, [None], {"name": None}]


def scrambled(content: Any, rng: random.Random) -> Any:
    """The content with one part somewhere replaced, removed, repeated or swapped."""
    if isinstance(content, (dict, list)) and content and rng.random() < 0.85:
        content = copy.copy(content)
        key = rng.choice(list(content)) if isinstance(content, dict) else rng.randrange(len(content))
        act = rng.random()
        if act < 0.7:
            content[key] = scrambled(content[key], rng)
        elif act < 0.8:
            del content[key]
        elif isinstance(content, list):
            content.insert(rng.randrange(len(content) + 1), content[key])
        else:
            content[rng.choice(list(content))] = content[key]
        return content
    return rng.choice(JUNK)


@pytest.mark.parametrize("seed", range(examples(8, 0.05)))
def test_no_answer_whatever_its_shape_makes_the_check_fail(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        one = scene(rng.choice(SCENES))
        answers: Any = one.answers
        for _ in range(rng.randrange(1, 4)):
            answers = scrambled(answers, rng)
        violations = one.check(answers)
        assert all(isinstance(each, str) and each for each in violations)
        if isinstance(answers, list):
            goal_values(one.pools, one.claims, answers)

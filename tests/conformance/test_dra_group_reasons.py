"""Reasons of groups of ResourceClaims: the group fits without all blockers, and does not fit with any one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from random import Random
from typing import Any

from devalloc_solver.dra import solve_manifests
from tests.support.dra_builders import ANY, claim, device, request, slice_
from tests.support.examples import examples

Content = dict[str, Any]
MEMBERS = "xyz"
SEEDS = range(examples(24, 0.3))


def test_blockers_of_groups_are_true() -> None:
    reasons = Counter[str]()
    for seed in SEEDS:
        documents = _random_group(Random(seed))
        for name, answer in _answers(documents).items():
            if name not in MEMBERS or answer["allocated"] or "blockers" not in answer:
                continue
            blockers = answer["blockers"]
            assert blockers, (seed, name)
            assert _fits(documents, blockers), (seed, name, answer["message"])
            for one in range(len(blockers)):
                some = blockers[:one] + blockers[one + 1 :]
                assert not _fits(documents, some), (seed, name, blockers[one], answer["message"])
            reasons[answer["reason"]] += 1
    assert reasons.keys() >= {"GroupUnsatisfiable", "NoMatchingDevices", "NotEnoughDevices", "DevicesInUse"}


def _random_group(random: Random) -> list[Content]:
    """One to three nodes, perhaps a claim that holds a device, and a group of two or three claims."""
    slices, places = [], []
    for node in [f"n{number}" for number in range(random.randint(1, 3))]:
        attributes = [
            {"numa": random.randint(0, 1), "kind": random.choice(["gpu", "nic"])} for _ in range(random.randint(1, 4))
        ]
        content = [device(f"{node}-{number}", each) for number, each in enumerate(attributes)]
        places += [{"driver": "gpu.io", "pool": node, "device": each["name"]} for each in content]
        slices.append(slice_(node, content, pool=node, nodeName=node))
    claims = []
    if random.random() < 0.5:
        holder = _claim("holder", [request("r", 1)])
        holder["status"] = {"allocation": {"devices": {"results": [{"request": "r", **random.choice(places)}]}}}
        claims.append(holder)
    for name in MEMBERS[: random.randint(2, 3)]:
        requests = []
        for label in "rs"[: random.randint(1, 2)]:
            kind = random.choice(["gpu", "nic", "fpga"])
            selectors = [f"device.attributes['gpu.io'].kind == '{kind}'"] if random.random() < 0.4 else []
            requests.append(request(label, random.randint(1, 2), *selectors))
        match = "gpu.io/numa" if random.random() < 0.2 else None
        claims.append(_claim(name, requests, match, group="g", **({"node": "n0"} if random.random() < 0.15 else {})))
    return [*slices, *claims]


def _claim(name: str, requests: Sequence[Content], match: str | None = None, **marks: str) -> Content:
    return claim(*requests, name=name, match=match, marks=marks)


def _answers(documents: Iterable[Content]) -> dict[str, Any]:
    return {answer["name"]: answer for answer in solve_manifests([ANY, *documents])["claims"]}


def _fits(documents: Sequence[Content], blockers: Iterable[Mapping[str, Any]]) -> bool:
    """Whether what is left of the group is allocated once these are gone."""
    changed = deepcopy(list(documents))
    claims = {one["metadata"]["name"]: one for one in changed if one["kind"] == "ResourceClaim"}
    for blocker in sorted(blockers, key=lambda blocker: blocker["kind"] == "request"):  # the paths are those before
        match blocker["kind"]:
            case "claim" | "member":
                del claims[blocker["name"]]
            case "node":
                for one in claims.values():
                    one["metadata"]["annotations"].pop("devalloc.io/node", None)
            case kind:
                spec = claims[blocker["claim"].partition("/")[2]]["spec"]["devices"]
                if kind == "constraint":
                    del spec["constraints"]
                elif kind == "request":
                    spec["requests"] = [one for one in spec["requests"] if one["name"] != blocker["request"]]
                else:
                    exact = spec["requests"][int(blocker["path"].partition("[")[2].partition("]")[0])]["exactly"]
                    exact |= {"amount": {"count": int(blocker.get("most", 1))}, "selector": {"selectors": []}}[kind]
    slices = [one for one in changed if one["kind"] == "ResourceSlice"]
    answers = _answers([*slices, *claims.values()])
    return all(answers[name]["allocated"] for name in claims if name in MEMBERS)

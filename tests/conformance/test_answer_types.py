"""Real answers have exactly the keys and types that ``devalloc_solver.answer_types`` declares, and users' programs are
checked with them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from devalloc.api.manifests import load
from devalloc_solver import Fleet, answer_types, dra, solve_manifests
from devalloc_solver.answer_types import (
    AllocationResult,
    BlockerKind,
    ClaimAnswerDict,
    ExplanationDict,
    ResourceClaimAnswerDict,
    ResourceSolutionDict,
    SolutionDict,
)
from tests.support import dra_instances, random_fleets, reference_data
from tests.support.dra_random_clusters import RandomCluster
from tests.support.examples import examples
from tests.support.repository import REPO

INSTANCES = examples(12, 0.1)
"""Random ones of each sort."""


def differences(value: Any, declared: Any, path: str = "") -> Iterator[str]:
    """Where a value is not of the declared type, exactly: no key too many, and no bool for an int."""
    origin, arguments = get_origin(declared), get_args(declared)
    if declared is Any:
        return
    if origin is NotRequired:
        yield from differences(value, arguments[0], path)
    elif is_typeddict(declared):
        yield from _of_typed_dict(value, declared, path)
    elif origin is Literal:
        if value not in arguments:
            yield f"{path}: {value!r} is not one of {arguments}"
    elif origin in (Union, UnionType):
        if all([*differences(value, option, path)] for option in arguments):
            yield f"{path}: {value!r} is not {declared}"
    elif origin is list:
        if type(value) is not list:
            yield f"{path}: {type(value).__name__} instead of a list"
            return
        for index, each in enumerate(value):
            yield from differences(each, arguments[0], f"{path}[{index}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{path}: {type(value).__name__} instead of a dict"
            return
        for key, each in value.items():
            yield from differences(key, arguments[0], f"{path} key {key}")
            yield from differences(each, arguments[1], f"{path}[{key}]")
    elif type(value) is not (NoneType if declared is None else declared):
        yield f"{path}: {value!r} is not {declared}"


def _of_typed_dict(value: Any, declared: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: {type(value).__name__} instead of {declared.__name__}"
        return
    hints = get_type_hints(declared, include_extras=True)
    yield from (f"{path}: no {key}" for key in sorted(declared.__required_keys__ - value.keys()))
    yield from (f"{path}: {key} is not declared" for key in sorted(value.keys() - hints.keys()))
    for key, each in value.items():
        if key in hints:
            yield from differences(each, hints[key], f"{path}.{key}")


def check(value: Any, declared: Any, where: str = "") -> None:
    assert [*differences(value, declared, where)] == []


# -- the judge ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"optimal": 1}, ".optimal: 1 is not <class 'bool'>"),
        ({"surprise": 1}, ": surprise is not declared"),
        ({"claims": [{}]}, ".claims[0]: no allocated"),
        ({"problems": [{"message": "m", "severity": "fatal"}]}, "'fatal' is not one of ('error', 'warning')"),
    ],
)
def test_the_judge_notices(damage: dict[str, Any], message: str) -> None:
    answer: dict[str, Any] = {**solve_manifests([])}
    check(answer, SolutionDict)
    assert any(message in each for each in differences({**answer, **damage}, SolutionDict))


def test_types_resolve() -> None:
    for name in vars(answer_types):
        declared = getattr(answer_types, name)
        if is_typeddict(declared):
            assert get_type_hints(declared, include_extras=True)


def test_the_kinds_of_blockers_are_those_of_the_guide() -> None:
    guide = (REPO / "docs/reasons.md").read_text()
    chapter = guide[guide.index("## What is in the way") :]
    chapter = chapter[: chapter.index("The entry points report")]
    listed = {line.split("`")[1] for line in chapter.splitlines() if line.startswith("| `")}
    assert listed - {"machine"} == set(get_args(BlockerKind))  # machines are not for the library


# -- DeviceClaims ------------------------------------------------------------------------------------------------------


def test_answers_to_cases() -> None:
    for case in reference_data.claim_cases():
        check(solve_manifests(reference_data.documents(case)), SolutionDict, case["name"])


def test_answers_to_examples() -> None:
    for folder in sorted(path for path in (REPO / "examples").iterdir() if path.is_dir()):
        documents = [document.content for document in load([folder]).documents]
        of_kubernetes = any(each.get("kind") == "ResourceClaim" for each in documents)
        check(solve_manifests(documents), ResourceSolutionDict if of_kubernetes else SolutionDict, folder.name)


def test_answers_to_random_claims() -> None:
    for seed in range(INSTANCES):
        check(solve_manifests(random_fleets.documents(Random(seed))), SolutionDict, f"seed {seed}")


def test_answers_without_time() -> None:
    for seed in range(INSTANCES // 4):
        check(solve_manifests(random_fleets.documents(Random(seed)), deadline=0), SolutionDict, f"seed {seed}")


def test_answers_of_a_fleet() -> None:
    for seed in range(INSTANCES // 2):
        documents = random_fleets.documents(Random(seed))
        waiting = [each for each in documents if each["kind"] == "DeviceClaim" and "status" not in each]
        fleet = Fleet.from_manifests([each for each in documents if each not in waiting])
        check(fleet.allocate_all(waiting, is_quick=bool(seed % 2)), SolutionDict, f"seed {seed}")
        for claim in waiting:
            if not claim["metadata"].get("annotations", {}).get("devalloc.io/group"):
                check(fleet.allocate(claim), ClaimAnswerDict, f"seed {seed}")
        for each in documents:
            if each["kind"] == "DevicePool":
                check(fleet.update(each), list[answer_types.ProblemDict], f"seed {seed}")


# -- ResourceClaims ----------------------------------------------------------------------------------------------------


def test_answers_to_clusters() -> None:
    for seed in range(INSTANCES // 2):
        cluster = RandomCluster(Random(seed))
        documents = [*cluster.documents.values(), *(cluster.claim() for _ in range(4))]
        check(dra.solve_manifests(documents), ResourceSolutionDict, f"seed {seed}")
        fleet = Fleet.from_manifests([*cluster.documents.values()])
        check(fleet.allocate(cluster.claim()), ResourceClaimAnswerDict, f"seed {seed}")


def _allocate(instance: dict[str, Any], where: str) -> None:
    given = instance["input"]
    features = sorted(name for name, on in (instance.get("features") or {}).items() if on)
    allocated = {
        "devices": given.get("allocatedDevices") or [],
        "shares": given.get("allocatedSharedDeviceIDs") or [],
        "consumedCapacity": given.get("aggregatedCapacity") or [],
    }
    content = [given.get(key) or [] for key in ("claimsToAllocate", "classes", "slices")]
    try:
        results = dra.allocate(given["node"], *content, allocated=allocated, features=features)
        if results is not None:
            check(results, list[AllocationResult], where)
        check(dra.explain(given["node"], *content, allocated=allocated, features=features), ExplanationDict, where)
    except dra.AllocationError:
        return


def test_results_on_one_node() -> None:
    for case in reference_data.resource_claim_cases():
        _allocate(case, case["name"])
    for seed in range(INSTANCES):
        _allocate(dra_instances.instance(Random(seed)), f"seed {seed}")


# -- users' programs ---------------------------------------------------------------------------------------------------

PROGRAM = """
from collections.abc import Callable

from devalloc_solver import Fleet, capacity, dra, solve_manifests
from devalloc_solver.answer_types import Blocker, SolutionDict
from devalloc_solver.testing import claim, device, device_class, devices_of, pool, request

fleet = [device_class("gpu", deviceType="gpu"), pool("cards", devices=[device("a", attributes={"numa": 0})])]
answer: SolutionDict = solve_manifests([*fleet, claim("c", request("gpu", 1), priority=3)])
for each in answer["claims"]:
    name: str = each["name"]
    blockers: list[Blocker] = each.get("blockers", [])
    used: list[str] = [entry["deviceName"] for entry in each["allocations"]]
warm = Fleet.from_manifests(fleet)
node: str | None = warm.allocate(claim("d", request("gpu")))["node"]
count: int = capacity(fleet, claim("e", request("gpu"))).count
names: list[str] = devices_of(warm.allocate_all([]), "d")
results = dra.allocate("n", [], [], [])
driver = results[0]["devices"]["results"][0]["driver"] if results else ""


def test(devalloc_fleet: Callable[..., Fleet]) -> None:
    assert devalloc_fleet(*fleet).allocate(claim("c", request("gpu")))["allocated"]
"""
MISTAKES = """
from devalloc_solver import solve_manifests
from devalloc_solver.testing import claim, device_class, request

answer = solve_manifests([])
answer["claim"]
answer["claims"][0]["devices"]
answer["seconds"] + ""
device_class("gpu", devicetype="gpu")
request("gpu", matchAttribute=["numa"])
claim("c", labelz={})
"""


def test_a_typed_program_of_a_user_is_accepted_and_mistakes_are_not(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    good, bad = tmp_path / "program.py", tmp_path / "mistakes.py"
    good.write_text(PROGRAM)
    bad.write_text(MISTAKES)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", ""]
    command += ["--cache-dir", str(REPO / ".mypy_cache/user"), good.name, bad.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    *errors, last = done.stdout.splitlines()
    wrong = {int(line.split(":")[1]) for line in errors if line.startswith(bad.name) and ": error:" in line}
    assert wrong == {6, 7, 8, 9, 10, 11}, done.stdout + done.stderr
    assert [line for line in errors if line.startswith(good.name)] == []
    assert last.endswith(" in 1 file (checked 2 source files)")

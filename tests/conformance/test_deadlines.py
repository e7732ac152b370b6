"""Every entry point answers within its deadline, whatever the expressions of a claim cost, and serves others.

The expressions are such as the API server admits: a ResourceClaim, or a DeviceClaim, whose selectors take minutes to
hours on a node with 128 devices.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from devalloc.controller.reconcile.round_solver import RESOURCE_CLAIMS, RoundSolver
from devalloc.controller.reconcile.stored_claims import by_unit
from devalloc.machines.schedule.what_if import solve_with_machines
from devalloc_solver import Fleet, dra, solve_manifests
from devalloc_solver.cel import budget
from tests.support import dra_builders
from tests.support.examples import IS_FUZZ
from tests.support.manifests import Manifest, claim, device, device_class, pool
from tests.support.sentences import at_length

DEADLINE = 1.0
GRACE = 1.0
"""Seconds that an answer may take beyond its deadline."""
BUSY = 1.2
"""Seconds for each one of a CPU, above which a machine has other work."""
DEVICES = 128

Answers = dict[str, dict[str, Any]]
"""By the name of the claim."""
Entry = Callable[[Manifest, float], Answers]


def nested(size: int, number: int, read: str) -> str:
    """``size`` squared turns on each device; true for all of them. Another expression for each number."""
    numbers = str([*range(size)])
    return f"{numbers}.all(x, {numbers}.all(y, x + y != {read} + {100_000 + number}))"


def long(number: int, read: str) -> str:
    """10 KiB that take long to check, and no macro."""
    return f"{read} != {-1 - number} && size([{','.join(['1+1'] * 2400)}]) > 0"


def hidden(number: int, read: str) -> str:
    """Whose work is in the range of an inner macro, which has few turns."""
    inner = f"[{','.join(['x + 1'] * 400)}]"
    numbers = str([*range(150)])
    return f"{numbers}.all(x, {numbers}.all(y, {inner}.exists(z, true))) && {read} != {-1 - number}"


@pytest.fixture
def little_time_for_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the cheap ones run out of it anyway."""
    monkeypatch.setattr(budget, "SHARE_OF_TIME", 0.15)
    monkeypatch.setattr(budget, "MIN_SECONDS", 0.15)


Make = Callable[[int, str], str]
HOSTILE: dict[str, tuple[int, int, Make]] = {
    "one selector": (1, 1, lambda n, read: nested(99, n, read)),
    "two selectors": (1, 2, lambda n, read: nested(200, n, read)),
    "four selectors": (1, 4, lambda n, read: nested(150, n, read)),
    "most selectors, most requests": (32, 32, lambda n, read: nested(150, n, read)),
    "most selectors, cheap ones": (32, 32, lambda n, read: nested(5, n, read)),
    "most selectors, long ones": (32, 32, long),
    "hidden in a range": (4, 4, hidden),
}
"""(requests, selectors of each, the expressions)"""


# -- resource.k8s.io ---------------------------------------------------------------------------------------------------

READ = "device.attributes['g.io'].id"
CLASS = dra_builders.device_class("gpu", "device.driver == 'g.io'")
NUMBERED = [dra_builders.device(f"d{n}", {"id": n}) for n in range(DEVICES)]
SLICE = dra_builders.slice_("n", NUMBERED, driver="g.io", nodeName="n", pool="n")


def resource_claim(name: str, *requests: list[str]) -> Manifest:
    content = [
        dra_builders.request(f"r{number}", 1, *selectors, class_name="gpu") for number, selectors in enumerate(requests)
    ]
    return dra_builders.claim(*content, name=name)


def evil_resource_claim(what: str) -> Manifest:
    requests, selectors, make = HOSTILE[what]
    return resource_claim("evil", *([make(selectors * r + s, READ) for s in range(selectors)] for r in range(requests)))


VICTIM = resource_claim("victim", [f"{READ} >= 0"])


def by_name(answers: list[dict[str, Any]]) -> Answers:
    return {one["name"]: one for one in answers}


def allocated(evil: Manifest, deadline: float) -> Answers:
    try:
        allocation = dra.allocate("n", [evil], [CLASS], [SLICE], deadline=deadline)
    except dra.AllocationError as error:
        return {"evil": {"allocated": False, "exceeded": error.exceeded, "message": str(error)}}
    return {"evil": {"allocated": allocation is not None}}


def explained(evil: Manifest, deadline: float) -> Answers:
    try:
        explanation = dra.explain("n", [evil], [CLASS], [SLICE], deadline=deadline)
    except dra.AllocationError as error:
        return {"evil": {"allocated": False, "exceeded": error.exceeded, "message": str(error)}}
    return {"evil": {"allocated": explanation["reason"] is None, **explanation}}


def solved(evil: Manifest, deadline: float) -> Answers:
    return by_name(dra.solve_manifests([CLASS, SLICE, evil, VICTIM], deadline=deadline)["claims"])


def one_by_one(evil: Manifest, deadline: float) -> Answers:
    fleet = Fleet.from_manifests([CLASS, SLICE])
    return {"evil": fleet.allocate(evil, deadline)}


def all_at_once(evil: Manifest, deadline: float) -> Answers:
    fleet = Fleet.from_manifests([CLASS, SLICE])
    return by_name(fleet.allocate_all([evil, VICTIM], deadline)["claims"])


def by_the_controller(evil: Manifest, deadline: float) -> Answers:
    cluster = RoundSolver(RESOURCE_CLAIMS)
    cluster.update([SLICE, CLASS])
    return by_name(cluster.solve(by_unit([evil, VICTIM]), deadline)["claims"])


# -- DeviceClaims ------------------------------------------------------------------------------------------------------

POOL = pool(
    "p",
    "n",
    devices=[device(f"d{n}", attributes={"id": n}, resources={"memory": str(1000 + n)}) for n in range(DEVICES)],
)
GPU = device_class("gpu", driver="gpu")
PLAIN = claim("victim", {"deviceClass": "gpu", "constraints": "device.id >= 0"})


def evil_device_claim(what: str) -> Manifest:
    requests, selectors, make = HOSTILE[what]
    return claim(
        "evil",
        *({"deviceClass": "gpu", "constraints": all_of(selectors * r, selectors, make)} for r in range(requests)),
    )


def all_of(first: int, count: int, make: Make) -> str:
    """So many expressions joined, as far as 10 KiB go."""
    text = make(first, "device.id")
    for number in range(first + 1, first + count):
        longer = f"{text} && {make(number, 'device.id')}"
        if len(longer) > 10 * 1024:
            break
        text = longer
    return text


def solved_own(evil: Manifest, deadline: float) -> Answers:
    return by_name(solve_manifests([GPU, POOL, evil, PLAIN], deadline=deadline)["claims"])


def one_by_one_own(evil: Manifest, deadline: float) -> Answers:
    return {"evil": Fleet.from_manifests([GPU, POOL]).allocate(evil, deadline)}


def all_at_once_own(evil: Manifest, deadline: float) -> Answers:
    return by_name(Fleet.from_manifests([GPU, POOL]).allocate_all([evil, PLAIN], deadline)["claims"])


def by_the_controller_own(evil: Manifest, deadline: float) -> Answers:
    return by_name(RoundSolver()([GPU, POOL, evil, PLAIN], placement="pack", deadline=deadline)["claims"])


def by_the_command(evil: Manifest, deadline: float) -> Answers:
    """What ``devalloc solve`` and ``devalloc explain`` ask."""
    return by_name(solve_with_machines([GPU, POOL, evil, PLAIN], deadline=deadline)["claims"])


def served(entry: Entry, evil: Manifest) -> dict[str, Any]:
    """The answer to the claim by an entry point that keeps its deadline and gives the neighbour its device.

    A machine that has other work may take the time from us: then a longer deadline has to show it."""
    for deadline in (DEADLINE, 2 * DEADLINE, 4 * DEADLINE):
        began, worked = time.monotonic(), time.process_time()
        answers = entry(evil, deadline)
        took, worked = time.monotonic() - began, time.process_time() - worked
        in_time(took, worked, deadline)
        is_served = answers.get("victim", {"allocated": True})["allocated"]
        if is_served or took < BUSY * worked:
            break
    assert is_served
    return answers["evil"]


def held(entry: Entry, evil: Manifest) -> None:
    """The same, with a true reason for the claim."""
    one = served(entry, evil)
    assert one["allocated"] or one.get("exceeded"), one


def in_time(took: float, worked: float, deadline: float) -> None:
    """A busy machine may stop us just when the time is over. What we compute beyond it is ours, the rest is not."""
    assert min(took, worked) < deadline + GRACE, f"took {took:.1f} s, {worked:.1f} s of a CPU"
    assert took < 10 * (deadline + GRACE), f"took {took:.1f} s, most of it waiting"


def some_pairs(entries: list[Entry]) -> list[tuple[Entry, str]]:
    """Each entry with every other expression, and each expression with every other entry; `make fuzz` takes all."""
    pairs = itertools.product(enumerate(entries), enumerate(HOSTILE))
    return [(entry, what) for (row, entry), (column, what) in pairs if IS_FUZZ or (row + column) % 2 == 0]


@pytest.mark.usefixtures("little_time_for_expressions")
@pytest.mark.parametrize(
    ("entry", "what"), some_pairs([allocated, explained, solved, one_by_one, all_at_once, by_the_controller])
)
def test_no_selector_delays_other_claims(entry: Entry, what: str) -> None:
    held(entry, evil_resource_claim(what))


@pytest.mark.usefixtures("little_time_for_expressions")
@pytest.mark.parametrize(
    ("entry", "what"),
    some_pairs([solved_own, one_by_one_own, all_at_once_own, by_the_controller_own, by_the_command]),
)
def test_no_constraint_delays_other_claims(entry: Entry, what: str) -> None:
    held(entry, evil_device_claim(what))


@pytest.mark.parametrize(
    "entry",
    [solved_own, all_at_once_own, by_the_command, *([one_by_one_own, by_the_controller_own] if IS_FUZZ else [])],
)
def test_no_totals_delay_other_claims(entry: Entry) -> None:
    """32 times four devices with more memory than four have on the average: any four of 128 may be looked at."""
    request = {"deviceClass": "gpu", "requests": {"count": 4, "memory": str(4 * 1000 + 400)}}
    assert not served(entry, claim("evil", *[request] * 32))["allocated"]


# -- without a deadline ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        lambda: by_name(dra.solve_manifests([CLASS, SLICE, evil_resource_claim("two selectors")])["claims"])["evil"],
        lambda: Fleet.from_manifests([CLASS, SLICE]).allocate(evil_resource_claim("two selectors"), None),
        lambda: by_name(solve_manifests([GPU, POOL, evil_device_claim("two selectors")])["claims"])["evil"],
        lambda: Fleet.from_manifests([GPU, POOL]).allocate(evil_device_claim("two selectors"), None),
    ],
    ids=["dra.solve_manifests", "Fleet.allocate of a ResourceClaim", "solve_manifests", "Fleet.allocate"],
)
def test_steps_bound_an_expression_when_no_clock_does(
    answer: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gives no deadline waits for the steps of the budgets, a second or two, and not for minutes. Here there is
    a tenth of them."""
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", budget.EXPRESSION_BUDGET // 10)
    monkeypatch.setattr(budget, "COMMON_BUDGET", budget.COMMON_BUDGET // 10)
    one = answer()

    assert not one["allocated"]
    assert "too expensive for this fleet" in at_length(one) or "costs more than" in at_length(one), one

"""What expressions may cost (S6): one claim alone, and all claims of a call together."""

from __future__ import annotations

import random
from typing import Any

import pytest

from devalloc.api.claim import DeviceClaimDetail
from devalloc.api.quantity import Quantity
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.cel import budget
from devalloc_solver.dialects.device_claims.candidates import _SELECTING, _selection
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import prepare
from devalloc_solver.eligibility.judge import Judge
from tests.support.manifests import Manifest, claim, device, device_class, pool
from tests.support.sentences import at_length

GPU = device_class("gpu", driver="gpu")
POOL = pool("p", devices=[device(f"d{i}", attributes={"i": i}) for i in range(12)])
NUMBERS = str([*range(20)])
TOO_EXPENSIVE = "is too expensive"


def costly(number: int) -> str:
    """Some thousand steps on each of the twelve devices; true for all of them."""
    return f"{NUMBERS}.all(a, {NUMBERS}.all(b, a + b + device.i > -{number + 1}))"


def waiting(name: str, expression: str, priority: int = 0) -> Manifest:
    detail = {"deviceClass": "gpu", "constraints": expression}
    return claim(name, detail, annotations={"devalloc.io/priority": str(priority)})


@pytest.fixture(autouse=True)
def small_budgets(monkeypatch: pytest.MonkeyPatch) -> int:
    """Room for two expressions of the costly ones and a half. Returns what one costs."""
    judge = prepare(read_documents([GPU, POOL, waiting("c", costly(0))])).dialect.eligibility.judge
    cost = judge.costs.total
    assert cost > 10_000
    monkeypatch.setattr(budget, "COMMON_BUDGET", cost * 5 // 2)
    return cost


def batch() -> list[Manifest]:
    return [GPU, POOL, *(waiting(f"bad{n}", costly(n)) for n in range(5)), waiting("good", "device.i >= 0")]


def messages_by_name(answer: Manifest) -> dict[str, str | None]:
    return {each["name"]: each["reason"] and each["message"] for each in answer["claims"]}


@pytest.mark.parametrize(
    ("detail", "names"),
    [
        ({"deviceClass": "gpu"}, set()),
        ({"deviceClass": "gpu", "constraints": " "}, set()),
        ({"deviceClass": "gpu", "constraints": "device.i == 1"}, {"i"}),
        ({"deviceClass": "large", "constraints": "device.i == 1"}, {"i", "memory"}),
        ({"deviceType": "gpu"}, {"memory", "model"}),
        ({"constraints": "device.i == 1"}, {"i"}),
        ({"deviceType": "gpu", "constraints": "device == device"}, None),
    ],
)
def test_what_a_detail_reads_is_what_its_expression_and_those_of_its_possible_classes_read(
    detail: Manifest, names: set[str] | None
) -> None:
    classes = [
        GPU,
        device_class("large", driver="gpu", deviceType="gpu", constraints="device.memory > 4"),
        device_class("l4", driver="gpu", deviceType="gpu", constraints="device.model == 'L4'"),
    ]
    judge = prepare(read_documents([*classes, POOL])).dialect.eligibility
    assert judge.attributes_read(DeviceClaimDetail.model_validate(detail)) == names


@pytest.mark.parametrize(("expression", "verdicts"), [("device.model == 'a'", 2), ("device.i < 3", 12)])
def test_an_expression_is_evaluated_once_for_devices_that_are_equal_in_what_it_reads(
    expression: str, verdicts: int
) -> None:
    devices = [device(f"d{i}", attributes={"i": i, "model": "ab"[i % 2]}) for i in range(12)]
    prepared = prepare(read_documents([GPU, pool("p", devices=devices)]))
    before = prepared.dialect.eligibility.remembered
    for one in prepared.snapshot.devices:
        prepared.dialect.eligibility.judge.verdict(expression, one)
    assert prepared.dialect.eligibility.remembered - before == verdicts


def test_one_that_reads_all_attributes_tells_devices_apart_by_all_of_them() -> None:
    attributes: list[dict[str, int]] = [{"a": 1}, {"a": 1, "b": 1}, {"a": 1, "c": 1}, {}]
    fleet = pool("p", devices=[device(f"d{i}", attributes=has) for i, has in enumerate(attributes)])
    wanted = claim("c", {"deviceClass": "gpu", "constraints": "size(device) == 2", "limits": {"count": 4}})
    (answer,) = solve_manifests([GPU, fleet, wanted])["claims"]
    assert {entry["deviceName"] for entry in answer["allocations"]} <= {"d1", "d2"}
    prepared = prepare(read_documents([GPU, fleet]))
    accepted = [
        prepared.dialect.eligibility.judge.verdict("size(device) == 2", one) for one in prepared.snapshot.devices
    ]
    assert accepted == [False, True, True, False]


def test_claims_that_cost_too_much_together_leave_the_others_alone() -> None:
    """The first ones get what they ask for, as long as the common budget reaches; what is cheap always does."""
    answers = {each["name"]: each for each in solve_manifests(batch())["claims"]}
    assert [name for name, each in answers.items() if each["allocated"]] == ["bad0", "bad1", "good"]
    assert all("common budget" in at_length(answers[f"bad{n}"]) for n in (2, 3, 4))


def test_the_common_budget_goes_to_claims_in_their_order_whatever_that_of_the_input() -> None:
    manifests = [*batch(), waiting("first", costly(9), priority=1)]
    expected = messages_by_name(solve_manifests(manifests))
    assert expected["first"] is None
    assert expected["bad1"] is not None
    for seed in range(3):
        random.Random(seed).shuffle(manifests)
        assert messages_by_name(solve_manifests(manifests)) == expected


def test_equal_expressions_are_paid_for_once() -> None:
    answer = solve_manifests([GPU, POOL, *(waiting(f"c{n}", costly(0)) for n in range(8))])
    assert all(each["allocated"] for each in answer["claims"])


def test_classes_are_not_judged_by_what_claims_cost() -> None:
    heavy = device_class("heavy", driver="gpu", constraints=costly(7))
    last = claim("z", {"deviceClass": "heavy"})
    assert messages_by_name(solve_manifests([*batch(), heavy, last]))["z"] is None


def test_what_was_asked_before_changes_no_answer() -> None:
    """Verdicts are kept from call to call, and cost the same as if they were not."""
    fleet = Fleet.from_manifests([GPU, POOL])
    waits = [manifest for manifest in batch() if manifest["kind"] == "DeviceClaim"]
    first = fleet.allocate_all(waits)
    for name in ("bad0", "bad1", "good"):
        fleet.release("default", name)
    again = fleet.allocate_all(waits)
    assert messages_by_name(again) == messages_by_name(first) == messages_by_name(solve_manifests(batch()))
    assert "exceeds th" in str(messages_by_name(again)["bad2"])


@pytest.mark.parametrize("limit", ["COMMON_BUDGET", "EXPRESSION_BUDGET"])
def test_what_was_asked_for_the_sake_of_a_reason_costs_nothing(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The funnel also judges devices that are not available, and repeats the same answer."""
    unavailable = {"devalloc.io/unavailable": "in use"}
    devices = [device(f"d{i}", attributes={"i": i, **(unavailable if i % 2 else {})}) for i in range(6)]
    reads = f"{costly(0)} && ('devalloc.io/unavailable' in device || device.i >= 0)"
    manifests = [GPU, pool("p", devices=devices)]
    wants = claim("c", {"deviceClass": "gpu", "constraints": reads, "requests": {"count": 5}})
    judge = prepare(read_documents([*manifests, wants])).dialect.eligibility.judge
    room = 100 * len(devices) if limit == "EXPRESSION_BUDGET" else 100
    monkeypatch.setattr(budget, limit, judge.costs.total + room)
    fleet = Fleet.from_manifests(manifests)
    first, *again = [fleet.allocate_all([wants])["claims"] for _ in range(3)]
    assert first[0]["reason"] == "NotEnoughDevices"
    assert again == [first, first]


def test_every_call_has_a_budget_of_its_own() -> None:
    judge = prepare(read_documents([GPU, POOL])).dialect.eligibility
    for _ in range(2):
        judge.begin()
        assert [judge.expression_error(costly(n)) is None for n in range(4)] == [True, True, False, False]
        assert judge.expression_error("device.i > 3") is None
    judge.begin()
    assert [judge.expression_error(costly(n)) is None for n in (3, 2, 1, 0)] == [True, True, False, False]


def test_one_expression_has_its_own_limit_besides(monkeypatch: pytest.MonkeyPatch, small_budgets: int) -> None:
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", small_budgets // 2)
    messages = messages_by_name(solve_manifests(batch()))
    assert messages["good"] is None
    assert TOO_EXPENSIVE in str(messages["bad0"])
    assert "common" not in str(messages["bad0"])


def identified(name: str, node: str, count: int = 12) -> Manifest:
    """Devices of one kind, each with an identifier of its own."""
    return pool(name, node, devices=[device(f"d{i}", attributes={"uuid": f"{name}-{i}"}) for i in range(count)])


BY_UUID = f"{NUMBERS}.all(a, {NUMBERS}.all(b, a + b >= 0 && device.uuid != 'none'))"


@pytest.mark.parametrize("of_class", [False, True], ids=["claim", "class"])
def test_a_fleet_tells_of_what_costs_too_much_on_the_devices_of_a_kind(
    of_class: bool, small_budgets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index judges one of a kind at first; the others are charged as when all is solved at once."""
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", small_budgets // 2)
    costly_class = device_class("costly", driver="gpu", constraints=BY_UUID)
    manifests = [GPU, costly_class, *(identified(f"p{n}", f"n{n}") for n in range(3))]
    spec = {"deviceClass": "costly"} if of_class else {"deviceClass": "gpu", "constraints": BY_UUID}
    expected = next(iter(solve_manifests([*manifests, claim("c", spec)])["claims"]))
    assert expected["reason"] == "ExpressionTooExpensive"
    fleet = Fleet.from_manifests(manifests)
    for turn in range(2):
        assert fleet.allocate(claim("c", spec)) == expected
        assert fleet.allocate(claim(f"good{turn}", {"deviceClass": "gpu"}))["allocated"]


def test_the_budget_of_a_fleet_is_for_all_its_nodes(small_budgets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node alone is cheap enough; to look for a device on all of them is not."""
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 2 * small_budgets)
    manifests = [GPU, *(identified(f"p{n}", f"n{n}") for n in range(20))]
    wants = claim("c", {"deviceClass": "gpu", "constraints": f"{BY_UUID} && device.uuid.startsWith('q')"})
    (expected,) = solve_manifests([*manifests, wants])["claims"]
    assert expected["reason"] == "ExpressionTooExpensive"
    assert Fleet.from_manifests(manifests).allocate(wants) == expected


def test_devices_that_are_gone_are_no_charge_on_the_budget(small_budgets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet whose devices are other ones again and again answers as one that has just been loaded."""
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 5 * small_budgets)
    manifests = [identified(f"p{n}-0", f"n{n}") for n in range(3)]
    fleet = Fleet.from_manifests([GPU, *manifests])
    for turn in range(1, 5):
        answer = fleet.allocate(claim(f"c{turn}", {"deviceClass": "gpu", "constraints": BY_UUID}))
        assert answer["allocated"], answer["message"]
        for n, gone in enumerate(manifests):
            fleet.delete(gone)
            manifests[n] = identified(f"p{n}-{turn}", f"n{n}")
            fleet.update(manifests[n])


def test_requests_that_differ_in_a_selecting_field_are_judged_apart() -> None:
    same = DeviceClaimDetail(device_class="gpu", requests={"count": Quantity.parse("2")})
    assert _selection(DeviceClaimDetail(device_class="gpu")) == _selection(same)
    for field in _SELECTING:
        value = ["numa"] if field == "match_attributes" else "other"
        assert _selection(same.model_copy(update={field: value})) != _selection(same)
    twice = DeviceClaimDetail(device_class="gpu", match_attributes=["numa", "numa"])
    assert _selection(twice) == _selection(twice.model_copy(update={"match_attributes": ["numa"]}))


# -- expressions that tell most devices apart --------------------------------------------------------------------------

APART = "device.uuid.matches('^GPU-[0-9]*[02468]$') && device.node < 9"


def fleet_of_uuids() -> list[Manifest]:
    """Some devices are of another class or unavailable, or lack what the expression reads."""
    devices = []
    for n in range(60):
        attributes: dict[str, Any] = {"uuid": f"GPU-{n}", "kind": "nic" if n % 7 == 6 else "gpu", "node": n % 11}
        if n % 5 == 4:
            del attributes["node"]
        if n % 13 == 12:
            attributes["devalloc.io/unavailable"] = "broken"
        devices.append(device(f"d{n}", attributes=attributes))
    return [device_class("gpu", driver="gpu", constraints="device.kind == 'gpu'"), pool("p", devices=devices)]


def test_devices_that_an_expression_tells_apart_fare_as_each_does_alone() -> None:
    detail = DeviceClaimDetail.model_validate({"deviceClass": "gpu", "constraints": APART})
    prepared = prepare(read_documents([*fleet_of_uuids(), waiting("c", APART)]))
    judge, devices = prepared.dialect.eligibility, prepared.snapshot.devices
    assert judge._tells_most_apart(APART)
    candidates = judge.candidates(detail)
    alone = {each.index: judge.mismatch(detail, each) for each in devices}
    assert {*candidates.accepted} == {index for index, why in alone.items() if why is None} != set()
    assert {i: step.rule for step in candidates.funnel for i in step.devices} == {
        index: why.rule for index, why in alone.items() if why is not None
    }
    for step in candidates.funnel:
        first = next((i for i in step.devices if (why := alone[i]) is not None and why.example), None)
        why = None if first is None else alone[first]
        assert step.example == (why and f"p/{devices[first or 0].name}: {why.example}")


def test_an_expression_is_asked_of_each_device_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to find out whether it can be used at all, and once to sort the devices; what classes say is common."""
    calls = 0
    verdict = Judge.verdict

    def counted(*arguments: object) -> bool | str:
        nonlocal calls
        calls += 1
        return verdict(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Judge, "verdict", counted)
    devices = [device(f"d{n}", attributes={"uuid": f"GPU-{n}", "kind": "gpu"}) for n in range(300)]
    classes = device_class("gpu", driver="gpu", constraints="device.kind == 'gpu'")
    wanted = waiting("c", "device.uuid.matches('^GPU-2.*[0-9]$')")
    fleet = Fleet.from_manifests([classes, pool("p", devices=devices)])
    assert fleet.allocate_all([wanted])["claims"][0]["allocated"]
    assert calls <= 2 * len(devices) + 10

"""A DeviceClaim gets only devices with the values, and of the driver, that the caller of the solver asks for, beside
its spec: as if an expression or a class said so, and no user can write it."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

import pytest

from devalloc.api.findings import Cause, fact
from devalloc.api.meta import GROUP, GROUP_MATCH, ONLY_CLASS
from devalloc.api.node_rules import FIELD, NodeRestriction, NodeRule, Restrictions, ValueRestriction
from devalloc.api.owner_names import MACHINE, owner_name
from devalloc.api.reasons import Reason
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.errors import AnswerRefused
from devalloc_solver.testing import allocated, claim, device, device_class, entry, pool, request
from tests.support import random_fleets
from tests.support.manifests import Manifest

GPU = device_class("gpu", driver="gpu")


def gpus(node: str, *kinds: str) -> Manifest:
    devices = [device(f"g{i}", attributes={"kind": kind}) for i, kind in enumerate(kinds)]
    return pool(f"of-{node}", node, driver="gpu", devices=devices)


def waiting(*values: str | int, attribute: str = "kind", name: str = "c") -> Manifest:
    one = claim(name, request("gpu"))
    return {**one, FIELD: Restrictions(values=(ValueRestriction(0, attribute, frozenset(values)),))} if values else one


def answer(*documents: Manifest, name: str = "c") -> dict[str, Any]:
    one: dict[str, Any] = next(each for each in solve_manifests(documents)["claims"] if each["name"] == name)
    return one


def test_it_gets_a_device_with_one_of_the_values() -> None:
    fleet = [GPU, gpus("n1", "a"), gpus("n2", "b"), gpus("n3", "c")]
    for documents in (fleet, fleet[::-1]):
        warm = Fleet.from_manifests(documents)
        assert answer(*documents, waiting("c", "b"))["node"] == "n2"
        assert [warm.allocate(waiting("c", "b", name=name))["node"] for name in "xyz"] == ["n2", "n3", None]
        assert warm.allocate(waiting(name="free"))["node"] == "n1"


@pytest.mark.parametrize(("value", "fits"), [(1, True), ("1", False)])
def test_a_text_that_reads_like_a_number_is_another_value(value: str | int, fits: bool) -> None:
    host = pool("p", "n1", driver="gpu", devices=[device("g", attributes={"numa": 1})])
    assert answer(GPU, host, waiting(value, attribute="numa"))["allocated"] is fits


def test_the_reason_says_which_value_is_another_one() -> None:
    documents = [GPU, gpus("n1", "a", "a"), waiting("b")]
    refused = answer(*documents)
    assert refused["message"].startswith("only devices with another `kind` would do; ")
    assert "blockers" not in refused, "no user wrote that"
    (step,) = refused["funnel"][0]["steps"]
    assert (step["code"], step["what"], step["count"]) == ("otherValue", "have another kind", 2)
    assert Fleet.from_manifests(documents[:-1]).allocate(documents[-1]) == refused


def test_who_is_in_the_way_has_such_a_device() -> None:
    nodes = [GPU, gpus("n1", "a"), gpus("n2", "b")]
    held = [
        allocated(claim(f"on-{node}", request("gpu")), [entry(f"of-{node}", "g0")], node=node) for node in ("n1", "n2")
    ]
    assert [one["name"] for one in answer(*nodes, *held, waiting("b"))["blockers"]] == ["on-n2"]


def test_the_check_refuses_a_device_with_another_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CandidateFinder, "_find_mismatch", lambda *arguments: None)
    with pytest.raises(AnswerRefused, match="has 'a' for kind"):
        solve_manifests([GPU, gpus("n1", "a"), waiting("b")])


HOSTS = pool("cpus", "n1", driver="host", devices=[device("cpu", attributes={ONLY_CLASS: "host"})])
"""What no class gives access to."""


def of_driver(driver: str, name: str = "c") -> Manifest:
    return {**claim(name, request()), FIELD: Restrictions(driver=driver)}


def test_of_a_driver_it_gets_what_is_for_one_class_only_and_nothing_of_others() -> None:
    fleet = [gpus("n1", "a", "b"), HOSTS, claim("any", request())]
    for documents in (fleet, fleet[::-1]):
        assert [each["devicePoolName"] for each in answer(*documents, of_driver("host"))["allocations"]] == ["cpus"]
        warm = Fleet.from_manifests(documents)
        assert warm.allocate(of_driver("host")) == answer(*fleet[:-1], of_driver("host"))
        refused = warm.allocate(of_driver("host", "d"))
        assert [each["name"] for each in refused["blockers"]] == ["c"], "gpus would not do"


def test_a_driver_without_devices_is_missing_as_that_of_a_class() -> None:
    by_class = answer(gpus("n1", "a"), device_class("host", driver="host"), claim("c", request("host")))
    assert answer(gpus("n1", "a"), of_driver("host"))["message"] == by_class["message"]


def test_a_request_by_driver_warns_of_nothing_that_no_user_wrote() -> None:
    name = owner_name(MACHINE, "vm")
    documents = [HOSTS, of_driver("host", name)]
    assert not answer(*documents, name=name).keys() & {"warnings"}
    assert "warnings" not in Fleet.from_manifests(documents[:1]).allocate(documents[1])
    assert answer(HOSTS, claim("c", request()))["warnings"], "one of a user matches devices of any kind"


def test_the_check_refuses_a_device_of_another_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CandidateFinder, "_class_of_driver", lambda *arguments: None)
    with pytest.raises(AnswerRefused, match="is of driver gpu, and not of host"):
        solve_manifests([gpus("n1", "a"), of_driver("host")])


@pytest.mark.parametrize(("is_only", "node"), [(True, "n1"), (False, "n2")])
def test_rules_for_nodes_are_given_likewise(is_only: bool, node: str) -> None:
    rule = NodeRule("", is_only, Reason.NODE_UNAVAILABLE, (fact(Cause.NODE_BARRED),))
    given = Restrictions((NodeRestriction(rule, frozenset({"n1"})),), (ValueRestriction(0, "kind", frozenset({"a"})),))
    nodes = [GPU, gpus("n1", "b", "a"), gpus("n2", "a"), gpus("n3", "a")]
    wanted = {**waiting(), FIELD: given}
    assert answer(*nodes, wanted)["node"] == node
    assert Fleet.from_manifests(nodes).allocate(wanted) == answer(*nodes, wanted)
    refused = answer(GPU, gpus("n3" if is_only else "n1", "a"), wanted)
    assert (refused["reason"], refused.get("blockers")) == ("NodeUnavailable", None)


def test_what_was_read_of_a_spec_holds_with_the_same_rules_only() -> None:
    rule = NodeRule("", False, Reason.NODE_UNAVAILABLE, (fact(Cause.NODE_BARRED),))
    nodes = [GPU, gpus("n1", "a", "b"), gpus("n2", "a", "b")]
    rules = [
        Restrictions((NodeRestriction(rule, frozenset({node})),), (ValueRestriction(0, "kind", frozenset({kind})),))
        for node in ("n1", "n2")
        for kind in "ab"
    ]
    fleet, places = Fleet.from_manifests(nodes), set()
    for given in [*rules, Restrictions(), *rules, Restrictions()]:
        asking = {**waiting(), FIELD: given}
        one = fleet.allocate(asking)
        assert one == Fleet.from_manifests(nodes).allocate(asking)
        places.add((one["node"], one["allocations"][0]["deviceName"]))
        fleet.release("default", "c")
    assert len(places) == 4


def test_no_file_can_have_it() -> None:
    written = {**waiting(), FIELD: [[0, "kind", ["b"]]]}
    assert answer(GPU, gpus("n1", "a"), written)["reason"] == "ClaimInvalid"


def test_claims_with_other_values_wait_for_other_things() -> None:
    fleet = Fleet.from_manifests([GPU, gpus("n1", "a")])
    keys = [fleet.waiting_key(one) for one in (waiting(), waiting("a"), waiting("b"), waiting("b", name="d"))]
    assert len({*keys}) == 3
    assert keys[2] == keys[3]
    by_driver = [fleet.waiting_key(one) for one in (claim("c", request()), of_driver("gpu"), of_driver("host"))]
    assert len({*by_driver, *keys}) == 6


@pytest.mark.parametrize("seed", range(40))
def test_it_gets_what_an_expression_would_get_it(seed: int) -> None:
    random = Random(seed)
    documents = random_fleets.documents(random)
    pools = [one for one in documents if one["kind"] == "DevicePool"]
    others = [one for one in documents if one["kind"] != "DeviceClaim" or one.get("status")]
    texts: dict[str, set[str]] = {}
    for attribute in (each for one in pools for each in _attributes(one) if "stringValue" in each):
        texts.setdefault(attribute["name"], set()).add(attribute["stringValue"])
    claims = [one for one in documents if one["kind"] == "DeviceClaim" and one not in others]
    for plain in claims if texts else ():
        if not plain["spec"]["claims"] or any("oneOf" in each for each in plain["spec"]["claims"]):
            continue
        for note in (GROUP, GROUP_MATCH):
            plain["metadata"].get("annotations", {}).pop(note, None)
        name = random.choice(sorted(texts))
        values = random.sample(sorted(texts[name]), random.randint(1, len(texts[name])))
        written, given = deepcopy(plain), deepcopy(plain)
        number = random.randrange(len(plain["spec"]["claims"]))
        detail = written["spec"]["claims"][number]
        own = f"({detail['constraints']}) && " if detail.get("constraints") else ""
        detail["constraints"] = f"{own}device[{name!r}] in {values}"
        given[FIELD] = Restrictions(values=(ValueRestriction(number, name, frozenset(values)),))
        key = plain["metadata"]["name"]
        by_text, by_value = answer(*others, written, name=key), answer(*others, given, name=key)
        assert _given(by_value) == _given(by_text)
        assert Fleet.from_manifests(others).allocate(given) == by_value


def _attributes(one: Manifest) -> list[dict[str, Any]]:
    return [each for device in one["spec"].get("devices", ()) for each in device.get("attributes", ())]


def _given(one: dict[str, Any]) -> list[object]:
    return [one[name] for name in ("allocated", "node", "allocations")]

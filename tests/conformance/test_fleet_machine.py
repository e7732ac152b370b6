"""Whatever happens to a Fleet, it answers as solve_manifests does of its state, and keeps the index it would build.

The state is kept beside it as plain manifests. After every change the Fleet must agree with one built afresh from
these: who holds what, which nodes are alike, and what the next claim gets.
"""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from devalloc.api.meta import GROUP
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.dialects.device_claims.fleet import DeviceClaimFleet
from devalloc_solver.dialects.device_claims.fleet_state import DeviceFleetState
from devalloc_solver.fleet import equal_devices, node_index
from tests.support.examples import examples
from tests.support.identity_attributes import with_identities
from tests.support.manifests import Manifest
from tests.support.random_fleets import documents

Name = tuple[str, str, str]


def name_of(manifest: Manifest) -> Name:
    metadata = manifest["metadata"]
    kind = manifest["kind"]
    return kind, "" if kind in ("DevicePool", "DeviceClass") else metadata.get("namespace", "default"), metadata["name"]


def is_claim(manifest: Manifest) -> bool:
    return bool(manifest["kind"] == "DeviceClaim")


def is_held(manifest: Manifest) -> bool:
    return bool(manifest.get("status", {}).get("allocations"))


def group_of(manifest: Manifest) -> tuple[str, str] | None:
    metadata = manifest["metadata"]
    group = metadata.get("annotations", {}).get(GROUP)
    return (metadata.get("namespace", "default"), group) if group else None


def with_answer(manifest: Manifest, answer: dict[str, Any]) -> Manifest:
    """The claim as it is once its answer is written on it."""
    written = copy.deepcopy(manifest)
    written["metadata"].setdefault("annotations", {}).update(answer["annotations"])
    written["status"] = {"allocations": answer["allocations"]}
    for configs in ("classConfigs", "claimConfigs"):
        if configs in answer:
            written["status"][configs] = answer[configs]
    return written


def goals(answer: dict[str, Any]) -> tuple[object, ...]:
    """What must be equal of two answers to one claim: where it goes, and all that it gets there (S17)."""
    return answer["allocated"], answer["oneOf"], answer["node"], answer["allocations"], answer["reason"]


def state_of(fleet: Fleet) -> DeviceFleetState:
    warm = fleet._backend({"kind": "DeviceClaim"})
    assert isinstance(warm, DeviceClaimFleet)
    return warm._state


def index_of(fleet: Fleet) -> object:
    """What the index holds, in a form that does not depend on how it came about."""
    assert state_of(fleet).rules is not None  # classes that have changed are read at the next question
    index = state_of(fleet).index
    records = [*index.records.values(), *([index.network] if index.network is not None else [])]
    uses = {
        (record.name, pool.name, pool.devices[position].name): (use.whole, use.shares, use.sharing)
        for record in records
        for pool, in_use in zip(record.snapshot.pools, record.uses, strict=True)
        for position, use in in_use.items()
    }
    nodes = {
        record.name: [(pool.name, [device.name for device in pool.devices]) for pool in record.snapshot.pools]
        for record in records
    }
    alike: dict[object, set[str | None]] = {}
    for record in index.records.values():
        alike.setdefault(record.member_of, set()).add(record.name)
        assert record.member_of is not None
        assert index.classes.by_index[record.member_of.index] is record.member_of
        assert record.rank in record.member_of.ranks
    assert sum(len(each.ranks) for each in index.classes.by_index.values()) == len(index.records)
    order = [record.name for _, record in sorted(index.by_rank.items())]
    account = {
        str(pooled): sorted((use.key, sorted(use.amounts.items())) for use in users)
        for pool in state_of(fleet).judge._account.pools.values()
        for pooled, users in pool.users.items()
    }
    return uses, nodes, sorted(map(sorted, alike.values())), order, account, state_of(fleet).allocations.keys()  # type: ignore[type-var, arg-type]


class FleetMachine(RuleBasedStateMachine):
    """The manifests of the state are kept by name; several of one name only come in at the start."""

    @initialize(random=st.randoms(use_true_random=False))
    def begin(self, random: Random) -> None:
        self.state: dict[Name, list[Manifest]] = {}
        for document in self.documents(random):
            if not is_claim(document) or is_held(document):
                self.state.setdefault(name_of(document), []).append(document)
        self.fleet = Fleet.from_manifests(self.everything())
        self.count = 0

    def documents(self, random: Random) -> list[Manifest]:
        return documents(random)

    def everything(self) -> list[Manifest]:
        return [document for same in self.state.values() for document in same]

    def solved_with(self, claims: list[Manifest]) -> dict[str, Any]:
        """What solve_manifests says of the state and these claims; of its pending ones only their groups' count."""
        names = {name_of(claim) for claim in claims}
        groups = {group_of(claim) for claim in claims} - {None}
        others = [
            document
            for document in self.everything()
            if not is_claim(document)
            or (name_of(document) not in names and (is_held(document) or group_of(document) in groups))
        ]
        return solve_manifests([*others, *claims])

    def fresh_claims(self, random: Random) -> list[Manifest]:
        """Pending claims that are new here."""
        by_name: dict[Name, Manifest] = {}
        for document in self.documents(random):
            if is_claim(document) and not is_held(document):
                document["metadata"]["name"] += f"-{self.count}"
                by_name[name_of(document)] = document
                self.count += 1
        return list(by_name.values())

    # -- what happens ------------------------------------------------------------------------------------------------

    @rule(random=st.randoms(use_true_random=False))
    def allocate(self, random: Random) -> None:
        for claim in self.fresh_claims(random):
            answer = self.fleet.allocate(claim)
            if group_of(claim) and "deletionTimestamp" not in claim["metadata"]:
                assert not answer["allocated"]
                continue
            solved = self.solved_with([claim])
            (expected,) = [a for a in solved["claims"] if a["name"] == claim["metadata"]["name"]]
            assert goals(answer) == goals(expected)
            if answer["allocated"]:
                self.state[name_of(claim)] = [with_answer(claim, answer)]
            else:
                assert json.dumps(answer) == json.dumps(expected)

    @rule(random=st.randoms(use_true_random=False))
    def allocate_all(self, random: Random) -> None:
        claims = self.fresh_claims(random)
        expected = self.solved_with(claims)
        answer = self.fleet.allocate_all(claims)
        assert answer["objective"] == expected["objective"]
        assert sorted(map(str, answer["problems"])) == sorted(map(str, expected["problems"]))
        assert [goals(a) for a in answer["claims"]] == [goals(a) for a in expected["claims"]]
        assert [a.get("warnings") for a in answer["claims"]] == [a.get("warnings") for a in expected["claims"]]
        pending = {name: same[0] for name, same in self.state.items() if is_claim(same[0]) and not is_held(same[0])}
        pending |= {name_of(claim): claim for claim in claims}
        for each in answer["claims"]:
            name = "DeviceClaim", each["namespace"], each["name"]
            if each["allocated"] and name in pending:
                self.state[name] = [with_answer(pending[name], each)]

    @rule(random=st.randoms(use_true_random=False))
    def update(self, random: Random) -> None:
        """Pools, classes, configuration objects and claims that hold devices come anew, some under names in use."""
        for document in random.sample(self.documents(random), 3):
            if is_claim(document) and not is_held(document):
                continue
            name = name_of(document)
            self.fleet.update(document)
            same = self.state.get(name, [])
            node = document["spec"].get("nodeName") if document["kind"] == "DevicePool" else None
            others = [each for each in same if each["spec"].get("nodeName") != node]
            replaces_one = document["kind"] == "DevicePool" and len(others) < len(same)
            self.state[name] = [*(others if replaces_one else []), document]

    @precondition(lambda self: self.state)
    @rule(random=st.randoms(use_true_random=False))
    def delete(self, random: Random) -> None:
        name = random.choice(sorted(self.state))
        kind, namespace, own = name
        metadata = {"name": own, **({"namespace": namespace} if namespace else {})}
        self.fleet.delete({"kind": kind, "metadata": metadata})
        del self.state[name]

    @rule(random=st.randoms(use_true_random=False))
    def release(self, random: Random) -> None:
        held = sorted(name for name, same in self.state.items() if name[0] == "DeviceClaim" and is_held(same[0]))
        held = [name for name in held if name[1:] in state_of(self.fleet).allocations]
        if not held:
            return
        name = random.choice(held)
        self.fleet.release(*name[1:])
        for claim in self.state[name]:
            claim.pop("status", None)

    # -- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def agrees_with_one_built_afresh(self) -> None:
        if not hasattr(self, "fleet"):
            return
        documents = self.everything()
        Random(len(documents)).shuffle(documents)
        chosen = state_of(self.fleet).index.kinds.choice  # it depends on what the fleet has been
        with mock.patch.object(node_index, "choose_group_attributes", return_value=chosen):
            afresh = Fleet.from_manifests(documents)
        assert index_of(self.fleet) == index_of(afresh)


settings_of_machine = settings(
    max_examples=examples(5, 0.04), stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFleet = FleetMachine.TestCase
TestFleet.settings = settings_of_machine


class TestFleetOfVariedAttributes(FleetMachine.TestCase):
    """The same where every attribute of two values counts as varied: all is found through the inverted index."""

    settings = settings_of_machine

    @pytest.fixture(autouse=True)
    def _varied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(equal_devices, "VARIED_ABOVE", 1)


class IdentifiedMachine(FleetMachine):
    """Devices and nodes with attributes that tell them apart, and claims that read these."""

    def documents(self, random: Random) -> list[Manifest]:
        return with_identities(random, documents(random))


class TestFleetOfIdentities(IdentifiedMachine.TestCase):
    """Each kind of node is what its values make of it."""

    settings = settings_of_machine


class TestFleetOfScatteredIdentities(IdentifiedMachine.TestCase):
    """No attribute that tells nodes apart is part of kinds: claims that read one are placed node by node."""

    settings = settings_of_machine

    @pytest.fixture(autouse=True)
    def _scattered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(equal_devices, "NODE_KINDS", 1)
        monkeypatch.setattr(node_index, "NODE_KINDS", 1)

"""``deviceIP`` of a claim's devices: written where the address is known, of machines in warm setups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.part import machines_of
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed
from devalloc_node.health.conditions import ClaimConditions, with_machine_addresses
from devalloc_node.health.watch import HealthSnapshot
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import ATTACHMENT, Prepared, PreparedDevice, Step
from tests.conformance.test_node_and_kubelet import GPU, VF, Bed
from tests.support.binding_runner import pool_of
from tests.support.fake_tree import memory_folder
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool

ADDRESS = "10.88.0.7"
GONE: dict[str, str] = {}


class Claims:
    """A claim with a GPU and a network card, as its node reports it."""

    def __init__(self, store: SQLiteStore) -> None:
        claim = gpu_claim("a")
        entry = {"devicePoolName": "p"}
        fill(store, gpu_pool(), gpu_class(), claim)
        stored = store.get("DeviceClaim", "default", "a")
        entries = [{**entry, "deviceName": name} for name in ("d0", "d1")]
        store.replace_status({**stored, "status": {"allocations": entries}})
        self.store = store
        gpu = PreparedDevice(("0",), "p", "d0", "vfio", ("0000:01:00.0",))
        nic = PreparedDevice(("0",), "p", "d1", "vfio", ("0000:41:00.0",), attributes={"mac": "02:00:00:00:00:01"})
        self.prepared = [Prepared(ClaimRef("default", "a", stored["metadata"]["uid"]), (gpu, nic))]
        self.conditions = ClaimConditions(store, "n")

    def report(self, addresses: dict[str, str]) -> dict[str, dict[str, Any]]:
        """What the claim says of its devices then; by their names."""
        claims = with_machine_addresses(self.prepared, lambda ref, device: addresses.get(device.name))
        self.conditions.update(claims, HealthSnapshot(0, ()))
        return self.statuses()

    def statuses(self) -> dict[str, dict[str, Any]]:
        claim = self.store.get("DeviceClaim", "default", "a")
        assert not [each for each in decode(claim).problems if each.is_error]
        return {each["deviceName"]: each for each in claim["status"]["deviceStatuses"]}

    def by_network(self, address: str) -> None:
        """A network component writes an address of the GPU."""
        claim = self.store.get("DeviceClaim", "default", "a")
        for each in claim["status"]["deviceStatuses"]:
            if each["deviceName"] == "d0":
                each |= {"deviceIP": address, "deviceIPs": [{"ip": address}]}
        self.store.replace_status(claim)


@pytest.fixture
def claims(store: SQLiteStore) -> Claims:
    return Claims(store)


BOTH = {"p/d0": ADDRESS, "p/d1": ADDRESS}


def test_a_device_has_the_address_of_its_machine_and_a_network_card_has_not(claims: Claims) -> None:
    gpu, nic = claims.report(BOTH).values()
    assert (gpu["deviceIP"], gpu["deviceIPs"]) == (ADDRESS, [{"ip": ADDRESS}])
    assert gpu["deviceInfo"][0]["networkAddress"] == ADDRESS
    assert "deviceIP" not in nic


def test_the_address_goes_with_the_machine_also_for_a_plugin_that_starts_anew(claims: Claims) -> None:
    claims.report(BOTH)
    claims.conditions = ClaimConditions(claims.store, "n")
    assert not {"deviceIP", "deviceIPs"} & claims.report(GONE)["d0"].keys()


def test_another_machine_has_another_address(claims: Claims) -> None:
    claims.report(BOTH)
    assert claims.report({"p/d0": "10.88.0.9"})["d0"]["deviceIPs"] == [{"ip": "10.88.0.9"}]


def test_what_a_network_component_wrote_stays(claims: Claims) -> None:
    claims.report(GONE)
    claims.by_network("192.0.2.1")
    assert claims.report(BOTH)["d0"]["deviceIP"] == "192.0.2.1"
    assert claims.report(GONE)["d0"]["deviceIPs"] == [{"ip": "192.0.2.1"}]


def test_nothing_of_it_is_left_on_a_claim_that_is_unprepared(claims: Claims) -> None:
    claims.report(BOTH)
    claims.prepared = []
    assert "deviceIP" not in claims.report(GONE)["d0"]


@pytest.fixture
def bed() -> Iterator[Bed]:
    with memory_folder() as folder:
        yield Bed(Path(folder))


def test_the_node_knows_the_addresses_of_machines_in_warm_setups(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = bed.grants.add("training", GPU, VF)
    with bed.opened() as node:
        node.claims.prepare(ref, Deadline.after(20), kind="ResourceClaim")

        def addresses() -> list[object]:
            return [
                each.attributes.get("networkAddress") for claim in node._reported_claims() for each in claim.devices
            ]

        assert addresses() == [None, None], "there are no setups"
        machines = machines_of(node)
        setups = SimpleNamespace(network=lambda key, run: SimpleNamespace(address=ADDRESS) if run == "run-1" else None)
        monkeypatch.setattr(machines, "homes", setups)
        assert addresses() == [None, None], "it is in no machine"
        value = {"functions": ["0000:01:00.0"], "nodes": []}
        node.journal.intend([(ref.uid, f"{pool_of(GPU)}/{GPU}", Step(ATTACHMENT, "default/vm/dev", None, value))])
        monkeypatch.setattr(machines.machines, "find", lambda key: SimpleNamespace(run="run-1"))
        assert addresses() == [ADDRESS, None]
        monkeypatch.setattr(machines.machines, "find", lambda key: SimpleNamespace(run="run-2"))
        assert addresses() == [None, None], "the setup is of another run"

        def unreadable(key: str) -> object:
            raise Failed("JournalDamaged", "its record cannot be read")

        monkeypatch.setattr(machines.machines, "find", unreadable)
        assert addresses() == [None, None]

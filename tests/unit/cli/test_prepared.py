"""Claims that a node has prepared, machines, and cordons, as people see them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from devalloc.api.meta import PREPARED_ON, RELEASE
from devalloc.api.views import ClaimView, claim_state
from devalloc.store.sqlite import SQLiteStore
from devalloc_node.claims.finalizers import add_finalizer, remove_finalizer, set_users
from devalloc_node.model.grant import ClaimRef
from tests.support.cli_shell import Shell, pool, text
from tests.support.resource_manifests import slice_of

PLUGGED = {"claim": "uplink", "pool": "node-a-0000-3b-00", "device": "0000-3b-01-0"}
EXAMPLE = Path(__file__).parents[3] / "examples" / "virtual-machine"


@contextmanager
def stored(devalloc: Shell) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(devalloc.store)) as store:
        yield store


@pytest.fixture
def prepared(devalloc: Shell) -> ClaimRef:
    """The claim uplink, prepared on its node for a machine."""
    devalloc("apply", "-f", EXAMPLE)
    devalloc.allocate()
    with stored(devalloc) as store:
        claim = store.get("DeviceClaim", "default", "uplink")
        ref = ClaimRef("default", "uplink", claim["metadata"]["uid"])
        add_finalizer(store, "node-a", ref)
        set_users(store, ref, ["web"])
    return ref


def test_a_prepared_claim_names_its_node_and_its_user(devalloc: Shell, prepared: ClaimRef) -> None:
    assert "Prepared" in devalloc("get", "claims").out
    facts = [line.split() for line in devalloc("describe", "dclaim/uplink").out.splitlines()]
    assert ["Prepared", "on:", "node-a"] in facts
    assert ["Used", "by:", "web"] in facts


def test_it_is_released_by_force_alone_and_when_its_node_has_let_go(devalloc: Shell, prepared: ClaimRef) -> None:
    refused = devalloc("release", "uplink")
    assert refused.code == 1
    assert "is prepared on node-a for web" in refused.err
    late = devalloc("release", "uplink", "--force", "--timeout", "10ms")
    assert late.code == 1
    assert "the node has not released the devices" in late.err
    assert "Releasing" in devalloc("get", "claims").out

    def node() -> None:
        with stored(devalloc) as store:
            for event in store.watch("DeviceClaim"):
                if ClaimView(event.object).wants_release:
                    return remove_finalizer(store, "node-a", prepared)

    plugin = threading.Thread(target=node)
    plugin.start()
    released = devalloc("release", "uplink", "--force", "--timeout", "30s")
    plugin.join(60)
    assert (released.code, released.out) == (0, "deviceclaim/uplink released\n")
    with closing(SQLiteStore(devalloc.store)) as store:
        assert "status" not in store.get("DeviceClaim", "default", "uplink")


def test_a_released_claim_may_be_prepared_again_before_the_command_looks(devalloc: Shell, prepared: ClaimRef) -> None:
    def others() -> None:
        with stored(devalloc) as store:
            for event in store.watch("DeviceClaim"):
                if ClaimView(event.object).wants_release:
                    notes = {**event.object["metadata"]["annotations"], PREPARED_ON: "node-b"}
                    del notes[RELEASE]
                    store.replace({**event.object, "metadata": {**event.object["metadata"], "annotations": notes}})
                    return

    at_work = threading.Thread(target=others)
    at_work.start()
    result = devalloc("release", "uplink", "--force", "--timeout", "30s")
    at_work.join(60)
    assert (result.code, result.out) == (0, "deviceclaim/uplink released\n")


def test_a_claim_of_a_node_that_is_gone_is_abandoned(devalloc: Shell, prepared: ClaimRef) -> None:
    assert devalloc("release", "uplink", "--abandon").out == "deviceclaim/uplink released\n"
    assert "finalizers" not in devalloc("get", "dclaim/uplink", "-o", "json").json["metadata"]


def test_its_deletion_waits(devalloc: Shell, prepared: ClaimRef) -> None:
    assert devalloc("delete", "dclaim/uplink").out == (
        "deviceclaim/uplink marked for deletion until its node releases it (finalizer devalloc.io/node)\n"
    )
    assert "Deleting" in devalloc("get", "claims").out


def test_a_claim_that_holds_nothing_is_not_being_released() -> None:
    wanted = {"metadata": {"name": "a", "annotations": {RELEASE: "forced"}}}
    assert claim_state(wanted) == "Pending"
    assert claim_state({**wanted, "status": {"allocations": [{}]}}) == "Releasing"


def test_machines_are_listed_with_what_they_have_and_are_to_have(devalloc: Shell, prepared: ClaimRef) -> None:
    with stored(devalloc) as store:
        machine = store.get("VirtualMachine", "default", "web")
        status = {"phase": "Running", "observed": {"cpus": "1", "memory": "256Mi"}, "devices": [PLUGGED], "pid": 42}
        store.replace_status({**machine, "status": status})
    rows = {line.split()[0]: line.split()[1:7] for line in devalloc("get", "vm", "-o", "wide").out.splitlines()}
    assert rows["web"] == ["Running", "node-a", "1", "256Mi/512Mi", "uplink", "1"]
    assert rows["builder"][:4] == ["Pending", "node-a", "1500m", "1Gi"]
    assert ["Phase:", "Running"] in [line.split() for line in devalloc("describe", "vm/web").out.splitlines()]


def test_devices_are_cordoned_listed_and_uncordoned(devalloc: Shell) -> None:
    devalloc("apply", "-f", EXAMPLE)
    assert devalloc("cordon").out == "nothing is cordoned\n"
    done = devalloc("cordon", "0000-3b-01-0", "node/node-a", "--reason", "new firmware")
    assert done.out == "device 0000-3b-01-0 of pool node-a-0000-3b-00 cordoned\nnode node-a cordoned\n"
    assert devalloc("cordon").out.count("new firmware") == 2
    devalloc.allocate()
    assert "uplink" in devalloc("get", "claims").out
    assert "allocations" not in devalloc("get", "dclaim/uplink", "-o", "json").json["status"]
    for name in ("0000-3b-01-0", "node/node-a"):
        assert devalloc("uncordon", name).out.endswith(" uncordoned\n")
    assert devalloc("uncordon", "node/node-a").out == "node node-a was not cordoned\n"
    devalloc.allocate()
    assert devalloc("get", "dclaim/uplink", "-o", "json").json["status"]["allocations"]


def test_a_reason_of_several_lines_stays_on_one_line_of_the_table(devalloc: Shell) -> None:
    devalloc("apply", "-f", EXAMPLE)
    devalloc("cordon", "0000-3b-01-0", "--reason", "fan\nand\tcable, ünï")
    _, row = devalloc("cordon").out.splitlines()
    assert row.endswith("fan\\nand\\tcable, ünï")


def test_cordoning_again_keeps_the_reason_unless_another_one_is_given(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool("gpus")))
    for name in ("node/node-a", "gpus/gpu-0"):
        devalloc("cordon", name, "--reason", "fan broken")
        output = devalloc("cordon", name)
        assert output.out.endswith(" is already cordoned\n")
        assert "fan broken" in devalloc("cordon").out
        assert devalloc("cordon", name, "--reason", "cable").out.endswith(" cordoned\n")
        assert "cable" in devalloc("cordon").out
        devalloc("uncordon", name)


def test_cordon_of_devices_of_pods_names_the_right_command(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool("gpus")))
    with stored(devalloc) as store:
        store.create(slice_of("p", "node-a", []))
        store.create(slice_of("q", "node-b", []))
    output = devalloc("cordon", "node/node-a")
    assert "node-a cordoned" in output.out
    assert "its ResourceSlices are not: use `kubectl cordon node-a`" in output.err
    refused = devalloc("cordon", "node/node-b")
    assert refused.code == 1
    assert "node node-b publishes ResourceSlices and no DevicePools: `kubectl cordon node-b`" in refused.err
    assert "DeviceTaintRule" in refused.err


def test_a_user_without_a_name_may_cordon(devalloc: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose users are numbers."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_123)
    devalloc("apply", "-f", EXAMPLE)
    assert devalloc("cordon", "node/node-a").code == 0
    assert "by user 2000000123" in devalloc("cordon").out


def test_a_missing_device_cannot_be_cordoned(devalloc: Shell) -> None:
    devalloc("apply", "-f", EXAMPLE)
    refused = devalloc("cordon", "0000-3b-01-0", "absent")
    assert (refused.code, devalloc("cordon").out) == (4, "nothing is cordoned\n")
    assert "there is no node, pool or device absent" in refused.err

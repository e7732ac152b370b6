"""A claim says which machine it is placed with, and a host's pool which machines have what of it."""

from __future__ import annotations

from pathlib import Path

from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.store.sqlite import SQLiteStore
from tests.support.cli_shell import Shell, text
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.host_pools import host, machine


def placed(devalloc: Shell) -> None:
    store = SQLiteStore(devalloc.store)
    for _ in range(2):
        DeviceClaimAllocator(store).round()
    store.close()


def test_a_claim_and_a_pool_tell_of_the_machine(devalloc: Shell) -> None:
    fleet = (gpu_class(), host("a"), gpu_pool("p", node="a"), gpu_claim("gpu"), machine("web", "1", "1Gi", "gpu"))
    assert devalloc("apply", "-f", "-", stdin=text(*fleet)).code == 0
    placed(devalloc)
    lines = [line.split(maxsplit=1) for line in devalloc("describe", "dclaim/gpu").out.splitlines()]
    assert ["Machines:", "web (on a)"] in lines
    assert "machine default/web (cpu 1, memory 1Gi)" in devalloc("describe", "pool/a-host").out
    output = devalloc("explain", "gpu")
    assert (output.code, "It is placed with machine default/web" in output.out) == (0, True)
    assert devalloc("explain", "gpu", "-o", "json").json["machine"] == "default/web"


def test_a_claim_that_waits_with_its_machine_says_so(devalloc: Shell) -> None:
    fleet = (
        gpu_class(),
        host("a"),
        gpu_pool("p", node="a"),
        gpu_claim("gpu"),
        machine("web", "1", "1Gi", "gpu", "nic"),
    )
    assert devalloc("apply", "-f", "-", stdin=text(*fleet)).code == 0
    placed(devalloc)
    output = devalloc("explain", "gpu")
    assert output.code == 1
    assert "placed with machine default/web, which waits: claim default/nic does not exist" in output.out
    assert "which waits: claim default/nic does not exist" in devalloc("describe", "dclaim/gpu").out


def test_a_machine_that_is_to_have_more_and_does_not_get_it_is_explained(devalloc: Shell) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(host("a", cpus=4), machine("web", "1", "1Gi"))).code == 0
    placed(devalloc)
    store = SQLiteStore(devalloc.store)
    stored = store.get("VirtualMachine", "default", "web")
    metadata = {
        **stored["metadata"],
        "finalizers": ["devalloc.io/node"],
        "annotations": {"devalloc.io/prepared-on": "a"},
    }
    store.replace({**stored, "metadata": metadata})
    store.close()
    assert devalloc("apply", "-f", "-", stdin=text(machine("web", "8", "1Gi"))).code == 0
    output = devalloc("explain", "vm/web")
    assert output.code == 0
    assert output.out.startswith("default/web is placed on node a: ")
    assert "The machine asks for more than it can get: NodesTooSmall" in output.out
    assert "What to do: " in output.out


def test_the_machine_of_another_namespace_is_explained_by_the_command_that_is_told(devalloc: Shell) -> None:
    fleet = (gpu_class(), host("a"), gpu_pool("p", node="a"), gpu_claim("gpu"), machine("web", "1", "1Gi", "gpu"))
    for manifest in fleet:
        if "namespace" in manifest["metadata"]:
            manifest["metadata"]["namespace"] = "team"
    assert devalloc("apply", "-n", "team", "-f", "-", stdin=text(*fleet)).code == 0
    printed = devalloc("explain", "gpu", "-n", "team").out
    (command,) = (
        line.partition("devalloc ")[2] for line in printed.splitlines() if "It is placed with machine" in line
    )
    assert "team/web" in devalloc(*command.split()).out


def test_what_is_in_the_way_of_a_machine_is_a_field_of_its_own(devalloc: Shell) -> None:
    printed = devalloc("explain", "vm/analytics", "-f", str(Path(__file__).parents[3] / "examples/placed-machines")).out
    assert "spec.memory: 96Gi, at most 64Gi fits" in printed
    assert "spec.claims" not in printed

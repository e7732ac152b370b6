"""Every rule of the API names the place that breaks it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from devalloc.api.decode import decode
from devalloc.api.problems import errors
from devalloc.api.virtual_machine import MemoryBounds
from tests.support.good_manifests import good, good_manifests
from tests.support.manifest_edit import with_change

LONG = "x" * 300
POOL: list[tuple[str, Any, str, str]] = [
    # where, what stands there, the path that is named, words of the message
    ("spec.driver", None, "spec.driver", "required"),
    ("spec.driver", "", "spec.driver", "1 to 253"),
    ("spec.driver", 5, "spec.driver", "string"),
    ("spec.nodeName", "a\nb", "spec.nodeName", "printable"),
    ("metadata.name", "Node_A", "metadata.name", "DNS name"),
    ("metadata.name", None, "metadata.name", "required"),
    ("metadata.creationTimestamp", "yesterday", "metadata.creationTimestamp", "RFC 3339"),
    ("spec.attributes.0", {"name": "a"}, "spec.attributes[0]", "exactly one"),
    ("spec.attributes.0", {"name": "a", "stringValue": "", "intValue": 0}, "spec.attributes[0]", "has 2"),
    ("spec.attributes.1.intValue", "0", "spec.attributes[1].intValue", "whole number"),
    ("spec.attributes.1.intValue", True, "spec.attributes[1].intValue", "whole number"),
    ("spec.attributes.1.intValue", 1.0, "spec.attributes[1].intValue", "whole number"),
    ("spec.attributes.1.intValue", 2**63, "spec.attributes[1].intValue", "9223372036854775807"),
    ("spec.attributes.2.quantityValue", "1GB", "spec.attributes[2].quantityValue", "did you mean G"),
    ("spec.attributes.3.semVerValue", "1.8", "spec.attributes[3].semVerValue", "MAJOR.MINOR.PATCH"),
    ("spec.attributes.3.semVerValue", 1.8, "spec.attributes[3].semVerValue", "quotes"),
    ("spec.attributes.3.name", "vendor", "spec.attributes[3].name", "entry [0] already has 'vendor'"),
    ("spec.resources.0.capacity", "-1", "spec.resources[0].capacity", "negative"),
    ("spec.resources.0.capacity", None, "spec.resources[0].capacity", "required"),
    ("spec.resources.0.capacity", "0.1n", "spec.resources[0].capacity", "finer than one nano"),
    ("spec.resources.0.capacity", "1e30", "spec.resources[0].capacity", "beyond"),
    ("spec.resources.0.blockSize", 0, "spec.resources[0].blockSize", "more than zero"),
    ("spec.resources.0.blockSize", "-1", "spec.resources[0].blockSize", "more than zero"),
    ("spec.resources.1.name", "memory", "spec.resources[1].name", "already"),
    ("spec.devices.1.name", "whole", "spec.devices[1].name", "already"),
    ("spec.devices.1.requests.memory", "-5Gi", "spec.devices[1].requests[memory]", "negative"),
    ("spec.devices.1.resources.0.name", LONG, "spec.devices[1].resources[0].name", "1 to 253"),
    ("spec.devices.1", "slice-0", "spec.devices[1]", "map of fields"),
    ("spec.devices", {}, "spec.devices", "list"),
    ("spec.attributes", [{"name": f"a{i}", "intValue": i} for i in range(49)], "spec.attributes", "at most 48"),
    ("spec", [], "spec", "map of fields"),
    ("spec.pool", "x", "spec.pool", "unknown field"),
    ("spec.attributess", [], "spec.attributess", "did you mean `attributes`?"),
    ("spec.node_name", "x", "spec.node_name", "did you mean `nodeName`?"),
    ("spec.attributes.0.stringvalue", "x", "spec.attributes[0].stringvalue", "did you mean `stringValue`?"),
    ("status.availableDevices", "2", "status.availableDevices", "whole number"),
]
CLASS: list[tuple[str, Any, str, str]] = [
    ("spec.adminAccess", "yes", "spec.adminAccess", "true or false"),
    ("spec.adminAccess", 1, "spec.adminAccess", "true or false"),
    ("spec.configs.0.namespace", None, "spec.configs[0].namespace", "required"),
    ("spec.configs.0.name", "A", "spec.configs[0].name", "DNS name"),
    ("spec.contstraints", "true", "spec.contstraints", "did you mean `constraints`?"),
    ("spec.constraints", ["a", "b"], "spec.constraints", "must be a string, not a list; join its expressions with &&"),
    ("spec.constraints", "x" * 10241, "spec.constraints", "at most 10240 characters"),
]
CLAIM: list[tuple[str, Any, str, str]] = [
    ("spec.claims", [], "spec.claims", "at least 1 entry"),
    ("spec.claims", None, "spec.claims", "required"),
    ("spec.claims.0.requests.count", "0", "spec.claims[0].requests[count]", "more than zero"),
    ("spec.claims.0.requests.count", "1.5", "spec.claims[0].requests[count]", "whole number"),
    ("spec.claims.0.requests.count", "half", "spec.claims[0].requests[count]", "not a quantity"),
    ("spec.claims.0.requests.memory", -1, "spec.claims[0].requests[memory]", "more than zero"),
    ("spec.claims.0.requests.memory", "30Gi", "spec.claims[0].limits[memory]", "below requests.memory (30Gi)"),
    ("spec.claims.0.limits.count", 1, "spec.claims[0].limits[count]", "below requests.count (2)"),
    ("spec.claims.1.oneOf.0.limits", {"count": 0}, "spec.claims[1].oneOf[0].limits[count]", "at least 1"),
    ("spec.claims.0.requests", ["count"], "spec.claims[0].requests", "map"),
    ("spec.claims.1.deviceClass", "gpu", "spec.claims[1].oneOf", "move those"),
    ("spec.claims.0.constraints", ["a"], "spec.claims[0].constraints", "join its expressions with &&"),
    ("spec.claims.0.count", 4, "spec.claims[0].count", "requests.count"),
    ("spec.claims.1.oneOf.1.count", 4, "spec.claims[1].oneOf[1].count", "requests.count"),
    ("spec.deviceClass", "gpu", "spec.deviceClass", "entry of spec.claims"),
    ("spec.claims.0.matchAttributes", ["a", 5], "spec.claims[0].matchAttributes[1]", "string"),
    ("spec.claims.0.configs.0.kind", None, "spec.claims[0].configs[0].kind", "required"),
    ("metadata.annotations.devalloc~io/priority", "high", "metadata.annotations[devalloc.io/priority]", "integer"),
    ("metadata.annotations.devalloc~io/priority", "1.5", "metadata.annotations[devalloc.io/priority]", "integer"),
    ("metadata.annotations.devalloc~io/group", "a\x1b[2J", "metadata.annotations[devalloc.io/group]", "printable"),
    ("metadata.annotations.devalloc~io/node", "n" * 254, "metadata.annotations[devalloc.io/node]", "1 to 253"),
    ("metadata.annotations.devalloc~io/release", "now", "metadata.annotations[devalloc.io/release]", "asked or forced"),
    ("metadata.annotations.devalloc~io/priority", str(2**63), "metadata.annotations[devalloc.io/priority]", "integer"),
    ("metadata.namespace", "Team A", "metadata.namespace", "DNS label"),
    ("status.allocations.0.devicePoolName", None, "status.allocations[0].devicePoolName", "required"),
    ("status.deviceStatuses.0.deviceIP", "10.9.9.9", "status.deviceStatuses[0].deviceIPs[0].ip", "equal deviceIP"),
]
VF: list[tuple[str, Any, str, str]] = [
    ("spec.vlan", 4095, "spec.vlan", "at most 4094"),
    ("spec.vlan", -1, "spec.vlan", "at least 0"),
    ("spec.mac", "02-00-00-12-34-56", "spec.mac", "MAC address"),
    ("spec.mac", "01:00:5e:00:00:01", "spec.mac", "unicast"),
    ("spec.mac", "00:00:00:00:00:00", "spec.mac", "unicast"),
    ("spec.minTxRate", 2000, "spec.minTxRate", "above maxTxRate (1000)"),
    ("spec.linkState", "up", "spec.linkState", "'auto', 'enable' or 'disable'"),
]
MACHINE: list[tuple[str, Any, str, str]] = [
    ("spec.nodeName", "no\nnode", "spec.nodeName", "printable"),
    ("spec.numaPolicy", "best-effort", "spec.numaPolicy", "single-numa-node"),
    ("spec.disk", "0", "spec.disk", "more than zero"),
    ("spec.diskIO", "-1", "spec.diskIO", "more than zero"),
    ("spec.nics.0.bandwidth", "0", "spec.nics[0].bandwidth", "more than zero"),
    ("spec.cpu", None, "spec.cpu", "required"),
    ("spec.cpu.min", "0", "spec.cpu.min", "more than zero"),
    ("spec.cpu.min", -1, "spec.cpu.min", "more than zero"),
    ("spec.cpu.min", 2, "spec.cpu.use", "below min (2)"),
    ("spec.cpu.use", "4001m", "spec.cpu.use", "above max (4)"),
    ("spec.cpu.min", "9m", "spec.cpu.min", "at least 10m"),
    ("spec.cpu", {"min": "9.99m", "max": "10m"}, "spec.cpu.min", "at least 10m"),
    ("spec.cpu", {"min": 2, "max": 1}, "spec.cpu.max", "below min (2)"),
    ("spec.cpu.max", 1025, "spec.cpu.max", "above 1024"),
    ("spec.cpu.most", 4, "spec.cpu.most", "known fields: min, max, use"),
    ("spec.memory.min", "513M", "spec.memory.min", "multiple of 2Mi"),
    ("spec.memory.min", "512M", "spec.memory.min", "must be a multiple of 2Mi, but is 512M; did you mean 512Mi?"),
    ("spec.memory.min", "522240k", "spec.memory.min", "did you mean 510Mi?"),
    ("spec.memory.slotSize", "512M", "spec.memory.slotSize", "multiple of 128Mi, but is 512M; did you mean 512Mi?"),
    ("spec.memory.use", "1.5", "spec.memory.use", "multiple of 2Mi"),
    ("spec.memory.use", "256Mi", "spec.memory.use", "below min (512Mi)"),
    ("spec.memory.use", "768Mi", "spec.memory.use", "plus a multiple of slotSize (512Mi)"),
    ("spec.memory.max", "2304Mi", "spec.memory.max", "plus a multiple of slotSize (512Mi)"),
    ("spec.memory.max", "130Gi", "spec.memory.max", "at most 255 times slotSize (512Mi)"),
    ("spec.memory.slotSize", "2Mi", "spec.memory.slotSize", "multiple of 128Mi"),
    ("spec.memory.slotSize", None, "spec.memory.slotSize", "required with method dimm"),
    ("spec.memory.method", None, "spec.memory.slotSize", "needs method dimm"),
    ("spec.memory.hugePages", "4Ki", "spec.memory.hugePages", "'2Mi' or '1Gi'"),
    ("spec.memory", {"min": "1Gi", "max": "3Gi", "use": "1.5Gi", "hugePages": "1Gi"}, "spec.memory.use", "of 1Gi"),
    (
        "spec.memory",
        {"min": "1Gi", "max": "3Gi", "method": "dimm", "slotSize": "512Mi", "hugePages": "1Gi"},
        "spec.memory.slotSize",
        "multiple of 1Gi",
    ),
    ("spec.memory.method", "balloon", "spec.memory.method", "'virtio-mem' or 'dimm'"),
    ("spec.start", None, "spec.start", "or else adopt"),
    (
        "spec.start.cloudInit",
        {"userData": "packages: [a]\n"},
        "spec.start.cloudInit.userData",
        "must have #cloud-config as its first line, or #! for a script, not 'packages: [a]'",
    ),
    ("spec.start", {}, "spec.start.kernel", "nothing to start"),
    ("spec.start.kernel", "vmlinuz", "spec.start.kernel", "absolute path"),
    ("spec.start.kernel", "/var/lib/../../etc/shadow", "spec.start.kernel", "absolute path without '.', '..'"),
    ("spec.start.kernel", "/var//vmlinuz", "spec.start.kernel", "absolute path"),
    ("spec.start.kernel", "/var/lib/", "spec.start.kernel", "absolute path"),
    ("spec.start.kernel", "/var/x\ny", "spec.start.kernel", "absolute path"),
    ("spec.start.firmware", {"type": "coreboot"}, "spec.start.firmware.type", "'bios' or 'uefi'"),
    ("spec.start.firmware", {"secureBoot": True}, "spec.start.firmware.secureBoot", "needs type uefi"),
    ("spec.start.firmware", {"type": "uefi", "secureBoot": True}, "spec.start.kernel", "start from a disk"),
    ("spec.start.tpm", "yes", "spec.start.tpm", "true or false"),
    ("spec.start.append", "a\nb", "spec.start.append", "one line"),
    ("spec.start.append", "x" * 2048, "spec.start.append", "at most 2047 characters"),
    ("spec.start.disks.0.clone", "snapshot", "spec.start.disks[0].clone", "'overlay' or 'copy'"),
    (
        "spec.start.disks.0",
        {"path": "/d", "format": "raw", "readOnly": True, "clone": "copy"},
        "spec.start.disks[0].clone",
        "cannot be combined with readOnly",
    ),
    ("spec.disk", None, "spec.disk", "is required with start.disks[].clone"),
    ("spec.start.disks.0.format", None, "spec.start.disks[0].format", "required"),
    ("spec.start.disks.0.format", "vmdk", "spec.start.disks[0].format", "'raw' or 'qcow2'"),
    ("spec.start.disks.0.path", "/var/lib/machines/data.raw", "spec.start.disks[1].path", "already"),
    ("spec.adopt", {"qmpSocket": "/run/" + "a" * 103}, "spec.adopt.qmpSocket", "at most 107 bytes"),
    ("spec.nics.0.interface", None, "spec.nics[0].interface", "required with backend tap"),
    ("spec.nics.1.interface", "tap1", "spec.nics[1].interface", "needs backend tap"),
    ("spec.nics.0.interface", "../tap0", "spec.nics[0].interface", "name of a network interface"),
    ("spec.nics.1.backend", "warm", "spec.nics[2].backend", "can use only one warm setup"),
    ("spec.nics.2.interface", "tap1", "spec.nics[2].interface", "needs backend tap"),
    ("spec.nics.0.mac", "01:00:5e:00:00:01", "spec.nics[0].mac", "unicast"),
    ("spec.claims.1", "train", "spec.claims[1]", "is a duplicate"),
    ("spec.claims.0", "../train", "spec.claims[0]", "DNS name"),
    ("spec.pciSlots", 1, "spec.pciSlots", "each of the 2 claims"),
    ("spec.pciSlots", 65, "spec.pciSlots", "at most 64"),
    ("spec.restartPolicy", "OnFailure", "spec.restartPolicy", "'Always' or 'Never'"),
    ("spec.powerdownSeconds", -1, "spec.powerdownSeconds", "at least 0"),
    ("status.phase", "Lost", "status.phase", "'Running'"),
    ("status.devices.0.claim", None, "status.devices[0].claim", "required"),
    ("status.observed.memory", "-1", "status.observed.memory", "negative"),
    ("status.migrationState.targetNode", None, "status.migrationState.targetNode", "required"),
    ("status.migrationState.migrationUID", "", "status.migrationState.migrationUID", "1 to 253"),
    ("status.migrationState.claims.0.uid", None, "status.migrationState.claims[0].uid", "required"),
    ("status.migrationState.claims.0.allocations", [], "status.migrationState.claims[0].allocations", "at least 1"),
    ("status.movedClaims.0.name", "../train", "status.movedClaims[0].name", "DNS name"),
]
MIGRATION = [
    ("spec.vmName", None, "spec.vmName", "required"),
    ("spec.vmName", "../trainer", "spec.vmName", "DNS name"),
    ("spec.targetNode", "", "spec.targetNode", "1 to 253"),
    ("spec.node", "node-b", "spec.node", "known fields: vmName, targetNode"),
    ("status.phase", "Moving", "status.phase", "'Scheduled'"),
    ("status.startTime", "noon", "status.startTime", "RFC 3339"),
    ("status.offer.run", "../6d3f", "status.offer.run", "UUID"),
    ("status.offer.accel", "xen", "status.offer.accel", "'kvm' or 'tcg'"),
    ("status.offer.certificate", "x" * 4097, "status.offer.certificate", "at most 4096 characters"),
    ("status.offer.platform.machineType", "q35", "status.offer.platform.machineType", "with a version"),
    ("status.offer.platform.rootPorts.0.memory", -1, "status.offer.platform.rootPorts[0].memory", "at least 0"),
    ("status.offer.platform.queues.0.nic", 8, "status.offer.platform.queues[0].nic", "at most 7"),
    ("status.offer.platform.distances", [10, 20], "status.offer.platform.distances", "4 entries"),
    ("status.offer.platform.cpuFlags.0", "a,b", "status.offer.platform.cpuFlags[0]", "CPU flag"),
    ("status.offer.amounts.vcpus", 0, "status.offer.amounts.vcpus", "at least 1"),
    ("status.destination.address", "0.0.0.0", "status.destination.address", "address of the node"),
    ("status.destination.port", 65536, "status.destination.port", "at most 65535"),
    ("status.progress.remaining", -1, "status.progress.remaining", "at least 0"),
]
CASES = [
    (kind, *case)
    for kind, cases in (
        ("DevicePool", POOL),
        ("DeviceClass", CLASS),
        ("DeviceClaim", CLAIM),
        ("VfConfig", VF),
        ("VgpuConfig", [("spec.profile", None, "spec.profile", "required"), ("spec", None, "spec", "required")]),
        ("VirtualMachine", MACHINE),
        ("VirtualMachineMigration", MIGRATION),
        ("VfioConfig", [("spec", {"x": 1}, "spec.x", "unknown field")]),
    )
    for case in cases
]


@pytest.mark.parametrize(("kind", "where", "value", "path", "words"), CASES)
def test_a_broken_rule_is_one_error_at_its_place(kind: str, where: str, value: Any, path: str, words: str) -> None:
    base = good(kind)
    if where.startswith("status") and kind == "DeviceClaim":
        base = next(content for content in good_manifests() if content["metadata"]["name"] == "held")
    decoded = decode(with_change(base, where, value))
    assert decoded.object is None
    (problem,) = errors(decoded.problems)
    assert problem.path == path
    assert words in problem.message
    assert (problem.kind, problem.severity) == (kind, "error")


def test_a_machine_grows_by_whole_dimms_from_its_minimum() -> None:
    """Which itself need not be a multiple of them."""
    memory = {"min": "640Mi", "use": "1152Mi", "max": "1664Mi", "method": "dimm", "slotSize": "512Mi"}
    assert MemoryBounds.model_validate(memory).use is not None
    for name in ("use", "max"):
        with pytest.raises(ValidationError, match="plus a multiple of slotSize"):
            MemoryBounds.model_validate({**memory, name: "1536Mi", "max": "1536Mi" if name == "max" else "1664Mi"})


def test_huge_pages_are_for_machines_that_are_started_and_not_scaled_by_permits() -> None:
    huge = with_change(with_change(good("VirtualMachine"), "spec.memory.hugePages", "2Mi"), "spec.runner", None)
    assert decode(huge).object is not None
    scaled = decode(with_change(huge, "spec.scaling", {"address": "10.0.0.2"}))
    assert [(one.path, one.message) for one in errors(scaled.problems)] == [
        (
            "spec.memory.hugePages",
            "cannot be combined with scaling: permits are for ordinary memory; set memory.use instead",
        )
    ]
    adopted = huge
    for path in ("spec.start", "spec.nics", "spec.pciSlots"):
        adopted = with_change(adopted, path, None)
    adopted = decode(with_change(adopted, "spec.adopt", {"qmpSocket": "/run/machines/a.qmp"}))
    assert [one.path for one in errors(adopted.problems)] == ["spec.memory.hugePages"]


def test_a_machine_that_is_adopted_has_nothing_of_one_that_is_started() -> None:
    started = with_change(good("VirtualMachine"), "spec.start.pinned", None)
    machine = with_change(started, "spec.adopt", {"qmpSocket": "/run/machines/a.qmp"})
    assert {problem.path: problem.message for problem in decode(machine).problems} == {
        "spec.adopt": "cannot be combined with start; the machine is either started or adopted",
        "spec.nics": "need start; an adopted machine has the network cards with which it was started",
        "spec.pciSlots": "needs start; an adopted machine has its own",
    }


def test_a_machine_that_is_adopted_says_where_it_runs() -> None:
    machine = next(content for content in good_manifests() if content["metadata"]["name"] == "adopted")
    del machine["spec"]["nodeName"]
    assert [(problem.path, problem.message) for problem in decode(machine).problems] == [
        ("spec.nodeName", "is required with adopt")
    ]


def test_a_machine_that_is_adopted_cannot_report() -> None:
    machine = next(content for content in good_manifests() if content["metadata"]["name"] == "adopted")
    assert decode(with_change(machine, "spec.guestReports", False)).object is not None
    problems = decode(with_change(machine, "spec.guestReports", True)).problems
    assert [(problem.path, problem.message) for problem in problems] == [
        ("spec.guestReports", "needs start; an adopted machine has no port for reports")
    ]


def test_all_errors_of_a_document_are_named_at_once_however_they_hide_each_other() -> None:
    claim = good("DeviceClaim")
    for where, value in (
        ("metadata.annotations.devalloc~io/priority", "high"),
        ("spec.claims.0.requests.memory", "lots"),
        ("spec.claims.0.limits.count", 1),
        ("spec.claims.0.deviceClas", "gpu"),
        ("spec.claims.1.deviceType", "gpu"),
        ("spec.claims.1.oneOf.1.requests.bandwidth", "-1"),
    ):
        claim = with_change(claim, where, value)
    assert [problem.path for problem in errors(decode(claim).problems)] == [
        "metadata.annotations[devalloc.io/priority]",
        "spec.claims[0].deviceClas",
        "spec.claims[0].limits[count]",
        "spec.claims[0].requests[memory]",
        "spec.claims[1].oneOf",
        "spec.claims[1].oneOf[1].requests[bandwidth]",
    ]


def test_a_wrong_entry_does_not_hide_that_its_name_is_taken() -> None:
    pool = with_change(
        good("DevicePool"), "spec.devices.1", {"name": "whole", "attributes": [{"name": "a", "intValue": "x"}]}
    )
    paths = [problem.path for problem in errors(decode(pool).problems)]
    assert paths == ["spec.devices[1].attributes[0].intValue", "spec.devices[1].name"]


@pytest.mark.parametrize("content", good_manifests(), ids=lambda content: content["metadata"]["name"])
def test_valid_manifests_decode_without_problems_and_are_written_back_equal(content: dict[str, Any]) -> None:
    decoded = decode(content)
    assert decoded.problems == []
    assert decoded.object is not None
    again = decode(decoded.object.to_manifest())
    assert again.object == decoded.object

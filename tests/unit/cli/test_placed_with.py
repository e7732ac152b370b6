"""A claim says which machine it is placed with, and a host's pool which machines have what of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.meta import PRIORITY
from devalloc.store.sqlite import SQLiteStore
from tests.support.cli_shell import Shell, text
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.host_pools import host, machine
from tests.support.machine_allocator import machine_allocator


def placed(devalloc: Shell) -> None:
    store = SQLiteStore(devalloc.store)
    for _ in range(2):
        machine_allocator(store).round()
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
    assert output.code == 3
    assert "placed with machine default/web, which waits: claim default/nic does not exist" in output.out
    assert "which waits: claim default/nic does not exist" in devalloc("describe", "dclaim/gpu").out


def test_wait_and_explain_ask_for_the_plugin_of_a_placed_machine_that_no_node_takes(devalloc: Shell) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(host("a", cpus=4), machine("web", "1", "1Gi"))).code == 0
    placed(devalloc)

    silence = "o node has taken the machine yet: is a node plugin running on node a?"
    assert devalloc("explain", "vm/web").out.endswith(f"\nN{silence}\n")
    assert f"; n{silence}" in devalloc("wait", "vm/web", "--timeout", "10ms").err

    with closing(SQLiteStore(devalloc.store)) as store:
        web = store.get("VirtualMachine", "default", "web")
        store.replace_status({**web, "status": {**web["status"], "phase": "Running"}})
    assert "has taken" not in devalloc("explain", "vm/web").out


ADVICE = {
    "PathMissing": "Put it there.",
    "CpusInUse": "Stop a machine, or as the admin of the host return a setup that is no longer used",
    "MonitorUnreachable": "Check whether it runs.",
}


@pytest.mark.parametrize("code", ["PathMissing", "CpusInUse", "MonitorUnreachable"])
def test_explain_says_why_a_placed_machine_does_not_run_and_what_to_do(devalloc: Shell, code: str) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(host("a", cpus=4), machine("web", "1", "1Gi"))).code == 0
    placed(devalloc)
    assert devalloc("explain", "vm/web").code == 0

    set_status(devalloc, phase="Pending", reason=code, message="/srv/web.raw is not there")
    shown = devalloc("explain", "vm/web")
    assert shown.code == 1
    assert shown.out.startswith("default/web is placed on node a: ")
    assert f"\nIt does not run: {code}: /srv/web.raw is not there\n\nWhat to do: " in shown.out
    assert f"What to do: {ADVICE[code]}" in shown.out, "what the table of codes says, and not where it is"
    as_json = devalloc("explain", "vm/web", "-o", "json")
    assert (as_json.code, as_json.json["reason"], as_json.json["message"]) == (1, code, "/srv/web.raw is not there")

    set_status(devalloc, phase="Running", reason="RestartNeeded", message="changes of cpu.max apply at its next start")
    shown = devalloc("explain", "vm/web")
    assert (shown.code, "\nIt runs, but: RestartNeeded: changes of cpu.max" in shown.out) == (1, True)
    assert "What to do: Restart it when convenient: `devalloc restart vm/NAME`." in shown.out
    set_status(devalloc, phase="Paused", reason="DiskFailed", message="its CPUs are paused: no space")
    assert "\nIts CPUs stand still: DiskFailed: its CPUs are paused" in devalloc("explain", "vm/web").out
    set_status(devalloc, phase="Running", reason="", message="")
    assert devalloc("explain", "vm/web").code == 0


@pytest.mark.parametrize("is_what_if", [False, True])
def test_explain_repeats_no_old_reason_of_a_machine_that_would_be_placed(devalloc: Shell, is_what_if: bool) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(host("a", cpus=4), machine("web", "8", "1Gi"))).code == 0
    placed(devalloc)
    assert "NodesTooSmall" in devalloc("explain", "vm/web").out
    files = ("-f", "-") if is_what_if else ()
    changed = text(machine("web", "1", "1Gi")) if is_what_if else ""
    if not is_what_if:
        assert devalloc("apply", "-f", "-", stdin=text(host("a", cpus=16))).code == 0
    shown = devalloc("explain", "vm/web", *files, stdin=changed)
    assert (shown.code, "does not run" in shown.out) == (0, False)
    assert shown.out.startswith("default/web is not placed yet, but would be on node a: "), "nothing was written"
    as_json = devalloc("explain", "vm/web", *files, "-o", "json", stdin=changed)
    assert (as_json.code, as_json.json["allocated"], as_json.json["reason"]) == (0, True, None)


def test_explain_repeats_no_old_reason_of_a_machine_that_was_on_the_node_before(devalloc: Shell) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(host("a", cpus=4), machine("web", "1", "1Gi"))).code == 0
    placed(devalloc)
    set_status(devalloc, phase="Pending", allocations=[], reason="NoRoom", message="no node has room")
    shown = devalloc("explain", "vm/web")
    assert (shown.code, "does not run" in shown.out) == (0, False)


def test_explain_asks_for_no_cure_of_a_machine_that_has_ended(devalloc: Shell) -> None:
    job = machine("web", "1", "1Gi", restartPolicy="Never")
    assert devalloc("apply", "-f", "-", stdin=text(host("a", cpus=4), job)).code == 0
    placed(devalloc)
    set_status(devalloc, phase="Stopped", reason="GuestShutdown", message="the guest powered off")
    shown = devalloc("explain", "vm/web")
    assert (shown.code, "does not run" in shown.out) == (0, False)


def test_explain_makes_no_code_of_a_message(devalloc: Shell) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(host("a", cpus=4), machine("web", "1", "1Gi"))).code == 0
    placed(devalloc)
    set_status(devalloc, phase="Pending", message="read: /srv/web.raw")
    shown = devalloc("explain", "vm/web")
    assert shown.code == 1
    assert shown.out.endswith("\nIt does not run: read: /srv/web.raw\n")
    as_json = devalloc("explain", "vm/web", "-o", "json").json
    assert (as_json["reason"], as_json["message"]) == (None, "read: /srv/web.raw")


def set_status(devalloc: Shell, **fields: Any) -> None:
    """What the node of the machine web writes."""
    with closing(SQLiteStore(devalloc.store)) as store:
        web = store.get("VirtualMachine", "default", "web")
        store.replace_status({**web, "status": {**web["status"], **fields}})


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


def test_the_printed_command_explains_the_machine_of_another_namespace(devalloc: Shell) -> None:
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


@pytest.mark.parametrize("claims", [(), ("gpu",)], ids=["alone", "with a claim"])
def test_a_machine_names_what_it_asks_for_and_no_request_of_a_claim(devalloc: Shell, claims: tuple[str, ...]) -> None:
    fleet = (gpu_class(), host("a", huge=[1]), gpu_pool("p", node="a"), gpu_claim("gpu"))
    web = machine("web", "1", "2Gi", *claims, nics=[{"bandwidth": "2G"}], diskIO="3G")
    web["spec"]["memory"]["hugePages"] = "1Gi"
    assert devalloc("apply", "-f", "-", stdin=text(*fleet, web)).code == 0
    output = devalloc("explain", "vm/web")
    assert (output.code, "spec.claims" in output.out) == (3, False)
    rows = [line.split(maxsplit=1) for line in output.out.splitlines() if line.startswith("amount")]
    assert sorted(row[1] for row in rows) == [
        "spec.diskIO: 3G, at most 1G fits",
        "spec.memory: 2Gi of huge pages of 1Gi, at most 0 fits",
        "spec.nics: 2G, at most 1G fits",
    ]
    entry = next(one for one in devalloc("explain", "vm/web", "-o", "json").json["blockers"] if one["most"] == "0")
    assert (entry["kind"], entry["resource"], entry["path"]) == ("amount", "hugepages-1Gi", "spec.memory")


@pytest.mark.parametrize("own", [{}, {"group": "g", "group-match": "numa"}], ids=["of the machine", "of both"])
def test_a_claim_names_the_policy_of_its_machine_and_no_annotation_that_no_one_wrote(
    devalloc: Shell, own: dict[str, str]
) -> None:
    """The cards are not of the class, and no NUMA node has as many CPUs."""
    classes = (gpu_class(), gpu_class("h100", constraints="device.function == 'whole'"))
    card = gpu_claim("card", **own)
    card["spec"]["claims"][0]["deviceClass"] = "h100"
    web = machine("web", "4", "1Gi", "card", numaPolicy="single-numa-node")
    fleet = (*classes, host("a", cpus=4), gpu_pool("p", node="a"), card, web)
    assert devalloc("apply", "-f", "-", stdin=text(*fleet)).code == 0
    placed(devalloc)
    shown = devalloc("explain", "card").out
    blockers = devalloc("explain", "card", "-o", "json").json["blockers"]
    (match,) = (one for one in blockers if one["kind"] == "matchAttribute")
    stored = devalloc("get", "dclaim/card", "-o", "yaml").out
    if own:
        assert "remove `numa` from metadata.annotations[devalloc.io/group-match] and " in shown
        assert "machine" not in match
        return
    assert "remove `numa` from spec.numaPolicy of machine default/web" in shown
    assert "lower spec.cpu of machine default/web to 2" in shown
    assert "machine default/web: spec.cpu: 4, at most 2 fits\n" in shown
    assert "machine default/web: numa in spec.numaPolicy\n" in shown
    assert "virtualmachine.devalloc.io" not in shown
    assert "group-match" not in shown + stored + devalloc("explain", "vm/web").out
    assert (match["path"], match["machine"]) == ("spec.numaPolicy", "default/web")


def test_amounts_that_no_node_has_together_are_those_of_the_machine(devalloc: Shell) -> None:
    fleet = (host("a", cpus=8, memory=2), host("b", cpus=2, memory=16), machine("web", "4", "4Gi"))
    assert devalloc("apply", "-f", "-", stdin=text(*fleet)).code == 0
    output = devalloc("explain", "vm/web").out
    assert "spec.claims" not in output
    assert "spec.cpu: 4" in output or "spec.memory: 4Gi" in output


def test_without_a_large_enough_node_no_other_machine_is_a_blocker(devalloc: Shell) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(host("a"), machine("first", "4", "4Gi"))).code == 0
    placed(devalloc)
    assert devalloc("apply", "-f", "-", stdin=text(machine("web", "8", "1Gi", disk="900Gi"))).code == 0
    output = devalloc("explain", "vm/web").out
    assert "NodesTooSmall" in output
    assert "spec.disk: 900Gi, at most 100Gi fits" in output
    assert "first" not in output


def test_long_amounts_are_shown_for_people_and_exactly_to_programs(devalloc: Shell) -> None:
    pool = host("a", memory=24)
    for device in pool["spec"]["devices"]:
        for one in device["resources"]:
            if one["name"] == "disk":
                one["capacity"] = "24370748Ki"
    assert devalloc("apply", "-f", "-", stdin=text(pool, machine("web", "1", "1Gi", disk="900Gi"))).code == 0
    output = devalloc("explain", "vm/web").out
    assert "node a has 23.2Gi disk, 900Gi wanted" in output
    assert "spec.disk: 900Gi, at most 23.2Gi fits" in output
    assert devalloc("explain", "vm/web", "-o", "json").json["blockers"][0]["most"] == "24370748Ki"


def test_without_pools_nothing_of_the_claim_is_in_the_way(devalloc: Shell) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(gpu_class(), gpu_claim("gpu"))).code == 0
    output = devalloc("explain", "gpu")
    assert output.code == 3
    assert "\nno valid DevicePool exists; publish devices (`devalloc discover` shows those of a host)\n" in output.out
    assert "In the way" not in output.out
    assert "What to do: Publish devices: run `devalloc up`" in output.out
    group = [gpu_claim(name, group="g") for name in ("a", "b")]
    assert devalloc("apply", "-f", "-", stdin=text(*group)).code == 0
    assert "no valid DevicePool exists" in devalloc("explain", "a").out
    assert devalloc("apply", "-f", "-", stdin=text(gpu_pool("empty", devices=0))).code == 0
    output = devalloc("explain", "gpu")
    assert "DevicePool exists" not in output.out
    assert "What to do: Publish devices: run `devalloc up`" in output.out


def test_the_advice_for_a_pool_that_is_left_out_is_to_correct_it(devalloc: Shell) -> None:
    wrong, other = gpu_pool("wrong"), gpu_pool("other")
    wrong["spec"]["devices"] *= 2  # two devices of one name
    other["spec"]["driver"] = "nic.devalloc.io"
    output = devalloc("explain", "gpu", "-f", "-", stdin=text(gpu_class(), gpu_claim("gpu"), wrong, other))
    assert "What to do: Correct that pool" in output.out
    assert "Publish devices" not in output.out


@pytest.mark.parametrize("verb", ["validate", "solve", "apply"])
def test_a_priority_that_is_wrong_has_its_file_document_and_field(devalloc: Shell, verb: str) -> None:
    urgent = machine("web", "1", "1Gi")
    urgent["metadata"]["annotations"] = {PRIORITY: "high"}
    run = devalloc(verb, "-f", "-", stdin=text(host("a"), urgent))
    (line,) = [line for line in run.err.splitlines() if "priority" in line]
    assert (run.code, line.startswith("error: stdin, document 2, line ")) == (2, True)
    assert line.endswith(
        f": VirtualMachine default/web: metadata.annotations[{PRIORITY}]: must be an integer, not 'high'"
    )
    assert "DeviceClaim" not in run.out + run.err

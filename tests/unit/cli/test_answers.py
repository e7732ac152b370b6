"""validate, solve, explain, capacity, snapshot and replay."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devalloc.store.sqlite import SQLiteStore
from devalloc.version import VERSION
from devalloc_solver import solve_manifests
from tests.support.cli_shell import Shell, claim, device_class, pool, text
from tests.support.host_pools import host, machine

FLEET = (pool(), device_class())


def test_solve_prints_the_dict_of_the_library(devalloc: Shell) -> None:
    objects = [*FLEET, claim(namespace="default")]

    shown = devalloc("solve", "-f", "-", "-o", "json", stdin=text(*objects)).json

    assert {**shown, "seconds": 0} == {**solve_manifests(objects), "seconds": 0}


@pytest.mark.parametrize(
    ("objects", "code"),
    [
        ([claim()], 0),
        ([claim(), claim("huge", count=9)], 3),
        ([claim(), claim("wrong", count=-1)], 2),
        ([], 0),
    ],
)
def test_solve_says_how_it_went_by_its_exit_code(devalloc: Shell, objects: list[dict[str, object]], code: int) -> None:
    assert devalloc("solve", "-f", "-", stdin=text(*FLEET, *objects)).code == code


def test_solve_answers_the_good_documents_beside_the_bad(devalloc: Shell) -> None:
    output = devalloc("solve", "-f", "-", stdin=text(*FLEET, claim(), claim("wrong", count=-1)) + "---\n{broken")

    assert output.code == 2
    rows = {line.split()[0]: line for line in output.out.splitlines()[1:]}
    assert "gpus/gpu-0" in rows["default/train"]
    assert "ClaimInvalid" in rows["default/wrong"]
    assert "stdin, document 4" in output.err
    assert "stdin, document 5" in output.err


def test_a_problem_is_printed_once(devalloc: Shell) -> None:
    output = devalloc("solve", "-f", "-", stdin=text(*FLEET, claim("wrong", count=-1)))

    assert output.err.count("must be more than zero") == 1


def test_solve_without_files_answers_for_the_store_and_writes_nothing(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(*FLEET, claim()))

    assert "gpus/gpu-0" in devalloc("solve").out
    with closing(SQLiteStore(devalloc.store)) as store:
        assert "status" not in store.get("DeviceClaim", "default", "train")


def test_the_store_is_answered_for_as_the_allocator_sees_it(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(*FLEET, claim()))
    devalloc.allocate()
    later = device_class(driver="gpu.devalloc.io", adminAccess=True)
    devalloc("apply", "-f", "-", stdin=text(later, device_class("plain"), claim("pair", count=2, deviceClass="plain")))

    assert "DevicesInUse" in devalloc("explain", "pair").out, "train holds its device whatever became of its class"
    one = text(claim("one", deviceClass="plain"))
    assert devalloc("capacity", "-f", "-", stdin=one).out.startswith("1 more")


def test_placement_is_passed_on(devalloc: Shell) -> None:
    assert devalloc("solve", "--placement", "sideways", "-f", "-", stdin=text(*FLEET)).code == 2
    assert devalloc("solve", "--placement", "spread", "-f", "-", stdin=text(*FLEET, claim())).code == 0


def test_explain_tells_reason_funnel_blockers_and_what_to_do(devalloc: Shell) -> None:
    devalloc(
        "apply",
        "-f",
        "-",
        stdin=text(*FLEET, pool("others", model="A2"), claim("first", count=2, constraints="device.model == 'L4'")),
    )
    devalloc.allocate()
    devalloc("apply", "-f", "-", stdin=text(claim("second", constraints="device.model == 'L4'")))

    output = devalloc("explain", "second")

    assert output.code == 3
    assert "default/second is not allocated: DevicesInUse" in output.out
    table = [line.split() for line in output.out.splitlines()]
    assert ["4", "in", "the", "fleet"] in table
    assert ["2", "of", "those", "are", "in", "use", "default/first", "(2)"] in table
    assert ["claim", "default/first", "(priority", "0)"] in table
    assert "What to do: Release or delete" in output.out


def test_explain_advises_to_uncordon_the_node(devalloc: Shell) -> None:
    objects = [pool(devices=3), *(pool(name, node=name) for name in "bcdef"), device_class(), claim(count=2)]
    devalloc("apply", "-f", "-", stdin=text(*objects))
    devalloc("cordon", *(f"node/{name}" for name in ("node-a", *"bcdef")), "--reason", "new fans")

    output = devalloc("explain", "train").out

    assert output.startswith("default/train is not allocated: NoMatchingDevices (impossible now)\n")
    cordoned = r"^node b would do, but is cordoned by .*: new fans; run `devalloc uncordon node/b`$"
    assert re.search(cordoned, output, re.MULTILINE)
    assert re.search(r"^13 +are unavailable ", output, re.MULTILINE)
    (row,) = [line for line in output.splitlines() if line.startswith("unavailable")]
    assert re.fullmatch(r"unavailable node   b: cordoned: node, by .*: new fans", row)
    advice = "What to do: Run `devalloc uncordon node/b`. One of these nodes (c, d, e or 2 more) would do instead.\n"
    assert output.endswith(advice)


def test_explain_advises_to_uncordon_a_node_and_to_release_a_claim(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim("first")))
    devalloc.allocate()
    devalloc("cordon", "node/node-a")
    devalloc("apply", "-f", "-", stdin=text(claim(count=2)))

    output = devalloc("explain", "train").out

    assert "\nnode node-a would do, but is cordoned by" in output
    assert "; run `devalloc uncordon node/node-a`, and delete claim default/first\n" in output
    assert output.endswith(
        "Run `devalloc uncordon node/node-a`. Release or delete the claims that are in the way, or wait for them.\n"
    )


def test_explain_names_a_cordoned_device_before_its_node(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool(devices=1), device_class(), claim()))
    devalloc("cordon", "gpus/gpu-0")

    output = devalloc("explain", "train").out

    assert output.startswith(
        "default/train is not allocated: NoMatchingDevices (impossible now)\n"
        "device gpus/gpu-0 would do, but is cordoned: by "
    )
    assert "unavailable device   gpus/gpu-0 of node node-a: cordoned: by" in output
    assert "What to do: `devalloc cordon` lists what is cordoned, and `devalloc uncordon NAME`" in output


@pytest.mark.parametrize("claims", [(), ("card",)])
def test_explain_of_a_machine_advises_to_uncordon_its_node(devalloc: Shell, claims: tuple[str, ...]) -> None:
    objects = [host("node-a"), pool(), device_class(), *(claim(name) for name in claims)]
    devalloc("apply", "-f", "-", stdin=text(*objects))
    devalloc("cordon", "node/node-a")
    devalloc("apply", "-f", "-", stdin=text(machine("web", "1", "1Gi", *claims)))

    output = devalloc("explain", "vm/web").out

    assert output.count("node node-a would do, but is cordoned by") == 1
    assert "device" not in output, "its user asked for no devices"
    assert output.endswith("What to do: Run `devalloc uncordon node/node-a`.\n")


@pytest.mark.parametrize("policy", [{}, {"numaPolicy": "single-numa-node"}])
def test_explain_of_a_machine_says_what_each_node_lacks_and_which_one_is_cordoned(
    devalloc: Shell, policy: dict[str, Any]
) -> None:
    devalloc("apply", "-f", "-", stdin=text(host("node-a", numa=1), host("node-b")))
    devalloc("apply", "-f", "-", stdin=text(machine("first", "3", nodeName="node-a")))
    devalloc.allocate()
    devalloc("cordon", "node/node-b", "--reason", "new fan")
    devalloc("apply", "-f", "-", stdin=text(machine("web", "2", **policy)))

    output = devalloc("explain", "vm/web").out

    assert output.startswith("default/web is not placed: NoRoom\nno node has room: node node-a")
    assert "1 of 4 CPU free, 2 wanted; node node-b takes nothing new: cordoned by " in output
    assert "; stop machine default/first or run `devalloc uncordon node/node-b` (cordoned by" in output
    assert "device" not in output


@pytest.mark.parametrize("spec", [{"cpu": {"min": "64", "max": "64"}}, {"start": {"numaNode": 3}}])
def test_uncordoning_its_node_is_no_advice_for_a_machine_that_is_too_large(
    devalloc: Shell, spec: dict[str, Any]
) -> None:
    large = machine("web")
    devalloc("apply", "-f", "-", stdin=text(host("node-a"), host("node-b")))
    for node in ("node-a", "node-b"):
        devalloc("cordon", f"node/{node}")
    start = {**large["spec"]["start"], **spec.get("start", {})}
    devalloc("apply", "-f", "-", stdin=text({**large, "spec": {**large["spec"], **spec, "start": start}}))

    output = devalloc("explain", "vm/web").out

    assert output.startswith("default/web is not placed: NodesTooSmall\nno node is large enough: node node-a has ")
    assert "cordon" not in output
    assert "without request" not in output


def test_explain_of_a_machine_names_the_field_that_pins_it(devalloc: Shell) -> None:
    objects = [host("node-a"), pool(devices=1), host("node-b"), pool("others", node="node-b"), device_class()]
    machines = [claim("card", count=2), machine("web", "1", "1Gi", "card", nodeName="node-a")]
    devalloc("apply", "-f", "-", stdin=text(*objects, *machines))

    (blocker,) = devalloc("explain", "vm/web", "-o", "json").json["blockers"]

    assert blocker == {"kind": "node", "node": "node-a", "path": "spec.nodeName"}
    assert "node   node-a (spec.nodeName)" in devalloc("explain", "vm/web").out


def test_explain_of_an_allocated_claim_says_what_it_holds(devalloc: Shell) -> None:
    output = devalloc("explain", "train", "-f", "-", stdin=text(*FLEET, claim()))

    assert (output.code, output.out) == (0, "default/train is allocated on node node-a: gpus/gpu-0\n")


def test_explain_of_a_claim_that_is_not_there_says_where_it_is(devalloc: Shell) -> None:
    output = devalloc("explain", "train", "-f", "-", stdin=text(*FLEET, claim(namespace="team-a")))

    assert output.code == 4
    assert "there is one in namespace team-a (-n)" in output.err


def test_validate_shows_errors_of_fields_and_of_expressions(devalloc: Shell) -> None:
    objects = [pool(devices=1), device_class(constraints="device.model = 'L4'"), claim(constraints="device.")]
    objects[0]["spec"]["driverr"] = "x"

    output = devalloc("validate", "-f", "-", stdin=text(*objects))

    assert output.code == 2
    assert output.out == "3 documents, 3 with errors\n"
    lines = output.err.splitlines()
    assert len(lines) == 3
    assert "spec.driverr: unknown field" in lines[0]
    assert "spec.constraints: line 1, column 14" in lines[1]
    assert "spec.claims[0].constraints" in lines[2]


def test_validate_of_good_manifests(devalloc: Shell) -> None:
    output = devalloc("validate", "-f", "-", stdin=text(*FLEET, claim()))

    assert (output.code, output.out, output.err) == (0, "3 documents, all valid\n", "")


def test_a_file_that_is_not_there_is_bad_input(devalloc: Shell) -> None:
    output = devalloc("validate", "-f", "/nowhere/claims.yaml")

    assert output.code == 2
    assert "/nowhere/claims.yaml" in output.err


def test_a_snapshot_replays_to_the_same_answer(devalloc: Shell, tmp_path: Path) -> None:
    devalloc("apply", "-f", "-", stdin=text(*FLEET, claim(), claim("huge", count=9)))
    path = tmp_path / "snapshot.json"

    assert devalloc("snapshot", path, "--placement", "spread").out == f"{path}: 4 objects, 2 claims answered\n"
    devalloc.store.unlink()

    assert devalloc("replay", path).out == f"{path}: the same answer for 2 claims\n"


def test_a_replay_with_another_answer_says_which_claims(devalloc: Shell, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    devalloc("snapshot", path, "-f", "-", stdin=text(*FLEET, claim()))
    content = json.loads(path.read_text())
    content["answer"]["claims"][0]["allocations"][0]["deviceName"] = "gpu-1"
    path.write_text(json.dumps(content))

    output = devalloc("replay", path)

    assert output.code == 1
    assert output.out == "default/train: recorded node-a: gpus/gpu-1; now node-a: gpus/gpu-0\n"


@pytest.mark.parametrize(
    ("version", "field", "code"),
    [("0.1.0", "message", 0), ("0.1.0", "reason", 1), (VERSION, "message", 1)],
)
def test_a_replay_of_another_version_minds_facts_and_not_words(
    devalloc: Shell, tmp_path: Path, version: str, field: str, code: int
) -> None:
    path = tmp_path / "snapshot.json"
    devalloc("snapshot", path, "-f", "-", stdin=text(*FLEET, claim(requests={"count": 99})))
    content = json.loads(path.read_text())
    content["devalloc"] = version
    content["answer"]["claims"][0][field] = "Otherwise"
    path.write_text(json.dumps(content))

    assert devalloc("replay", path).code == code


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not a snapshot"),
        ("[]", "is not a snapshot"),
        ('{"format": 1}', "it has no answer, devalloc, documents, options"),
    ],
)
def test_a_file_other_than_a_snapshot_is_bad_input(devalloc: Shell, tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "x.json").write_text(content)

    output = devalloc("replay", tmp_path / "x.json")

    assert output.code == 2
    assert words in output.err


def test_a_snapshot_of_a_later_format_is_refused(devalloc: Shell, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    devalloc("snapshot", path, "-f", "-", stdin=text(*FLEET))
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))

    output = devalloc("replay", path)

    assert output.code == 2
    assert "has format 2" in output.err


def test_capacity_counts_on_the_store_beside_what_is_allocated(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool(devices=5), pool("more", node="node-b"), device_class(), claim()))
    devalloc.allocate()

    assert devalloc("capacity", "train").out == "6 more like default/train: 4 on node-a, 2 on node-b\n"
    assert devalloc("capacity", "-f", "-", stdin=text(claim("pair", count=2))).out.startswith(
        "3 more like default/pair"
    )


def test_capacity_on_manifests_alone(devalloc: Shell) -> None:
    output = devalloc("capacity", "-f", "-", "-o", "json", stdin=text(*FLEET, claim()))

    assert output.json["count"] == 2
    assert output.json["byNode"] == [{"node": "node-a", "count": 2}]
    assert output.json["proven"]


@pytest.mark.parametrize(
    ("hard", "requested", "answer"),
    [
        ("9", {}, "6 more like default/train: 4 on node-a, 2 on node-b\n"),
        ("3", {}, "2 more like default/train\nQuotaExceeded: quota default/compute allows 3 devices of class "),
        ("1", {}, "0 more like default/train\nQuotaExceeded: quota default/compute allows 1 device of class "),
        (
            "6",
            {"count": 2},
            "2 more like default/pair\nQuotaExceeded: quota default/compute allows 6 devices of class ",
        ),
    ],
)
def test_capacity_is_no_more_than_a_quota_allows(
    devalloc: Shell, hard: str, requested: dict[str, int], answer: str
) -> None:
    counted = f"{device_class()['metadata']['name']}.deviceclass.devmgmtproto.k8s.io/devices"
    named = {"metadata": {"name": "compute", "namespace": "default"}, "spec": {"hard": {counted: hard}}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", **named}
    objects = (pool(devices=5), pool("more", node="node-b"), device_class(), claim(), quota)
    devalloc("apply", "-f", "-", stdin=text(*objects))
    devalloc.allocate()

    if requested:
        assert devalloc("capacity", "-f", "-", stdin=text(claim("pair", **requested))).out.startswith(answer)
    else:
        assert devalloc("capacity", "train").out.startswith(answer)


def test_capacity_of_what_can_never_fit_says_why(devalloc: Shell) -> None:
    output = devalloc("capacity", "-f", "-", stdin=text(*FLEET, claim(deviceClass="gpus")))

    assert output.out.startswith("0 more like default/train\nClassNotFound: ")


def test_capacity_wants_one_claim(devalloc: Shell) -> None:
    several = devalloc("capacity", "-f", "-", stdin=text(*FLEET, claim("a"), claim("b")))

    assert several.code == 2
    assert "there are a, b" in several.err
    assert devalloc("capacity", "c", "-f", "-", stdin=text(*FLEET, claim("a"))).code == 4


def test_explain_ends_as_solve_does_where_a_manifest_is_wrong(devalloc: Shell) -> None:
    documents = text(*FLEET, claim(), claim("wrong", count=-1))

    codes = [devalloc(*verb, "-f", "-", stdin=documents).code for verb in (("solve",), ("explain", "train"))]

    assert codes == [2, 2]


def test_each_object_of_one_name_is_listed_with_its_document(devalloc: Shell) -> None:
    output = devalloc("solve", "-f", "-", stdin=text(*FLEET, claim(), claim()))

    lines = [line for line in output.err.splitlines() if "2 claims are named" in line]
    assert [line.partition(", line")[0].rpartition(", ")[2] for line in lines] == ["document 3", "document 4"]

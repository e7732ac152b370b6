"""``devalloc dra allocate``: output, exit codes, and what is said of manifests that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from devalloc.cli.main import cli
from tests.support.cli_shell import Shell
from tests.support.dra_builders import ANY, NODE, Manifest, claim, devices, held, node, request, slice_
from tests.support.repository import REPO


def write(folder: Path, *objects: Manifest) -> str:
    (folder / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return str(folder / "all.json")


def fleet(*claims: Manifest, count: int = 2) -> list[Manifest]:
    return [slice_("s", devices(*(f"d{i}" for i in range(count)))), ANY, *claims]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_the_answer_is_a_list_of_allocation_results(devalloc: Shell, tmp_path: Path, form: str) -> None:
    files = write(tmp_path, *fleet(claim(request(count=2))))

    output = devalloc("dra", "allocate", "-f", files, "--node", NODE, "-o", form)

    assert output.code == 0
    if form == "json":
        assert [one["device"] for one in output.json[0]["devices"]["results"]] == ["d0", "d1"]
    else:
        assert output.out.startswith("- devices:\n")


def test_claims_that_do_not_fit_give_null_and_code_1(devalloc: Shell, tmp_path: Path) -> None:
    files = write(tmp_path, *fleet(claim(request(count=3))))

    assert devalloc("dra", "allocate", "-f", files, "--node", NODE, "-o", "json").json is None
    output = devalloc("dra", "allocate", "-f", files, "--node", NODE)
    assert output.code == 3
    assert output.out.startswith("not allocated")
    assert "all 2 devices match" in output.out


def test_labels_come_from_the_node_among_the_files(devalloc: Shell, tmp_path: Path) -> None:
    zone = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    objects = [*fleet(claim(request("r", 1, "device.driver == 'net.io'")))]
    objects.append(slice_("t", devices("p"), driver="net.io", nodeSelector=zone))

    assert devalloc("dra", "allocate", "-f", write(tmp_path, *objects), "--node", NODE).code == 3
    assert devalloc("dra", "allocate", "-f", write(tmp_path, *objects, node(NODE, zone="a")), "--node", NODE).code == 0


def test_a_claim_with_a_status_counts_as_allocated(devalloc: Shell, tmp_path: Path) -> None:
    done = held(claim(request(), name="done"), "d0")
    files = write(tmp_path, *fleet(done, claim(request())))

    output = devalloc("dra", "allocate", "-f", files, "--node", NODE)

    assert output.code == 0
    assert [line.split() for line in output.out.splitlines()[1:]] == [
        ["default/done", "r", "gpu.io/p/d0"],
        ["default/c", "r", "gpu.io/p/d1"],
    ]


def test_only_claims_that_are_allocated_leave_nothing_to_do(devalloc: Shell, tmp_path: Path) -> None:
    done = claim(request()) | {"status": {"allocation": {"devices": {}}}}

    output = devalloc("dra", "allocate", "-f", write(tmp_path, *fleet(done)), "--node", NODE)

    assert (output.code, output.out) == (0, "no claims are pending\n")


def test_a_manifest_that_is_wrong_is_named_and_the_rest_is_answered(devalloc: Shell, tmp_path: Path) -> None:
    old = {**claim(name="old"), "apiVersion": "resource.k8s.io/v1alpha2"}
    files = write(tmp_path, *fleet(claim(request()), old))

    output = devalloc("dra", "allocate", "-f", files, "--node", NODE, "-o", "json")

    assert output.code == 2
    assert len(output.json) == 1
    assert "all.json, document 1, item 4" in output.err
    assert "'resource.k8s.io/v1alpha2' is not supported" in output.err


def test_an_error_of_the_allocation_is_bad_input(devalloc: Shell, tmp_path: Path) -> None:
    files = write(tmp_path, *fleet(claim(request(class_name="gone"))))

    output = devalloc("dra", "allocate", "-f", files, "--node", NODE)

    assert output.code == 2
    assert "claim default/c, request r" in output.err


def test_an_invalid_pool_is_a_matter_of_the_node(devalloc: Shell, tmp_path: Path) -> None:
    objects = [one for one in fleet(claim(request())) if one["kind"] != "ResourceSlice"]
    files = write(tmp_path, *objects, slice_("s", devices("d", "d")))

    output = devalloc("dra", "allocate", "-f", files, "--node", NODE)

    assert output.code == 3
    assert "invalid resource pools were encountered" in output.err


def test_files_without_claims_are_bad_input(devalloc: Shell, tmp_path: Path) -> None:
    assert devalloc("dra", "allocate", "-f", write(tmp_path, *fleet()), "--node", NODE).code == 2


def test_the_verbs_for_manifests_show_the_devices_of_kubernetes_own_claims() -> None:
    solved = CliRunner().invoke(cli, ["solve", "-f", str(REPO / "examples" / "dra")])
    output = CliRunner().invoke(cli, ["explain", "train", "-f", str(REPO / "examples" / "dra")])

    assert solved.exit_code == 0
    assert "gpu.example.com/example-a/gpu-0-half-0, gpu-0-half-1" in solved.output
    assert "nic.example.com/example-a/nic-0 (bandwidth 3G)" in output.output


def test_explain_tells_why_a_claim_gets_no_device_that_another_has(devalloc: Shell, tmp_path: Path) -> None:
    done = held(claim(request(), name="done"), "d0")
    files = write(tmp_path, *fleet(done, claim(request()), count=1), node(NODE))

    output = devalloc("explain", "c", "-f", files)

    assert output.code == 3
    table = [line.split() for line in output.out.splitlines()]
    assert ["1", "of", "those", "are", "in", "use", "default/done", "(1)"] in table
    assert ["claim", "default/done", "(priority", "0)"] in table


def test_what_a_claim_holds_counts_though_its_spec_is_wrong(devalloc: Shell, tmp_path: Path) -> None:
    owner = held(claim(request("r", 1, futureField=1), name="held"), "d0")
    files = write(tmp_path, *fleet(owner, claim(request(), name="new")))

    output = devalloc("dra", "allocate", "-f", files, "--node", NODE, "-o", "json")

    assert (output.code, len(output.json)) == (2, 1)
    assert [one["device"] for one in output.json[0]["devices"]["results"]] == ["d1"]
    assert "exactly.futureField" in output.err


def test_a_device_with_an_unreadable_usage_is_not_allocated(devalloc: Shell, tmp_path: Path) -> None:
    owner = held(claim(request("r", 1, futureField=1), name="held"), "d0")
    owner["status"]["allocation"]["devices"]["results"][0] |= {"shareID": "x", "consumedCapacity": 5}
    files = write(tmp_path, *fleet(owner, claim(request(), name="new")))

    output = devalloc("dra", "allocate", "-f", files, "--node", NODE, "-o", "json")

    assert [one["device"] for one in output.json[0]["devices"]["results"]] == ["d1"]


def test_nodes_with_one_pool_name_are_reported(devalloc: Shell, tmp_path: Path) -> None:
    slices = [slice_(f"s-{name}", devices("d0"), pool="gpus", nodeName=name) for name in ("n0", "n1")]
    claims = [claim(request(), name=name) for name in "ab"]

    output = devalloc("solve", "-f", write(tmp_path, ANY, *slices, *claims), "-o", "json")

    assert [one["allocated"] for one in output.json["claims"]] == [True, False]
    assert (output.code, "published by the nodes n0, n1" in output.err) == (3, True)


@pytest.mark.parametrize("verb", [("dra", "allocate", "--node", NODE), ("solve",)])
def test_taint_rules_in_files_count(devalloc: Shell, tmp_path: Path, verb: tuple[str, ...]) -> None:
    spec = {"deviceSelector": {}, "taint": {"key": "k", "effect": "NoSchedule"}}
    rule = {**ANY, "kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": spec}
    files = write(tmp_path, *fleet(claim(request())), rule)

    output = devalloc(*verb, "-f", files)

    assert output.code == 3
    assert output.err == ""
    assert "a taint that is not tolerated" in output.out

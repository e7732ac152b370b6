"""Objects of both dialects in one store: no claim is held up, and no object is taken for another."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.store.sqlite import SQLiteStore
from tests.support.cli_shell import Shell, claim, device_class, pool, text

DRA = "resource.k8s.io/v1"
Object = dict[str, Any]

FOREIGN_CLASS: Object = {
    "apiVersion": DRA,
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": "true"}}]},
}
FOREIGN_CLAIM: Object = {
    "apiVersion": DRA,
    "kind": "ResourceClaim",
    "metadata": {"name": "theirs", "namespace": "default"},
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
}
POD: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}}
FLEET = (pool(), device_class(), claim())


def stored_names(devalloc: Shell, kind: str) -> list[str]:
    with closing(SQLiteStore(devalloc.store)) as store:
        return [obj["metadata"]["name"] for obj in store.list(kind).objects]


SLICE: Object = {
    "apiVersion": DRA,
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {
        "driver": "gpu.example.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    },
}
TEMPLATE: Object = {**FOREIGN_CLAIM, "kind": "ResourceClaimTemplate", "spec": {"spec": FOREIGN_CLAIM["spec"]}}


def test_claims_of_both_dialects_are_allocated(devalloc: Shell, caplog: pytest.LogCaptureFixture) -> None:
    applied = devalloc("apply", "-f", "-", stdin=text(FOREIGN_CLASS, FOREIGN_CLAIM, SLICE, *FLEET))
    assert applied.err == ""

    devalloc.allocate()

    assert devalloc("wait", "train", "--timeout", "1s").out == "deviceclaim/train allocated\n"
    waited = devalloc("wait", "resourceclaim/theirs", "--timeout", "1s")
    assert waited.out == "resourceclaim/theirs allocated\n"
    assert [record.getMessage() for record in caplog.records] == []
    theirs = devalloc("get", "resourceclaim/theirs", "-o", "json").json
    (result,) = theirs["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"], result["device"]) == ("gpu.example.com", "n", "gpu-0")
    assert devalloc("explain", "resourceclaim/theirs").code == 0


def test_a_resource_claim_that_gets_nothing_says_why(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(FOREIGN_CLASS, FOREIGN_CLAIM, *FLEET))
    devalloc.allocate()

    waited = devalloc("wait", "resourceclaim/theirs", "--timeout", "10ms")
    assert waited.code == 3
    assert "NoMatchingDevices; see: devalloc explain resourceclaim/theirs" in waited.err
    assert "NoMatchingDevices: no devices are published" in devalloc("describe", "resourceclaim/theirs").out
    assert "NoMatchingDevices" in devalloc("explain", "resourceclaim/theirs").out
    shown = devalloc("top", "--once").out
    assert "NoMatchingDevices" in shown
    assert "kube-scheduler" not in shown


def test_a_name_that_only_a_resource_claim_has_is_answered_with_its_kind(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(FOREIGN_CLASS, FOREIGN_CLAIM, *FLEET))

    assert "there is a ResourceClaim of that name: resourceclaim/theirs" in devalloc("explain", "theirs").err
    assert "resourceclaim/theirs" in devalloc("wait", "theirs", "--timeout", "1s").err


def test_what_only_pods_need_is_left_aside(devalloc: Shell) -> None:
    applied = devalloc("apply", "-f", "-", stdin=text(TEMPLATE))

    assert applied.err.startswith(
        "warning: ResourceClaimTemplate theirs: of this API group, `devalloc up` reads claims"
    )


def test_a_machine_of_another_group_says_once_that_nothing_answers_it(devalloc: Shell) -> None:
    theirs = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "theirs"}, "spec": {}}
    devalloc("apply", "-f", "-", stdin=text(theirs))
    devalloc.allocate()
    (stored,) = devalloc("get", "virtualmachine.kubevirt.io", "-o", "json").json["items"]
    assert stored["metadata"]["annotations"][meta.REASON] == "LeftAside"
    assert stored["metadata"]["annotations"][meta.MESSAGE].startswith(
        "this API group is not devalloc's, and has kinds of the same names; "
    )
    devalloc.allocate()
    (again,) = devalloc("get", "virtualmachine.kubevirt.io", "-o", "json").json["items"]
    assert again["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]


def test_applying_a_claim_again_that_waits_changes_nothing(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(FOREIGN_CLAIM))
    devalloc.allocate()

    assert devalloc("apply", "-f", "-", stdin=text(FOREIGN_CLAIM)).out == "resourceclaim/theirs unchanged\n"


def test_solve_capacity_and_describe_answer_beside_foreign_objects(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(FOREIGN_CLASS, FOREIGN_CLAIM, *FLEET))

    solved = devalloc("solve")

    assert solved.code == 0
    assert solved.err == ""
    assert "default/train" in solved.out
    assert devalloc("capacity", "train").out.startswith("2 more like default/train")


@pytest.mark.parametrize("name", ["resourceclaim/train", "resourceclaims.resource.k8s.io/train"])
def test_capacity_and_release_take_no_resource_claim_for_a_device_claim(devalloc: Shell, name: str) -> None:
    named_alike = {**FOREIGN_CLAIM, "metadata": {"name": "train", "namespace": "default"}}
    devalloc("apply", "-f", "-", stdin=text(FOREIGN_CLASS, named_alike, FOREIGN_CLAIM, *FLEET))
    devalloc.allocate()

    counted, released = devalloc("capacity", name), devalloc("release", name)

    assert (counted.out, released.code) == ("0 more like default/train\n", 2), "no ResourceSlice has devices"
    assert counted.err == ""
    assert "cannot release ResourceClaim default/train, only DeviceClaims" in released.err
    of_files = devalloc("capacity", "theirs", "-f", "-", "--no-store", stdin=text(FOREIGN_CLAIM, *FLEET))
    assert of_files.out.startswith("0 more like default/theirs\nClassNotFound"), "no DeviceClaim has its name"
    assert devalloc("capacity", "deviceclaim/train").out.startswith("1 more like default/train")


def test_a_quota_with_an_invalid_amount_is_refused_with_its_path(devalloc: Shell) -> None:
    amounts = {"gpu.deviceclass.devmgmtproto.k8s.io/devices": "many"}
    wrong: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": amounts}}

    for verb in ("validate", "apply"):
        refused = devalloc(verb, "-f", "-", stdin=text(wrong, *FLEET))
        assert refused.code == 2
        assert "spec.hard[gpu.deviceclass.devmgmtproto.k8s.io/devices]" in refused.err
    assert devalloc("get", "deviceclaim/train").code == 0, "the others are applied"
    assert stored_names(devalloc, "ResourceQuota") == []


def test_classes_of_two_groups_with_one_name_are_two_objects(devalloc: Shell) -> None:
    applied = devalloc("apply", "-f", "-", stdin=text(device_class(), FOREIGN_CLASS))

    assert applied.code == 0
    assert applied.out.splitlines() == ["deviceclass/gpu created", "deviceclass.resource.k8s.io/gpu created"]
    assert devalloc("get", "classes", "-o", "json").json["items"][0]["apiVersion"].startswith("devmgmtproto")
    foreign = devalloc("get", "deviceclass.resource.k8s.io/gpu", "-o", "json").json
    assert foreign["apiVersion"] == DRA
    assert "resource.k8s.io/v1" in devalloc("describe", "deviceclass.resource.k8s.io/gpu").out


@pytest.mark.parametrize("other_first", [False, True])
def test_delete_of_a_file_deletes_the_object_of_its_group_only(devalloc: Shell, other_first: bool) -> None:
    both = (FOREIGN_CLASS, device_class()) if other_first else (device_class(), FOREIGN_CLASS)
    devalloc("apply", "-f", "-", stdin=text(*both))

    assert devalloc("delete", "-f", "-", stdin=text(FOREIGN_CLASS)).out == "deviceclass.resource.k8s.io/gpu deleted\n"

    assert stored_names(devalloc, "DeviceClass") == ["gpu"]
    assert stored_names(devalloc, "DeviceClass.resource.k8s.io") == []


def test_delete_of_a_file_leaves_the_other_groups_object_where_its_own_is_missing(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(device_class()))

    deleted = devalloc("delete", "-f", "-", stdin=text(FOREIGN_CLASS))

    assert deleted.code == 4
    assert "DeviceClass.resource.k8s.io gpu does not exist" in deleted.err
    assert stored_names(devalloc, "DeviceClass") == ["gpu"]


def test_of_kinds_that_devalloc_does_not_have_a_file_deletes_only_its_groups_object(devalloc: Shell) -> None:
    one = {"apiVersion": "a.example.com/v1", "kind": "NetConfig", "metadata": {"name": "n", "namespace": "default"}}
    devalloc("apply", "-f", "-", stdin=text(one))

    refused = devalloc("delete", "-f", "-", stdin=text({**one, "apiVersion": "b.example.com/v1"}))

    assert refused.code == 4
    assert "the NetConfig of a.example.com is kept" in refused.err
    assert stored_names(devalloc, "NetConfig") == ["n"]


def test_what_an_older_version_stored_by_the_kind_alone_is_found_by_its_group(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(FOREIGN_CLASS))
    with closing(sqlite3.connect(devalloc.store, isolation_level=None)) as raw:
        raw.execute("UPDATE objects SET kind = 'DeviceClass'")
    with closing(SQLiteStore(devalloc.store)) as store:
        assert store.check() == []
        store.call_by_group()

    assert stored_names(devalloc, "DeviceClass") == []
    assert stored_names(devalloc, "DeviceClass.resource.k8s.io") == ["gpu"]


@pytest.mark.parametrize("verb", ["apply", "validate", "solve"])
def test_kinds_that_devalloc_does_nothing_with_are_named(devalloc: Shell, verb: str) -> None:
    output = devalloc(verb, "-f", "-", stdin=text(POD))

    assert output.code == 0
    assert output.err == "warning: Pod p: devalloc does not use this kind\n"


@pytest.mark.parametrize("already", [False, True], ids=["in one go", "later"])
def test_nodes_beside_slices_are_no_such_kind(devalloc: Shell, already: bool) -> None:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    terms = [{"matchExpressions": [{"key": "fabric", "operator": "Exists"}]}]
    spec = {"driver": "gpu.io", "pool": pool, "nodeSelector": {"nodeSelectorTerms": terms}, "devices": [{"name": "a"}]}
    fabric = {**FOREIGN_CLASS, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"fabric": "1"}}}

    if already:
        devalloc("apply", "-f", "-", stdin=text(fabric, FOREIGN_CLASS))
    applied = devalloc("apply", "-f", "-", stdin=text(*([] if already else [fabric]), node))

    assert (applied.code, applied.err) == (0, "")
    assert "does not use this kind" in devalloc("apply", "-f", "-", stdin=text(POD)).err


def test_beside_resource_claims_solve_names_such_an_object_once(devalloc: Shell) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "driver"}}

    output = devalloc("solve", "-f", "-", stdin=text(FOREIGN_CLASS, role))

    assert output.err.count("ClusterRole driver") == 1


def test_a_config_that_a_class_names_is_no_such_kind(devalloc: Shell) -> None:
    config = {"apiVersion": "a.example.com/v1", "kind": "NetConfig", "metadata": {"name": "n", "namespace": "default"}}
    configs = [{"apiVersion": "a.example.com/v1", "kind": "NetConfig", "namespace": "default", "name": "n"}]
    cls = device_class(configs=configs)

    assert devalloc("apply", "-f", "-", stdin=text(config, cls)).err == ""
    assert devalloc("apply", "-f", "-", stdin=text(config)).err == ""  # the class is in the store now
    assert "in its configs" in devalloc("validate", "-f", "-", stdin=text(config)).err


def test_solve_blames_the_file_of_the_foreign_object(devalloc: Shell, tmp_path: Any) -> None:
    (tmp_path / "ours.yaml").write_text(text(*FLEET))
    (tmp_path / "theirs.yaml").write_text(text(FOREIGN_CLASS))

    solved = devalloc("solve", "-f", tmp_path / "ours.yaml", "-f", tmp_path / "theirs.yaml")

    assert solved.code == 2
    assert "theirs.yaml, document 1" in solved.err
    assert "ours.yaml" not in solved.err


def test_a_problem_of_our_own_class_names_our_file_where_both_have_the_name(devalloc: Shell, tmp_path: Any) -> None:
    (tmp_path / "a-theirs.yaml").write_text(text(FOREIGN_CLASS))
    (tmp_path / "ours.yaml").write_text(text(pool(), device_class(constraints="device.model =="), claim()))

    solved = devalloc("solve", "-f", tmp_path)

    assert [line for line in solved.err.splitlines() if "spec.constraints" in line and "ours.yaml" not in line] == []


@pytest.mark.parametrize("verb", ["validate", "apply"])
def test_fields_and_selectors_of_resource_claims_are_checked(devalloc: Shell, verb: str) -> None:
    exactly: Object = {"deviceClassName": "gpu", "selector": []}
    misspelled = {**FOREIGN_CLAIM, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}
    of_v1beta1 = {**FOREIGN_CLAIM, "spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "gpu"}]}}}
    selectors = [{"cel": {"expression": "true"}}, {"cel": {"expression": "device.driver = 'a'"}}]
    exactly = {"deviceClassName": "gpu", "selectors": selectors}
    broken = {**FOREIGN_CLAIM, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}
    broken_class = {**FOREIGN_CLASS, "spec": {"selectors": selectors}}

    valid = devalloc(verb, "-f", "-", stdin=text(FOREIGN_CLASS, FOREIGN_CLAIM))
    assert (valid.code, valid.err) == (0, "")
    devalloc("delete", "--all", "resourceclaim")
    devalloc("delete", "--all", "deviceclass.resource.k8s.io")
    for content, message in (
        (
            misspelled,
            "spec.devices.requests[0].exactly.selector: is not a known field of resource.k8s.io/v1: did you mean",
        ),
        (of_v1beta1, "spec.devices.requests[0]: has deviceClassName: move these fields below `exactly`"),
        (broken, "spec.devices.requests[0].exactly.selectors[1].cel.expression: line 1, column 15: "),
        (broken_class, "spec.selectors[1].cel.expression: line 1, column 15: "),
    ):
        refused = devalloc(verb, "-f", "-", stdin=text(content))
        assert refused.code == 2
        assert message in refused.err
        assert refused.err == devalloc("validate", "-f", "-", stdin=text(content)).err
        assert refused.out == ("1 document, 1 with errors\n" if verb == "validate" else "")
    assert not stored_names(devalloc, "ResourceClaim") + stored_names(devalloc, "DeviceClass.resource.k8s.io")

"""apply, get, describe, delete, wait and release on a real store."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.store.paths import hold_store
from devalloc.store.sqlite import SQLiteStore
from devalloc_node.journal import open_journal
from tests.support.cli_shell import Object, Shell, claim, device_class, pool, text

FLEET = text(claim(), pool(), device_class())


def test_apply_creates_then_changes_nothing_then_updates(devalloc: Shell) -> None:
    lines = ["devicepool/gpus", "deviceclass/gpu", "deviceclaim/train"]

    assert devalloc("apply", "-f", "-", stdin=FLEET).out.splitlines() == [f"{line} created" for line in lines]
    assert devalloc("apply", "-f", "-", stdin=FLEET).out.splitlines() == [f"{line} unchanged" for line in lines]
    assert devalloc("apply", "-f", "-", stdin=text(pool(devices=3))).out == "devicepool/gpus configured\n"
    assert len(devalloc("get", "dpool/gpus", "-o", "json").json["spec"]["devices"]) == 3


@pytest.mark.parametrize("annotations", ["x", ["x"], {"a": 1}])
def test_apply_reports_metadata_that_no_object_can_have_and_applies_the_others(
    devalloc: Shell, annotations: object
) -> None:
    """Also on an object of a foreign kind, which only the store looks at, and also when the object exists."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    wrong = {**node, "metadata": {"name": "n", "annotations": annotations}}
    assert devalloc("apply", "-f", "-", stdin=text(node)).code == 0

    applied = devalloc("apply", "-f", "-", stdin=text(wrong, claim()))

    assert applied.code == 2
    assert applied.out == "deviceclaim/train created\n"
    assert "error: stdin, document 1: Node default/n: metadata.annotations must be a map of strings" in applied.err


def test_dry_run_says_the_same_and_changes_nothing(devalloc: Shell) -> None:
    assert devalloc("apply", "--dry-run", "-f", "-", stdin=text(pool())).out == "devicepool/gpus created (dry run)\n"
    assert not devalloc.store.exists()

    devalloc("apply", "-f", "-", stdin=text(pool()))
    changed = devalloc("apply", "--dry-run", "-f", "-", stdin=text(pool(devices=3), claim()))

    assert changed.out.splitlines() == ["devicepool/gpus configured (dry run)", "deviceclaim/train created (dry run)"]
    assert len(devalloc("get", "dpool/gpus", "-o", "json").json["spec"]["devices"]) == 2
    assert devalloc("get", "claims").out == ""


def test_a_wrong_document_costs_only_itself(devalloc: Shell, tmp_path: Path) -> None:
    wrong = claim("wrong", count=-1)
    (tmp_path / "claims.yaml").write_text(text(claim("good"), wrong))

    output = devalloc("apply", "-f", tmp_path / "claims.yaml")

    assert output.code == 2
    assert output.out == "deviceclaim/good created\n"
    assert "claims.yaml, document 2" in output.err
    assert "spec.claims[0].requests" in output.err


def test_an_allocated_claims_spec_is_fixed_until_it_is_released(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET)
    devalloc.allocate()

    refused = devalloc("apply", "-f", "-", stdin=text(claim(count=2)))

    assert refused.code == 1
    assert "devalloc release train -n default" in refused.err
    released, again = devalloc("release", "train"), devalloc("release", "train")
    assert released.out == "deviceclaim/train released\n"
    assert "answered again at once, often with the same devices; to give them up, delete it" in released.err
    assert (again.out, again.err) == ("deviceclaim/train held nothing\n", "")
    assert devalloc("apply", "-f", "-", stdin=text(claim(count=2))).out == "deviceclaim/train configured\n"


def test_applying_a_manifest_again_keeps_the_marks_of_nodes_and_admins(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET)
    marks = {"devalloc.io/prepared-on": "node-a", "devalloc.io/release": "true", "devalloc.io/cordoned": '{"*":"x"}'}
    with closing(SQLiteStore(devalloc.store)) as store:
        for kind, namespace, name in (("DeviceClaim", "default", "train"), ("DevicePool", None, "gpus")):
            obj = store.get(kind, namespace, name)
            store.replace({**obj, "metadata": {**obj["metadata"], "annotations": marks, "finalizers": ["a.b/c"]}})

    changed = pool()
    changed["metadata"]["labels"] = {"rack": "7"}
    assert devalloc("apply", "-f", "-", stdin=text(changed, claim())).code == 0

    with closing(SQLiteStore(devalloc.store)) as store:
        for kind, namespace, name in (("DeviceClaim", "default", "train"), ("DevicePool", None, "gpus")):
            metadata = store.get(kind, namespace, name)["metadata"]
            assert (metadata["annotations"], metadata["finalizers"]) == (marks, ["a.b/c"])


def test_applying_a_manifest_again_keeps_what_the_allocator_wrote(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET)
    devalloc.allocate()
    before = devalloc("get", "dclaim/train", "-o", "json").json
    labelled = claim()
    labelled["metadata"]["labels"] = {"team": "a"}
    labelled["metadata"]["annotations"] = {"devalloc.io/admin-classes": '["gpu"]'}  # would free what it holds

    assert devalloc("apply", "-f", "-", stdin=text(labelled)).out == "deviceclaim/train configured\n"

    after = devalloc("get", "dclaim/train", "-o", "json").json
    assert after["status"] == before["status"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert after["metadata"]["labels"] == {"team": "a"}


@pytest.mark.parametrize(
    "words", [["dclaim/train"], ["claims", "train"], ["DeviceClaim", "train"], ["deviceclaims/train"]]
)
def test_objects_are_named_as_with_kubectl(devalloc: Shell, words: list[str]) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET)

    assert devalloc("get", *words, "-o", "name").out == "deviceclaim/train\n"


def test_namespaces_are_kept_apart(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", "-n", "team-a", stdin=text(claim("one"), claim("two", namespace="team-b")))

    assert devalloc("get", "claims", "-n", "team-a", "-o", "name").out == "deviceclaim/one\n"
    assert devalloc("get", "claims").err == "no deviceclaims in namespace default (-A shows all)\n"
    every = devalloc("get", "claims", "-A").out.splitlines()
    assert [line.split()[:2] for line in every] == [["NAMESPACE", "NAME"], ["team-a", "one"], ["team-b", "two"]]
    elsewhere = devalloc("get", "dclaim/two")
    assert elsewhere.code == 4
    assert "there is one in namespace team-b" in elsewhere.err


def test_json_of_a_list_is_items_and_yaml_can_be_applied_again(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET)

    listed = devalloc("get", "pools,classes", "-o", "json").json
    assert [item["kind"] for item in listed["items"]] == ["DeviceClass", "DevicePool"]
    again = devalloc("apply", "-f", "-", stdin=devalloc("get", "pools,classes", "-o", "yaml").out)
    assert again.out.splitlines() == ["deviceclass/gpu unchanged", "devicepool/gpus unchanged"]
    assert again.err == ""


def test_tables_tell_what_claims_got_or_why_nothing(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET + "---\n" + text(claim("huge", count=9)))
    devalloc.allocate()

    _, huge, train = devalloc("get", "claims").out.splitlines()

    assert huge.split()[:2] == ["huge", "Pending"]
    assert "NotEnoughDevices" in huge
    assert train.split()[:2] == ["train", "Allocated"]
    assert "node-a   gpus/gpu-0" in train


def test_unknown_kinds_get_the_nearest_one(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET)

    output = devalloc("get", "devicepols")

    assert output.code == 2
    assert "did you mean devicepools?" in output.err


def test_objects_of_other_apis_are_found_by_their_own_kind(devalloc: Shell) -> None:
    """They are stored, for claims may refer to any of them as their configuration."""
    tuning = {"apiVersion": "example.com/v1", "kind": "Tuning", "metadata": {"name": "fast"}, "spec": {"turbo": True}}
    devalloc("apply", "-f", "-", stdin=text(tuning))

    assert devalloc("get", "tunings", "-o", "name").out == "tuning/fast\n"
    assert devalloc("get", "tuning.example.com", "-A", "-o", "json").json["items"][0]["spec"] == {"turbo": True}
    assert devalloc("get", "tuning/fast", "-o", "json").json["spec"] == {"turbo": True}
    assert "turbo" in devalloc("describe", "tuning/fast").out
    assert devalloc("get", "tunings").out.split()[-2:] == devalloc("get", "tunings", "-A").out.split()[-2:]
    assert devalloc("delete", "tuning/fast").out == "tuning/fast deleted\n"
    assert devalloc("get", "tunings").code == 2, "nothing here is of that kind any more"


def test_describe_shows_a_claims_devices_and_a_pools_users(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET)
    devalloc.allocate()

    one, other = devalloc("describe", "dclaim/train").out, devalloc("describe", "pool", "gpus").out

    assert ["gpus", "gpu-0", "whole", "L4"] in [line.split() for line in one.splitlines()]
    assert ["gpu-0", "default/train"] in [line.split() for line in other.splitlines()]


def test_what_another_program_wrote_wrong_costs_only_itself(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET)
    devalloc.allocate()
    with closing(SQLiteStore(devalloc.store)) as store:
        store.create({**pool("odd"), "spec": "nonsense"})
        store.create(claim("odd", namespace="default"))
        odd = store.get("DeviceClaim", "default", "odd")
        store.replace_status({**odd, "status": {"allocations": ["gpus/gpu-1"]}})

    assert devalloc("get", "pools").out.splitlines()[2].split()[:2] == ["odd", "(unreadable)"]
    assert "gpus/gpu-0" in devalloc("get", "claims").out
    assert "default/train" in devalloc("describe", "pool", "gpus").out
    assert "gpu-0" in devalloc("describe", "claim/train").out
    assert "- gpus/gpu-1" in devalloc("describe", "claim/odd").out
    assert "nonsense" in devalloc("describe", "pool/odd").out


def test_describe_says_why_a_claim_holds_nothing(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(claim()))
    devalloc.allocate()

    lines = [line.split(maxsplit=1) for line in devalloc("describe", "dclaim/train").out.splitlines()]

    assert ["State:", "Pending"] in lines
    assert ["Reason:", "ClassNotFound"] in lines


def test_delete_by_name_by_file_and_all(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET + "---\n" + text(claim("a"), claim("b")))

    assert devalloc("delete", "dclaim/train").out == "deviceclaim/train deleted\n"
    again = devalloc("delete", "dclaim/train")
    assert (again.code, again.err) == (4, "error: DeviceClaim default/train does not exist; there are a, b\n")
    assert devalloc("delete", "dclaim/train", "--ignore-not-found").code == 0
    assert devalloc("delete", "-f", "-", stdin=text(pool())).out == "devicepool/gpus deleted\n"
    assert devalloc("delete", "claims").code == 2
    assert devalloc("delete", "claims", "--all").out.splitlines() == ["deviceclaim/a deleted", "deviceclaim/b deleted"]


def test_wait_returns_as_soon_as_it_is_true(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET)
    soon = threading.Timer(0.3, devalloc.allocate)
    soon.start()
    started = time.monotonic()

    output = devalloc("wait", "train", "--timeout", "1m")

    assert (output.code, output.out) == (0, "deviceclaim/train allocated\n")
    assert time.monotonic() - started < 30
    soon.join()
    assert devalloc("wait", "dclaim/train", "--for=released", "--timeout=0s").code == 1
    devalloc("release", "train")
    assert devalloc("wait", "train", "--for=released").code == 0
    devalloc("delete", "dclaim/train")
    assert devalloc("wait", "train", "--for=deleted").code == 0


def test_a_claim_that_is_deleted_meanwhile_is_released(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET)
    devalloc.allocate()
    with closing(SQLiteStore(devalloc.store)) as store:
        soon = threading.Timer(0.3, store.delete, ("DeviceClaim", "default", "train"))
        soon.start()
        assert devalloc("wait", "train", "--for=released", "--timeout", "60s").out == "deviceclaim/train released\n"
        soon.join()


@pytest.mark.parametrize("again", [False, True])
def test_wait_ends_at_once_when_its_object_is_deleted(devalloc: Shell, again: bool) -> None:
    """Also if another object of the same name exists since then."""
    devalloc("apply", "-f", "-", stdin=text(claim()))

    def delete() -> None:
        with closing(SQLiteStore(devalloc.store)) as store:
            store.delete("DeviceClaim", "default", "train")
            if again:
                store.create(claim())

    soon = threading.Timer(0.3, delete)
    soon.start()
    started = time.monotonic()
    ended = devalloc("wait", "train", "--timeout", "10m")
    soon.join()

    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: DeviceClaim default/train is not allocated because it was deleted")
    assert time.monotonic() - started < 300


def test_wait_and_apply_say_that_an_object_is_being_deleted(devalloc: Shell) -> None:
    held = {**claim(), "metadata": {"name": "train", "finalizers": ["example.com/hold"]}}
    devalloc("apply", "-f", "-", stdin=text(held))
    devalloc("delete", "dclaim/train")

    waited = devalloc("wait", "train", "--timeout", "10m")
    assert waited.code == 1
    assert "is not allocated because it is being deleted" in waited.err
    applied = devalloc("apply", "-f", "-", stdin=text(claim()))
    assert "warning: DeviceClaim default/train is being deleted; apply it again when it is gone" in applied.err
    assert devalloc("apply", "-f", "-", "--dry-run", stdin=text(claim())).err == applied.err
    assert devalloc("apply", "-f", "-", stdin=text(pool())).err == ""


def test_wait_that_ends_in_vain_says_what_to_look_at(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(claim()))

    unanswered = devalloc("wait", "train", "--timeout=10ms")
    devalloc.allocate()
    refused = devalloc("wait", "train", "--timeout=10ms")

    assert (unanswered.code, refused.code) == (1, 3)
    assert "is not allocated after 0.01 s; it has no answer yet: is `devalloc up` running" in unanswered.err
    assert "after 0.01 s: ClassNotFound; see: devalloc explain train -n default" in refused.err
    missing = "error: DeviceClaim default/nothing does not exist; the only one is train\n"
    assert devalloc("wait", "nothing", "--timeout=5m").err == missing
    assert devalloc("wait", "train", "--timeout=soon").code == 2


def vm(name: str = "web", **spec: object) -> Object:
    return {
        "apiVersion": "devalloc.io/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {
            "nodeName": "node-a",
            "cpu": {"min": 1, "max": 1},
            "memory": {"min": "64Mi", "max": "64Mi"},
            "start": {"kernel": "/images/vmlinuz"},
            **spec,
        },
    }


def test_a_machine_that_is_started_while_others_are_awaited_is_awaited_too(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(vm("web", running=False), vm("other")))

    def start() -> None:
        with closing(SQLiteStore(devalloc.store)) as store:
            web = store.get("VirtualMachine", "default", "web")
            store.replace({**web, "spec": {**web["spec"], "running": True}})
            for name in ("other", "web"):
                store.replace_status({**store.get("VirtualMachine", "default", name), "status": {"phase": "Running"}})

    soon = threading.Timer(0.3, start)
    soon.start()
    both = devalloc("wait", "vm/web", "vm/other", "--timeout=60s")
    soon.join()
    assert (both.code, both.out) == (0, "virtualmachine/web running\nvirtualmachine/other running\n")


def test_wait_for_machines(devalloc: Shell) -> None:
    machine = vm()
    devalloc("apply", "-f", "-", stdin=text(machine))
    unkept = devalloc("wait", "vm/web", "--timeout=10ms")
    assert unkept.code == 1
    silence = "no node has taken the machine yet: is a node plugin running on node node-a?"
    assert f"default/web is not running after 0.01 s; {silence}" in unkept.err

    def says(**status: str) -> None:
        with closing(SQLiteStore(devalloc.store)) as store:
            store.replace_status({**store.get("VirtualMachine", "default", "web"), "status": status})

    says(phase="Failed", reason="PathMissing", message="kernel /images/vmlinuz: No such file")
    failed = devalloc("wait", "vm/web", "--timeout=10ms")
    assert failed.err.endswith("after 0.01 s: it is Failed: kernel /images/vmlinuz: No such file\n")
    says(phase="Running")
    assert devalloc("wait", "vm/web").out == "virtualmachine/web running\n"
    assert devalloc("wait", "vm/web", "--for=stopped", "--timeout=0s").code == 1
    says(phase="Stopped", reason="MachineEnded", message="it ended")
    ended = devalloc("wait", "vm/web", "--timeout=10ms")
    assert "is not running after 0.01 s" in ended.err, "its policy starts it again"
    machine["spec"]["restartPolicy"] = "Never"
    devalloc("apply", "-f", "-", stdin=text(machine))
    ended = devalloc("wait", "vm/web", "--timeout=1h")
    assert "is not running and stays so, because it ended and its spec.restartPolicy is Never: it is" in ended.err
    machine["spec"]["running"] = False
    devalloc("apply", "-f", "-", stdin=text(machine))
    stopped = devalloc("wait", "vm/web", "--timeout=1h")
    assert (stopped.code, "is not running and stays so, because its spec.running is false: it is" in stopped.err) == (
        1, True,
    )  # fmt: skip
    assert devalloc("wait", "vm/web", "--for=stopped").code == 0


def test_a_machine_is_ready_when_it_runs_and_its_guest_says_so(devalloc: Shell) -> None:
    def wait_ready(timeout: str = "10ms") -> tuple[int, str]:
        output = devalloc("wait", "vm/web", "--for=condition=Ready", "--timeout", timeout)
        return output.code, output.out

    def report(**status: Any) -> None:
        with closing(SQLiteStore(devalloc.store)) as store:
            store.replace_status({**store.get("VirtualMachine", "default", "web"), "status": status})

    machine = vm()
    devalloc("apply", "-f", "-", stdin=text(machine))
    report(phase="Starting")
    assert wait_ready() == (1, "")
    report(phase="Running")
    assert wait_ready() == (0, "virtualmachine/web ready\n")
    machine["spec"]["guestReports"] = True
    devalloc("apply", "-f", "-", stdin=text(machine))
    assert wait_ready() == (1, ""), "the guest has not said so"
    report(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    assert wait_ready() == (0, "virtualmachine/web ready\n")
    machine["spec"]["running"] = False
    devalloc("apply", "-f", "-", stdin=text(machine))
    report(phase="Stopped")
    assert wait_ready("1h")[0] == 1, "at once: it is not to run"
    wrong = devalloc("wait", "vm/web", "--for=allocated")
    assert (wrong.code, wrong.err) == (
        2, "error: a VirtualMachine is never allocated; wait --for=running|ready|paused|stopped|deleted\n",
    )  # fmt: skip
    assert devalloc("wait", "dclaim/train", "vm/web").code == 2


def test_watch_goes_on_with_changes(devalloc: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    devalloc("apply", "-f", "-", stdin=text(claim()))
    watch = SQLiteStore.watch

    def briefly(self: SQLiteStore, kinds: object, since: str) -> object:
        devalloc("apply", "-f", "-", stdin=text(claim("other"), claim("elsewhere", namespace="team-a")))
        return watch(self, "DeviceClaim", since, timeout=0)

    monkeypatch.setattr(SQLiteStore, "watch", briefly)

    output = devalloc("get", "claims", "-w").out.splitlines()

    assert [line.split()[0] for line in output] == ["NAME", "train", "CHANGE", "ADDED"]
    assert output[-1].split()[1] == "other"


def test_a_program_that_watches_gets_what_is_there_in_the_form_of_changes(
    devalloc: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    devalloc("apply", "-f", "-", stdin=text(claim()))
    monkeypatch.setattr(SQLiteStore, "watch", lambda *arguments, **settings: iter(()))

    for arguments in (["claims"], ["dclaim/train"]):
        change = json.loads(devalloc("get", *arguments, "-w", "-o", "json").out)
        assert (change["type"], change["object"]["metadata"]["name"]) == ("ADDED", "train")


def test_a_backup_is_a_store_with_the_same_objects(devalloc: Shell, tmp_path: Path) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET)

    nowhere = ("--node-state", tmp_path / "no-node")
    assert devalloc("backup", tmp_path / "copy.db", *nowhere).out == f"{tmp_path / 'copy.db'}: 3 objects\n"

    copy = Shell(tmp_path / "copy.db")
    names = "deviceclaim/train\n"
    assert copy("get", "claims", "-o", "name").out == names


def test_a_backup_of_store_and_journal_is_put_back(devalloc: Shell, tmp_path: Path) -> None:
    devalloc("apply", "-f", "-", stdin=FLEET)
    node, copy = tmp_path / "node", tmp_path / "copy.db"
    open_journal(node).close()
    where = ("--node-state", node)
    assert devalloc("backup", copy, *where).out.splitlines()[1] == f"{copy}.node: the journal of the node plugin"
    devalloc("delete", "dclaim/train")

    running = open_journal(node)
    refused = devalloc("restore", copy, "--journal", "also", *where)
    assert (refused.code, "stop it first" in refused.err) == (1, True)
    assert devalloc("get", "claims", "-o", "name").out == ""
    running.close()
    with hold_store(devalloc.store):
        assert devalloc("restore", copy, "--journal", "also", *where).code == 1
        assert not list(node.glob("journal.db.before-*")), "nor was the journal put back alone"
    done = devalloc("restore", copy, "--journal", "also", *where)

    assert done.out.count("is restored; the old one is now") == 2
    assert devalloc("get", "claims", "-o", "name").out == "deviceclaim/train\n"
    assert devalloc("restore", tmp_path / "nothing").code == 2


def test_yaml_of_one_object_is_that_object(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool()))

    shown = yaml.safe_load(devalloc("get", "pool/gpus", "-o", "yaml").out)

    assert shown["spec"] == pool()["spec"]


def test_a_name_that_another_kind_has_is_shown(devalloc: Shell) -> None:
    machine = {
        "apiVersion": "devalloc.io/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"name": "web"},
        "spec": {
            "cpu": {"min": 1, "max": 1},
            "memory": {"min": "128Mi", "max": "128Mi"},
            "start": {"kernel": "/images/vmlinuz"},
        },
    }
    devalloc("apply", "-f", "-", stdin=text(claim("a"), machine))

    waited = devalloc("wait", "web")
    hint = "there is a VirtualMachine of that name: virtualmachine/web"
    assert (waited.code, waited.err) == (4, f"error: DeviceClaim default/web does not exist; {hint}\n")
    assert devalloc("get", "vm", "a").err.endswith("; there is a DeviceClaim of that name: deviceclaim/a\n")
    assert devalloc("wait", "b").err.endswith("does not exist; the only one is a\n")

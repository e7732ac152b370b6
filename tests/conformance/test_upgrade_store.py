"""A store goes from the release before to this version and back: each ``up`` goes on where the other one stopped."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

from devalloc.api import meta
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.host_pools import GIB, host, machine
from tests.support.previous import PRESENT, Version, previous
from tests.support.versioned_cli import VersionedCli, versioned_cli
from tests.support.waiting import until

Objects = dict[str, Any]
WEB = "VirtualMachine/default/web"
SHARED = {"claims": [{"deviceClass": "shared", "requests": {"resources": [{"name": "memory", "quantity": "4Gi"}]}}]}


@contextmanager
def up(version: Version, store: Path) -> Iterator[Popen[str]]:
    process = version.start(version.devalloc("up", "--store", str(store), "--no-inventory", "--no-node"))
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    finally:
        process.kill()
        process.communicate()


def reason(obj: Any) -> str:
    return str(obj["metadata"].get("annotations", {}).get(meta.REASON, ""))


def given(objects: Objects) -> dict[str, Any]:
    """What is allocated: a claim's devices, a machine's node."""
    return {
        name: allocations for name, obj in objects.items() if (allocations := obj.get("status", {}).get("allocations"))
    }


def claim(name: str) -> str:
    return f"DeviceClaim/default/{name}"


def text(*objects: Any) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def test_each_version_goes_on_with_what_the_other_one_wrote(tmp_path: Path) -> None:
    store = tmp_path / "devalloc.db"
    with (
        versioned_cli(previous(), DEVALLOC_STORE=str(store)) as before,
        versioned_cli(PRESENT, DEVALLOC_STORE=str(store)) as now,
    ):
        _written(before, store)
        _goes_on(before, now, PRESENT, store, tmp_path, "1")
        _goes_on(now, before, previous(), store, tmp_path, "2")


def _written(shell: VersionedCli, store: Path) -> None:
    """Claims in every state: allocated, a group, prepared, being deleted though a node has it, asked back, refused; a
    machine that was placed, permitted and scaled."""
    placed = machine("web", "2", "2Gi", "of-web")
    shell("apply", "-f", "-", stdin=text(gpu_pool(devices=8), gpu_class(), host("n")))
    claims = [gpu_claim(name) for name in ("a", "prepared", "deleted", "of-web", "asked-back")]
    claims += [gpu_claim(name, group="pair", priority="5") for name in ("pair-1", "pair-2")]
    with up(previous(), store):
        shell("apply", "-f", "-", stdin=text(*claims, gpu_claim("big", 9), placed))
        names = [each["metadata"]["name"] for each in claims]
        shell("wait", *names, "--timeout=2m")
        until(lambda: reason(shell.objects(store)[claim("big")]), "what is too big is refused")
        until(lambda: WEB in given(shell.objects(store)), "the machine is placed")
    objects = shell.objects(store)
    for name in ("prepared", "deleted", "asked-back"):
        obj = objects[claim(name)]
        obj["metadata"]["finalizers"] = [meta.NODE_FINALIZER]
        obj["metadata"]["annotations"][meta.PREPARED_ON] = "n"
        if name == "asked-back":
            obj["metadata"]["annotations"][meta.RELEASE] = "asked"
        ready = {"type": "Ready", "status": "True", "reason": "Prepared", "message": "by its node"}
        for device in obj["status"]["allocations"]:
            named = {each: device[each] for each in ("devicePoolName", "deviceName")}
            amounts = {**named, "conditions": [{**ready, "lastTransitionTime": "2026-11-21T12:00:00Z"}]}
            obj["status"].setdefault("deviceStatuses", []).append(amounts)
        shell.put(store, obj)
    shell("delete", "claim", "deleted")
    web = shell.objects(store)[WEB]
    web["metadata"]["annotations"] = {"vm.neon.tech/usage": json.dumps({"cpu": 2, "memory": "2Gi"})}
    web["metadata"]["labels"] = {"autoscaling.neon.tech/enabled": "true"}
    amounts = {"cpus": "2", "memory": "2Gi"}
    permit = {"cpus": "3", "memory": "3Gi", "givenBy": "permits-1", "machineID": "m-1", "kept": amounts}
    web["status"] |= {
        "phase": "Running",
        "machineID": "m-1",
        "applied": amounts,
        "observed": amounts,
        "permitted": permit,
    }
    shell.put(store, web)


def _goes_on(
    wrote: VersionedCli, reads: VersionedCli, version: Version, store: Path, folder: Path, number: str
) -> None:
    """``reads``, of ``version``, takes the store over from ``wrote``: it sees the same, keeps what is given, and
    answers what is new."""
    objects = wrote.objects(store)
    assert reads.objects(store) == objects
    assert given(objects).keys() >= {claim(name) for name in ("prepared", "deleted", "of-web", "pair-1", "pair-2")}
    for name in objects:
        kind, _, called = name.split("/")
        assert called in reads("describe", f"{kind}/{called}").out
    counted = reads.permit(store, WEB)
    assert counted == wrote.permit(store, WEB)
    assert (counted["permit"], counted["previous"]) == ([3000, 3 * GIB], [2000, 2 * GIB])
    wrote("snapshot", folder / f"snapshot-{number}")
    # 0.1.0 also compares the words of a message, which 0.2.0 says better.
    replayed = reads("replay", folder / f"snapshot-{number}", code=0 if version == PRESENT else 1)
    code = "NotEnoughDevices"
    assert "the same answer" in replayed.out or re.fullmatch(
        f"default/big: recorded {code}: .*; now {code}: .*\n", replayed.out
    )
    wrote("backup", folder / f"backup-{number}")
    reads("restore", folder / f"backup-{number}", "--store", folder / f"restored-{number}")
    assert reads.objects(folder / f"restored-{number}").keys() == objects.keys()

    # The next one answers what was applied while none ran, and what is given back goes to another claim.
    wrote("apply", "-f", "-", stdin=text(gpu_claim(f"late-{number}")))
    with up(version, store):
        reads("wait", f"late-{number}", "--timeout=2m")
        after = reads.objects(store)
        assert {name: after[name] for name in given(objects)} == {name: objects[name] for name in given(objects)}
        assert reason(after[claim("big")]) == reason(objects[claim("big")])
        reads("delete", "claim", f"late-{number}")
        reads("apply", "-f", "-", stdin=text(gpu_claim(f"next-{number}")))
        reads("wait", f"next-{number}", "--timeout=2m")
        reads("release", f"next-{number}")
        reads("delete", "claim", f"next-{number}")


def test_a_store_of_a_version_to_come_is_left_as_it_is(tmp_path: Path) -> None:
    """The release before says the same of one of this version, once its tables are others."""
    store = tmp_path / "devalloc.db"
    SQLiteStore(store).close()
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA user_version = 99")
    content = store.read_bytes()
    for version in (previous(), PRESENT):
        with versioned_cli(version, DEVALLOC_STORE=str(store)) as shell:
            errors = shell("get", "claims", code=1).err
            assert f"{store} was written by a newer devalloc (schema 99; this one knows up to" in errors
            assert "Use the newer version, or restore a backup that this version made" in errors
    assert store.read_bytes() == content

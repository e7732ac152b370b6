"""`devalloc drain` as admins see it: the plan, progress, what stays and why, and Ctrl-C."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.views import ClaimView, MachineView
from devalloc.cli import drain_run
from devalloc.cli.drain_run import DrainRun
from devalloc.cli.follow import PAUSE_SECONDS
from devalloc.controller.cordon import CordonTarget, set_cordon
from devalloc.machines import drain
from devalloc.machines.drain_steps import Action, Entry, Look
from devalloc.store import Conflict, Forbidden, Invalid, Key, NotFound, Store, StoreError, UnknownOutcome
from devalloc.store.metadata_rules import with_annotations
from devalloc.store.sqlite import SQLiteStore
from tests.support import migration_nodes
from tests.support.cli_shell import Shell, claim, device_class, pool, text
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.host_pools import host, machine
from tests.support.migration_nodes import controller_at_work, is_cordoned, mark, movable, play, settle
from tests.support.waiting import until


def a_machine(name: str = "web", *claims: str, **spec: Any) -> dict[str, Any]:
    return machine(name, "1", "1Gi", *claims, **spec)


@pytest.fixture
def fleet(devalloc: Shell) -> Shell:
    """A machine and its claim on node-a, which did not begin there."""
    objects = (host("node-a"), pool(), device_class(), claim("card"), a_machine("web", "card"))
    devalloc("apply", "-f", "-", stdin=text(*objects))
    devalloc.allocate()
    return devalloc


def add_node_b(fleet: Shell) -> None:
    fleet("apply", "-f", "-", stdin=text(host("node-b"), pool("others", node="node-b")))


def controller(fleet: Shell, *, node: Callable[[Store], None] | None = None) -> AbstractContextManager[None]:
    """The allocator, and what the node's plugin does beside it."""
    return controller_at_work(fleet.store, node)


def take(fleet: Shell, name: str = "web") -> None:
    """The machine runs on node-a."""
    with closing(SQLiteStore(fleet.store)) as store:
        migration_nodes.take(store, name, "node-a")


def lets_go(store: Store) -> None:
    """The node's plugin, once the machine was asked to leave."""
    metadata = store.get("VirtualMachine", "default", "web")["metadata"]
    if metadata.get("annotations", {}).get(meta.EVICT) == "node-a" and metadata.get("finalizers"):
        migration_nodes.let_go(store, "web")


def test_a_machine_that_did_not_begin_moves_with_its_claim(fleet: Shell) -> None:
    add_node_b(fleet)
    plan = "virtualmachine default/web: will move to"
    assert f"{plan} node node-b\n" in fleet("drain", "node/node-a", "--dry-run").out
    with controller(fleet):
        result = fleet("drain", "node/node-a", "--timeout", "60s")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "will cordon node node-a",
        f"{plan} another node that has room",
        "node node-a cordoned",
        "virtualmachine default/web asked to leave",
        "virtualmachine default/web left node node-a",
        "virtualmachine default/web placed on node node-b",
    ]
    with closing(SQLiteStore(fleet.store)) as store:
        (entry,) = store.get("DeviceClaim", "default", "card")["status"]["allocations"]
    assert entry["devicePoolName"] == "others"


def test_a_running_machine_stays_without_force_and_is_stopped_with_it(fleet: Shell) -> None:
    add_node_b(fleet)
    take(fleet)
    result = fleet("drain", "node/node-a")
    assert result.code == 1
    why = (
        "it runs, and cannot move while it does: node node-a has not said yet whether QEMU can move it with its devices"
    )
    assert f"virtualmachine default/web: stays: {why} (--force stops it)" in result.out
    assert "virtualmachine default/web stays on the node: it runs, and cannot move" in result.err
    with controller(fleet, node=lets_go):
        result = fleet("drain", "node/node-a", "--force", "--timeout", "60s")
    assert (result.code, result.err) == (0, "")
    assert "virtualmachine default/web: will stop and move to another node" in result.out
    assert result.out.endswith("placed on node node-b\n")


@pytest.mark.parametrize("is_cordoned_too", [False, True])
def test_the_plan_says_why_a_machine_would_wait(devalloc: Shell, is_cordoned_too: bool) -> None:
    """Only place-a has GPUs, and the uplink that the machine cache needs."""
    devalloc("apply", "-f", "examples/placed-machines")
    devalloc.allocate()
    devalloc.allocate()
    if is_cordoned_too:
        devalloc("cordon", "node/place-b")
    before = devalloc("get", "vms", "-o", "json").json
    for words, cure in ((("drain",), "uncordon"), (("fence",), "unfence")):
        shown = devalloc(*words, "node/place-a", "--dry-run")
        assert (shown.code, shown.err) == (0, "")
        for name in ("cache", "trainer"):
            (line,) = (line for line in shown.out.splitlines() if f"default/{name}: " in line)
            assert line.startswith(f"virtualmachine default/{name}: will leave place-a and wait: ")
            assert f"run `devalloc {cure} node/place-a`" in line
    assert devalloc("get", "vms", "-o", "json").json == before
    forced = devalloc("drain", "node/place-a", "--dry-run", "--force").out
    assert "virtualmachine default/trainer: will stop, leave place-a and wait: " in forced


@pytest.fixture
def two_claims(devalloc: Shell) -> Shell:
    """Of node-a's GPUs, one claim has one and the other has three; node-b has two."""
    devalloc("apply", "-f", "-", stdin=text(gpu_class(), gpu_pool("four", 4, "node-a")))
    devalloc("apply", "-f", "-", stdin=text(gpu_claim("small"), gpu_claim("large", 3)))
    devalloc.allocate()
    devalloc("apply", "-f", "-", stdin=text(gpu_pool("two", 2, "node-b")))
    return devalloc


def test_the_plan_says_of_each_claim_whether_it_has_room_elsewhere(two_claims: Shell) -> None:
    before = two_claims("get", "claims", "-o", "json").json
    shown = two_claims("drain", "node/node-a", "--dry-run")
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert "deviceclaim default/small: will be released and get devices of node node-b" in lines
    (line,) = (line for line in lines if "default/large: " in line)
    assert line.startswith("deviceclaim default/large: will be released and wait: NotEnoughDevices: "), line
    assert two_claims("get", "claims", "-o", "json").json == before
    shown = two_claims("fence", "node/node-a", "--dry-run")
    assert "deviceclaim default/small: will be released and get devices of node node-b" in shown.out
    assert "deviceclaim default/large: will be released and wait: NotEnoughDevices: " in shown.out


def test_the_plan_says_what_becomes_of_a_claim_in_use(two_claims: Shell) -> None:
    with closing(SQLiteStore(two_claims.store)) as store:
        claim = store.get("DeviceClaim", "default", "small")
        held = {"annotations": {**claim["metadata"]["annotations"], meta.PREPARED_ON: "node-a"}}
        store.replace({**claim, "metadata": {**claim["metadata"], **held, "finalizers": [meta.NODE_FINALIZER]}})
    shown = two_claims("drain", "node/node-a", "--dry-run").out
    assert "deviceclaim default/small: stays: it is in use (--force takes its devices away)\n" in shown
    shown = two_claims("drain", "node/node-a", "--dry-run", "--force").out
    assert "deviceclaim default/small: will lose its devices and get devices of node node-b\n" in shown


def test_the_plan_of_claims_promises_nothing_without_the_right_to_read_all_that_counts(
    two_claims: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, "list", lambda *kinds: not kinds, Forbidden("may not read quotas"))
    shown = two_claims("drain", "node/node-a", "--dry-run").out
    assert "deviceclaim default/large: will be released\n" in shown


def test_the_plan_says_that_the_node_alone_takes_a_machine(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(host("node-a"), a_machine("web")))
    devalloc.allocate()
    take(devalloc)
    shown = devalloc("fence", "node/node-a", "--dry-run").out
    assert "virtualmachine default/web: will leave node-a and wait: NodesUnschedulable: " in shown
    devalloc("apply", "-f", "-", stdin=text(host("node-b")))
    shown = devalloc("fence", "node/node-a", "--dry-run").out
    assert "virtualmachine default/web: will start on node node-b\n" in shown


def test_the_plan_says_that_a_machine_that_runs_stays_without_room(two_machines: Shell) -> None:
    take(two_machines, "app")
    plan = two_machines("drain", "node/node-a", "--dry-run").out
    assert "virtualmachine default/app: will move to node node-b while it runs\n" in plan
    two_machines("cordon", "node/node-b")
    plan = two_machines("drain", "node/node-a", "--dry-run").out
    assert "virtualmachine default/app: will stay, unless another node gets room: " in plan
    assert "virtualmachine default/web: will leave node-a and wait: " in plan
    plan = two_machines("drain", "node/node-a", "--dry-run", "--force").out
    assert "virtualmachine default/app: will be stopped when the time is up, unless another node gets room: " in plan


def test_the_plan_has_all_machines_move_that_only_queue_for_each_other(devalloc: Shell) -> None:
    names = ["app", "cache", "mail", "web"]
    devalloc("apply", "-f", "-", stdin=text(host("node-a"), *map(a_machine, names)))
    devalloc.allocate()
    for name in names:
        take(devalloc, name)
    devalloc("apply", "-f", "-", stdin=text(host("node-b", cpus=3)))
    lines = devalloc("drain", "node/node-a", "--dry-run").out.splitlines()
    moving = [
        name for name in names if f"virtualmachine default/{name}: will move to node node-b while it runs" in lines
    ]
    assert len(moving) == 3, "as many as have room"
    (left,) = {*names} - {*moving}
    (line,) = (line for line in lines if f"default/{left}: " in line)
    assert line.startswith(
        f"virtualmachine default/{left}: will stay, unless another node gets room: LostToCompetition: "
    )


def test_the_plan_does_not_say_where_a_machine_moves_that_others_go_before(devalloc: Shell) -> None:
    names = ["app", "cache", "web"]
    devalloc("apply", "-f", "-", stdin=text(host("node-a"), *map(a_machine, names)))
    devalloc.allocate()
    devalloc("apply", "-f", "-", stdin=text(host("node-b")))
    with closing(SQLiteStore(devalloc.store)) as store:
        for name in names:
            migration_nodes.take(store, name, "node-a")
        for name in names[:2]:
            store.create(migration_nodes.migration(f"of-{name}", name))
        migration_nodes.rounds(store)
    plan = devalloc("drain", "node/node-a", "--dry-run").out
    assert "virtualmachine default/web: will move to another node that has room, while it runs\n" in plan


def test_without_the_right_to_read_all_that_counts_the_plan_promises_nothing(
    two_machines: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, "list", lambda *kinds: not kinds, Forbidden("may not read quotas"))
    shown = two_machines("drain", "node/node-a", "--dry-run")
    assert (shown.code, shown.err) == (0, "")
    assert "virtualmachine default/web: will move to another node that has room\n" in shown.out


def test_a_machine_that_can_move_with_its_devices_does_and_releases_the_old_ones(fleet: Shell) -> None:
    add_node_b(fleet)
    take(fleet)

    def nodes(store: Store) -> None:
        play(store)
        settle(store)

    with closing(SQLiteStore(fleet.store)) as store:
        mark(store, "card", "node-a")
        vm = store.get("VirtualMachine", "default", "web")
        store.replace_status({**vm, "status": {**vm["status"], "conditions": movable()}})
    assert re.search(r"Can move: +while it runs", fleet("describe", "vm/web").out)
    with controller(fleet, node=nodes):
        result = fleet("drain", "node/node-a", "--timeout", "120s")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[:2] == [
        "will cordon node node-a",
        "virtualmachine default/web: will move to another node that has room, while it runs",
    ]
    assert lines[-1] == "virtualmachine default/web placed on node node-b"
    with closing(SQLiteStore(fleet.store)) as store:
        card = store.get("DeviceClaim", "default", "card")
        assert "movedClaims" not in store.get("VirtualMachine", "default", "web")["status"]
    assert [entry["devicePoolName"] for entry in card["status"]["allocations"]] == ["others"]
    assert card["metadata"]["annotations"][meta.PREPARED_ON] == "node-b"
    assert meta.RELEASE not in card["metadata"]["annotations"], "it was neither released nor taken away"


@pytest.mark.parametrize(("gives_up", "is_marked"), [(False, True), (False, False), (True, True)])
def test_the_devices_of_one_that_moved_before_are_waited_for(fleet: Shell, gives_up: bool, is_marked: bool) -> None:
    add_node_b(fleet)
    take(fleet)
    with closing(SQLiteStore(fleet.store)) as store:
        mark(store, "card", "node-a")
        vm = store.get("VirtualMachine", "default", "web")
        store.replace_status({**vm, "status": {**vm["status"], "conditions": movable()}})
    fleet("apply", "-f", "-", stdin=text(migration_nodes.migration()))

    def nodes(store: Store) -> None:
        play(store)
        if gives_up and is_cordoned(store):
            settle(store)

    with controller(fleet, node=nodes):
        assert fleet("wait", "migration/move", "--timeout", "60s").code == 0
    if not is_marked:  # the node has given them up, and no controller runs that gives the others to the claim
        with closing(SQLiteStore(fleet.store)) as store:
            mark(store, "card", None)
    with controller(fleet, node=nodes) if gives_up else nullcontext():
        result = fleet("drain", "node/node-a", "--timeout", "60s" if gives_up else "0s")
    assert (
        "wait until the node gives up what it has of claims that moved with their machines: default/card" in result.out
    )
    assert result.code == (0 if gives_up else 1)
    late = (
        "error: DeviceClaim default/card: its machine has moved, but the claim still has devices of node node-a after "
        "0 s; do the controller and the plugins of both nodes run?\n"
    )
    assert result.err == ("" if gives_up else late)


def test_a_claim_that_was_taken_away_may_be_prepared_on_another_node_meanwhile(fleet: Shell) -> None:
    add_node_b(fleet)
    fleet("apply", "-f", "-", stdin=text(claim("other")))
    fleet.allocate()
    with closing(SQLiteStore(fleet.store)) as store:
        (entry,) = store.get("DeviceClaim", "default", "other")["status"]["allocations"]
    assert entry["devicePoolName"] == "gpus"
    take(fleet)
    with closing(SQLiteStore(fleet.store)) as store:
        mark(store, "other", "node-a")

    def nodes(store: Store) -> None:
        view = ClaimView(store.get("DeviceClaim", "default", "other"))
        with suppress(Conflict, NotFound):
            if view.holder == "node-b":
                lets_go(store)
            elif view.wants_release and view.is_held:
                mark(store, "other", None)
            elif view.node == "node-b":
                mark(store, "other", "node-b")

    with controller(fleet, node=nodes):
        result = fleet("drain", "node/node-a", "--force", "--timeout", "60s")
    assert (result.code, result.err) == (0, "")
    assert "DeviceClaim default/other released" in result.out


def test_without_another_node_it_leaves_and_the_reason_why_it_waits_is_shown(fleet: Shell) -> None:
    with controller(fleet):
        result = fleet("drain", "node/node-a", "--timeout", "60s")
    assert result.code == 0, "the node is empty"
    assert "virtualmachine default/web left node node-a" in result.out
    assert "virtualmachine default/web waits for a node: " in result.err


def test_a_node_that_does_not_answer_is_reported_and_the_request_stays(fleet: Shell) -> None:
    take(fleet)
    result = fleet("drain", "node/node-a", "--force", "--timeout", "0s")
    assert result.code == 1
    assert "error: virtualmachine default/web has not left within 0 s; it will do so later" in result.err
    assert "leaves: it was asked to leave before" in fleet("drain", "node/node-a", "--dry-run").out


def test_uncordon_takes_the_request_back_while_the_machine_is_there(fleet: Shell) -> None:
    add_node_b(fleet)
    take(fleet)
    fleet("drain", "node/node-a", "--force", "--timeout", "0s")
    result = fleet("uncordon", "node/node-a")
    assert result.out == "node node-a uncordoned\nvirtualmachine default/web is no longer asked to leave\n"
    with closing(SQLiteStore(fleet.store)) as store:
        assert meta.EVICT not in store.get("VirtualMachine", "default", "web")["metadata"]["annotations"]
    assert fleet("uncordon", "node/node-a").out == "node node-a was not cordoned\n"


def test_a_machine_that_cannot_run_elsewhere_is_named_with_the_reason(devalloc: Shell) -> None:
    start = {"kernel": "/k", "disks": [{"path": "/disks/a.raw", "format": "raw"}]}
    devalloc("apply", "-f", "-", stdin=text(host("node-a"), a_machine(start=start, running=True)))
    devalloc.allocate()
    take(devalloc)
    result = devalloc("drain", "node/node-a", "--dry-run")
    assert (
        "virtualmachine default/web: stays: only node node-a has its disk /disks/a.raw (--force stops it)" in result.out
    )
    with controller(devalloc, node=lets_go):
        result = devalloc("drain", "node/node-a", "--force", "--timeout", "60s")
        with closing(SQLiteStore(devalloc.store)) as store:
            until(lambda: "message" in store.get("VirtualMachine", "default", "web")["status"], "it says why", 60)
    assert result.code == 0
    assert "will stop until the node is uncordoned: only node node-a has its disk /disks/a.raw" in result.out
    assert result.out.endswith("starts again on node node-a after `devalloc uncordon node/node-a`\n")
    with controller(devalloc):
        devalloc("uncordon", "node/node-a")
        with closing(SQLiteStore(devalloc.store)) as store:
            until(lambda: "nodeName" in store.get("VirtualMachine", "default", "web")["status"], "it is placed", 60)


def test_the_reason_why_a_machine_stays_is_printed_once(devalloc: Shell) -> None:
    start = {"kernel": "/k", "disks": [{"path": "/disks/a.raw", "format": "raw"}]}
    devalloc("apply", "-f", "-", stdin=text(host("node-a"), a_machine(start=start, running=True)))
    devalloc.allocate()
    take(devalloc)
    result = devalloc("drain", "node/node-a")
    assert (result.code, result.err) == (1, "virtualmachine default/web stays on the node\n")
    assert result.out.count("only node node-a has its disk /disks/a.raw") == 1


def test_a_stopped_one_that_stays_is_no_failure_and_its_claim_stays_with_it(fleet: Shell) -> None:
    take(fleet)
    with closing(SQLiteStore(fleet.store)) as store:
        obj = store.get("VirtualMachine", "default", "web")
        spec = {**obj["spec"], "running": False, "start": {"kernel": "/k", "tpm": True}}
        obj = store.replace({**obj, "spec": spec})
        store.replace_status({**obj, "status": {"phase": "Stopped", "nodeName": "node-a"}})
    result = fleet("drain", "node/node-a", "--timeout", "0s")
    assert result.code == 0
    assert "stays: only node node-a has its TPM" in result.out
    assert "released" not in result.out


def test_ctrl_c_leaves_what_was_asked_to_go_on(fleet: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    add_node_b(fleet)
    take(fleet)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(drain_run, "became", interrupt)
        result = fleet("drain", "node/node-a", "--force")
    assert result.code != 0
    assert "machines that were asked to leave node node-a still do so" in result.err
    with controller(fleet, node=lets_go), closing(SQLiteStore(fleet.store)) as store:
        until(
            lambda: store.get("VirtualMachine", "default", "web")["status"].get("nodeName") == "node-b", "it moved", 60
        )


def test_the_time_limit_holds_if_each_look_finds_a_machine_that_has_changed(
    fleet: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = 0

    def others_are_faster(store: Store, listed: MachineView, node: str) -> None:
        nonlocal requests
        requests += 1
        assert requests < 100, "each look waits a little"
        store.replace(with_annotations(listed.content, {"others": str(requests)}))
        raise Conflict({Key.of(listed.content): "it changed"})

    monkeypatch.setattr(drain_run, "evict", others_are_faster)
    began = time.monotonic()
    result = fleet("drain", "node/node-a", "--timeout", "1s")
    assert (result.code, requests <= 1 / PAUSE_SECONDS + 1, time.monotonic() - began < 30) == (1, True, True)
    words = "changed while the drain asked it to leave; repeat the command"
    assert result.err == f"error: virtualmachine default/web {words}\n"


def test_a_second_error_of_the_store_does_not_replace_the_first(fleet: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words: str) -> Callable[..., None]:
        def failing(*_: object) -> None:
            raise StoreError(words)

        return failing

    monkeypatch.setattr(DrainRun, "_look", fail("the first"))
    monkeypatch.setattr(DrainRun, "_withdraw_migrations", fail("the second"))
    result = fleet("drain", "node/node-a")
    assert result.code == 1
    assert result.err.splitlines() == [
        "error: cannot withdraw the migrations of this drain: the second; `devalloc uncordon node/node-a` withdraws "
        "them, and reverses the cordon",
        "error: the first",
    ]


def test_a_claim_with_admin_access_keeps_its_devices(devalloc: Shell) -> None:
    """It would get the same devices again, cordoned or not: it takes nothing of the node."""
    watch = device_class("watch", driver="gpu.devalloc.io", adminAccess=True)
    devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), watch, claim("observer", deviceClass="watch")))
    devalloc.allocate()
    with controller(devalloc):
        result = devalloc("drain", "node/node-a", "--timeout", "20s")
    assert (result.code, result.err) == (0, "")
    assert result.out == "will cordon node node-a\nnode node-a cordoned\n"
    assert devalloc("get", "claims", "-o", "json").json["items"][0]["status"]["allocations"]
    with closing(SQLiteStore(devalloc.store)) as store:
        mark(store, "observer", "node-a")
    result = devalloc("drain", "node/node-a", "--timeout", "20s")
    assert (result.code, "is prepared on node-a" in result.err) == (1, True)


@pytest.mark.parametrize("is_uncordoned", [False, True])
def test_drain_waits_for_a_machine_that_stops_while_the_node_is_cordoned(fleet: Shell, is_uncordoned: bool) -> None:
    take(fleet)
    with closing(SQLiteStore(fleet.store)) as store:
        obj = store.get("VirtualMachine", "default", "web")
        store.replace({**obj, "spec": {**obj["spec"], "running": False}})

    def uncordon(store: Store) -> None:
        if is_cordoned(store):
            set_cordon(store, CordonTarget(node="node-a"), None)

    with controller(fleet, node=uncordon) if is_uncordoned else nullcontext():
        result = fleet("drain", "node/node-a", "--timeout", "30s" if is_uncordoned else "0s")
    assert result.code == 1
    text = "virtualmachine default/web: it is to be stopped; the drain waits for that (--force asks it to leave)"
    assert text in result.out.splitlines()
    late = "has not stopped within 0 s; repeat the command when it has, or with --force"
    uncordoned = "stays on node node-a, which was uncordoned during the drain; to drain it, repeat the command"
    assert result.err == f"error: virtualmachine default/web {uncordoned if is_uncordoned else late}\n"


def test_drain_waits_for_a_machine_that_is_deleted_meanwhile(fleet: Shell) -> None:
    take(fleet)
    fleet("delete", "vm/web")

    def removes(store: Store) -> None:
        with suppress(Conflict, NotFound):  # the controller writes it as well
            obj = store.get("VirtualMachine", "default", "web")
            if is_cordoned(store):
                store.replace({**obj, "metadata": {**obj["metadata"], "finalizers": []}})

    with controller(fleet, node=removes):
        result = fleet("drain", "node/node-a", "--timeout", "60s")
    assert result.code == 0
    assert "leaves: it is being deleted" in result.out
    assert "DeviceClaim default/card released" in result.out, "no machine takes it along"


@pytest.mark.parametrize("verb_words", [("up", "--node"), ("node",)])
@pytest.mark.parametrize(
    ("folder", "more", "message"),
    [
        ("/srv/vms", (), "--shared-storage needs --host-capacity"),
        ("vms", ("--host-capacity",), "invalid folder 'vms': write an absolute path"),
        ("/", ("--host-capacity",), "invalid folder '/'"),
        ("/srv/../etc", ("--host-capacity",), "invalid folder '/srv/../etc'"),
        ("/srv:/etc", ("--host-capacity",), "invalid folder '/srv:/etc'"),
    ],
)
def test_shared_storage_is_a_folder_that_the_capacity_names(
    devalloc: Shell, verb_words: tuple[str, ...], folder: str, more: tuple[str, ...], message: str
) -> None:
    result = devalloc(*verb_words, "--shared-storage", folder, *more)
    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize("verb_words", [("up", "--node"), ("node",)])
def test_that_it_receives_machines_is_what_the_capacity_says(devalloc: Shell, verb_words: tuple[str, ...]) -> None:
    result = devalloc(*verb_words, "--migration-address", "10.0.0.7")
    assert result.code == 2
    assert "--migration-address needs --host-capacity" in result.err


def refuse(
    monkeypatch: pytest.MonkeyPatch, method: str, concerns: Callable[..., bool], error: StoreError, times: int = 10**6
) -> None:
    """Have stores refuse some writes: those for whose first argument ``concerns`` is true, so many times."""
    original, left = getattr(SQLiteStore, method), [times]

    def refusing(store: SQLiteStore, *args: Any, **options: Any) -> Any:
        if left[0] > 0 and concerns(*args):
            left[0] -= 1
            raise error
        return original(store, *args, **options)

    monkeypatch.setattr(SQLiteStore, method, refusing)


def is_request_to(name: str) -> Callable[..., bool]:
    """Whether an object is a machine of this name that is asked to leave."""
    return lambda obj, *_: obj["metadata"]["name"] == name and meta.EVICT in obj["metadata"].get("annotations", {})


@pytest.fixture
def two_machines(devalloc: Shell) -> Shell:
    """The machines app and web on node-a; node-b has room."""
    devalloc("apply", "-f", "-", stdin=text(host("node-a"), a_machine("app"), a_machine("web")))
    devalloc.allocate()
    devalloc("apply", "-f", "-", stdin=text(host("node-b")))
    return devalloc


@pytest.mark.parametrize("error", [Invalid("the policy says no"), Forbidden("the policy says no")])
def test_a_machine_that_the_store_does_not_let_ask_keeps_no_other_one_there(
    two_machines: Shell, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    refuse(monkeypatch, "replace", is_request_to("app"), error)
    with controller(two_machines):
        result = two_machines("drain", "node/node-a", "--timeout", "50s")
    assert result.code == 1
    assert "virtualmachine default/web placed on node node-b" in result.out
    assert result.err.splitlines() == [
        "error: virtualmachine default/app cannot be asked to leave: the policy says no",
        "error: virtualmachine default/app is still on node node-a: it cannot be asked to leave: the policy says no",
    ]


def test_a_request_that_got_an_answer_later_is_not_reported_as_failed(
    two_machines: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(two_machines, "app")
    refuse(monkeypatch, "create", lambda obj: obj["kind"] == migration_nodes.KIND, UnknownOutcome("no answer"), times=1)
    result = two_machines("drain", "node/node-a", "--timeout", "3s")
    assert result.code == 1
    assert "error: virtualmachine default/app has not moved within 3 s, and stays on the node\n" in result.err
    assert result.err.count("no answer") == 1


def test_a_request_without_a_clear_answer_is_tried_again(two_machines: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "replace", is_request_to("app"), UnknownOutcome("no answer"), times=2)
    with controller(two_machines):
        result = two_machines("drain", "node/node-a", "--timeout", "50s")
    assert result.code == 0
    assert result.err == "error: virtualmachine default/app cannot be asked to leave: no answer\n"
    for name in ("app", "web"):
        assert f"virtualmachine default/{name} placed on node node-b" in result.out


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_a_migration_that_the_store_refuses_keeps_no_other_machine_there(
    two_machines: Shell, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """With --force the machine is not powered down either: it could move."""
    take(two_machines, "app")
    take(two_machines, "web")
    of_app: Callable[..., bool] = lambda obj: obj["spec"].get("vmName") == "app"  # noqa: E731
    refuse(monkeypatch, "create", of_app, Forbidden("too many migrations"))
    with controller(two_machines, node=play):
        result = two_machines("drain", "node/node-a", "--timeout", "50s", *options)
    assert result.code == 1
    assert "virtualmachine default/web placed on node node-b" in result.out
    words = "cannot be asked to leave: too many migrations"
    assert result.err.splitlines() == [
        f"error: virtualmachine default/app {words}",
        f"error: virtualmachine default/app is still on node node-a: it {words}",
    ]
    with closing(SQLiteStore(two_machines.store)) as store:
        assert meta.EVICT not in store.get("VirtualMachine", "default", "app")["metadata"].get("annotations", {})


def test_a_migration_to_the_node_that_the_store_does_not_let_withdraw_keeps_no_machine_there(
    two_machines: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SQLiteStore(two_machines.store)) as store:
        late = store.create(a_machine("late"))
        store.replace_status({**late, "status": {"nodeName": "node-b"}})
        migration_nodes.take(store, "late", "node-b")
        store.create(migration_nodes.migration("in", "late", "node-a"))
    for _ in range(2):  # places it, and reserves its target
        two_machines.allocate()
    refuse(monkeypatch, "delete", lambda *key: key[-1] == "in", Forbidden("the policy says no"))
    with controller(two_machines):
        result = two_machines("drain", "node/node-a", "--timeout", "50s")
    assert result.code == 1
    for name in ("app", "web"):
        assert f"virtualmachine default/{name} left node node-a" in result.out
    words = "of machine default/late cannot be withdrawn: the policy says no"
    assert result.err.splitlines() == [
        f"error: VirtualMachineMigration default/in {words}",
        f"error: virtualmachine default/late still moves to the node: its migration {words}",
    ]


def test_a_claim_that_the_store_does_not_let_release_keeps_no_other_one_there(
    devalloc: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim("first"), claim("second")))
    devalloc.allocate()
    error = Invalid("the policy says no")
    refuse(monkeypatch, "commit", lambda changes, *_: changes[0].key.name == "first", error)
    refuse(monkeypatch, "replace", lambda obj: obj["metadata"]["name"] == "first", error)
    result = devalloc("drain", "node/node-a", "--timeout", "50s")
    assert result.code == 1
    assert "DeviceClaim default/second released" in result.out
    assert "DeviceClaim default/first released" not in result.out
    words = "cannot be released: the policy says no"
    assert result.err.splitlines() == [
        f"error: DeviceClaim default/first {words}",
        f"error: DeviceClaim default/first still has devices of node node-a: it {words}",
    ]


@pytest.mark.parametrize("method", ["get", "delete"])
def test_a_migration_that_the_store_does_not_let_withdraw_in_the_end_keeps_no_other_one(
    two_machines: Shell, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    take(two_machines, "app")
    take(two_machines, "web")
    refuse(monkeypatch, method, lambda *key: key[-1].startswith("app-drain-"), Forbidden("the policy says no"))
    result = two_machines("drain", "node/node-a", "--timeout", "0s")
    assert result.code == 1
    assert "virtualmachine default/web: its migration default/web-drain-" in result.err
    assert re.search(
        r"error: virtualmachine default/app is still on node node-a: it may still move by migration "
        r"default/app-drain-\w+: the policy says no\n",
        result.err,
    )


def test_uncordon_takes_back_what_the_store_allows(two_machines: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    take(two_machines, "app")
    take(two_machines, "web")
    with closing(SQLiteStore(two_machines.store)) as store:
        for name in ("app", "web"):
            drain.evict(store, MachineView(store.get("VirtualMachine", "default", name)), "node-a")
    refuse(monkeypatch, "replace", lambda obj: obj["metadata"]["name"] == "app", Forbidden("the policy says no"))
    result = two_machines("uncordon", "node/node-a")
    assert result.code == 1
    assert "virtualmachine default/web is no longer asked to leave" in result.out
    assert result.err == "error: virtualmachine default/app is still asked to leave: the policy says no\n"


@pytest.fixture
def without_pools(two_machines: Shell) -> Shell:
    """Machines on node-a, whose pools are gone."""
    take(two_machines, "app")
    take(two_machines, "web")
    with closing(SQLiteStore(two_machines.store)) as store:
        store.delete("DevicePool", None, "node-a-host")
    return two_machines


def test_machines_leave_a_node_without_pools(without_pools: Shell) -> None:
    assert without_pools("get", "nodes").out.splitlines()[1].split() == ["node-a", "Ready", "0", "2", "0"]
    words = "node node-a has no pools: it gets nothing new, and a cordon of it cannot be recorded"
    assert without_pools("drain", "node/node-a", "--dry-run").out.splitlines()[0] == words
    with controller(without_pools, node=play):
        result = without_pools("drain", "node/node-a", "--timeout", "50s")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[0] == words
    for name in ("app", "web"):
        assert f"virtualmachine default/{name} placed on node node-b" in result.out


def test_force_is_not_advised_for_a_machine_that_it_does_not_stop(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(a_machine(nodeName="node-a", running=True)))
    take(devalloc)
    for options in ((), ("--force",)):
        lines = devalloc("drain", "node/node-a", "--dry-run", *options).out.splitlines()
        why = "spec.nodeName names the node; name another one, or set spec.running: false"
        assert lines[-1] == f"virtualmachine default/web: stays: {why}"


def test_a_node_that_gets_pools_while_it_is_drained_is_not_cordoned(
    without_pools: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SQLiteStore(without_pools.store)) as store:
        for name in ("app", "web"):
            drain.evict(store, MachineView(store.get("VirtualMachine", "default", name)), "node-a")
    original = drain_run.became

    def publish(look: Look, entries: dict[Key, Entry]) -> list[Action]:
        with closing(SQLiteStore(without_pools.store)) as store, suppress(StoreError):
            store.create(host("node-a"))
        return original(look, entries)

    monkeypatch.setattr(drain_run, "became", publish)
    result = without_pools("drain", "node/node-a", "--timeout", "20s")
    assert result.code == 1
    assert "virtualmachine default/web is no longer asked to leave" in result.out
    words = "stays on node node-a, which got pools that are not cordoned during the drain; to drain it, repeat"
    assert f"error: virtualmachine default/web {words}" in result.err


def test_a_cordon_of_a_node_without_pools_cannot_be_recorded(without_pools: Shell) -> None:
    result = without_pools("cordon", "node/node-a")
    assert result.code == 1
    assert result.err == (
        "error: node node-a cannot be cordoned: devalloc records a cordon on the pools of a node, and it has none. "
        "Without pools, nothing is allocated there; repeat the command if its plugin publishes pools again\n"
    )
    result = without_pools("uncordon", "node/node-a")
    assert (result.code, result.out) == (0, "node node-a was not cordoned\n")
    assert "there is no node node-z; did you mean" in without_pools("cordon", "node/node-z").err

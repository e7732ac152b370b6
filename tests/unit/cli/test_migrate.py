"""`devalloc migrate` and the verbs around it, as people see them: from the command to the end, and each way to fail."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from threading import Event
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.views import MachineView, MigrationView
from devalloc.cli.verbs import migrate as verb
from devalloc.cli.waiting import wait_until
from devalloc.controller import cordon
from devalloc.machines.drain import withdraw_requests
from devalloc.machines.migration_cleanup import MigrationCleanup
from devalloc.machines.migrations import begin_migration
from devalloc.machines.schedule.migration_decision import withdrawal_change
from devalloc.store import Conflict, Key, NotFound, Store
from devalloc.store.paths import hold_store
from devalloc.store.sqlite import SQLiteStore
from tests.support.cli_shell import Shell, text
from tests.support.host_pools import host, machine
from tests.support.migration_nodes import KIND, ScriptedNodes, controller_at_work, is_cordoned, let_go, migration, play
from tests.support.waiting import until

Object = dict[str, Any]


def working(shell: Shell, nodes: Callable[[Store], None] = play) -> AbstractContextManager[None]:
    """The controller, and the plugins of all nodes."""
    return controller_at_work(shell.store, nodes)


@pytest.fixture
def fleet(devalloc: Shell) -> Iterator[Shell]:
    """The machine web, which runs on node-a; node-b has room. A controller runs, if not one that does anything."""
    devalloc("apply", "-f", "-", stdin=text(host("node-a", cpus=4), machine("web", "1", "1Gi")))
    devalloc.allocate()
    with closing(SQLiteStore(devalloc.store)) as store:
        ScriptedNodes(store).take("node-a")
    devalloc("apply", "-f", "-", stdin=text(host("node-b", cpus=4)))
    with hold_store(devalloc.store):
        yield devalloc


def stored(shell: Shell, kind: str = "VirtualMachine") -> Object:
    with closing(SQLiteStore(shell.store)) as store:
        (one,) = store.list(kind).objects
        return one


@pytest.mark.parametrize("word", ["vm/", "/web"])
def test_the_error_about_half_a_name_shows_an_example(fleet: Shell, word: str) -> None:
    refused = fleet("migrate", word)
    assert (refused.code, refused.err) == (2, f"error: invalid name {word}; use KIND/NAME, such as vm/web\n")


def stored_migrations(shell: Shell) -> list[Object]:
    with closing(SQLiteStore(shell.store)) as store:
        return store.list(KIND).objects


def left_by_a_drain(shell: Shell) -> str:
    """A migration of the machine that a drain created before it was killed; its name."""
    with closing(SQLiteStore(shell.store)) as store:
        return str(begin_migration(store, ("default", "web"), purpose="drain")["metadata"]["name"])


def uncordon(store: Store, *, withdraws: bool = True) -> None:
    """What `devalloc uncordon` does, beside another command. ``withdraws``: it is not killed in between."""
    cordon.set_cordon(store, cordon.CordonTarget(node="node-a"), None)
    if withdraws:
        withdraw_requests(store, "node-a")


def node_of(shell: Shell) -> str:
    return str(stored(shell)["status"]["nodeName"])


class TestMigrate:
    def test_from_the_command_to_the_end(self, fleet: Shell) -> None:
        with working(fleet):
            result = fleet("migrate", "vm/web", "--timeout", "20s")
        assert (result.code, result.err) == (0, "")
        lines = result.out.splitlines()
        assert lines[0].startswith("virtualmachinemigration/web-move-")
        assert lines[-1] == "virtualmachine default/web has moved to node node-b"
        assert node_of(fleet) == "node-b"
        shown = fleet("get", "migrations").out.splitlines()
        assert shown[0].split() == ["NAME", "MACHINE", "PHASE", "FROM", "TO", "REASON", "AGE"]
        assert shown[1].split()[1:5] == ["web", "Succeeded", "node-a", "node-b"]
        name = MigrationView(stored(fleet, KIND)).key[1]
        described = fleet("describe", f"migration/{name}").out
        assert "To node:" in described
        assert "Progress:" in described
        assert fleet("wait", f"migration/{name}").out == f"virtualmachinemigration/{name} succeeded\n"
        assert fleet("delete", "migration", name).code == 0
        assert "no virtualmachinemigrations in" in fleet("get", "migrations").err

    def test_to_a_node_that_was_named(self, fleet: Shell) -> None:
        fleet("apply", "-f", "-", stdin=text(host("node-c", cpus=4)))
        with working(fleet):
            assert fleet("migrate", "vm/web", "--to", "node-c", "--timeout", "20s").code == 0
        assert node_of(fleet) == "node-c"

    def test_a_failed_migration_stays_and_its_reason_is_shown(self, fleet: Shell) -> None:
        with working(fleet, partial(play, until="Failed")):
            result = fleet("migrate", "vm/web", "--timeout", "20s")
        assert result.code == 1
        assert "has not moved: MigrationFailed: the connection was cut" in result.err
        assert node_of(fleet) == "node-a"
        name = MigrationView(stored(fleet, KIND)).key[1]
        assert fleet("explain", f"migration/{name}").code == 1
        waited = fleet("wait", f"migration/{name}", "--timeout", "20s")
        assert waited.code == 1
        assert "has not succeeded and will not, because it is over" in waited.err
        assert "the connection was cut" in waited.err

    @pytest.mark.parametrize("before", range(6))
    def test_one_that_ends_between_two_readings_of_a_wait_has_succeeded(
        self, fleet: Shell, monkeypatch: pytest.MonkeyPatch, before: int
    ) -> None:
        """``before``: readings of the wait that see it run."""
        fleet("migrate", "vm/web", "--no-wait")
        readings, get = iter(range(before)), SQLiteStore.get

        def later(store: SQLiteStore, kind: str, *name: str) -> Object:
            obj = get(store, kind, *name)
            if kind == KIND and next(readings, None) is None and not MigrationView(obj).is_over:
                obj = store.replace_status({**obj, "status": {**obj.get("status", {}), "phase": "Succeeded"}})
            return obj

        key = Key(KIND, *MigrationView(stored(fleet, KIND)).key)
        monkeypatch.setattr(SQLiteStore, "get", later)
        with closing(SQLiteStore(fleet.store)) as store:
            assert wait_until(store, [key], "succeeded", timeout=60) == {}

    def test_words_of_its_nodes_do_nothing_to_the_terminal(self, fleet: Shell) -> None:
        """The holder of the token of its target writes them."""
        with working(fleet, partial(play, until="Failed", reason="\x1b[2JX\nerror: forged")):
            results = [fleet("migrate", "vm/web", "--timeout", "20s")]
            name = MigrationView(stored(fleet, KIND)).key[1]
            for words in (["explain"], ["wait", "--timeout", "9s"], ["describe"], ["get", "-o", "wide"]):
                results.append(fleet(words[0], f"migration/{name}", *words[1:]))
            results.append(fleet("drain", "node/node-a", "--timeout", "20s"))
        for result in results:
            text = result.out + result.err
            assert r"\x1b[2JX" in text or "is over" in text, "waiting shows the message alone"
            assert "\x1b" not in text
            assert "\nerror: forged" not in text

    def test_what_cannot_move_is_refused_at_once(self, fleet: Shell) -> None:
        fleet("apply", "-f", "-", stdin=text(machine("web", "1", "1Gi", running=False)))
        with working(fleet):
            result = fleet("migrate", "web", "--timeout", "20s")
        assert result.code == 1
        assert "MachineNotRunning: " in result.err

    def test_a_node_that_does_not_exist_is_refused_before_anything_is_written(self, fleet: Shell) -> None:
        result = fleet("migrate", "vm/web", "--to", "nothere")
        assert (result.code, result.out) == (4, "")
        assert result.err == "error: there is no node nothere with pools; `devalloc get nodes` lists all nodes\n"
        assert "no virtualmachinemigrations in" in fleet("get", "migrations").err

    def test_its_own_node_is_refused_before_anything_is_written(self, fleet: Shell) -> None:
        result = fleet("migrate", "web", "--to", "node-a")
        words = "virtualmachine default/web is on node node-a already; name another node, or leave out --to"
        assert (result.code, result.out, result.err) == (1, "", f"error: {words}\n")
        assert stored_migrations(fleet) == []

    def test_a_machine_that_has_not_started_is_not_on_its_node_already(self, fleet: Shell) -> None:
        status = {"phase": "Pending", "nodeName": "node-a", "reason": "QemuMissing", "message": "there is no QEMU"}
        with closing(SQLiteStore(fleet.store)) as store:
            store.replace_status({**stored(fleet), "status": status})
        refused = fleet("migrate", "web", "--to", "node-a")
        words = "virtualmachine default/web has not started on node node-a: QemuMissing: there is no QEMU"
        assert (refused.code, refused.err) == (1, f"error: {words}; see: devalloc describe vm/web\n")

    def test_without_a_controller_it_asks_whether_one_runs(self, fleet: Shell) -> None:
        result = fleet("migrate", "vm/web", "--timeout", "0s")
        assert result.code == 1
        words = "the machine is on node node-a; is the controller (or `devalloc up`) running, and of this version?\n"
        assert result.err.endswith(words)

    def test_it_does_not_repeat_how_much_was_sent(self, fleet: Shell, capsys: pytest.CaptureFixture[str]) -> None:
        progress = {"transferred": 94 << 20, "remaining": 0}
        with closing(SQLiteStore(fleet.store)) as store:
            names = (Key("VirtualMachine", "default", "web"), Key(KIND, "default", "move"))
            follower = verb.Follower(store, *names)
            for phase in ("Running", "Succeeded"):
                status = {"phase": phase, "sourceNode": "node-a", "targetNode": "node-b", "progress": progress}
                follower._say(MigrationView({**migration(), "status": status}))
        assert capsys.readouterr().out.count("94Mi sent, 0 left") == 1

    def test_it_says_now_and_then_how_much_was_sent(
        self, fleet: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seconds = [100.0]
        monkeypatch.setattr(verb.time, "monotonic", lambda: seconds[0])
        with closing(SQLiteStore(fleet.store)) as store:
            names = (Key("VirtualMachine", "default", "web"), Key(KIND, "default", "move"))
            follower = verb.Follower(store, *names)
            for mebibytes, phase in ((0, "TargetReady"), (10, "Running"), (20, "Running"), (30, "Running")):
                progress = {"transferred": mebibytes << 20, "remaining": 0}
                status = {"phase": phase, "sourceNode": "node-a", "targetNode": "node-b", "progress": progress}
                follower._say(MigrationView({**migration(), "status": status}))
                seconds[0] += 1.5
        lines = [line for line in capsys.readouterr().out.splitlines() if "sent" in line]
        assert lines == ["  10Mi sent, 0 left", "  30Mi sent, 0 left"]

    def test_when_the_time_is_up_it_is_withdrawn_and_the_reason_why_it_waits_was_shown(self, fleet: Shell) -> None:
        fleet("cordon", "node/node-b", "--reason", "test")
        with working(fleet):
            result = fleet("migrate", "vm/web", "--timeout", "2s")
        assert result.code == 1
        assert "  waits: " in result.out
        assert "not moved within 2 s; virtualmachinemigration/web-move-" in result.err
        assert "is withdrawn; the machine is on node node-a" in result.err
        assert "migrationState" not in stored(fleet)["status"]
        assert "no virtualmachinemigrations in" in fleet("get", "migrations").err

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
    def test_a_signal_withdraws_it(self, fleet: Shell, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
        def interrupt(self: verb.Follower, timeout: float) -> int:
            until(lambda: "migrationState" in stored(fleet)["status"], "a target is reserved")
            signal.raise_signal(number)
            raise AssertionError("the signal did not end it")

        monkeypatch.setattr(verb.Follower, "run", interrupt)
        with working(fleet, partial(play, until="TargetReady")):
            result = fleet("migrate", "vm/web")
        assert result.code != 0
        assert "interrupted; virtualmachinemigration/web-move-" in result.err
        assert "the machine is on node node-a" in result.err
        assert "migrationState" not in stored(fleet)["status"]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
    def test_a_signal_withdraws_it_as_soon_as_the_store_has_it(
        self, fleet: Shell, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
    ) -> None:
        create = SQLiteStore.create

        def created(self: SQLiteStore, obj: Object) -> Object:
            done = create(self, obj)
            signal.raise_signal(number)
            return done

        monkeypatch.setattr(SQLiteStore, "create", created)
        result = fleet("migrate", "vm/web")
        assert result.code != 0
        assert "interrupted; virtualmachinemigration/web-move-" in result.err
        assert stored_migrations(fleet) == []

    def test_a_migration_that_others_delete_is_reported(self, fleet: Shell) -> None:
        def delete(store: Store) -> None:
            for one in store.list(KIND).objects:
                store.delete(KIND, "default", one["metadata"]["name"])

        with working(fleet, delete):
            result = fleet("migrate", "vm/web", "--timeout", "20s")
        assert result.code == 1
        assert "was deleted by others; the machine is on node node-a" in result.err

    def test_without_waiting(self, fleet: Shell) -> None:
        result = fleet("migrate", "vm/web", "--no-wait")
        assert result.code == 0
        assert result.out.endswith(" created\n")
        assert MigrationView(stored(fleet, KIND)).machine == ("default", "web")

    @pytest.mark.parametrize(("name", "words"), [("vm/wob", "did you mean web"), ("claim/web", "moves machines, not")])
    def test_a_wrong_name(self, fleet: Shell, name: str, words: str) -> None:
        result = fleet("migrate", name)
        assert result.code == 2 if "claim" in name else result.code != 0
        assert words in result.err
        with closing(SQLiteStore(fleet.store)) as store:
            assert store.list(KIND).objects == []

    def test_a_deadline_of_the_controller_is_a_failure(self, fleet: Shell) -> None:
        fleet("apply", "-f", "-", stdin=text(migration("move", "web")))
        fleet.allocate()
        fleet.allocate()
        with closing(SQLiteStore(fleet.store)) as store:
            late = store.get(KIND, "default", "move")
            store.replace_status({**late, "status": {**late["status"], "startTime": "2020-01-01T00:00:00Z"}})
            MigrationCleanup(store).look()
        fleet.allocate()
        result = fleet("explain", "migration/move")
        assert result.code == 1
        assert "MigrationTimedOut" in result.out

    def test_its_spec_cannot_change(self, fleet: Shell) -> None:
        fleet("apply", "-f", "-", stdin=text(migration("move", "web")))
        result = fleet("apply", "-f", "-", stdin=text(migration("move", "web", "node-b")))
        assert result.code != 0
        assert "its spec cannot change; delete it and create another" in result.err


def run_on_both_numa_nodes(shell: Shell, cpu: tuple[int, int], **spec: Any) -> None:
    """The machine web runs on node-a, which has 8 CPUs; its guest has two NUMA nodes with so many of them."""
    host_a = host("node-a", cpus=8, shared_storage=["/srv/vms"])
    shell("apply", "-f", "-", stdin=text(host_a, machine("web", str(sum(cpu)), "2Gi", **spec)))
    shell.allocate()
    with closing(SQLiteStore(shell.store)) as store:
        cells = [{"hostNode": number, "cpus": str(count), "memory": "1Gi"} for number, count in enumerate(cpu)]
        entry = store.get("VirtualMachine", "default", "web")["status"]["allocations"][0]
        entries = [
            {
                **entry,
                "deviceName": f"numa{number}",
                "allocations": [
                    {"name": "cpu", "allocation": str(count)},
                    {"name": "memory", "allocation": "1Gi"},
                ],
            }
            for number, count in enumerate(cpu)
        ]
        ScriptedNodes(store).take("node-a", numaNodes=cells, allocations=entries)


def explain_move(shell: Shell, target: str | None = None) -> tuple[str, list[Object]]:
    """What `devalloc explain` prints of a migration of the machine web, and the blockers."""
    shell("apply", "-f", "-", stdin=text(migration("move", "web", target)))
    shell.allocate()
    result = shell("explain", "migration/move")
    assert result.code == 3
    for internal in ("impossible", "device.", "spec.claims", "Request 0"):
        assert internal not in result.out
    return result.out, shell("explain", "migration/move", "-o", "json").json["blockers"]


class TestExplainNumaNodes:
    """The solver is asked for devices; users read of nodes, NUMA nodes and machines only."""

    def test_a_numa_node_is_full(self, devalloc: Shell) -> None:
        run_on_both_numa_nodes(devalloc, (1, 1))
        big = machine("big", "2", "1Gi", nodeName="node-b", start={"kernel": "/k", "numaNode": 0})
        devalloc("apply", "-f", "-", stdin=text(host("node-b", cpus=4), big))
        devalloc.allocate()
        printed, blockers = explain_move(devalloc)
        assert printed.startswith(
            "default/move is not placed: NoRoom\nno node has room: NUMA node 0 of node node-b has 0 of 2 CPU free, "
            "1 wanted; stop machine default/big, or wait for it\n"
        )
        assert [(one["kind"], one["name"]) for one in blockers] == [("machine", "big")]

    def test_a_numa_node_is_too_small_and_no_machine_needs_to_leave(self, devalloc: Shell) -> None:
        run_on_both_numa_nodes(devalloc, (1, 3))
        big = machine("big", "1", "1Gi", nodeName="node-b", start={"kernel": "/k", "numaNode": 0})
        devalloc("apply", "-f", "-", stdin=text(host("node-b", cpus=4), big))
        devalloc.allocate()
        printed, blockers = explain_move(devalloc)
        assert (
            "NodesTooSmall\nno node is large enough: NUMA node 1 of node node-b has 2 CPU, 3 wanted; ask for less CPU\n"
            in printed
        )
        assert "released" not in printed
        assert [(one["kind"], one["path"]) for one in blockers] == [("matchAttribute", "status.numaNodes")]

    def test_a_node_has_too_few_numa_nodes(self, devalloc: Shell) -> None:
        run_on_both_numa_nodes(devalloc, (1, 1))
        devalloc("apply", "-f", "-", stdin=text(host("node-b", cpus=4, numa=1)))
        printed, _ = explain_move(devalloc)
        assert "no node is large enough: node node-b has no NUMA node 1; name another node\n" in printed

    def test_no_other_node(self, devalloc: Shell) -> None:
        run_on_both_numa_nodes(devalloc, (1, 1))
        devalloc("apply", "-f", "-", stdin=text(migration("move", "web")))
        printed = devalloc("explain", "migration/move").out
        words = "default/move waits: MigrationOff: no other node has published its capacity for machines\n"
        assert printed.startswith(words)

    @pytest.mark.parametrize(
        ("target", "why"), [(None, "it may be on no other node"), ("node-b", "it may not be on node node-b")]
    )
    def test_no_other_node_reaches_its_disks(self, devalloc: Shell, target: str | None, why: str) -> None:
        disk = {"path": "/srv/vms/web.raw", "format": "raw"}
        run_on_both_numa_nodes(devalloc, (1, 1), start={"kernel": "/k", "disks": [disk]})
        devalloc("apply", "-f", "-", stdin=text(host("node-b", cpus=4)))
        printed, blockers = explain_move(devalloc, target)
        assert f": {why}; only nodes with the shared storage of node node-a have its disks; " in printed
        assert blockers == []

    def test_a_cordoned_node(self, devalloc: Shell) -> None:
        run_on_both_numa_nodes(devalloc, (1, 1))
        devalloc("apply", "-f", "-", stdin=text(host("node-b", cpus=4)))
        devalloc("cordon", "node/node-b")
        devalloc("apply", "-f", "-", stdin=text(migration("move", "web")))
        printed = devalloc("explain", "migration/move").out
        assert "node node-b would do, but is cordoned by" in printed
        assert "device" not in printed
        assert "device.function" not in printed

    def test_a_numa_node_that_a_machine_names_and_no_node_has(self, devalloc: Shell) -> None:
        web = machine("web", start={"kernel": "/k", "numaNode": 5})
        devalloc("apply", "-f", "-", stdin=text(host("node-a"), web))
        printed = devalloc("explain", "vm/web").out
        assert "no node is large enough: node node-a has no NUMA node 5; change spec.start.numaNode\n" in printed
        assert "match attribute   numa in spec.start.numaNode" in printed


class TestExplain:
    def test_why_one_waits(self, fleet: Shell) -> None:
        fleet("apply", "-f", "-", stdin=text(machine("big", "4", "1Gi", nodeName="node-b")))
        fleet.allocate()
        fleet("apply", "-f", "-", stdin=text(migration("move", "web")))
        fleet.allocate()
        result = fleet("explain", "migration/move")
        assert result.code == 3
        assert "; stop machine default/big, or wait for it\n" in result.out
        assert fleet("explain", "migration/move", "-o", "json").json["reason"] == "NoRoom"

    def test_what_it_would_get(self, fleet: Shell) -> None:
        fleet("apply", "-f", "-", stdin=text(migration("move", "web")))
        result = fleet("explain", "migration/move")
        assert (result.code, result.out) == (
            0,
            "default/move: node node-b has room for the machine, and would be its target\n",
        )

    def test_how_far_one_is(self, fleet: Shell) -> None:
        fleet("apply", "-f", "-", stdin=text(migration("move", "web")))
        for _ in range(2):
            fleet.allocate()
        result = fleet("explain", "migration/move")
        assert (result.code, result.out) == (0, "default/move is Scheduled\n")
        assert "Moving to:" in fleet("describe", "vm/web").out
        assert "web (cpu 1, memory 1Gi, moving here)" in fleet("describe", "pool/node-b-host").out

    def test_a_wrong_name(self, fleet: Shell) -> None:
        fleet("apply", "-f", "-", stdin=text(migration("move", "web")))
        result = fleet("explain", "migration/mov")
        assert result.code != 0
        assert "there is no migration default/mov; did you mean move?" in result.err


class TestDrain:
    def test_what_runs_moves_while_it_runs(self, fleet: Shell) -> None:
        assert "will move to node node-b while it runs" in fleet("drain", "node/node-a", "--dry-run").out
        with working(fleet):
            result = fleet("drain", "node/node-a", "--timeout", "20s")
        assert (result.code, result.err) == (0, "")
        lines = result.out.splitlines()
        assert "virtualmachine default/web asked to move to another node while it runs" in lines
        assert "virtualmachine default/web left node node-a" in lines
        assert lines[-1] == "virtualmachine default/web placed on node node-b"
        assert node_of(fleet) == "node-b"

    @pytest.mark.parametrize("is_handed_over", [False, True])
    def test_nothing_moves_to_a_node_that_is_drained(self, fleet: Shell, is_handed_over: bool) -> None:
        fleet("apply", "-f", "-", stdin=text(migration(target="node-b")))
        fleet.allocate()

        def nodes(store: Store) -> None:
            with suppress(NotFound, Conflict):
                if MachineView(stored(fleet)).arrives_on("node-b") and is_handed_over:
                    ScriptedNodes(store).take("node-b")
            play(store, until="Succeeded" if is_handed_over else "TargetReady")

        with closing(SQLiteStore(fleet.store)) as store:
            if is_handed_over:
                ScriptedNodes(store).hand_over()
        shown = fleet("drain", "node/node-b", "--dry-run").out
        assert "virtualmachine default/web: its migration to the node will be withdrawn" in shown
        with working(fleet, nodes):
            result = fleet("drain", "node/node-b", "--timeout", "20s")
        assert (result.code, result.err, node_of(fleet)) == (0, "", "node-a")
        words = "asked to move to another node" if is_handed_over else "its migration to the node is withdrawn"
        assert words in result.out

    def test_drain_evicts_a_machine_whose_migration_fails_meanwhile(self, fleet: Shell) -> None:
        """A user began it before the drain, which must not wait for a machine that does not leave any more."""
        fleet("apply", "-f", "-", stdin=text(migration("move")))
        for _ in range(2):
            fleet.allocate()

        def nodes(store: Store) -> None:
            if MigrationView(store.get(KIND, "default", "move")).is_over:
                play(store)
            elif is_cordoned(store):
                ScriptedNodes(store).fail()

        with working(fleet, nodes):
            result = fleet("drain", "node/node-a", "--timeout", "20s")
        lines = result.out.splitlines()
        assert "virtualmachine default/web: leaves: it is moving to node node-b" in lines
        assert "virtualmachine default/web asked to move to another node while it runs" in lines
        assert (result.code, result.err, node_of(fleet)) == (0, "", "node-b")

    def test_a_repeated_drain_moves_each_machine_once(self, fleet: Shell) -> None:
        name = left_by_a_drain(fleet)
        with working(fleet):
            result = fleet("drain", "node/node-a", "--timeout", "20s")
        assert (result.code, result.err, node_of(fleet)) == (0, "", "node-b")
        assert MigrationView(stored(fleet, KIND)).key[1] == name

    def test_a_waiting_migration_of_a_user_moves_the_machine(self, fleet: Shell) -> None:
        fleet("apply", "-f", "-", stdin=text(migration("move")))
        name = left_by_a_drain(fleet)
        with working(fleet):
            result = fleet("drain", "node/node-a", "--timeout", "20s")
        assert (result.code, node_of(fleet)) == (0, "node-b")
        assert f"its migration default/{name} is withdrawn" in result.err, "else it would move the machine once more"
        assert MigrationView(stored(fleet, KIND)).key[1] == "move"

    def test_so_does_one_that_is_under_way(self, fleet: Shell) -> None:
        fleet("apply", "-f", "-", stdin=text(migration("move")))
        fleet.allocate()
        left_by_a_drain(fleet)
        with working(fleet):
            result = fleet("drain", "node/node-a", "--timeout", "20s")
        assert (result.code, node_of(fleet)) == (0, "node-b")
        assert MigrationView(stored(fleet, KIND)).key[1] == "move"

    @pytest.mark.parametrize("words", [(), ("--force",)])
    def test_one_to_a_node_that_cannot_take_it_gives_way(self, fleet: Shell, words: tuple[str, ...]) -> None:
        fleet("apply", "-f", "-", stdin=text(host("node-c", cpus=4)))
        fleet("cordon", "node/node-c")
        fleet("apply", "-f", "-", stdin=text(migration("move", target="node-c")))
        for _ in range(2):
            fleet.allocate()
        with working(fleet):
            result = fleet("drain", "node/node-a", *words, "--timeout", "20s")
        assert (result.code, node_of(fleet)) == (0, "node-b")
        assert "virtualmachine default/web: its migration default/move is withdrawn" in result.err
        assert "asked to leave" not in result.out

    @pytest.mark.parametrize(
        ("reason", "stays"), [("NoRoom", False), ("MigrationOff", False), ("Refused", True), ("SearchLimit", True)]
    )
    def test_only_one_that_its_target_refuses_is_withdrawn(self, fleet: Shell, reason: str, stays: bool) -> None:
        """One that the store refuses to book would be refused with another target, too."""
        fleet("apply", "-f", "-", stdin=text(migration("move", target="node-b")))
        with closing(SQLiteStore(fleet.store)) as store:
            pending = {"phase": "Pending", "reason": reason, "message": "no"}
            store.replace_status({**store.get(KIND, "default", "move"), "status": pending})
        result = fleet("drain", "node/node-a", "--timeout", "0s")
        names = [MigrationView(one).key[1] for one in stored_migrations(fleet)]
        assert (result.code, names) == (1, ["move"] if stays else [])
        if stays:
            assert "virtualmachine default/web will move by its pending migration default/move" in result.out
            words = "its migration is still pending; see `devalloc explain migration/move`"
            assert f"virtualmachine default/web has not moved within 0 s; {words}" in result.err
        else:
            assert "virtualmachine default/web: its migration default/move is withdrawn" in result.err

    def test_uncordon_withdraws_the_migrations_of_drains_alone(self, fleet: Shell) -> None:
        fleet("cordon", "node/node-a")
        left_by_a_drain(fleet)
        fleet("apply", "-f", "-", stdin=text(migration("move"), machine("my-drain-box", "1", "1Gi", nodeName="node-a")))
        fleet("migrate", "my-drain-box", "--no-wait")
        assert fleet("uncordon", "node/node-b").out == "node node-b was not cordoned\n"
        result = fleet("uncordon", "node/node-a")
        assert result.out == "node node-a uncordoned\nvirtualmachine default/web is no longer asked to leave\n"
        with closing(SQLiteStore(fleet.store)) as store:
            names = [MigrationView(one).key[1] for one in store.list(KIND).objects]
        assert (len(names), "move" in names, names[-1].startswith("my-drain-box-move-")) == (2, True, True)

    def test_a_machine_stays_if_others_uncordon_its_node_meanwhile(self, fleet: Shell) -> None:
        fleet("apply", "-f", "-", stdin=text(migration("move")))
        for _ in range(2):
            fleet.allocate()

        def nodes(store: Store) -> None:
            if is_cordoned(store):
                uncordon(store)
                ScriptedNodes(store).fail()

        with working(fleet, nodes):
            result = fleet("drain", "node/node-a", "--timeout", "20s")
        assert (result.code, node_of(fleet)) == (1, "node-a")
        assert "virtualmachine default/web stays on node node-a, which was uncordoned during the drain" in result.err

    @pytest.mark.parametrize("fails", [False, True])
    def test_uncordon_ends_it_and_no_guest_is_powered_down(self, fleet: Shell, fails: bool) -> None:
        was_uncordoned = Event()

        def nodes(store: Store) -> None:
            play(store, until="Failed" if was_uncordoned.is_set() and fails else "TargetReady")
            if any(MigrationView(one).phase == "TargetReady" for one in store.list(KIND).objects):
                uncordon(store, withdraws=not fails)
                was_uncordoned.set()

        with working(fleet, nodes):
            result = fleet("drain", "node/node-a", "--force", "--timeout", "20s")
            until(lambda: "migrationState" not in stored(fleet)["status"], "the reservation is removed")
        assert (result.code, node_of(fleet)) == (1, "node-a")
        assert "virtualmachine default/web stays on node node-a, which was uncordoned during the drain" in result.err
        assert meta.EVICT not in stored(fleet)["metadata"]["annotations"]
        assert all(MigrationView(one).is_over for one in stored_migrations(fleet))

    def test_uncordon_ends_it_while_a_machine_powers_down(self, fleet: Shell) -> None:
        fleet("delete", "pool", "node-b-host")

        def nodes(store: Store) -> None:
            if stored(fleet)["metadata"]["annotations"].get(meta.EVICT):
                uncordon(store)

        with working(fleet, nodes):
            result = fleet("drain", "node/node-a", "--force", "--timeout", "20s")
        assert result.code == 1
        assert "virtualmachine default/web stays on node node-a, which was uncordoned during the drain" in result.err
        assert "later" not in result.err

    @pytest.mark.parametrize("is_deleted", [False, True])
    def test_a_machine_that_its_user_stops_or_deletes_meanwhile_leaves(self, fleet: Shell, is_deleted: bool) -> None:
        def nodes(store: Store) -> None:
            play(store, until="TargetReady")
            with suppress(Conflict, NotFound):
                vm = store.get("VirtualMachine", "default", "web")
                if any(MigrationView(one).phase == "TargetReady" for one in store.list(KIND).objects):
                    if is_deleted:
                        store.delete("VirtualMachine", "default", "web")
                    else:
                        store.replace({**vm, "spec": {**vm["spec"], "running": False}})
                elif MachineView(vm).must_leave("node-a") or (MachineView(vm).is_deleting and vm["status"]):
                    let_go(store, "web")
                elif vm["spec"].get("running") is False and vm["status"].get("phase") == "Running":
                    store.replace_status({**vm, "status": {**vm["status"], "phase": "Stopped"}})

        with working(fleet, nodes):
            result = fleet("drain", "node/node-a", "--timeout", "20s")
        assert (result.code, result.err) == (0, "")
        assert f"virtualmachine default/web {'is gone' if is_deleted else 'left node node-a'}\n" in result.out

    def test_a_machine_whose_guest_powers_off_while_it_moves_leaves(self, fleet: Shell) -> None:
        """Its node ends the migration, and only then writes that the machine has stopped."""
        failed_at = 0.0
        with closing(SQLiteStore(fleet.store)) as store:
            vm = store.get("VirtualMachine", "default", "web")
            store.replace({**vm, "spec": {**vm["spec"], "restartPolicy": "Never"}})

        def nodes(store: Store) -> None:
            nonlocal failed_at
            play(store, until="TargetReady")
            with suppress(Conflict, NotFound):
                vm = store.get("VirtualMachine", "default", "web")
                for one in store.list(KIND).objects:
                    if MigrationView(one).phase == "TargetReady" and "migrationState" in vm["status"]:
                        ScriptedNodes(store, "web", one["metadata"]["name"]).fail(message="QEMU has ended")
                        store.commit([withdrawal_change(vm)])
                        failed_at = time.monotonic()
                if failed_at and vm["status"]["phase"] == "Running" and time.monotonic() - failed_at > 0.5:
                    status = {**vm["status"], "phase": "Stopped", "reason": "GuestPoweredOff"}
                    store.replace_status({**vm, "status": status})
                elif MachineView(vm).must_leave("node-a") and MachineView(vm).is_held:
                    let_go(store, "web")

        with working(fleet, nodes):
            result = fleet("drain", "node/node-a", "--timeout", "20s")
        assert (result.code, result.err) == (0, "")
        assert result.out.endswith("virtualmachine default/web left node node-a\n")

    @pytest.mark.parametrize("seconds", [1, 20])
    def test_what_fails_stays(self, fleet: Shell, seconds: int) -> None:
        with working(fleet, partial(play, until="Failed")):
            result = fleet("drain", "node/node-a", "--timeout", f"{seconds}s")
        assert result.code == 1
        assert "did not move while it ran: MigrationFailed: the connection was cut" in result.err
        assert node_of(fleet) == "node-a"

    def test_and_is_powered_down_with_force(self, fleet: Shell) -> None:
        with working(fleet, partial(play, until="Failed")):
            result = fleet("drain", "node/node-a", "--force", "--timeout", "3s")
        assert "virtualmachine default/web asked to leave" in result.out
        assert stored(fleet)["metadata"]["annotations"]["devalloc.io/evict"] == "node-a"

    def test_unless_it_was_handed_over(self, fleet: Shell) -> None:
        """The other node has not taken it yet: a request to leave this one would stay with it there."""

        def hand_over(store: Store) -> None:
            play(store, until="Running")
            with suppress(NotFound, LookupError, Conflict):
                for migration in store.list(KIND).objects:
                    if MigrationView(migration).phase == "Running":
                        ScriptedNodes(store, "web", migration["metadata"]["name"]).hand_over()

        with working(fleet, hand_over):
            result = fleet("drain", "node/node-a", "--force", "--timeout", "2s")
        assert (node_of(fleet), result.code) == ("node-b", 1)
        assert "devalloc.io/evict" not in stored(fleet)["metadata"]["annotations"]
        assert "has not left within 2 s" in result.err

    def test_when_the_time_is_up_the_migration_is_withdrawn(self, fleet: Shell) -> None:
        with working(fleet, partial(play, until="TargetReady")):
            result = fleet("drain", "node/node-a", "--timeout", "3s")
            until(lambda: "migrationState" not in stored(fleet)["status"], "the reservation is removed")
        assert result.code == 1
        assert "has not moved within 3 s, and stays on the node" in result.err
        assert "no virtualmachinemigrations in" in fleet("get", "migrations").err

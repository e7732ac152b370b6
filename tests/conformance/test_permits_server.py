"""The server of permits as clients see it: what survives, what is refused, and that no client can harm others."""

from __future__ import annotations

import gc
import gzip
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devalloc.machines.permits import Host, Settings
from devalloc.machines.permits.ledger import CanMigrate
from devalloc.machines.permits.store_migrator import MigrationEnd
from devalloc.net.http_server import _ConnectionGuard, server_tls
from devalloc.scaling.permits.ledger import MachineKey
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import ProtocolEra
from devalloc.store import Fence, Object, Unavailable
from devalloc.store.sqlite import SQLiteStore
from tests.support.fake_tree import memory_folder
from tests.support.permit_bench import (
    PermitBench,
    amounts,
    machine,
    node_of,
    permit_of,
    running,
    serving,
    write_status_part,
)
from tests.support.permit_storm import PermitStorm
from tests.support.waiting import until

ANY_PORT = Settings(port=0, dump_port=0)
TEN = node_of(amounts(10_000, 20))
MOVABLE = {
    "autoscaling.neon.tech/enabled": "true",
    "autoscaling.neon.tech/auto-migration-enabled": "true",
}


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_folder() as name:
        yield Path(name) / "store.db"


def create(path: Path, *machines: Object, use: Resources | None = None) -> None:
    with closing(SQLiteStore(path)) as store:
        for obj in machines:
            running(store, obj, use)


# -- what survives ---------------------------------------------------------------------------------------------------


def test_permits_survive_a_restart_and_a_made_up_last_permit_gives_nothing(path: Path) -> None:
    create(path, machine("a"), machine("b"))
    with serving(path, TEN) as bench, closing(bench.client()) as client:
        assert client.ask("a", 1, "2Gi", {"vCPUs": 9, "mem": "19Gi"})["permit"]["vCPUs"] == 1
        assert client.ask("b", 1, "1Gi")["permit"] == {"vCPUs": 1, "mem": "1Gi"}
        assert client.ask("a", 8, "16Gi")["permit"] == {"vCPUs": 8, "mem": "16Gi"}
    with serving(path, TEN) as bench, closing(bench.client()) as client:
        assert bench.state()["counted"] == {"cpu": 9, "memory": "17Gi"}
        assert bench.state()["buffer"] == {"cpu": 0, "memory": 0}, "what is written down need not be guessed"
        everything = {"vCPUs": 10, "mem": "20Gi"}
        assert client.ask("b", 10, "20Gi", everything)["permit"] == {"vCPUs": 2, "mem": "4Gi"}


def test_what_changes_nothing_is_not_written(path: Path) -> None:
    create(path, machine("a"))
    with serving(path, TEN) as bench, closing(bench.client()) as client:
        client.ask("a", 2, "2Gi")
        before = bench.store.get("VirtualMachine", "default", "a")["metadata"]["resourceVersion"]
        for last in (None, {"vCPUs": 2, "mem": "2Gi"}, {"vCPUs": 7, "mem": "7Gi"}):
            assert client.ask("a", 2, "2Gi", last, load=None)["permit"] == {"vCPUs": 2, "mem": "2Gi"}
        assert bench.store.get("VirtualMachine", "default", "a")["metadata"]["resourceVersion"] == before


def test_without_a_record_a_running_machine_may_have_been_permitted_anything(path: Path) -> None:
    create(path, machine("a"), machine("b"), use=amounts(2000, 4))
    with serving(path, TEN) as bench, closing(bench.client()) as client:
        assert bench.state()["counted"] == {"cpu": 16, "memory": "32Gi"}
        assert bench.state()["buffer"] == {"cpu": 12, "memory": "24Gi"}
        last = {"vCPUs": 3, "mem": "6Gi"}
        assert client.ask("a", 3, "6Gi", last)["permit"] == {"vCPUs": 2, "mem": "4Gi"}, "b may have the rest"
        assert client.ask("b", 3, "6Gi", last)["permit"] == last
        assert client.ask("a", 3, "6Gi", last)["permit"] == last, "and now there is room"


def test_a_decrease_makes_room_when_it_was_read_back(path: Path) -> None:
    create(path, machine("a"), machine("b"))
    with serving(path, TEN) as bench, closing(bench.client()) as client:
        client.ask("a", 1, "1Gi")
        client.ask("b", 1, "1Gi")
        client.ask("a", 8, "16Gi")
        write_status_part(bench.store, "a", observed={"cpus": "8", "memory": "16Gi"})
        until(lambda: bench.state()["machines"]["default/a"]["use"]["cpu"] == 8)
        assert client.ask("a", 2, "2Gi")["permit"] == {"vCPUs": 2, "mem": "2Gi"}
        assert client.ask("b", 8, "16Gi")["permit"] == {"vCPUs": 2, "mem": "4Gi"}
        write_status_part(bench.store, "a", observed={"cpus": "2", "memory": "2Gi"})
        until(lambda: bench.state()["machines"]["default/a"]["use"]["cpu"] == 2)
        assert client.ask("b", 8, "16Gi")["permit"] == {"vCPUs": 8, "mem": "16Gi"}


def test_another_run_of_a_machine_has_no_permit(path: Path) -> None:
    create(path, machine("a"))
    with serving(path, TEN) as bench, closing(bench.client()) as client:
        client.ask("a", 8, "16Gi")
        client.ask("a", 8, "16Gi")
        write_status_part(bench.store, "a", machineID="run-2")  # and the server has not seen it yet
        assert client.ask("a", 8, "16Gi")["permit"] == {"vCPUs": 8, "mem": "16Gi"}
        permit = permit_of(bench.store, "a")
        assert permit is not None
        assert (permit["machineID"], permit["cpus"]) == ("run-2", "8")


@pytest.mark.parametrize("comes", ["created", "placed"])
def test_a_machine_that_comes_counts_before_anything_is_granted_that_would_take_its_place(
    path: Path, comes: str
) -> None:
    """It comes between the decision and the write: the write is refused, and the decision made again."""
    create(path, machine("a"))
    with closing(SQLiteStore(path)) as store:
        store.create(machine("waiting", node="", least=amounts(4000, 4)))

    class Racing(SQLiteStore):
        raced = False

        def commit_each(self, units: Any, fence: Fence | None = None) -> Any:
            if not Racing.raced and any(unit[0].status.get("permitted", {}).get("cpus") == "10" for unit in units):
                Racing.raced = True
                if comes == "created":
                    self.create(machine("late", least=amounts(4000, 4)))
                else:
                    write_status_part(self, "waiting", nodeName="node-a", allocations=[{"kept": "for it"}])
            return super().commit_each(units, fence)

    with closing(Racing(path)) as store, serving(path, TEN, store=store) as bench, closing(bench.client()) as client:
        client.ask("a", 1, "1Gi")
        assert client.ask("a", 10, "10Gi")["permit"] == {"vCPUs": 6, "mem": "10Gi"}
        assert Racing.raced


def test_a_store_that_fails_is_answered_503_and_nothing_is_granted(path: Path) -> None:
    create(path, machine("a"))

    class Failing(SQLiteStore):
        broken = False

        def commit_each(self, units: Any, fence: Fence | None = None) -> Any:
            if self.broken:
                raise Unavailable("no space left")
            return super().commit_each(units, fence)

    with closing(Failing(path)) as store, serving(path, TEN, store=store) as bench, closing(bench.client()) as client:
        client.ask("a", 1, "1Gi")
        store.broken = True
        status, _, body = client.post(json.dumps(client.message("a", 8, "8Gi")).encode())
        assert (status, body) == (503, b"permits cannot be written now; ask again")
        store.broken = False
        assert client.ask("a", 1, "1Gi")["permit"] == {"vCPUs": 1, "mem": "1Gi"}
        assert bench.state()["counted"] == {"cpu": 1, "memory": "1Gi"}


class Gated(SQLiteStore):
    """Writes nothing while it is shut, and remembers what was permitted, in its order."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.open, self.waiting = threading.Event(), threading.Event()
        self.open.set()
        self.permitted: list[tuple[str, str]] = []
        self.broken = False

    def commit_each(self, units: Any, fence: Fence | None = None) -> Any:
        self.waiting.set()
        assert self.open.wait(60)
        if self.broken:
            raise Unavailable("no space left")
        done = super().commit_each(units, fence)
        self.permitted += [
            (change.key.name, change.status["permitted"]["cpus"])
            for (change,) in units
            if change.status and "permitted" in change.status
        ]
        return done

    def shut(self, bench: PermitBench, name: str) -> socket.socket:
        """From here on requests wait for a write, that of this machine's permit."""
        self.open.clear()
        self.waiting.clear()
        holding = sent(bench, name, "500m", 7)
        assert self.waiting.wait(60)
        return holding


def sent(bench: PermitBench, name: str, cpu: Any, version: int) -> socket.socket:
    """A request whose answer was not read yet."""
    client = bench.client(version)
    body = json.dumps(client.message(name, cpu, "2Gi" if version > 5 else 1024)).encode()
    connection = socket.create_connection(bench.addresses.requests, timeout=30)
    connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    return connection


def heard(connection: socket.socket) -> Any:
    """The answer to such a request."""
    data = b""
    while not data.rpartition(b"\r\n\r\n")[2].endswith(b"}"):
        part = connection.recv(4096)
        assert part, data
        data += part
    connection.close()
    return json.loads(data.rpartition(b"\r\n\r\n")[2])["permit"]


def asked_in_all(bench: PermitBench) -> int:
    """Requests that the server has taken in and not answered."""
    return int(json.loads(bench.get("/")[2])["waiting"])


def test_a_request_whose_client_has_gone_is_not_decided(path: Path) -> None:
    """He may have asked for something else since, by another way."""
    create(path, machine("a"), machine("b"))
    with closing(Gated(path)) as store, serving(path, TEN, store=store) as bench, closing(bench.client()) as client:
        client.ask("a", 1, "1Gi")
        client.ask("b", 8, "8Gi")
        first = store.shut(bench, "a")
        sent(bench, "b", 1, 7).close()
        until(lambda: asked_in_all(bench) == 1)
        store.open.set()
        assert heard(first)["vCPUs"] == "500m"
        assert client.ask("a", 5, "2Gi")["permit"]["vCPUs"] == 2, "b has 8"
        assert (permit_of(bench.store, "b") or {})["cpus"] == "8"


def test_each_of_several_requests_for_one_machine_gets_what_was_written(path: Path) -> None:
    create(path, machine("a"), machine("b"))
    with closing(Gated(path)) as store, serving(path, TEN, store=store) as bench, closing(bench.client()) as client:
        client.ask("a", 1, "1Gi")
        client.ask("b", 1, "1Gi")
        first = store.shut(bench, "a")
        others = []
        for number, cpu in enumerate((8, 3, 6, 1)):  # in the end as it was
            others.append(sent(bench, "b", cpu, 2))
            until(lambda count=number: asked_in_all(bench) == count + 1)
        store.open.set()
        heard(first)
        assert [heard(each)["vCPUs"] for each in others] == [8, 3, 6, 1]
        written = [cpus for name, cpus in store.permitted if name == "b"]
        assert written == ["1", "8", "3", "6", "1"]


def test_a_write_without_a_request_is_tried_until_it_succeeds(path: Path) -> None:
    add_machines(path)
    settings = replace(ANY_PORT, era=ProtocolEra.NEWEST, resync=0.2)
    with closing(Gated(path)) as store, serving(path, TEN, settings, store=store) as bench:
        fill(bench)
        until(lambda: condition(bench, "free", "ShouldMigrate") == ("True", "NodePressure"))
        store.broken = True
        obj = bench.store.get("VirtualMachine", "default", "bound")
        bench.store.replace({**obj, "metadata": {**obj["metadata"], "labels": {}}})
        until(lambda: b'commits_total{result="failed"}' in bench.get("/metrics")[2])
        assert permit_of(bench.store, "bound") is not None
        store.broken = False
        until(lambda: permit_of(bench.store, "bound") is None)


def test_a_permit_goes_whose_machine_stopped_scaling_while_no_server_ran(path: Path) -> None:
    create(path, machine("a"))
    with serving(path, TEN) as bench, closing(bench.client()) as client:
        client.ask("a", 8, "8Gi")
    with closing(SQLiteStore(path)) as store:
        obj = store.get("VirtualMachine", "default", "a")
        store.replace({**obj, "metadata": {**obj["metadata"], "labels": {}}})
    with serving(path, TEN) as bench:
        until(lambda: permit_of(bench.store, "a") is None)
        until(lambda: bench.state()["counted"]["cpu"] == "250m")


def test_a_damaged_machine_harms_no_other(path: Path) -> None:
    create(path, machine("a"), machine("b"))
    settings = replace(ANY_PORT, resync=0.05)
    damage = [
        {"type": [], "status": "True"},
        {"type": "Migrating", "status": "True", "lastTransitionTime": "0001-01-01T00:00:00+14:00"},
    ]
    with serving(path, TEN, settings, migrator=Moves()) as bench, closing(bench.client()) as client:
        client.ask("a", 1, "1Gi")
        write_status_part(bench.store, "b", conditions=damage)
        until(lambda: condition(bench, "b", "Migrating") == ("False", "TimedOut"))
        assert client.ask("a", 2, "2Gi")["permit"]["vCPUs"] == 2
    with serving(path, TEN, settings) as bench, closing(bench.client()) as client:
        assert client.ask("a", 1, "1Gi")["permit"]["vCPUs"] == 1


def test_a_server_that_stumbles_begins_anew(path: Path) -> None:
    create(path, machine("a"))

    class Stumbling(SQLiteStore):
        stumbles = 2

        def list(self, *of: Any) -> Any:
            if Stumbling.stumbles:
                Stumbling.stumbles -= 1
                raise RuntimeError("a bug of ours")
            return super().list(*of)

    with closing(Stumbling(path)) as store, serving(path, TEN, store=store) as bench, closing(bench.client()) as client:
        assert client.ask("a", 1, "1Gi")["permit"]["vCPUs"] == 1


# -- several servers -------------------------------------------------------------------------------------------------


def test_one_server_at_a_time_answers_and_another_takes_over(path: Path) -> None:
    create(path, machine("a"))
    ready = threading.Event()
    quick = {"alone": False, "lease_seconds": 60.0}
    with serving(path, TEN, **quick) as first:
        with closing(first.client()) as client:
            client.ask("a", 3, "3Gi")
        second = threading.Thread(target=_serve_once, args=(path, ready, quick))
        second.start()
        assert not ready.wait(0.3), "the first one has the lease"
    assert ready.wait(60), "the first one has given it away"
    second.join()


def _serve_once(path: Path, ready: threading.Event, quick: dict[str, Any]) -> None:
    with serving(path, TEN, **quick) as bench, closing(bench.client()) as client:
        assert client.ask("a", 3, "3Gi")["permit"] == {"vCPUs": 3, "mem": "3Gi"}
        ready.set()


def test_a_server_that_was_replaced_writes_nothing(path: Path) -> None:
    """It stood still for a while, and does not know yet."""
    create(path, machine("a"))
    with serving(path, TEN) as bench, closing(bench.client()) as client:
        client.ask("a", 1, "1Gi")
        lease = bench.store.get("Lease", "default", "devalloc-permits")
        bench.store.replace({**lease, "spec": {**lease["spec"], "holderIdentity": "another server"}})
        status, _, _ = client.post(json.dumps(client.message("a", 8, "8Gi")).encode())
        assert status == 503
        assert (permit_of(bench.store, "a") or {})["cpus"] == "1"


def test_servers_of_two_nodes_answer_each_for_its_own_machines(path: Path) -> None:
    create(path, machine("a", node="node-a"), machine("b", node="node-b"))
    hosts = {name: (lambda name=name: {name: Host(amounts(4000, 4))}) for name in ("node-a", "node-b")}
    with (
        serving(path, hosts["node-a"], node="node-a", alone=False) as one,
        serving(path, hosts["node-b"], node="node-b", alone=False) as other,
        closing(one.client()) as first,
        closing(other.client()) as second,
    ):
        assert first.ask("a", 8, "8Gi")["permit"] == {"vCPUs": 4, "mem": "4Gi"}
        assert second.ask("b", 8, "8Gi")["permit"] == {"vCPUs": 4, "mem": "4Gi"}
        assert first.post(json.dumps(first.message("b", 1, "1Gi")).encode())[0] == 404
        assert sorted(json.loads(one.get("/")[2])["nodes"]) == ["node-a"]
        ready = threading.Event()
        for_all = threading.Thread(target=_serve_once, args=(path, ready, {"alone": False}))
        for_all.start()
        assert not ready.wait(1.5), "one for all nodes would know nothing of what these grant"
        assert first.ask("a", 4, "4Gi")["permit"] == {"vCPUs": 4, "mem": "4Gi"}
        first.ask("a", 3, "3Gi")
    assert ready.wait(60), "both have gone"
    for_all.join()


# -- migration -------------------------------------------------------------------------------------------------------


class Moves:
    """Migrates nothing, and remembers what it was asked to."""

    def __init__(self, begun: bool = True, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, MachineKey]] = []
        self._begun, self._error = begun, error

    def begin(self, key: MachineKey, node: str) -> bool:
        self.calls.append(("begin", key))
        if self._error is not None:
            raise self._error
        return self._begun

    def withdraw(self, key: MachineKey) -> None:
        self.calls.append(("withdraw", key))


def add_machines(path: Path) -> None:
    """A machine that can move, and one with a device that cannot, which is idle, on a node that gets too full."""
    create(path, machine("bound", labels=MOVABLE, claims=["gpu"]), machine("free", labels=MOVABLE))


def fill(bench: PermitBench) -> Any:
    """What the machine that can move is answered when the node is too full."""
    with closing(bench.client()) as client:
        client.ask("bound", 1, "1Gi", load=0.0)
        client.ask("free", 8, "10Gi", load=0.9)
        client.ask("bound", 9, "9Gi", load=0.0)
        assert "migrate" not in client.ask("bound", 9, "9Gi", load=0.0), "a bound machine never moves"
        return client.ask("free", 9, "12Gi", load=0.9)


def condition(bench: PermitBench, name: str, kind: str) -> tuple[str, str] | None:
    conditions = bench.store.get("VirtualMachine", "default", name)["status"].get("conditions", [])
    return next(((c["status"], c.get("reason", "")) for c in conditions if c["type"] == kind), None)


def test_a_machine_that_should_leave_has_a_condition_without_a_migrator(path: Path) -> None:
    add_machines(path)
    with serving(path, TEN) as bench:
        assert "migrate" not in fill(bench)
        assert condition(bench, "free", "ShouldMigrate") == ("True", "NodePressure")
        assert condition(bench, "bound", "ShouldMigrate") is None
        assert b"devalloc_permit_migrations_wanted_total 1.0" in bench.get("/metrics")[2]
        with closing(bench.client()) as client:
            client.ask("bound", 1, "1Gi", load=0.0)
            client.ask("free", 1, "1Gi", load=0.9)
            client.ask("free", 1, "1Gi", load=0.9)
        assert condition(bench, "free", "ShouldMigrate") == ("False", "NodeRelieved")


def test_whether_machines_can_move_is_read_anew_with_the_hosts(path: Path) -> None:
    """Not at each request: what reads it may take as long as the store does."""
    can_move = False

    def movable() -> CanMigrate:
        read = can_move
        return lambda obj: read

    def is_movable() -> bool:
        shown: bool = bench.state()["machines"]["default/free"]["movable"]
        return shown

    add_machines(path)
    with serving(path, TEN, replace(ANY_PORT, resync=0.05), movable=movable) as bench:
        assert not is_movable()
        can_move = True
        until(is_movable)


def test_a_migration_begins_gives_no_more_and_is_withdrawn_when_it_takes_too_long(path: Path) -> None:
    add_machines(path)
    moves = Moves()
    settings = replace(ANY_PORT, migration_seconds=0.0, resync=0.5)
    with serving(path, TEN, settings, migrator=moves) as bench:
        assert fill(bench) == {"permit": {"vCPUs": 8, "mem": "10Gi"}, "migrate": {}}
        assert moves.calls[0] == ("begin", ("default", "free"))
        until(lambda: ("withdraw", ("default", "free")) in moves.calls)
        until(lambda: condition(bench, "free", "Migrating") == ("False", "TimedOut"))
        until(lambda: bench.state()["accounted"] == {"cpu": 0, "memory": 0})


def test_while_it_migrates_a_machine_is_left_alone(path: Path) -> None:
    add_machines(path)
    with serving(path, TEN, migrator=Moves()) as bench, closing(bench.client()) as client:
        fill(bench)
        assert bench.state()["accounted"] == {"cpu": 8, "memory": "10Gi"}
        assert client.ask("free", 8, "10Gi") == {"permit": {"vCPUs": 8, "mem": "10Gi"}}
        status, _, body = client.post(json.dumps(client.message("free", 1, "10Gi")).encode())
        assert (status, b"migrating" in body) == (400, True)


def test_a_migration_that_exists_is_not_requested_again(path: Path) -> None:
    add_machines(path)
    with serving(path, TEN, migrator=Moves(begun=False)) as bench:
        assert "migrate" not in fill(bench)


def test_a_machine_whose_migration_failed_stays_for_a_while(path: Path) -> None:
    class FailingMoves(Moves):
        def ended(self, key: MachineKey, since: str) -> MigrationEnd | None:
            return MigrationEnd(False, "NoRoom", "no other node has room")

    add_machines(path)
    moves = FailingMoves()
    with (
        serving(path, TEN, replace(ANY_PORT, resync=0.2), migrator=moves) as bench,
        closing(bench.client()) as client,
    ):
        assert "migrate" in fill(bench)
        until(lambda: condition(bench, "free", "Migrating") == ("False", "NoRoom"))
        assert "migrate" not in client.ask("free", 9, "12Gi", load=0.9)
        assert moves.calls == [("begin", ("default", "free"))]


def test_a_migration_that_cannot_begin_is_500_and_what_was_granted_stays(path: Path) -> None:
    add_machines(path)
    with serving(path, TEN, migrator=Moves(error=RuntimeError("no other node"))) as bench:
        with pytest.raises(AssertionError, match="could not begin"):
            fill(bench)
        assert (permit_of(bench.store, "free") or {})["cpus"] == "8"
        until(lambda: condition(bench, "free", "Migrating") == ("False", "MigratorFailed"))


@pytest.mark.parametrize(("reason", "is_begun"), [("NodePressure", True), ("Planned", False)])
def test_a_migration_that_a_server_wrote_down_and_did_not_begin_is_begun_by_the_next(
    path: Path, reason: str, is_begun: bool
) -> None:
    create(path, machine("a"), machine("b"), machine("c"))
    now = datetime.now(UTC).isoformat(timespec="seconds")

    def write_down(store: SQLiteStore, name: str, reason: str) -> None:
        entry = {"type": "Migrating", "status": "True", "reason": reason, "lastTransitionTime": now}
        write_status_part(store, name, conditions=[entry])

    with closing(SQLiteStore(path)) as store:
        write_down(store, "a", reason)
    moves = Moves()
    with serving(path, TEN, replace(ANY_PORT, resync=0.05), migrator=moves) as bench:
        for name in ("b", "c"):  # at two more looks at all machines
            write_down(bench.store, name, "NodePressure")
            until(lambda name=name: ("begin", ("default", name)) in moves.calls, "it is begun")  # type: ignore[misc]
        begun = [*(["a"] if is_begun else []), "b", "c"]
        assert sorted(moves.calls) == [("begin", ("default", name)) for name in begun], "and each once only"
        assert condition(bench, "a", "Migrating") == ("True", reason)


def test_newest_form_moves_the_oldest(path: Path) -> None:
    add_machines(path)
    moves = Moves()
    with serving(path, TEN, replace(ANY_PORT, era=ProtocolEra.NEWEST, resync=0.2), migrator=moves) as bench:
        assert "migrate" not in fill(bench)
        until(lambda: moves.calls == [("begin", ("default", "free"))])
        until(lambda: condition(bench, "free", "Migrating") == ("True", "NodePressure"))


# -- who may ask, and how much ---------------------------------------------------------------------------------------


def test_a_token_is_needed_where_there_is_one(path: Path) -> None:
    create(path, machine("a"))
    with serving(path, TEN, replace(ANY_PORT, token="0123456789abcdef")) as bench, closing(bench.client()) as client:
        body = json.dumps(client.message("a", 1, "1Gi")).encode()
        assert [
            client.post(body, **({} if given is None else {"Authorization": given}))[0]
            for given in (None, "Bearer 0123456789abcdeF", "Basic 0123456789abcdef", "Bearer 0123456789abcdef")
        ] == [401, 401, 401, 200]
        assert bench.get("/")[0] == 401
        for bytes_ in (b"\xff\xfe", b"\xc3\xbc", b""):  # a text that is none
            request = (
                b"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + bytes_ + b"\r\nContent-Length: 0\r\n\r\n"
            )
            with closing(socket.create_connection(bench.addresses.requests, timeout=30)) as connection:
                connection.sendall(request)
                assert connection.recv(100).split()[1] == b"401"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_with_tls_only_known_certificates_are_answered(path: Path) -> None:
    folder = path.parent
    ours, theirs = (_certificate(folder, name) for name in ("ours", "theirs"))
    create(path, machine("a"))
    settings = replace(ANY_PORT, tls=server_tls(*ours, clients=ours[0]))
    with serving(path, TEN, settings) as bench:
        body = json.dumps(bench.client().message("a", 1, "1Gi")).encode()
        for certificate, status in ((ours, 200), (theirs, None), (None, None)):
            context = ssl.create_default_context(cafile=ours[0])
            if certificate is not None:
                context.load_cert_chain(*certificate)
            connection = http.client.HTTPSConnection("127.0.0.1", bench.addresses.requests[1], context=context)
            with closing(connection):
                if status is None:
                    with pytest.raises(OSError, match=r"alert|reset|closed|EOF"):
                        _answer_status(connection, body)
                else:
                    assert _answer_status(connection, body) == status
        for _ in range(3):
            with closing(socket.create_connection(bench.addresses.requests, timeout=30)) as connection:
                connection.sendall(b"POST / HTTP/1.1\r\n\r\n")
                with suppress(ConnectionResetError):
                    connection.recv(100)
        until(lambda: not _connections())
        assert b"refused_total" not in b"".join(
            line for line in bench.server.metrics.text().splitlines() if line.startswith(b"devalloc_") and b"{" in line
        ), "none of them was slow"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_those_who_begin_tls_and_go_no_further_do_not_keep_others_out(path: Path) -> None:
    ours = _certificate(path.parent, "ours")
    create(path, machine("a"))
    settings = replace(ANY_PORT, tls=server_tls(*ours), max_connections=8, request_seconds=1.0)
    with serving(path, TEN, settings) as bench:
        body = json.dumps(bench.client().message("a", 1, "1Gi")).encode()
        silent = [socket.create_connection(bench.addresses.requests, timeout=30) for _ in range(20)]
        silent[-1].sendall(b"\x16\x03\x01")  # the beginning of one
        context = ssl.create_default_context(cafile=ours[0])
        for _ in range(3):
            with closing(
                http.client.HTTPSConnection("127.0.0.1", bench.addresses.requests[1], context=context)
            ) as connection:
                for _ in range(3):
                    connection.request("POST", "/", body)
                    answer = connection.getresponse()
                    assert (answer.status, answer.read()) == (200, b'{"permit":{"vCPUs":1,"mem":"1Gi"}}')
        for connection_ in silent:
            with suppress(ConnectionResetError):
                assert connection_.recv(100) == b""
            connection_.close()
        until(lambda: not _connections())
        page = bench.server.metrics.text()
        assert all(b'_refused_total{reason="%b"}' % reason in page for reason in (b"too many", b"too slow"))


def _connections() -> list[object]:
    """All that is kept of connections in this process."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, _ConnectionGuard)]


def _answer_status(connection: http.client.HTTPConnection, body: bytes) -> int:
    connection.request("POST", "/", body)
    return connection.getresponse().status


def _certificate(folder: Path, name: str) -> tuple[str, str]:
    """The files of a certificate that vouches for itself, and of its key."""
    certificate, key = str(folder / f"{name}.crt"), str(folder / f"{name}.key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def test_malformed_http_is_refused(path: Path) -> None:
    create(path, machine("a"))
    with serving(path, TEN) as bench, closing(bench.client()) as client:
        for data in (
            b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"garbage\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: zz\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"POST / HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
            b"\0" * 100,
        ):
            with closing(socket.create_connection(bench.addresses.requests, timeout=30)) as connection:
                connection.sendall(data)
                answer = b"".join(iter(lambda c=connection: c.recv(65536), b""))  # type: ignore[misc]
            assert answer.split()[1] == b"400", data[:40]
            assert client.ask("a", 1, "1Gi")["permit"]["vCPUs"] == 1


def test_unusual_http_is_answered_as_well(path: Path) -> None:
    create(path, machine("a"))
    with serving(path, TEN) as bench, closing(bench.client()) as client:
        body = json.dumps(client.message("a", 1, "1Gi")).encode()
        head, length = b"POST / HTTP/1.1\r\nHost: x\r\n", b"Content-Length: %d\r\n" % len(body)
        zipped = gzip.compress(body)
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        for data, status in (
            (head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks, b"200"),
            (head + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", b"400"),
            (head + length + b"Transfer-Encoding: chunked\r\n\r\n" + chunks, b"400"),
            (head + length + length.replace(b": ", b": 1") + b"\r\n" + body, b"400"),
            (head + length + b"Content-Type: multipart/form-data; boundary=x\r\n\r\n" + body, b"200"),
            (head + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(zipped), zipped), b"400"),
            (head + length + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + body, b"200"),
            (b"POST http://elsewhere/ HTTP/1.1\r\nHost: [[\xff\r\n" + length + b"\r\n" + body, b"200"),
            (b"POST / HTTP/1.0\r\n" + length + b"\r\n" + body, b"200"),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
            (head + b"X: y\r\n" * 20_000 + length + b"\r\n" + body, b"400"),
        ):
            with closing(socket.create_connection(bench.addresses.requests, timeout=30)) as connection:
                connection.sendall(data)
                assert connection.recv(100).split()[1] == status, data[:80]
        with closing(socket.create_connection(bench.addresses.requests, timeout=30)) as connection:
            connection.sendall(head + length + b"Expect: 100-continue\r\n\r\n")
            assert connection.recv(100).split()[1] == b"100"
            connection.sendall(body)
            assert connection.recv(100).split()[1] == b"200"


def test_a_client_that_sends_too_much_can_read_the_answer(path: Path) -> None:
    create(path, machine("a"))
    with serving(path, TEN) as bench:
        for _ in range(20):
            with closing(bench.client()) as client:
                assert client.post(b"x" * 300_000)[0] == 400
        with closing(http.client.HTTPConnection(*bench.addresses.requests, timeout=30)) as connection:
            connection.request("PUT", "/", b"x" * 300_000)
            assert connection.getresponse().status == 400


def test_slow_and_many_strangers_do_not_keep_others_out(path: Path) -> None:
    create(path, machine("a"))
    settings = replace(ANY_PORT, request_seconds=0.5, max_connections=8)
    with serving(path, TEN, settings) as bench:
        slow = [socket.create_connection(bench.addresses.requests, timeout=30) for _ in range(12)]
        for connection in slow[8:]:
            connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 900\r\n")
        with closing(bench.client()) as client:
            assert client.ask("a", 1, "1Gi")["permit"]["vCPUs"] == 1
            until(lambda: b'_refused_total{reason="too slow"}' in bench.get("/metrics")[2])
            assert client.ask("a", 1, "1Gi")["permit"]["vCPUs"] == 1, "who asks from time to time is not slow"
        for connection in slow:
            connection.settimeout(60)
            with suppress(ConnectionResetError):
                assert connection.recv(100) == b"", "and who does not is cut off"
            connection.close()
        assert b'_refused_total{reason="too many"}' in bench.get("/metrics")[2]


def test_a_body_that_comes_too_slowly_is_408(path: Path) -> None:
    create(path, machine("a"))
    with (
        serving(path, TEN, replace(ANY_PORT, request_seconds=0.3)) as bench,
        closing(socket.create_connection(bench.addresses.requests, timeout=30)) as connection,
    ):
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{")
        assert connection.recv(100).split()[1] == b"408"


def test_a_request_that_makes_the_server_stumble_is_500_and_no_other(path: Path) -> None:
    create(path, machine("a"), machine("b"))
    with serving(path, TEN) as bench, closing(bench.client()) as client:
        client.ask("a", 1, "1Gi")
        bench.server.book.records[("default", "b")] = None  # type: ignore[assignment]
        status, kind, _ = client.post(json.dumps(client.message("b", 1, "1Gi")).encode())
        assert (status, kind) == (500, "text/plain; charset=utf-8")
        assert client.ask("a", 2, "2Gi")["permit"] == {"vCPUs": 2, "mem": "2Gi"}


# -- what is reported ------------------------------------------------------------------------------------------------


def test_state_and_metrics(path: Path) -> None:
    create(path, machine("a", annotations={"autoscaling.neon.tech/billing-endpoint-id": "ep-1"}))
    with serving(path, TEN, replace(ANY_PORT, resync=0.1)) as bench, closing(bench.client()) as client:
        client.ask("a", 2, "2Gi")
        client.ask("a", 12, "2Gi")
        client.post(b"{")
        assert bench.state()["machines"]["default/a"]["permit"] == {"cpu": 10, "memory": "2Gi"}
        page = bench.get("/metrics")[2].decode()
        for line in (
            'devalloc_permit_requests_total{code="200",version="v5.0"} 2.0',
            'devalloc_permit_requests_total{code="400",version="none"} 1.0',
            'devalloc_permit_outcomes_total{outcome="granted"} 1.0',
            'devalloc_permit_outcomes_total{outcome="partly"} 1.0',
            'devalloc_permit_node_counted{node="node-a",resource="cpu"} 10.0',
            'devalloc_permit_node_watermark{node="node-a",resource="cpu"} 9.0',
            "# HELP devalloc_permit_node_watermark "
            "Watermark above which machines should leave the node; CPUs, or bytes.",
        ):
            assert line in page
        until(lambda: b'devalloc_permitted_cpu_seconds_total{billing_id="ep-1"}' in bench.get("/metrics")[2])
        with closing(http.client.HTTPConnection(*(bench.addresses.dump or ("", 0)), timeout=30)) as connection:
            connection.request("POST", "/", b"")
            assert connection.getresponse().status == 405


def test_billed_usage_goes_on_over_a_restart(path: Path) -> None:
    create(path, machine("a", annotations={"autoscaling.neon.tech/billing-endpoint-id": "ep-1"}))

    def billed(bench: PermitBench) -> float:
        lines = bench.get("/metrics")[2].decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("devalloc_permitted_cpu_seconds_total{"))

    before = 0.0
    for _ in range(3):
        with serving(path, TEN, replace(ANY_PORT, resync=0.05)) as bench, closing(bench.client()) as client:
            assert billed(bench) >= before
            client.ask("a", 2, "2Gi")
            start = billed(bench)
            until(lambda start=start: billed(bench) > start)
            before = billed(bench)


def test_a_node_that_is_not_known_grants_nothing_and_one_that_shrinks_takes_nothing_away(path: Path) -> None:
    create(path, machine("a"), machine("elsewhere", node="node-x"))
    hosts = {"node-a": Host(amounts(10_000, 20))}
    with serving(path, lambda: dict(hosts), replace(ANY_PORT, resync=0.1)) as bench, closing(bench.client()) as client:
        assert client.ask("elsewhere", 8, "8Gi")["permit"] == {"vCPUs": "250m", "mem": "1Gi"}
        assert client.ask("a", 8, "8Gi")["permit"] == {"vCPUs": 8, "mem": "8Gi"}
        hosts["node-a"] = Host(amounts(4000, 4))
        until(lambda: bench.state()["total"]["cpu"] == 4)
        assert client.ask("a", 9, "9Gi")["permit"] == {"vCPUs": 8, "mem": "8Gi"}
        assert client.ask("a", 5, "5Gi")["permit"] == {"vCPUs": 5, "mem": "5Gi"}
        assert client.ask("a", 6, "6Gi")["permit"] == {"vCPUs": 5, "mem": "5Gi"}


def test_the_server_holds_the_limit_of_the_node_and_leaves_a_machines_bounds_to_its_agent(path: Path) -> None:
    """As its peers do: who asks for more than `max` has a guest that gives nothing back."""
    create(path, machine("a", least=amounts(1000, 1), most=amounts(2000, 2)))
    with serving(path, TEN) as bench, closing(bench.client()) as client:
        assert client.ask("a", 100, "100Gi")["permit"] == {"vCPUs": 10, "mem": "20Gi"}
        assert client.ask("a", 0, 0)["permit"] == {"vCPUs": 0, "mem": 0}
        assert bench.state()["counted"] == {"cpu": 1, "memory": "1Gi"}


def test_twenty_machines_never_have_more_than_there_is(path: Path) -> None:
    """A short form of `make permits-soak`."""
    tally = PermitStorm(path, seed=6).run(500, between_kills=200)
    assert tally.wrong == []
    assert tally.kills == 2
    assert min(tally.granted, tally.lost, tally.refused, tally.full) > 0, "all of it happened"

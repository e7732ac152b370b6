"""Permits and migrations: the permit server has machines migrated, and counts those that move on both nodes."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import Any

import pytest

from devalloc.api import machine_location
from devalloc.machines.migrations import begin_migration
from devalloc.machines.permits.ledger import Host, PermitLedgers
from devalloc.machines.permits.settings import Settings
from devalloc.machines.permits.store_migrator import NO_MIGRATION, MigrationEnd, MovableMachines, StoreMigrator
from devalloc.scaling.permits.ledger import all_to_migrate, is_under_pressure
from devalloc.scaling.resources import LABEL_MIGRATION, Resources
from devalloc.scaling.versions import ProtocolEra
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import solve_manifests
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool
from tests.support.host_pools import host, machine
from tests.support.machine_allocator import machine_allocator
from tests.support.migration_nodes import KIND, handed_over, migration, movable
from tests.support.permit_bench import amounts
from tests.support.permit_records import SOURCES

Object = dict[str, Any]
KEY = ("default", "web")
LONG_AGO = "2026-01-01T00:00:00Z"


def created(store: SQLiteStore) -> Object:
    (one,) = store.list(KIND).objects
    return one


def fresh_migrator(store: SQLiteStore) -> StoreMigrator:
    """It reads the migrations again each time."""
    return StoreMigrator(store, itertools.count(step=10).__next__)


class TestStoreMigrator:
    def test_it_creates_one_migration_for_a_machine(self, store: SQLiteStore) -> None:
        migrator = fresh_migrator(store)
        assert migrator.begin(KEY, "a")
        assert created(store)["spec"] == {"vmName": "web"}
        assert not migrator.begin(KEY, "a")
        assert migrator.ended(KEY, LONG_AGO) is None
        migrator.withdraw(KEY)
        assert store.list(KIND).objects == []
        migrator.withdraw(KEY)

    @pytest.mark.parametrize("machine_name", ["web", "a-pressure-test"])
    def test_what_others_created_is_theirs(self, store: SQLiteStore, machine_name: str) -> None:
        key = ("default", machine_name)
        begin_migration(store, key)
        migrator = fresh_migrator(store)
        assert not migrator.begin(key, "a")
        migrator.withdraw(key)
        assert created(store)["metadata"]["name"].startswith(f"{machine_name}-move-")

    @pytest.mark.parametrize(
        ("status", "end"),
        [
            ({"phase": "Succeeded", "targetNode": "b"}, MigrationEnd(True, "Migrated", "it has moved to node b")),
            ({"phase": "Failed", "reason": "NoRoom", "message": "full"}, MigrationEnd(False, "NoRoom", "full")),
            ({"phase": "Failed"}, MigrationEnd(False, "MigrationFailed", "")),
            ({"phase": "Running"}, None),
        ],
    )
    def test_it_says_how_the_migration_ended(
        self, store: SQLiteStore, status: Object, end: MigrationEnd | None
    ) -> None:
        migrator = fresh_migrator(store)
        migrator.begin(KEY, "a")
        store.replace_status({**created(store), "status": status})
        assert migrator.ended(KEY, LONG_AGO) == end
        assert migrator.ended(KEY, "2100-01-01T00:00:00Z") == (end and NO_MIGRATION), "that was another one"

    def test_it_has_ended_if_a_user_deletes_it(self, store: SQLiteStore) -> None:
        migrator = fresh_migrator(store)
        migrator.begin(KEY, "a")
        store.delete(KIND, "default", created(store)["metadata"]["name"])
        assert migrator.ended(KEY, LONG_AGO) == NO_MIGRATION

    def test_while_one_of_others_moves_the_machine_that_one_counts(self, store: SQLiteStore) -> None:
        fill(store, migration("move", "web"), migration("another", "db"))
        migrator = fresh_migrator(store)
        migrator.begin(KEY, "a")
        assert migrator.ended(KEY, LONG_AGO) is None
        status = {"phase": "Succeeded", "targetNode": "b", "completionTime": "2026-01-01T00:10:00Z"}
        stored = store.replace_status({**store.get(KIND, "default", "move"), "status": status})
        end = MigrationEnd(True, "Migrated", "it has moved to node b")
        assert migrator.ended(KEY, LONG_AGO) == end
        store.replace_status({**stored, "status": {**status, "completionTime": "2100-01-02T00:00:00Z"}})
        assert migrator.ended(KEY, "2100-01-01T00:00:00Z") == end, "it began before, and ended after that"
        store.delete(KIND, "default", "move")
        assert migrator.ended(KEY, LONG_AGO) == NO_MIGRATION

    def test_its_own_end_counts_although_one_of_others_waits(self, store: SQLiteStore) -> None:
        migrator = fresh_migrator(store)
        migrator.begin(KEY, "a")
        store.replace_status({**created(store), "status": {"phase": "Failed", "reason": "Why", "message": "full"}})
        fill(store, migration("move", "web"))
        assert migrator.ended(KEY, LONG_AGO) == MigrationEnd(False, "Why", "full")

    def test_it_reads_only_the_migrations_of_the_namespace(self, store: SQLiteStore) -> None:
        """And at most once a second: else each request of a machine, and each look at those that move, takes as long as
        all migrations of the cluster, or of a tenant that has any number."""
        fill(store, migration("move", "web", namespace="other"), migration("another", "web"))
        namespaces: list[str | None] = []

        class Listing(SQLiteStore):
            def list(self, kinds: Any = None, namespace: str | None = None) -> Any:
                namespaces.append(namespace)
                return super().list(kinds, namespace)

        with closing(Listing(store.path)) as listing:
            seconds = 0.0
            migrator = StoreMigrator(listing, lambda: seconds)
            assert migrator.begin(KEY, "a") is False
            assert migrator.begin(("default", "db"), "a")
            assert migrator.ended(KEY, LONG_AGO) is None
            assert migrator.ended(("default", "db"), LONG_AGO) is None, "it knows its own at once"
            migrator.withdraw(("default", "db"))
            assert migrator.ended(("default", "db"), LONG_AGO) == NO_MIGRATION
            assert namespaces == ["default"]
            seconds = 1.0
            listing.delete(KIND, "default", "another")
            assert migrator.ended(KEY, LONG_AGO) == NO_MIGRATION
        assert namespaces == ["default"] * 2


class TestMovableMachines:
    @pytest.mark.parametrize(("says", "moves"), [(None, False), ("True", True), ("False", False)])
    def test_with_devices_of_its_node_it_moves_if_that_says_so(
        self, store: SQLiteStore, says: str | None, moves: bool
    ) -> None:
        fill(store, *map(host, "ab"), gpu_class(), gpu_pool("p", node="a"), gpu_claim("card"))
        fill(store, machine("web", "1", "1Gi", "card"))
        machine_allocator(store, solve=solve_manifests).round()
        stored = store.get("VirtualMachine", "default", "web")
        conditions = [] if says is None else movable(says)
        stored = store.replace_status({**stored, "status": {**stored["status"], "conditions": conditions}})
        assert MovableMachines(store)(stored) == moves

    @pytest.mark.parametrize(
        ("spec", "moves"),
        [
            ({}, True),
            ({"nodeName": "a"}, False),
            ({"start": {"disks": [{"path": "/srv/web.raw", "format": "raw"}]}}, True),
            ({"start": {"disks": [{"path": "/var/web.raw", "format": "raw"}]}}, False),
            ({"start": {"kernel": "/k", "tpm": True}}, True),
        ],
    )
    def test_local_disks_and_devices_keep_a_machine_on_its_node(
        self, store: SQLiteStore, spec: Object, moves: bool
    ) -> None:
        fill(store, *(host(node, shared_storage=["/srv"]) for node in "ab"))
        obj = {**machine("web", **spec), "status": {"nodeName": "a"}}
        assert MovableMachines(store)(obj) is moves

    @pytest.mark.parametrize(
        ("other", "moves"),
        [
            (None, False),
            ({"live_migration": False, "shared_storage": ["/srv"]}, False),
            ({"shared_storage": ["/x"]}, False),
            ({"shared_storage": ["/x", "/srv"]}, True),
        ],
    )
    def test_without_a_node_that_receives_it_it_stays(
        self, store: SQLiteStore, other: Object | None, moves: bool
    ) -> None:
        fill(store, host("a", shared_storage=["/srv"]), *([] if other is None else [host("b", **other)]))
        disks = [{"path": "/srv/web.raw", "format": "raw"}]
        obj = {**machine("web", start={"disks": disks}), "status": {"nodeName": "a"}}
        assert MovableMachines(store)(obj) is moves

    def test_machines_that_cannot_move_do_not_each_look_at_all_nodes(
        self, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nodes = [f"node-{number}" for number in range(10)]
        fill(store, *(host(node, live_migration=False) for node in nodes))
        read: list[object] = []
        receives = machine_location.receives_machines
        monkeypatch.setattr(
            machine_location, "receives_machines", lambda pool: bool(read.append(pool)) or receives(pool)
        )
        can_move = MovableMachines(store)
        assert not any(can_move({**machine(f"web-{node}"), "status": {"nodeName": node}}) for node in nodes)
        assert len(read) == len(nodes)


def moving(phase: str = "Running") -> Object:
    def entries(node: str, cpu: str) -> list[Object]:
        parts = [{"name": "cpu", "allocation": cpu}, {"name": "memory", "allocation": "2Gi"}]
        return [{"devicePoolName": f"{node}-host", "deviceName": "numa0", "allocations": parts}]

    booking = {
        "migrationName": "move",
        "migrationUID": "u",
        "sourceNode": "a",
        "targetNode": "b",
        "allocations": entries("b", "2"),
    }
    obj = machine("web", "1", "1Gi")
    notes = {"devalloc.io/prepared-on": "a"}
    metadata = {**obj["metadata"], "uid": "1", "resourceVersion": "1", "annotations": notes}
    status = {"phase": phase, "nodeName": "a", "allocations": entries("a", "2"), "migrationState": booking}
    return {**obj, "metadata": {**metadata, "finalizers": ["devalloc.io/node"]}, "status": status}


class TestLedgers:
    @staticmethod
    def book(node: str | None = None) -> PermitLedgers:
        book = PermitLedgers(Settings(), SOURCES, node=node)
        book.begin({name: Host(amounts(8000, 8)) for name in "ab"})
        return book

    def test_a_machine_that_moves_counts_on_both_nodes(self) -> None:
        book = self.book()
        book.put(moving())
        assert book.nodes["b"].counted == Resources(2000, 2 << 30)
        assert book.nodes["a"].counted.cpu >= 1000
        assert book.nodes["a"].machines[KEY].migrating, "it gets nothing else meanwhile"

    @pytest.mark.parametrize("node", [None, "a"])
    def test_it_counts_on_its_source_until_its_target_takes_it(self, node: str | None) -> None:
        """Until then, its paused guest has its memory there."""
        book = self.book(node=node)
        book.put(moving())
        handed = handed_over(moving())
        metadata = handed["metadata"]
        book.put({**handed, "metadata": {**metadata, "resourceVersion": "2"}})
        assert book.nodes["a"].counted == Resources(2000, 2 << 30)
        if node is None:
            assert book.records[KEY].node == "b"
            assert not book.nodes["b"].machines[KEY].migrating
        notes = {"devalloc.io/prepared-on": "b"}
        book.put({**handed, "metadata": {**metadata, "resourceVersion": "3", "annotations": notes}})
        assert KEY not in book.nodes["a"].machines
        assert (KEY in book.records) == (node is None)

    @pytest.mark.parametrize("era", [ProtocolEra.NEWEST, ProtocolEra.V0_31])
    def test_no_other_machine_leaves_its_source_while_its_target_has_not_taken_it(self, era: ProtocolEra) -> None:
        """The source gets back soon what it keeps until then."""
        book = PermitLedgers(Settings(era=era), SOURCES)
        book.begin({"a": Host(amounts(4000, 8)), "b": Host(amounts(8000, 8))})
        other = machine("other", "2", "1Gi")
        metadata = {**other["metadata"], "uid": "2", "resourceVersion": "1", "labels": {LABEL_MIGRATION: "true"}}
        reserved = moving()["status"]["allocations"]
        status = {"phase": "Running", "nodeName": "a", "allocations": reserved, "observed": {"cpus": "2"}}
        book.put({**other, "metadata": metadata, "status": status})

        web = moving()
        web["status"]["observed"] = {"cpus": "2"}
        handed = handed_over(web)
        notes = {"devalloc.io/prepared-on": "b"}
        taken = {**handed, "metadata": {**handed["metadata"], "annotations": notes}}
        for version, step in enumerate((web, handed, taken), 1):
            book.put({**step, "metadata": {**step["metadata"], "resourceVersion": str(version)}})
            assert (KEY in book.nodes["a"].machines) == (step is not taken)
            assert not is_under_pressure(book.nodes["a"]), version
            assert all_to_migrate(book.nodes["a"]) == [], version

    def test_it_is_a_machine_of_its_source_again_if_its_target_is_fenced(self) -> None:
        book = self.book()
        handed = handed_over(moving())
        book.put(handed)
        back = {**handed["status"], "nodeName": "a"}
        book.put({**handed, "status": back, "metadata": {**handed["metadata"], "resourceVersion": "2"}})
        assert book.records[KEY].node == "a"
        assert KEY in book.nodes["a"].machines
        assert KEY not in book.nodes["b"].machines

    def test_a_reservation_is_free_when_the_migration_is_withdrawn_or_the_machine_deleted(self) -> None:
        for gone in (False, True):
            book = self.book()
            book.put(moving())
            if gone:
                book.drop(KEY)
            else:
                obj = moving()
                del obj["status"]["migrationState"]
                book.put({**obj, "metadata": {**obj["metadata"], "resourceVersion": "2"}})
            assert book.nodes["b"].counted == Resources(0, 0)

    def test_a_server_of_the_target_alone_counts_it(self) -> None:
        book = self.book(node="b")
        book.put(moving())
        assert book.nodes["b"].counted == Resources(2000, 2 << 30)
        assert book.records == {}

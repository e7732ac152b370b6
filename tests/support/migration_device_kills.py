"""As ``migration_kills``, of a machine that has a card of its node by a claim, with the real controller beside it.

Each node's host is played by this process, so it outlives the plugins, as a kernel does: which driver a card has, and
who owns its node. QEMU is real but has no VFIO: instead of the card it gets an emulated device with the same id on the
same port, and moves the state of that. Gates are also before and after each change of a
host, each write to a journal about claims, and each commit of the controller.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import devalloc_node.node as node_module
from devalloc.api.views import ClaimView, MachineView
from devalloc.inventory.discover import discover
from devalloc.store import NotFound, Object, StoreError
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu import adoption, attachment
from devalloc_node.claims import Claims
from devalloc_node.errors import NodeError
from devalloc_node.journal.sqlite import open_journal
from devalloc_solver import solve_manifests, testing
from tests.support import pci_cards
from tests.support.fake_host import FakeHost, RemoteHost, serving
from tests.support.fault_gates import CHANGES, GatedJournal
from tests.support.host_pools import host as host_pool
from tests.support.machine_allocator import machine_allocator
from tests.support.migration_kills import Gate, GatedMonitor, GatedStore, Plugin, TwoPlugins
from tests.support.migration_nodes import migration
from tests.support.waiting import until

CARD, CLAIM = "0000:01:00.0", "card"
EMULATED = "virtio-rng-pci"
_GROUPS = {"a": 7, "b": 8}


class _EmulatingMonitor(GatedMonitor):
    def execute(
        self, command: str, arguments: Mapping[str, Any] | None = None, *, deadline: Any, fd: int | None = None
    ) -> Any:
        if command == "device_add" and arguments is not None and arguments["driver"] == "vfio-pci":
            rest = {name: value for name, value in arguments.items() if name not in ("host", "romfile")}
            arguments = {**rest, "driver": EMULATED}
        return super().execute(command, arguments, deadline=deadline, fd=fd)


class _GatedHost(RemoteHost):
    def __init__(self, root: Path, address: str, gate: Gate) -> None:
        super().__init__(root, address)
        self._gate = gate

    def call(self, method: str, *arguments: Any) -> Any:
        if method not in CHANGES:
            return super().call(method, *arguments)
        what = " ".join((method, *(str(one)[-40:] for one in arguments[:1])))
        self._gate(f"before host {what}")
        answer = super().call(method, *arguments)
        self._gate(f"after host {what}")
        return answer


@dataclass(frozen=True)
class TwoPluginsWithCards(TwoPlugins):
    """Each node has a card. ``hosts``: what plays the host of each, and where it answers."""

    monitor: type[GatedMonitor] = _EmulatingMonitor
    hosts: Mapping[str, tuple[FakeHost, str]] = field(default_factory=dict)

    def host(self, name: str, gate: Gate) -> RemoteHost:
        host, address = self.hosts[name]
        return _GatedHost(host.root, address, gate)

    @contextmanager
    def seams(self, gate: Gate) -> Iterator[None]:
        def passed(what: str, act: Callable[[], Any], failure: Exception) -> Any:
            del failure  # the gate's own is as good
            gate(f"before {what}")
            done = act()
            gate(f"after {what}")
            return done

        def claims(journal: Any, *others: Any, **options: Any) -> Claims:
            gated: Any = GatedJournal(journal, passed)  # type: ignore[arg-type]
            return Claims(gated, *others, **options)

        def near(node: str) -> str:
            paths = [f"{host.root}{node}" for host, _ in self.hosts.values()]
            return next(filter(os.path.exists, paths), paths[0])

        files = SimpleNamespace(
            stat=lambda node: os.stat(near(node)),
            path=SimpleNamespace(exists=lambda node: os.path.exists(near(node))),
        )
        with ExitStack() as stack:
            stack.enter_context(patch.object(node_module, "Claims", claims))
            stack.enter_context(patch.object(attachment, "os", files))
            stack.enter_context(patch.object(attachment, "open_nodes", lambda pid, nodes: []))
            stack.enter_context(patch.object(adoption, "check_memlock", lambda *arguments: None))
            yield

    def is_counted(self, what: str) -> bool:
        """What changes something: a machine without a card is stopped at the questions, too."""
        return not what.partition(" ")[2].startswith(("query-", "qom-", "qmp_"))

    def begin(self, manifest: Object, node: str) -> None:
        """Create the machine and its claim, and have them placed on a node: the others say what they have afterwards.
        All nodes have the same storage."""
        with closing(SQLiteStore(self.store)) as store:
            store.create(testing.device_class("card", driver="gpu.devalloc.io"))
            store.create(testing.claim(CLAIM, testing.request("card", 1), namespace="default"))
            store.create({**manifest, "spec": {**manifest["spec"], "claims": [CLAIM]}})
            for name in sorted(self.hosts, key=lambda name: name != node):
                store.create(host_pool(name, cpus=4, shared_storage=["/"]))
                for pool in discover(self.hosts[name][0].root, node_name=name).pools:
                    store.create(pool.to_manifest())
                for _ in range(3):
                    machine_allocator(store, solve=solve_manifests).round()

    def book(self, name: str, source: str, target: str) -> str:
        """Ask for a migration, and have the controller reserve what it needs; its UID."""
        with closing(SQLiteStore(self.store)) as store:
            made = store.create(migration(name, self.key.partition("/")[2], target))
            for _ in range(20):
                machine_allocator(store, solve=solve_manifests).round()
                if MachineView(self.machine()).booked_claims:
                    return str(made["metadata"]["uid"])
            raise AssertionError(f"nothing is booked: {store.get('VirtualMachineMigration', 'default', name)}")

    def settle(self, gate: Gate, *nodes: Plugin) -> None:
        """With a controller beside them, until the claim is the machine's again, on its node alone."""
        store: Any = GatedStore(SQLiteStore(self.store), gate)
        with closing(store):
            allocator = machine_allocator(store, solve=solve_manifests)

            def is_over() -> bool:
                turns = [node.turn() for node in nodes]
                with suppress(StoreError, NodeError):
                    allocator.round()
                self.check_mark()
                return all(turns) and self.is_settled()

            until(is_over, "the machine has its card on one node", 120, context=lambda: self.described())

    def is_settled(self) -> bool:
        """Whether nothing waits to be done for the machine and its claim."""
        view, claim = MachineView(self.machine()), ClaimView(self.claim())
        return not view.migration_state and not view.moved_claims and claim.holder == claim.node == view.holder

    def check_mark(self) -> None:
        """At any time: the node that has marked the claim is the one whose card it has."""
        claim = ClaimView(self.claim())
        assert all(entry["devicePoolName"].startswith(f"{claim.holder}-") for entry in claim.entries if claim.holder), (
            claim.holder,
            claim.entries,
        )

    def claim(self) -> Object:
        with closing(SQLiteStore(self.store)) as store:
            return store.get("DeviceClaim", "default", CLAIM)

    def described(self) -> Object:
        """For messages."""
        return {"machine": self.machine().get("status"), "claim": self.claim(), "prepared": self.prepared()}

    def prepared(self) -> dict[str, list[str]]:
        """The claims in the journal of each node."""
        claims = {}
        for name, (folder, _) in self.folders.items():
            with closing(open_journal(folder / "plugin")) as journal:
                claims[name] = [record.ref.name for record in journal.claims()]
        return claims

    def drivers(self) -> dict[str, str | None]:
        """Of the card of each node."""
        return {name: host.functions[CARD].driver for name, (host, _) in self.hosts.items()}

    def owners(self) -> dict[str, list[str]]:
        """The VFIO nodes of each host that are given to a machine."""
        return {name: sorted(host.owners) for name, (host, _) in self.hosts.items()}

    def check(self, owner: str, where: str) -> None:
        """At the end: the node of the machine has the card of the claim, and no other node anything."""
        others = [name for name in self.folders if name != owner]
        view, claim = MachineView(self.machine()), ClaimView(self.claim())
        pools = [entry["devicePoolName"] for entry in claim.entries]
        assert (claim.node, claim.holder, pools) == (owner, owner, [f"{owner}-0000-01-00"]), where
        assert self.prepared() == {owner: [CLAIM], **{name: [] for name in others}}, where
        assert self.drivers() == {owner: "vfio-pci", **dict.fromkeys(others, "nvidia")}, where
        assert [one["pool"] for one in view.status.get("devices", [])] == pools, where
        assert not any(self.owners()[name] for name in others), where
        with closing(SQLiteStore(self.store)) as store, suppress(NotFound):
            for one in store.list("VirtualMachineMigration").objects:
                assert one.get("status", {}).get("phase") in ("Succeeded", "Failed"), where


@contextmanager
def two_plugins_with_cards(store: Path, folders: Mapping[str, Any], **revisions: str) -> Iterator[TwoPluginsWithCards]:
    """``revisions``: of the card of a node, where it is another one."""
    with ExitStack() as stack:
        hosts = {}
        for name, (folder, _) in folders.items():
            host = FakeHost(folder / "host", folders=(str(folder),))
            host.proc("sys/kernel/random/boot_id", "boot-1\n")
            files = {"revision": revisions[name]} if name in revisions else {}
            host.add(pci_cards.gpu(CARD, iommu_group=_GROUPS[name], files=files))
            hosts[name] = (host, stack.enter_context(serving(host)))
        yield TwoPluginsWithCards(store, folders, hosts=hosts)

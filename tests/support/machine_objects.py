"""A VirtualMachine object with a DeviceClaim, as the loop of a plugin serves it; see `machine_faults`.

What users, controllers and the host do to it passes no gate: only the plugin fails, or is killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from devalloc.api import meta
from devalloc.api.fencing import fenced_from
from devalloc.api.views import ClaimView, MachineView
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.controller.reconcile.fenced import held_objects, take_away
from devalloc.machines.drain import evict
from devalloc.store import NotFound, Object, StoreError
from devalloc.store.metadata_rules import with_annotations
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu.process import process
from devalloc_machines.qemu.records import MACHINES, State
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms import LoopExecution, LoopSettings, VirtualMachineLoop, fencing, objects
from devalloc_node.claims.store_grants import StoreGrants
from devalloc_node.errors import NodeError
from devalloc_node.journal import open_journal
from devalloc_node.model.grant import GrantedDevice
from devalloc_node.operations.change_feed import ChangeNotifier
from tests.support.fault_gates import GatedObjects
from tests.support.vm_rounds import full_round
from tests.support.waiting import until

FILE = "store.db"
ROUNDS = 40
"""Within which a plugin that nothing disturbs does what it is asked."""
_SHOWN = (meta.PREPARED_ON, meta.FENCED_FROM, meta.EVICT)
"""Annotations that say whose an object is."""
FENCED = "by ada"


def create_claims(folder: Path, claims: Sequence[tuple[GrantedDevice, ...]]) -> None:
    """Create the objects of claims, which have nothing yet."""
    with closing(SQLiteStore(folder / FILE)) as store:
        for number in range(len(claims)):
            metadata = {"namespace": "default", "name": f"claim-{number}"}
            spec = {"claims": [{"deviceClass": "gpu"}]}
            store.create({"apiVersion": meta.DEVMGMT, "kind": "DeviceClaim", "metadata": metadata, "spec": spec})


class MachineObject:
    """The object, the loop of a plugin that serves it, and what others do. To be closed."""

    def __init__(
        self, folder: Path, vm: VirtualMachine, gate: Any, claims: Sequence[tuple[GrantedDevice, ...]], node: str
    ) -> None:
        self._folder, self.store = folder, SQLiteStore(folder / FILE)
        self.gated: Any = GatedObjects(self.store, gate)
        self.grants = StoreGrants(self.gated, node)
        self.vm, self.node, self._now = vm, node, 0.0
        self._entries = {
            f"claim-{number}": [{"devicePoolName": one.pool, "deviceName": one.device} for one in devices]
            for number, devices in enumerate(claims)
        }

    def uid_of(self, namespace: str, name: str) -> str:
        return str(self.store.get("DeviceClaim", namespace, name)["metadata"]["uid"])

    def serve(self, operations: MachineOperations) -> None:
        self.operations = operations
        self.loop = VirtualMachineLoop(
            self.gated,
            operations,
            ChangeNotifier(),
            settings=LoopSettings(resync=0),
            execution=LoopExecution(lambda: self._now, spawn=lambda work: work()),
        )
        self._is_settled = False

    def close(self) -> None:
        self.store.close()

    def _statement(self) -> str | None:
        return FENCED if any(self.node in fenced_from(one) for one in self.store.list().objects) else None

    # What the plugin does.

    def round(self) -> None:
        self._now += 400.0
        with suppress(NodeError, StoreError):  # tried again
            self.operations.machines.settle()
            if not self._is_settled:  # as the daemon has its loops wait
                fencing.settle(self.gated, self.operations, self._statement)
                self._is_settled = True
            full_round(self.loop)

    def until(self, is_so: Callable[[], object], what: str) -> None:
        for _ in range(ROUNDS):
            self.round()
            if is_so():
                self.round()  # what follows from it is written, too, such as who uses a claim
                return
        raise AssertionError(f"{what}: {self.get()}, {self.operations.machines.get(self.key)}")

    @property
    def key(self) -> str:
        return "/".join(self.vm.key)

    def get(self) -> Object | None:
        with suppress(NotFound):
            return self.store.get("VirtualMachine", *self.vm.key)
        return None

    def await_running(self, unlike: str = "") -> None:
        """Until it runs and its object says so, as another run than ``unlike``."""

        def is_so() -> bool:
            here, status = self.operations.machines.get(self.key), (self.get() or {}).get("status", {})
            runs = here is not None and here.state is State.RUNNING and status.get("phase") == "Running"
            inside = sorted(plug.ref.name for plug in self.operations.claims.plugs(self.key)) == self.vm.spec.claims
            return runs and inside and here is not None and here.id == status["machineID"] != unlike

        self.until(is_so, "it runs")

    def await_rest(self) -> None:
        """Until nothing of it runs, and its claims are not prepared."""

        def is_so() -> bool:
            here, phase = self.operations.machines.get(self.key), (self.get() or {}).get("status", {}).get("phase")
            is_over = here is None or not here.runs
            return is_over and phase in (None, "Stopped", "Pending") and not self.operations.claims.held()

        self.until(is_so, "it rests")

    # What users and controllers do.

    def change(self, kind: str, name: str, changed: Callable[[Object], Object]) -> None:
        now = self.store.get(kind, "default", name)
        if (after := changed(now)) != now:
            self.store.replace(after)

    def to_run(self, is_running: bool) -> None:
        """Create it if it is not there, place it and its claims on the node, and have it run or rest."""
        if self.get() is None:
            manifest = self.vm.to_manifest()
            self.store.create({**manifest, "spec": {**manifest["spec"], "running": is_running}})
        for name, entries in self._entries.items():
            notes = {meta.ALLOCATED_NODE: self.node, meta.RELEASE: None}
            self.change("DeviceClaim", name, partial(with_annotations, annotations=notes))
            claim = self.store.get("DeviceClaim", "default", name)
            if claim.get("status", {}).get("allocations") != entries:
                self.store.replace_status({**claim, "status": {**claim.get("status", {}), "allocations": entries}})
        self._set(running=is_running)
        name = self.vm.metadata.name
        self.change("VirtualMachine", name, lambda now: with_annotations(now, {meta.EVICT: None, meta.LAST_NODE: None}))
        self._place(self.node)

    def _set(self, **spec: object) -> None:
        self.change("VirtualMachine", self.vm.metadata.name, lambda now: {**now, "spec": {**now["spec"], **spec}})

    def _place(self, node: str | None) -> None:
        now = self.get()
        assert now is not None
        status = {**now.get("status", {}), "nodeName": node}
        if now.get("status", {}).get("nodeName") != node:
            self.store.replace_status({**now, "status": {k: v for k, v in status.items() if v is not None}})

    def start(self) -> None:
        self.to_run(True)
        self.await_running()

    def stop(self) -> None:
        if self.get() is not None:
            self.to_run(False)
        self.await_rest()

    def die(self) -> str:
        """Kill its QEMU; the run that ended."""
        there = self.operations.machines.get(self.key)
        if there is None or not there.pid:
            return ""
        os.kill(there.pid, signal.SIGKILL)
        until(lambda: process(there.pid) is None, "it has ended")
        self.operations.machines.forget_look(self.key)
        return there.id

    def is_to_run(self) -> bool:
        now = self.get()
        return now is not None and now["spec"]["running"] and MachineView(now).node == self.node

    def die_and_stop(self) -> None:
        """It ends, its policy starts it again, and it is stopped."""
        if self.is_to_run():
            self.await_running(self.die())
        self.stop()

    def lose_and_stop(self) -> None:
        """Its row of the journal is lost, it is taken up again, and it is stopped."""
        if self.is_to_run():
            self.await_running()  # else its object does not name the run, and nothing can tell whose it is
            there = self.operations.machines.get(self.key)
            if there is not None:
                with closing(open_journal(self._folder / "state")) as journal:
                    journal.drop(MACHINES, self.key)
                self.await_running()
                now = self.operations.machines.get(self.key)
                assert now is not None
                assert (now.pid, now.id) == (there.pid, there.id), "it is another one"
        self.stop()

    def reboot_and_stop(self, reboot: Callable[[], object]) -> None:
        """Its host is off for a while, it is started again, and it is stopped."""
        if self.is_to_run():
            reboot()
            self.await_running()
        self.stop()

    def evict(self) -> None:
        """It is to leave the node, leaves it, and has none afterwards."""
        if self.is_to_run():
            now = self.get()
            assert now is not None
            if not MachineView(now).must_leave(self.node):
                evict(self.store, MachineView(now), self.node)
            self.until(self.is_free, "it has left")
            self._place(None)
        self.stop_elsewhere()

    def fence(self) -> None:
        """The node is fenced: it is taken away, and the plugin ends it when it comes back."""
        if self.is_to_run():
            take_away(self.store, held_objects(self.store, self.node), self.node, FENCED)
        self.until(lambda: self.is_free() and self._statement() is None, "what was taken away has ended")
        self.stop_elsewhere()

    def move_elsewhere(self) -> None:
        """A controller has placed it on another node."""
        if self.is_to_run():
            self._place("other")
        self.until(self.is_free, "nothing of it is here")
        self.stop_elsewhere()

    def delete(self) -> None:
        if self.get() is not None:
            self.store.delete("VirtualMachine", *self.vm.key)
        self.until(lambda: self.get() is None, "it is deleted")
        self.await_rest()

    def pause(self) -> None:
        """Its CPUs are to stand still, and then to run again; then it is stopped."""
        for is_paused in (True, False) if self.is_to_run() else ():
            self._set(paused=is_paused)
            wanted = State.HALTED if is_paused else State.RUNNING

            def is_so(wanted: State = wanted) -> bool:
                there = self.operations.machines.get(self.key)
                return there is not None and there.state is wanted

            self.until(is_so, f"it is {wanted}")
        self._set(paused=False)
        self.stop()

    def is_free(self) -> bool:
        """Whether this node holds nothing of the object and its claims, and nothing of it runs."""
        now, here = self.get(), self.operations.machines.get(self.key)
        is_over = here is None or not here.runs
        claims = self.store.list("DeviceClaim").objects
        is_held = any(ClaimView(claim).holder == self.node for claim in claims)
        return is_over and now is not None and objects.holder_of(now) != self.node and not is_held

    def stop_elsewhere(self) -> None:
        """It is not to run any more, wherever it is."""
        self._set(running=False)
        self.until(lambda: not self.operations.claims.held(), "nothing is held")


def shown(folder: Path) -> dict[str, Any]:
    """What the objects say that is the same after each run."""
    if not (folder / FILE).exists():
        return {}
    seen = {}
    with closing(SQLiteStore(folder / FILE)) as store:
        existing = store.list().objects
    for obj in existing:
        metadata, status = obj["metadata"], obj.get("status", {})
        notes = metadata.get("annotations", {})
        seen[f"{obj['kind']} {metadata['name']}"] = {
            "finalizers": sorted(metadata.get("finalizers", [])),
            "notes": {name: notes[name] for name in _SHOWN if name in notes},
            "phase": status.get("phase"),
            "reason": status.get("reason"),
            "users": status.get("podNames", []),
            "node": status.get("nodeName"),
        }
    return seen

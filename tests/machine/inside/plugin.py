"""Run in a test host: the node plugin without its services, on the real host, asked for one thing at a time.

Each line of JSON that is written to the pipe ``asked`` is answered by one in the pipe ``told`` (both in ``PIPES``). All
that it does to host and journal is counted, and it can be told to stop, for good, right after one of these calls: what
it leaves then is what a power cut finds. State and CDI files are on the disk that outlives one.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sqlite3
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from snapshot import snapshot  # type: ignore[import-not-found]  # beside this file

from devalloc.api import meta
from devalloc.api.meta import UNAVAILABLE
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.config import DeviceRecords, InventoryConfig
from devalloc_machines.part import MachineSettings, machines_of
from devalloc_machines.qemu import allowed_paths, confinement
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_machines.qemu.spec import Disk, machine_id
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.claims.journal_content import prepared_content
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError
from devalloc_node.host.files import Files
from devalloc_node.host.linux import LinuxHost
from devalloc_node.journal import Journal, open_journal
from devalloc_node.journal.sqlite import QUARANTINED
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice
from devalloc_node.node import ClaimSource, Node

KIND = "DeviceClaim"
PIPES = Path("/run/plugin")
STATE = Path("/var/lib/devalloc/plugin/state")
CDI = Path("/var/lib/devalloc/plugin/cdi")
MACHINES = MachineConfig(
    state=STATE / "machines",
    run=Path("/run/machines"),
    folders=(AllowedFolder(Path("/run/images"), "any"),),
    visible=(Path("/run/roms"),),
    rom_folders=(Path("/run/roms"),),
    accel="tcg",
    start_seconds=120.0,
    command_seconds=120.0,
)
SECONDS = 280.0
"""For a change of a machine."""
HOST_CHANGES = frozenset({"write", "hot_reset", "set_vf", "set_persistence", "own", "put_file", "remove_file"})
JOURNAL_CHANGES = frozenset(name for name in vars(Journal) if not name.startswith("_"))

Answer = dict[str, Any]


class Gate:
    """Counts what passes, and stops everything after the one that was named."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.last = 0
        """Number of the call after which all ends, from 1; 0: none."""

    def __call__(self, call: str, act: Callable[[], Any]) -> Any:
        self.calls.append(call)
        answer = act()
        if len(self.calls) == self.last:
            tell({"stopped": call})
            while True:
                signal.pause()
        return answer


class Gated:
    """A host or a journal whose changes pass the gate."""

    def __init__(self, inner: Any, name: str, changes: frozenset[str], gate: Gate) -> None:
        self._inner, self._name, self._changes, self._gate = inner, name, changes, gate

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._inner, name)
        if name not in self._changes:
            return member

        def change(*arguments: Any, **named: Any) -> Any:
            call = " ".join([f"{self._name}.{name}", *filter(None, map(_summary, arguments[:3]))])
            return self._gate(call, lambda: member(*arguments, **named))

        return change


def _summary(argument: Any) -> str:
    """An argument in few words, the same in each run: numbers of steps in the journal go on counting."""
    if isinstance(argument, str | ClaimRef):
        return str(argument).strip()
    begun = argument if isinstance(argument, list | tuple) else ()
    return ", ".join(f"{each[2].kind} of {each[2].target}" for each in begun if isinstance(each, tuple))


class Given:
    """Claims as the test gives them."""

    def __init__(self) -> None:
        self.grants: dict[str, Grant] = {}

    def get(self, ref: ClaimRef) -> Grant:
        if ref.uid not in self.grants:
            raise Denied("ClaimNotFound", f"claim not found: {ref}")
        return self.grants[ref.uid]

    def look(self, ref: ClaimRef) -> Grant:
        return self.get(ref)

    def is_gone(self, ref: ClaimRef) -> bool:
        return False

    def belongs_to_node(self, ref: ClaimRef, node_name: str) -> bool:
        return True

    def identity(self) -> str:
        return "the test"

    def let_go(self, ref: ClaimRef) -> None:
        return

    def held(self) -> list[ClaimRef]:
        return []


class Plugin:
    """What can be asked: the methods without an underscore, by name."""

    def __init__(self) -> None:
        self._given = Given()
        self._gate = Gate()
        self._journal = open_journal(STATE)
        self._settings = MachineSettings("guest", BindingConfig("guest"), state=STATE, cdi=CDI, machines=MACHINES)
        self._node = self._made(self._settings)

    def _made(self, settings: MachineSettings) -> Node:
        host: Any = Gated(LinuxHost(Files(settings.written)), "host", HOST_CHANGES, self._gate)
        journal: Any = Gated(self._journal, "journal", JOURNAL_CHANGES, self._gate)
        return Node(settings, host, journal, ClaimSource(KIND, self._given, lambda namespace, name: None))

    def allow(self, kinds: list[str], **policy: Any) -> Answer:
        """Be as the admin wants it from now on. ``policy``: fields of DevicePolicy."""
        bindings = BindingConfig("guest", frozenset(kinds), **policy)
        inventory = InventoryConfig(**policy)
        self._node = self._made(replace(self._settings, bindings=bindings, inventory=inventory))
        return {}

    def disk(self, path: str) -> Answer:
        """Name a block device as the disk of a machine."""
        return {
            "path": str(allowed_paths.disk_image(Disk(path, "raw"), [AllowedFolder(Path("/dev"), "any")], "default"))
        }

    def stop_after(self, call: int) -> Answer:
        """Of what is asked next."""
        self._gate.last = call
        return {}

    def recover(self) -> Answer:
        report = self._node.reconciler.recover()
        return {"finished": report.finished, "stuck": report.stuck, "doubts": report.doubts}

    def prepare(self, uid: str, devices: list[dict[str, Any]]) -> Answer:
        ref = ClaimRef("default", f"claim-{uid}", uid)
        self._given.grants[uid] = Grant(ref, KIND, tuple(_granted(device) for device in devices))
        return {"prepared": prepared_content(self._node.claims.prepare(ref))}

    def unprepare(self, uid: str) -> Answer:
        self._node.claims.unprepare(ClaimRef("default", f"claim-{uid}", uid))
        return {}

    def create(self, manifest: dict[str, Any], claims: list[str]) -> Answer:
        """Start a machine with the claims of these UIDs; its process, and the folder with what it says."""
        machine = VirtualMachine.model_validate(manifest)
        refs = [ClaimRef("default", f"claim-{uid}", uid) for uid in claims]
        view = machines_of(self._node).operations.create(machine, refs, Deadline.after(SECONDS))
        return {"pid": view.pid, "folder": str(MACHINES.folder(machine_id("/".join(machine.key))))}

    def obstacle(self, key: str) -> Answer:
        """What keeps a machine on its node while it runs."""
        return {"obstacle": machines_of(self._node).operations.machines.why_not_movable(key)}

    def slots(self, key: str) -> Answer:
        """Where QEMU has the functions of a machine's devices: bus, slot and function, by id."""
        machines, deadline = machines_of(self._node).machines, Deadline.after(SECONDS)
        with machines.line(machines.record_for(key)) as line:
            (root,) = line.execute("query-pci", deadline=deadline)
        behind = [each for port in root["devices"] for each in port.get("pci_bridge", {}).get("devices", ())]
        return {each["qdev_id"]: [each["bus"], each["slot"], each["function"]] for each in behind}

    def delete(self, key: str) -> Answer:
        """End a machine, and give back what its claims hold."""
        machines_of(self._node).operations.delete(key, 0.0, Deadline.after(SECONDS), force=True)
        return {}

    def health(self, uid: str) -> Answer:
        """How the devices of a prepared claim are, by name."""
        claims = [prepared for prepared in self._node.claims.prepared() if prepared.ref.uid == uid]
        return {device.device: self._node.bindings.observe(device).state for each in claims for device in each.devices}

    def offered(self) -> Answer:
        """What is published: by name of device, why it cannot be had; empty where it can."""
        reasons = {}
        for pool in self._node.inventory.discover(DeviceRecords()).pools:
            for device in pool.spec.devices:
                attributes = {each.name: each.value for each in (*pool.spec.attributes, *device.attributes)}
                reasons[device.name] = str(attributes.get(UNAVAILABLE, ""))
        return reasons

    def state(self) -> Answer:
        """All that outlives the plugin: the host, the journal but for its times and numbers, the files."""
        host = snapshot()
        # Which card becomes eth0 differs between boots.
        host["interfaces"] = sorted(host["interfaces"].values())
        journal = self._node.claims.describe()
        for each in (*journal["claims"], *journal["withheld"]):
            del each["since"]
        files = {path.name: path.read_text() for path in sorted(CDI.iterdir())} if CDI.exists() else {}
        return {"host": host, "journal": journal, "files": files}

    def journal_file(self) -> Answer:
        """What SQLite says of it, and where one before it was put that could not be read."""
        with sqlite3.connect(STATE / "journal.db") as database:
            (word,) = database.execute("PRAGMA integrity_check").fetchone()
        others = sorted(path.name for path in STATE.iterdir() if "damaged" in path.name)
        return {"integrity": word, "quarantined": self._journal.setting(QUARANTINED), "damaged": others}

    def limit_cpu(self, name: str, thousandths: int | None) -> Answer:
        """Limit a cgroup; what it says of itself then."""
        group = confinement.make_group(Path("/sys/fs/cgroup"), name)
        confinement.limit(group, thousandths)
        return {"version": group.version, "limit": confinement.limit_of(group), "folder": str(group.folder)}

    def bound(self, name: str, memory: int, tasks: int, pages: int) -> Answer:
        """Bound a cgroup; the files in which processes are written to enter it, and what could not be bounded."""
        procs, missing = confinement.set_bounds(
            Path("/sys/fs/cgroup"), name, confinement.QemuLimits(memory, tasks, 2 << 20, pages)
        )
        return {"procs": [str(file) for file in procs], "missing": missing}

    def answer(self, request: Mapping[str, Any]) -> Answer:
        """Beside what was asked for: ``calls`` that changed something, ``seconds``, and ``error`` where it failed."""
        self._gate.calls.clear()
        begun = time.monotonic()
        arguments = {name: value for name, value in request.items() if name != "do"}
        try:
            outcome = getattr(self, request["do"])(**arguments)
        except NodeError as error:
            outcome = {"error": error.code, "message": error.message, "retryable": error.retryable}
            outcome["denied"] = isinstance(error, Denied)
        except Exception:
            outcome = {"broken": traceback.format_exc()}
        return {**outcome, "calls": list(self._gate.calls), "seconds": round(time.monotonic() - begun, 3)}


def _granted(device: Mapping[str, Any]) -> GrantedDevice:
    """``device``: ``card`` is the address of a card, or ``pool`` the end of the pool's name; ``name`` what of it is
    given; configs of class and claim."""
    pool = f"guest-{device['pool'] if 'pool' in device else device['card'].rpartition('.')[0].replace(':', '-')}"
    of_class, of_claim = (tuple(_config(spec) for spec in device.get(which, ())) for which in ("class", "claim"))
    return GrantedDevice(
        ("0",), pool, device["name"], admin=bool(device.get("admin")), class_configs=of_class, claim_configs=of_claim
    )


def _config(spec: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"name": "c", "namespace": "default"}
    kind = "VfioConfig" if "romFile" in spec else "VfConfig"
    return {"apiVersion": meta.DEVALLOC, "kind": kind, "metadata": metadata, "spec": spec}


def tell(answer: Answer) -> None:
    (PIPES / "told").write_text(json.dumps(answer) + "\n")


def main() -> None:
    PIPES.mkdir(exist_ok=True)
    for name in ("told", "asked"):
        with suppress(FileExistsError):
            os.mkfifo(PIPES / name)
    plugin = Plugin()
    importlib.import_module("pyroute2")  # seconds in an emulated machine, which are not to be those of a claim
    while True:
        tell(plugin.answer(json.loads((PIPES / "asked").read_text())))


if __name__ == "__main__":
    main()

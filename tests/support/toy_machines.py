"""Machines in memory: enough to test what is built on QEMU without one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from devalloc.api.virtual_machine import VirtualMachine, whole_cpus
from devalloc_machines.qemu.console import FILES, LogName
from devalloc_machines.qemu.pci import function_id
from devalloc_machines.qemu.records import PAUSED_ON_REQUEST, MachineAmounts, MachineView, State
from devalloc_machines.qemu.spec import EmulatedDevice, MachineSpec, RateLimits, spec_of
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.model.step import ATTACHMENT, PluggedDevice, Prepared, Step, Value


@dataclass
class ToyMachines:
    """Keeps every rule of ``MachineLifecycle``; ``fail`` and ``refuse`` make things go wrong."""

    views: dict[str, MachineView] = field(default_factory=dict)
    devices: dict[str, Value] = field(default_factory=dict)
    """By ``machine/id`` what is plugged in, as QEMU would tell."""
    fail: set[str] = field(default_factory=set)
    """Calls that fail (``start``), and targets that cannot be plugged in."""
    refuse: dict[str, Exception] = field(default_factory=dict)
    """What calls raise: all (``stop``), or those of one machine (``stop default/web``)."""
    no_window: set[str] = field(default_factory=set)
    """Devices for which no guest has addresses, by ``pool/device``."""
    fixed: dict[str, str | None] = field(default_factory=dict)
    """What keeps machines on this node, by key."""
    stubborn: set[str] = field(default_factory=set)
    """Machines whose guest refuses everything."""
    calls: list[str] = field(default_factory=list)
    patience: dict[str, float | None] = field(default_factory=dict)
    """Seconds that guests were given to power down."""
    given: dict[str, float] = field(default_factory=dict)
    """Seconds that there were for starts."""
    as_seen: set[str] = field(default_factory=set)
    """Machines that are said to run as they did."""
    glances: list[str] = field(default_factory=list)
    unenforced: Sequence[str] = ()
    """What is reported of rates that are not enforced."""
    files: int = 0
    """Another number: files of the host have changed."""
    remains: set[str] = field(default_factory=set)
    """Machines of which nothing is known, but that have left something."""
    slots: int = 4
    forgotten: dict[str, MachineView] = field(default_factory=dict)
    """Machines that live and that nothing is known of."""
    touched: Callable[[], None] = lambda: None
    """Called before each change of QEMU, and before its answer gets back; may raise."""
    stopping: Callable[[], object] = lambda: None
    """Called while a guest powers down."""
    mutex: threading.RLock = field(default_factory=threading.RLock)
    consoles: dict[str, socket.socket] = field(default_factory=dict)
    """The guests' ends of consoles, by key."""
    logs: Path = Path("/nonexistent")
    """The folder of the logs of all machines."""

    def list(self) -> Sequence[MachineView]:
        return list(self.views.values())

    def get(self, key: str) -> MachineView | None:
        return self.views.get(key)

    def owner(self, key: str) -> str | None:
        return self.views[key].uid if key in self.views else None

    def owners(self) -> Mapping[str, str]:
        return {key: machine.uid for key, machine in self.views.items()}

    def is_as_seen(self, key: str) -> bool:
        self.glances.append(key)
        return key in self.as_seen

    @contextmanager
    def open_console(self, key: str) -> Iterator[socket.socket]:
        if key in self.consoles:
            raise Denied("ConsoleInUse", f"another program has the console of machine {key} open")
        guest, caller = socket.socketpair()
        caller.setblocking(False)
        self.consoles[key] = guest
        try:
            with caller:
                yield caller
        finally:
            self.consoles.pop(key).close()

    def log_file(self, key: str, log: LogName) -> Path:
        return self.logs / FILES[log]

    def pause(self, key: str, deadline: Deadline) -> None:
        self._check("pause", key)
        paused = "its CPUs stand still, as its spec.paused says"
        self.views[key] = replace(self.views[key], state=State.HALTED, reason=PAUSED_ON_REQUEST, message=paused)

    def host_files(self, spec: MachineSpec) -> Hashable:
        return self.files

    def why_not_movable(self, key: str) -> str | None:
        return self.fixed.get(key, "")

    def guest_addresses(self, key: str) -> Mapping[str, str]:
        ids = [target.partition(f"{key}/")[2] for target in self.devices if target.startswith(f"{key}/")]
        return {function_id(name, 0): f"0000:{bus:02x}:00.0" for bus, name in enumerate(ids, 1)}

    def start(self, machine: VirtualMachine, deadline: Deadline, *, as_it_was: bool = False) -> None:
        key = self._check("start", "/".join(machine.key))
        self.given[key] = deadline.seconds
        there = self.views.get(key)
        if there is None or not there.runs:
            new = self._new(machine, is_paused=True)
            if as_it_was and there is not None:
                new = replace(new, wanted=there.wanted, applied=there.wanted, observed=there.wanted)
            self.views[key] = new

    def lost(self, key: str) -> MachineView | None:
        return self.forgotten.get(key)

    def all_lost(self) -> Sequence[MachineView]:
        return [replace(lost, state=State.LOST, reason="MachineLost") for lost in self.forgotten.values()]

    def take_up(self, key: str, machine: VirtualMachine | None, run: str, deadline: Deadline) -> None:
        there = self.forgotten.get(key)
        if there is not None:
            if machine is None or there.id != run:
                raise Denied("MachineRuns", f"machine {key} runs, and is not {run}", retryable=True)
            self.views[self._check("take_up", key)] = self.forgotten.pop(key)

    def resume(self, key: str, deadline: Deadline) -> None:
        self._check("resume", key)
        self.views[key] = replace(self.views[key], state=State.RUNNING, reason="", message="")

    def finish_start(self, key: str, deadline: Deadline) -> bool:
        return False  # the CPUs of one that is paused never ran

    def adopt(self, machine: VirtualMachine, deadline: Deadline) -> None:
        key = self._check("adopt", "/".join(machine.key))
        if key not in self.views:
            self.views[key] = replace(self._new(machine, is_paused=False), adopted=True)

    def stop(self, key: str, seconds: float | None, force: bool, deadline: Deadline) -> None:
        self._check("stop", key)
        self.stopping()
        self.patience[key] = seconds
        if key in self.stubborn and not force:
            raise Denied("GuestRefused", f"the guest of machine {key} does not power down", retryable=True)
        self.end(key)
        self.views[key] = replace(self.views[key], reason="StoppedOnRequest", message="it was stopped on request")

    def finish(self, key: str, run: str, message: str, deadline: Deadline) -> bool:
        self._check("finish", key)
        if not self.views[key].runs or self.views[key].id != run:
            return False
        self.end(key)
        self.views[key] = replace(self.views[key], reason="GuestFinished", message=message)
        return True

    def undo_start(self, key: str, deadline: Deadline) -> None:
        self._check("undo_start", key)
        self.end(key)
        self.views[key] = replace(self.views[key], state=State.FAILED)

    def forget(self, key: str, deadline: Deadline) -> None:
        self._check("forget", key)
        del self.views[key]

    def remove_remains(self, key: str, deadline: Deadline) -> None:
        self.remains.discard(key)

    def limit_rates(self, key: str, wanted: RateLimits, deadline: Deadline) -> Sequence[str]:
        if wanted != self.views[key].rates:
            self._check("limit_rates", key)
            self.views[key] = replace(self.views[key], rates=wanted)
        return self.unenforced

    def scale(self, key: str, what: str, amount: int, deadline: Deadline) -> None:
        self._check("scale", key)
        name = {"vcpus": "vcpus", "cpu": "cpu_milli", "memory": "memory_bytes"}[what]
        machine = self.views[key]
        self.views[key] = machine = replace(machine, wanted=replace(machine.wanted, **{name: amount}))
        if key in self.stubborn:
            raise Denied("GuestRefused", f"the guest of machine {key} keeps its {what}", retryable=True)
        observed = machine.observed
        if what == "vcpus" and observed.cpu_milli == (observed.vcpus or 0) * 1000:  # bounded by being so many
            observed = replace(observed, cpu_milli=amount * 1000)
        self.views[key] = replace(machine, observed=replace(observed, **{name: amount}))

    def plug_in(self, key: str, device: EmulatedDevice, deadline: Deadline) -> EmulatedDevice:
        self._check("plug_in", key)
        others = [each for each in self.views[key].plain if each.name != device.name]
        self.views[key] = replace(self.views[key], plain=(*others, device))
        return device

    def unplug(self, key: str, name: str, deadline: Deadline) -> bool:
        self._check("unplug", key)
        left = tuple(each for each in self.views[key].plain if each.name != name)
        unplugged = left != self.views[key].plain
        if unplugged and key in self.stubborn:
            raise Denied("GuestRefused", f"machine {key}: the guest refuses to let {name} go", retryable=True)
        self.views[key] = replace(self.views[key], plain=left)
        return unplugged

    def attachments(self, key: str, prepared: Prepared, deadline: Deadline) -> Sequence[tuple[str, Step]]:
        used = [name for name in self.devices if name.startswith(f"{key}/")]
        new = [device for device in prepared.devices if not device.admin]
        steps = []
        for device in new:
            name = f"{device.pool}/{device.device}"
            target = f"{key}/{prepared.ref.uid}-{device.pool}-{device.device}"
            steps.append((name, Step(ATTACHMENT, target, None, {"functions": [device.functions[0]], "device": name})))
        free = self.slots - len(set(used) - {step.target for _, step in steps})
        if len(steps) > free:
            raise Denied("NoFreePciSlot", f"machine {key} has {free} free PCI slots for {len(steps)} devices")
        return steps

    def is_in(self, plug: PluggedDevice) -> bool:
        return plug.step.target in self.devices

    def end(self, key: str) -> None:
        """QEMU is gone, and with it what was plugged in."""
        with self.mutex:
            self.views[key] = replace(self.views[key], state=State.STOPPED, pid=0, plain=())
            for name in [name for name in self.devices if name.startswith(f"{key}/")]:
                del self.devices[name]

    def _check(self, call: str, key: str) -> str:
        self.touched()
        self.calls.append(f"{call} {key}")
        for each in (call, f"{call} {key}"):
            if each in self.refuse:
                raise self.refuse[each]
        if call in self.fail:
            raise Failed("QemuFailed", f"QEMU of machine {key} cannot {call}")
        return key

    def _new(self, machine: VirtualMachine, *, is_paused: bool) -> MachineView:
        spec = machine.spec
        have = MachineAmounts(
            spec.cpu.wanted.nano // 10**6, whole_cpus(spec.cpu.wanted), spec.memory.wanted.nano // 10**9
        )
        return MachineView(
            key="/".join(machine.key),
            uid=machine.metadata.uid or "",
            state=State.CUT_OFF if is_paused else State.RUNNING,
            wanted=have,
            applied=have,
            observed=have,
            pid=4242 + len(self.calls),
            id=f"run-{len(self.calls)}",
            started=spec_of(machine),
            rates=spec_of(machine).rates,
            created_as=machine,
        )


@dataclass
class ToyMachineAttachment:
    """The kind of step that plugs a device into a toy machine."""

    machines: ToyMachines

    def read(self, target: str) -> Value:
        return self.machines.devices.get(target)

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        self.machines.touched()
        self._apply(target, value)
        self.machines.touched()

    def _apply(self, target: str, value: Value) -> None:
        key = target.rpartition("/")[0]
        with self.machines.mutex:
            machine = self.machines.views.get(key)
            if value is None:
                if target in self.machines.devices and key in self.machines.stubborn:
                    raise Denied("GuestRefused", f"machine {key}: the guest refuses to let it go", retryable=True)
                self.machines.devices.pop(target, None)
                return
            if machine is None or not machine.runs:
                raise Denied("MachineNotRunning", f"machine {key} does not run")
            if value["device"] in self.machines.no_window:
                self.machines.calls.append(f"no window {value['device']}")
                raise Denied("NoPciWindow", f"machine {key}: its guest has no addresses for {value['device']}")
            if target in self.machines.fail or value["device"] in self.machines.fail:
                raise Failed("QemuRefused", f"QEMU of machine {key} refuses {value['device']}")
            self.machines.devices[target] = value

    def force(self, target: str, value: Value, deadline: Deadline) -> None:
        key = target.rpartition("/")[0]
        if key in self.machines.stubborn and target in self.machines.devices:
            self.machines.end(key)
        self.apply(target, value, deadline)


def vm(name: str = "web", *claims: str, uid: str | None = None, namespace: str = "default", **spec: Any) -> Any:
    """A VirtualMachine as a manifest."""
    metadata = {"name": name, "namespace": namespace} | ({} if uid is None else {"uid": uid})
    content = {
        "nodeName": "node-a",
        "cpu": {"min": 1, "max": 4, "use": 2},
        "memory": {"min": "512Mi", "max": "2Gi", "use": "1Gi"},
        "start": {"kernel": "/images/vmlinuz", "append": "console=ttyS0"},
        **spec,
    }
    if "adopt" in spec:
        del content["start"]
    if claims:
        content["claims"] = list(claims)
    return {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachine", "metadata": metadata, "spec": content}


def machine_of(manifest: Any) -> VirtualMachine:
    return VirtualMachine.model_validate(manifest)

"""A machine that waits in its setup: QEMU is up, its CPUs have never run, its network card is on the setup's TAP."""

from __future__ import annotations

import errno
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from devalloc.api.decode import decode
from devalloc.api.manifests import load
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.settings import BadSetting
from devalloc_machines.qemu import confinement, launch, machine_files, preflight
from devalloc_machines.qemu.process import Process, kill, wait
from devalloc_machines.qemu.qmp import Monitor, QmpMonitor, SocketPeer, run_state
from devalloc_machines.qemu.records import MachineRecord
from devalloc_machines.qemu.registry import PAUSED
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import MachineSandbox, MachineSpec, Nic, machine_id, spec_of, with_address
from devalloc_machines.warm.setup import Setup, SetupPart
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError

_NAMESPACE = "warm"
_ASK_SECONDS = 2.0
_END_SECONDS = 5.0
_POLL_SECONDS = 0.01


def check_template(machine: VirtualMachine) -> None:
    """Whether many machines like this one can wait. Raises Denied ``WarmMachineInvalid``."""
    spec = spec_of(machine)
    for wrong, why in (
        (bool(spec.claims), "it has claims, whose devices only one machine can use; attach them later"),
        (spec.adopt is not None, "it runs already (adopt)"),
        (
            any(not disk.read_only for disk in spec.disks),
            "it has a disk that is not read-only and would be shared with other setups",
        ),
        (spec.tpm, "it has a TPM, whose content belongs to one machine; create such machines when they are needed"),
        (spec.wants_sandbox, "it has a card with backend warm; the setup adds its own card"),
        (any(nic.interface for nic in spec.nics), "it has a TAP interface of the host; the setup adds its own"),
    ):
        if wrong:
            raise Denied("WarmMachineInvalid", f"{spec.key} cannot wait in warm setups: {why}")


def read_template(file: Path, node: str, note: Callable[[str], None]) -> VirtualMachine:
    """The machine that waits in each setup. ``note``: gets warnings. Raises BadSetting."""
    manifests = load([str(file)])
    decoded = [decode(each.content) for each in manifests.documents]
    problems = [*manifests.problems]
    for document, one in zip(manifests.documents, decoded, strict=True):
        problems += map(document.place, one.problems)
    for problem in problems:
        note(f"error: {problem}" if problem.is_error else str(problem))
    objects = [each.object for each in decoded if each.object is not None]
    machine = objects[0] if len(objects) == 1 else None
    if not isinstance(machine, VirtualMachine):
        raise BadSetting("--warm-machine", f": {file} must contain one VirtualMachine, and nothing else")
    try:
        check_template(machine)
    except Denied as error:
        raise BadSetting("--warm-machine", f": {error.message}") from None
    for ignored, field, why in (
        (machine.spec.scaling is not None, "scaling", "the machine that adopts it sets that"),
        (not machine.spec.running, "running", "it is paused until its owner runs it"),
        (machine.spec.node_name not in (None, node), "nodeName", f"it is on this node, {node}"),
    ):
        if ignored:
            note(f"--warm-machine {file}: warning: spec.{field}: is ignored: {why}")
    return machine


@dataclass(frozen=True, slots=True)
class MachinePart(SetupPart):
    """As any machine's QEMU it has a session of its own and outlives the plugin, until its setup is removed."""

    config: MachineConfig
    """With folders for state and sockets that no other machines have."""
    template: VirtualMachine | None = None
    """What is started; None: nothing is, and what there is is removed."""
    name: str = "machine"

    def make(self, setup: Setup) -> Setup:
        if self.template is None:
            raise ValueError("warm setups here have no paused machine")
        spec = paused_spec(self.template, setup)
        due = Deadline.after(launch.seconds_to_answer(spec, self.config, spec.memory.use))
        if self.process(setup) is not None:
            raise FileExistsError(errno.EEXIST, "a machine with that name already runs", spec.key)
        record = MachineRecord(self.template.to_manifest(), "starting", str(uuid.uuid4()), setup.user)
        given = launch.LaunchOptions(record, preflight.choose_accelerator(self.config))
        launch.check(spec, self.config, given)
        launch.launch(spec, self.config, given, MachineSandbox(setup.namespace))
        with self._monitor(setup) as monitor:
            launch.await_monitor(spec, self.config, monitor, due)
        return replace(setup, qmp=self.config.folder(spec.id) / "qmp")

    def remove(self, setup: Setup) -> None:
        """Its QEMU is killed, as nothing of a guest is in it: it never ran, or its owner has ended it."""
        name = machine_id(_key(setup))
        # Of a plugin that was killed something may just be about to become QEMU. It cannot without its plan, and once
        # it has read that it locks the life file at once.
        self.config.plan(name).unlink(missing_ok=True)
        due = Deadline.after(_END_SECONDS)
        while True:
            if (process := self.process(setup)) is not None:
                kill(process, signal.SIGKILL)
                wait(process, due.seconds)
            try:
                launch.forget(name, self.config)
            except NodeError as error:
                raise OSError(errno.EBUSY, error.message) from error
            # While the kernel still ends a killed one, its folder and its cgroup look as if they were in use.
            if self.process(setup) is None and not self._remains(name):
                return
            if due.passed:
                raise OSError(errno.EBUSY, "its QEMU was killed but did not end", str(self.config.folder(name)))
            time.sleep(_POLL_SECONDS)

    def _remains(self, name: str) -> bool:
        group = self.config.group(name)
        return self.config.folder(name).exists() or confinement.exists(self.config.cgroups, group)

    def lives(self, setup: Setup) -> bool:
        """Its process: what it does is not asked, for its owner may talk to it."""
        with suppress(OSError):
            return self.process(setup) is not None
        return False

    def process(self, setup: Setup) -> Process | None:
        """Raises OSError if that cannot be told."""
        try:
            return machine_files.process_of(machine_id(_key(setup)), self.config)
        except NodeError as error:
            raise OSError(errno.EIO, error.message) from error

    def is_unused(self, setup: Setup) -> bool:
        """Whether its CPUs have never run. One that does not say so may be used."""
        try:
            with self._monitor(setup) as monitor:
                return run_state(monitor, Deadline.after(_ASK_SECONDS)) == PAUSED
        except (NodeError, LookupError, TypeError):
            return False

    def with_monitor(self, setup: Setup) -> Setup:
        """The setup with where its machine is asked."""
        return replace(setup, qmp=self.config.folder(machine_id(_key(setup))) / "qmp")

    @contextmanager
    def _monitor(self, setup: Setup) -> Iterator[Monitor]:
        """QEMU talks to one at a time: the line is given back at once."""

        def check(peer: SocketPeer) -> None:
            if setup.user is not None and peer.uid not in (setup.user, 0):
                raise Denied("SocketNotOurs", f"process {peer.pid} answers for the machine of setup {setup.id}")

        path = str(self.config.folder(machine_id(_key(setup))) / "qmp")
        line = QmpMonitor(_key(setup), path, command_seconds=self.config.command_seconds, check=check)
        try:
            yield line
        finally:
            line.close()


def paused_spec(template: VirtualMachine, setup: Setup) -> MachineSpec:
    """What is started in a setup."""
    spec = spec_of(template)
    nic = Nic(interface=setup.tap, mac=setup.mac, warm=True)
    spec = replace(spec, namespace=_NAMESPACE, name=setup.id, uid="", nics=(nic, *spec.nics))
    return with_address(spec, setup.network)


def _key(setup: Setup) -> str:
    return f"{_NAMESPACE}/{setup.id}"


def free_user(users: range, taken: set[int]) -> int:
    """One that no other setup has. Raises Failed ``NoFreeUser``."""
    free = next((user for user in users if user not in taken), None)
    if free is None:
        raise Failed("NoFreeUser", f"all {len(users)} user ids for warm setups are in use")
    return free

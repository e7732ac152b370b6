"""Starting a machine's QEMU so that it outlives the plugin, and ending it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.api.virtual_machine_migration import MigrationPlatform
from devalloc_machines.qemu import (
    allowed_paths,
    cloned_disks,
    confinement,
    firmware,
    guest_numa,
    machine_files,
    pci,
    preflight,
    seed_disk,
    spawn,
)
from devalloc_machines.qemu.command_line import (
    MACHINE_TYPE,
    MAX_QUEUES,
    StartContext,
    disk_fd,
    image_fd,
    qemu_arguments,
    tap_fd,
)
from devalloc_machines.qemu.confinement import QemuLimits, qemu_limits, seen_by_program
from devalloc_machines.qemu.machine_files import MAX_SOCKET_PATH
from devalloc_machines.qemu.process import Process, alive, kill, wait
from devalloc_machines.qemu.qmp import Monitor
from devalloc_machines.qemu.records import MachineRecord, content_of, record_of
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import (
    HOST_SANDBOX,
    MachineSandbox,
    MachineSpec,
    locking_seconds,
    machine_id,
    spec_of,
    whole_cpus,
    with_address,
)
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown

LOG = logging.getLogger(__name__)
GUESTS_UNIT = "devalloc-guests.service"
"""What asks guests to power down when the host does; it may not be there."""
_SOCKETS = ("qmp", "events", "console", "agent")
TLS_FOLDER = "tls"
"""Below a machine's folder: its keys and certificates, until QEMU has read them."""
_POLL_SECONDS = 0.05
_TAIL_BYTES = 2000
_ASK_SECONDS = 10.0
"""Between askings a guest to power down."""
_QUIT_SECONDS = 3.0
_KILL_SECONDS = 10.0
"""A process that is killed ends at once, unless the kernel is busy with a device of its own."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What a start is given."""

    record: MachineRecord
    """Of the run that begins."""
    accel: Literal["kvm", "tcg"]
    incoming: MigrationPlatform | None = None
    """What the machine is elsewhere, if it is to be received from there; None: it begins here."""


def memlock_needed(spec: MachineSpec, config: MachineConfig) -> int:
    """Bytes that the machine may have to lock: VFIO pins all memory it can ever have, and maps devices' registers.
    With an IOMMU in the guest each device pins for itself."""
    times = max(1, spec.pci_slots) if spec.iommu else 1
    return spec.memory.most * times + config.memlock_slack


def check(spec: MachineSpec, config: MachineConfig, given: LaunchOptions) -> None:
    """Whether it can be started, before anything of it is. Raises Denied."""
    _, files, _ = _resolved(spec, config, given)
    if _has_foreign_qemu(folder := config.folder(spec.id)):
        raise Denied(
            "MachineRuns",
            f"machine {spec.key} does not seem to run, but a process answers on a socket in {folder}: another plugin "
            "uses that folder (give each its own --machine-dir), or its life file was removed",
            retryable=True,
        )
    if spec.tpm:
        firmware.swtpm_binary(spec, config)
    cloned_disks.check(spec, config)
    for number, (path, writable) in files.items():
        own = (
            firmware.CODE_FD,
            firmware.VARIABLES_FD,
            *([] if spec.cloud_init is None else [disk_fd(len(spec.disks))]),
        )
        if given.incoming is not None and number in own:
            continue  # each node has its own
        with suppress(OSError):  # the error is reported when it is opened for the machine
            fd = spawn.open_checked(path, False)
            try:
                if given.incoming is None:
                    allowed_paths.check_image_free(fd, path, writable=writable)
                else:
                    allowed_paths.check_image_held(fd, path, writable=writable)
            finally:
                os.close(fd)
    preflight.check_host_limits(spec, given.accel)
    preflight.check_huge_pages(spec, 0, spec.memory.use)


def launch(
    spec: MachineSpec,
    config: MachineConfig,
    given: LaunchOptions,
    home: MachineSandbox = HOST_SANDBOX,
    deadline: Deadline | None = None,
) -> None:
    """Start QEMU, paused. It is up when its monitor greets (``await_monitor``). ``deadline``: of copying disks; those
    of a caller without one have no time for that.

    Raises Denied for what the spec may not name or the host has not; ``MachineRuns`` if it runs already. Raises
    Failed (``MachineDidNotStart``).
    """
    spec = with_address(spec, home.network)
    words, files, taps = _resolved(spec, config, given)
    folder = _folder(spec, config, given)
    if spec.firmware == "uefi":
        firmware.make_store(spec, config, firmware.firmware_files(spec, config))
    cloned_disks.make(spec, config, deadline or Deadline.after(0.0))
    seed_disk.make(spec, config)
    limits = qemu_limits(spec, given.accel, config.memory_slack, config.devices())
    groups: list[str] = []
    if not uses_systemd(config):
        name = config.group(spec.id)
        with suppress(Failed):  # without it only parts of a CPU are refused, and that when they are asked for
            groups.append(str(confinement.make_group(config.cgroups, name).procs))
        procs, missing = confinement.set_bounds(config.cgroups, name, limits)
        groups += (str(each) for each in procs if str(each) not in groups)
        pages = [each for each in missing if each.startswith(confinement.HUGE_PAGES)]
        if others := [each for each in missing if each not in pages]:
            _log_once(f"QEMU's use of this host is not fully limited: {'; '.join(others)}")
        if pages:
            _log_once(f"QEMU's use of huge pages is not limited: {pages[0]}")
    elif spec.huge_page_bytes:
        _log_once("QEMU's use of huge pages is not limited: systemd has no such limit for a service")
    opens = [words[index + 1] for index, word in enumerate(words) if word in ("-kernel", "-initrd")]
    plan = {
        "key": spec.key,
        "argv": words,
        "life": str(config.life(spec.id)),
        "folder": str(folder),
        "uid": given.record.user,
        # The group that may open /dev/kvm.
        "groups": [os.stat("/dev/kvm").st_gid] if given.accel == "kvm" and given.record.user is not None else [],
        "memlock": memlock_needed(spec, config),
        "cgroups": groups,
        "files": files,
        "taps": taps,
        "namespace": None if home.namespace is None else str(home.namespace),
        "inside": {tap_fd(number): nic.interface for number, nic in enumerate(spec.nics) if nic.warm},
        "cpus": home.cpus or preflight.cpus_of(*spec.host_nodes),
        "tpm": firmware.tpm_plan(spec, config, given.record.tpm_user) if spec.tpm else None,
        # One that runs as the plugin's own user is that user all the same, and root could undo it.
        "sees": [] if given.record.user is None else seen_by_program(words[0], opens, folder, config.visible),
        "record": content_of(given.record),  # for a plugin that has lost the journal (``record_at_launch``)
    }
    file = config.plan(spec.id)
    with open(file, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        json.dump(plan, out)
    before = _life_text(spec, config)
    _spawn(spec, config, file, limits)
    if uses_systemd(config):
        _await_begin(spec, config, before)
    if plan["sees"] and not _is_confined(spec, config):
        _log_once(f"QEMU can read every file that its user may: the kernel refuses to confine it ({folder}/qemu.log)")


def read_plan(machine_id: str, config: MachineConfig) -> Mapping[str, Any]:
    """Read the start plan of a machine that lives. Raises OSError, ValueError."""
    plan = json.loads(config.plan(machine_id).read_bytes())
    if not isinstance(plan, dict):
        raise ValueError("it is not an object")
    return plan


def record_at_launch(machine: VirtualMachine, config: MachineConfig) -> MachineRecord | None:
    """The record of a machine that lives as it was when its QEMU was started, by its start plan; None if that cannot
    be read. ``machine``: its object as it is now.

    A migration by which it came is over, and what was done to its vCPUs since is not known.
    """
    key = "/".join(machine.key)
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, Failed):
        plan = read_plan(machine_id(key), config)
        record = record_of(key, plan["record"] if "record" in plan else _earlier_content(plan, machine))
        if record.spec.uid != (machine.metadata.uid or ""):  # the store was restored, with new UIDs
            record = replace(record, manifest=machine.to_manifest())
        return replace(record, migration=None, cpus_left=None)
    return None


def _earlier_content(plan: Mapping[str, Any], machine: VirtualMachine) -> dict[str, Any]:
    """Read what a plan without a record, as versions before 0.2.0 wrote it, says of one."""
    spec, cpus, tpm = spec_of(machine), plan.get("cpus") or (), plan.get("tpm") or {}
    is_pinned = spec.pinned and len(cpus) == whole_cpus(spec.cpus.most)  # else they are those of a NUMA node
    words = plan["argv"]
    members = {name: plan[name] for name in ("numa_cells", "node_ports", "firmware") if name in plan}
    return {
        **members,
        "manifest": machine.to_manifest(),
        "state": "running",
        "run": words[words.index("-uuid") + 1],
        "user": plan["uid"],
        "tpm_user": tpm.get("uid"),
        "cpus": cpus if is_pinned else (),
    }


def _is_confined(spec: MachineSpec, config: MachineConfig) -> bool:
    """Whether it has files of its own to see. In doubt, as when it has ended already, yes."""
    with suppress(NodeError, OSError):
        if (process := machine_files.process_of(spec.id, config)) is not None:
            return os.readlink(f"/proc/{process.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
    return True


_logged_once: set[str] = set()


def _log_once(what: str) -> None:
    """Of a host, whatever machine it was noticed with."""
    if (about := what.partition(":")[0]) not in _logged_once:
        _logged_once.add(about)
        LOG.warning("%s", what)


def _life_text(spec: MachineSpec, config: MachineConfig) -> str:
    try:
        return config.life(spec.id).read_text()
    except FileNotFoundError:
        return ""


def _await_begin(spec: MachineSpec, config: MachineConfig, before: str) -> None:
    """Wait until the program ``spawn`` says which process it is: systemd comes back when that is only just loaded."""
    due = Deadline.after(config.start_seconds)
    while (now := _life_text(spec, config)) == before or not now.endswith("\n"):
        if due.passed:
            raise Unknown("MachineUnclear", f"systemd did not start machine {spec.key} yet; see {config.unit(spec.id)}")
        time.sleep(_POLL_SECONDS)


def uses_systemd(config: MachineConfig) -> bool:
    return Path("/run/systemd/system").is_dir() if config.systemd is None else config.systemd


def spawn_words(spec: MachineSpec, config: MachineConfig, plan: Path, limits: QemuLimits) -> list[str]:
    """The command that starts the program ``spawn``: a session of its own, or a service of systemd."""
    words = [sys.executable, "-I", str(Path(spawn.__file__).resolve()), str(plan)]
    if not uses_systemd(config):
        return [*words, "--detach"]
    service = ["systemd-run", "--quiet", "--collect", "--no-ask-password", f"--unit={config.unit(spec.id)}"]
    service += [f"--description=devalloc machine {spec.key}", "--service-type=exec", "--slice=devalloc-machines.slice"]
    # The limits are set by spawn, which may run as root here.
    service += ["--property=KillMode=mixed", "--property=LimitMEMLOCK=infinity"]
    service += [f"--property=TasksMax={limits.tasks}", f"--property=MemoryMax={limits.memory}"]
    service += [f"--property=Before={GUESTS_UNIT}"]  # what starts later is stopped earlier
    return [*service, "--", *words]


def grow_memory_limit(spec: MachineSpec, config: MachineConfig, pid: int) -> None:
    """Before a device is plugged in: it may be larger than all that the host had when the machine was started."""
    file = confinement.memory_bound(config.cgroups, pid, config.group(spec.id), config.unit(spec.id))
    if file is None:
        return
    least = qemu_limits(spec, "kvm", config.memory_slack, config.devices()).memory
    try:
        if not confinement.raise_memory_bound(file, least):
            return
        if uses_systemd(config):  # or its next reload would set the old one
            words = ["systemctl", "set-property", "--runtime", config.unit(spec.id), f"MemoryMax={least}"]
            subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=5.0, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        LOG.warning("machine %s: its memory limit stays as it is: %s", spec.key, error)


def seconds_to_answer(spec: MachineSpec, config: MachineConfig, memory: int) -> float:
    """How long a QEMU that was just started, with so many bytes of memory, may take: it clears huge pages before."""
    return config.start_seconds + (locking_seconds(memory) if spec.huge_page_bytes else 0.0)


def await_monitor(spec: MachineSpec, config: MachineConfig, monitor: Monitor, deadline: Deadline) -> None:
    """Wait until QEMU of a machine that was just started answers.

    Raises Failed (``MachineDidNotStart``) with QEMU's last words if it ended, not retryable if they say that no
    such machine can be; Unknown if it does not answer.
    """
    while True:
        try:
            monitor.execute("query-status", deadline=deadline)
            return
        except NodeError as error:
            if machine_files.process_of(spec.id, config) is None:
                words = machine_files.last_words(config, spec.id) or "QEMU ended without a message"
                raise Failed(
                    "MachineDidNotStart",
                    f"machine {spec.key} did not start: {words}",
                    retryable=not preflight.is_permanent_failure(words),
                ) from None
            if isinstance(error, Denied) or deadline.passed:
                raise
        time.sleep(min(_POLL_SECONDS, deadline.seconds))


def power_down(monitor: Monitor, qemu: Process, seconds: float, deadline: Deadline) -> bool:
    """Ask the guest to power down, and whether it has within ``seconds``. A QEMU that hangs has not.

    It is asked again and again: one that is booting does not hear the first time, and would be ended in the end.
    """
    due = deadline.capped(seconds)
    while not due.passed:
        with suppress(NodeError):
            monitor.execute("system_powerdown", deadline=due.capped(2.0))
        if wait(qemu, due.capped(_ASK_SECONDS).seconds):
            return True
    return False


def end(monitor: Monitor, machine: str, qemu: Process) -> str:
    """End QEMU: ask it to quit, then kill it. Returns which of these ended it.

    Raises Unknown if even a kill does not end it: the kernel holds it.
    """
    if not alive(qemu):
        return "powered down"
    with suppress(NodeError):  # its answer is often lost with it
        monitor.execute("quit", deadline=Deadline.after(2.0))
    monitor.close()
    if wait(qemu, _QUIT_SECONDS):
        return "ended"
    kill(qemu, signal.SIGKILL)
    if wait(qemu, _KILL_SECONDS):
        return "killed"
    raise Unknown("MachineUnkillable", f"machine {machine} (process {qemu.pid}) was killed but did not end")


def clean(machine_id: str, config: MachineConfig) -> None:
    """Remove what a machine that has ended leaves on the host: its sockets, keys, plan, cgroup. Logs stay."""
    folder = config.folder(machine_id)
    sockets = () if _has_foreign_qemu(folder) else [folder / name for name in (*_SOCKETS, TLS_FOLDER)]
    for path in (config.plan(machine_id), *sockets):
        try:
            _remove(path)
        except OSError as error:
            LOG.warning("machine %s: cannot remove %s: %s", machine_id, path, error)
    with suppress(Failed):
        firmware.await_tpm_end(machine_id, config)  # it is in the same cgroups
    with suppress(Failed):
        confinement.remove(confinement.make_group(config.cgroups, config.group(machine_id)))
    confinement.remove_bounds(config.cgroups, config.group(machine_id))


def _remove(path: Path) -> None:
    """Of a machine's folder, in which a QEMU that was taken over may have made anything. Raises OSError."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        shutil.rmtree(path)


def forget(machine_id: str, config: MachineConfig) -> None:
    """Remove all of a machine that has ended, its logs, variables, TPM and own disks too. Raises Failed."""
    clean(machine_id, config)
    firmware.remove(machine_id, config)
    machine_files.remove_folder(config.disks(machine_id))
    config.seed(machine_id).unlink(missing_ok=True)
    config.life(machine_id).unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        if not _has_foreign_qemu(config.folder(machine_id)):
            shutil.rmtree(config.folder(machine_id))


def _has_foreign_qemu(folder: Path) -> bool:
    """Whether another QEMU listens in a folder whose own machine does not run."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(folder / "console"))  # and not its monitor, whose client would be disturbed
        except BlockingIOError:  # others wait there
            return True
        except OSError:
            return False
    return True


def _resolved(
    spec: MachineSpec, config: MachineConfig, given: LaunchOptions
) -> tuple[list[str], dict[int, tuple[str, bool]], dict[int, str]]:
    """The command line, and the files and TAP interfaces of the host that QEMU inherits, by descriptor."""
    binary = shutil.which(config.binary)
    if binary is None:
        if "KUBERNETES_SERVICE_HOST" in os.environ:  # kubelet sets it in each container
            advice = (
                "the plugin's pod has no QEMU by design: label the node devalloc.io/publish=host and run the plugin as "
                "a service of the host (docs/install.md)"
            )
        else:
            advice = "install qemu-system-x86 (Debian, Ubuntu), or set the path of QEMU (--qemu)"
        raise Denied("QemuMissing", f"there is no program {config.binary}; {advice}")
    qmp = str(config.folder(spec.id) / "console")
    if len(qmp.encode()) > MAX_SOCKET_PATH:
        raise Denied("PathTooLong", f"{qmp} is longer than a socket's path can be ({MAX_SOCKET_PATH} bytes)")
    kernel, initrd = (
        None if path is None else str(allowed_paths.boot_image(path, config.folders, spec.namespace, what))
        for path, what in ((spec.kernel, "kernel"), (spec.initrd, "initrd"))
    )
    uefi = firmware.firmware_files(spec, config) if spec.firmware == "uefi" else None
    disks = [cloned_disks.image_of(disk, spec, config) for disk in spec.disks]
    bits, largest, node_ports = preflight.address_bits(given.accel), config.devices(), given.record.node_ports
    if given.incoming is None:
        reserves = pci.port_reserves(spec, largest, bits, node_ports)
        distances = guest_numa.read_distances(spec.numa_cells, preflight.NODES)
    else:
        reserves = tuple(pci.WindowReserve(one.prefetchable, one.memory) for one in given.incoming.root_ports)
        distances = guest_numa.rows_of(given.incoming.distances)
    start = StartContext(
        binary=binary,
        accel=given.accel,
        uuid=given.record.run,
        kernel=kernel,
        initrd=initrd,
        block_disks=frozenset(n for n, path in enumerate(disks) if stat.S_ISBLK(path.stat().st_mode)),
        user_net=config.user_net,
        machine_type=given.incoming.machine_type if given.incoming else MACHINE_TYPE,
        is_incoming=given.incoming is not None,
        reserves=reserves,
        node_ports=node_ports,
        aperture=pci.uefi_aperture(spec, reserves, largest, bits, node_ports),
        queues=_queues(spec, given.incoming),
        distances=distances,
    )
    files, own = {}, cloned_disks.folder_of(spec.id, config)
    for number, (disk, path) in enumerate(zip(spec.disks, disks, strict=True)):
        if disk.clone == "overlay":
            files[image_fd(number)] = (str(path), False)
        image = path if disk.clone is None else cloned_disks.clone_path(disk, own)
        files[disk_fd(number)] = (str(image), not disk.read_only)
    if spec.cloud_init is not None:
        files[disk_fd(len(spec.disks))] = (str(config.seed(spec.id)), False)
    taps: dict[int, str] = {}
    for number, nic in enumerate(spec.nics):
        if nic.interface is not None and not nic.warm:  # one in another namespace cannot be seen from here
            interface = allowed_paths.checked_tap(nic.interface, config.taps, spec.namespace)
            taps |= {tap_fd(number, queue): interface for queue in range(start.queues.get(number, 1))}
    if uefi is not None:
        files[firmware.CODE_FD] = (os.path.realpath(uefi.code), False)
        files[firmware.VARIABLES_FD] = (os.path.realpath(firmware.variable_store(spec, config)), True)
    return qemu_arguments(spec, start), files, taps


def queues_of_cards(spec: MachineSpec) -> dict[int, int]:
    """How many queues cards have whose TAP interfaces can have several, by the number of the card."""
    return {
        number: min(whole_cpus(spec.cpus.most), MAX_QUEUES)
        for number, nic in enumerate(spec.nics)
        if nic.interface and not nic.warm and nic.model == "virtio" and allowed_paths.has_queues(nic.interface)
    }


def _queues(spec: MachineSpec, incoming: MigrationPlatform | None) -> Mapping[int, int]:
    """The guest sees how many queues its cards have. Raises Denied (``TapDiffers``)."""
    here = queues_of_cards(spec)
    there = here if incoming is None else {one.nic: one.count for one in incoming.queues}
    if there == here:
        return here
    number = next(n for n in sorted({*here, *there}) if here.get(n) != there.get(n))
    raise Denied(
        "TapDiffers",
        f"nics[{number}] of machine {spec.key} has {there.get(number, 1)} queues on its node, and TAP "
        f"{spec.nics[number].interface} of this node gives it {here.get(number, 1)}: make both with multi_queue, or "
        "neither",
    )


def _folder(spec: MachineSpec, config: MachineConfig, given: LaunchOptions) -> Path:
    """The machine's folder, of its user alone, without what an earlier run left."""
    folder = config.folder(spec.id)
    try:
        config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        config.run.mkdir(parents=True, exist_ok=True, mode=0o711)
        folder.mkdir(exist_ok=True, mode=0o700)
        if folder.is_symlink():
            raise Denied("PathNotAllowed", f"{folder} is a link")
        _rotate_log(folder / "qemu.log")
        for name in (*_SOCKETS, "qemu.log"):
            _remove(folder / name)
        if (user := given.record.user) is not None:
            os.chown(folder, user, user, follow_symlinks=False)
            for left in folder.iterdir():
                os.chown(left, user, user, follow_symlinks=False)
    except OSError as error:
        raise Failed("MachineDidNotStart", f"cannot create the folder of machine {spec.key}: {error}") from None
    return folder


def _rotate_log(file: Path) -> None:
    """Keep what QEMU said in the last run in which it said anything, as ``qemu.log.1``. Raises OSError."""
    with suppress(FileNotFoundError):
        info = file.lstat()
        if stat.S_ISREG(info.st_mode) and info.st_size:
            before = file.with_name(f"{file.name}.1")
            _remove(before)
            file.rename(before)


def _spawn(spec: MachineSpec, config: MachineConfig, plan: Path, limits: QemuLimits) -> None:
    try:
        done = subprocess.run(
            spawn_words(spec, config, plan, limits),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=config.start_seconds,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise Unknown("MachineUnclear", f"machine {spec.key} is being started, and its progress is unknown") from None
    except OSError as error:
        raise Failed("MachineDidNotStart", f"cannot start machine {spec.key}: {error}") from None
    if done.returncode == spawn.LIVES:
        raise Denied("MachineRuns", f"machine {spec.key} already runs")
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip()[-_TAIL_BYTES:]
        raise Failed("MachineDidNotStart", f"machine {spec.key} did not start: {words}")

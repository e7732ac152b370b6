"""``devalloc vm``: machines on this node, through the node plugin's socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli.command import BadInput, CommandFailed, VerbGroup, parse_duration, verb
from devalloc.cli.documents import read_manifests
from devalloc.cli.node_client import (
    ask_for_each,
    claim_ref,
    connect_plugin,
    failure_message,
    force_option,
    grace_option,
    machine_ref,
    message_content,
    print_result,
    socket_option,
    timeout_option,
)
from devalloc.cli.options.common import (
    all_namespaces_option,
    files_option,
    namespace_option,
    option_of,
    output_option,
    passed_as,
)
from devalloc.cli.render.cells import format_cores, format_size
from devalloc.cli.render.host import (
    amounts_text,
    claim_names,
    full_name,
    is_bounded,
    machine_headers,
    machine_row,
    parse_bounds,
    parse_bytes,
    parse_milli,
    phase_text,
)
from devalloc.cli.render.output import GrowingTable, enum_text, print_content, print_objects, print_table
from devalloc.cli.terminal import print_line, print_note
from devalloc.cli.verbs.vm_devices import attach, detach, plug, unplug, unprepare
from devalloc.programs.node_options import PluginOptions, state_folders
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.net.unix_sockets import has_listener

if TYPE_CHECKING:
    from devalloc.cli.node_machines import ProcessUsage
    from devalloc.cli.render.output import Cell
    from devalloc_node.pb.node_pb2 import Machine, Result
    from devalloc_node.pb.node_pb2_grpc import NodeStub


@verb("power-down")
@option_of(PluginOptions, "state")
@option_of(PluginOptions, "machine_dir")
@socket_option
@click.option(
    "--timeout", type=parse_duration, default="90s", metavar="DURATION", help="Time limit for all guests together."
)
def power_down(state: Path | None, machine_dir: Path | None, socket: Path, timeout: float) -> int:
    """Ask the guests of all machines to power down, because the host does. Exit code 1 if one does not.

    The node plugin must not run, because it would start them again. When the host comes back, the machines start again
    by their restart policies. Adopted machines are left alone.

    \b
    devalloc vm power-down --timeout 2m
    """
    from devalloc_machines.qemu.exits import power_down_all
    from devalloc_machines.qemu.registry import MachineRegistry
    from devalloc_node.journal import open_journal

    home, run = state_folders(state, socket, machine_dir)
    if has_listener(socket):
        raise CommandFailed(f"the node plugin at {socket} is running and would start the machines again; stop it first")
    if not home.is_dir():
        return 0
    with closing(open_journal(home)) as journal:
        try:
            problems = power_down_all(
                MachineRegistry(MachineConfig(state=home / "machines", run=run), journal), Deadline.after(timeout)
            )
        except NodeError as error:
            raise CommandFailed(error.message) from error
    for name, problem in sorted(problems.items()):
        if problem:
            print_note(f"error: {name}: {problem}")
        else:
            print_line(f"{name} powered down")
    return 1 if any(problems.values()) else 0


HEADERS = (
    "NAME", "PHASE", "WANTED", "PERMITTED", "APPLIED", "OBSERVED", "GUEST", "LOAD", "CPU", "USED", "RSS", "REASON",
)  # fmt: skip
WIDE = ("DEVICES", "CLAIMS", "TAP", "PID")


@verb("top")
@namespace_option
@all_namespaces_option
@click.option("-w", "--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval",
    type=parse_duration,
    default="1s",
    metavar="DURATION",
    help="How long to measure CPU usage; with --watch also how often.",
)
@output_option("table", "wide", "json", "yaml")
@socket_option
def top(namespace: str, all_namespaces: bool, watch: bool, interval: float, output: str, socket: Path) -> int:
    """Show CPU and memory of machines: wanted, permitted, set, actual, and as the guest sees them.

    LOAD and USED are the load and memory usage that the guest of a scaled machine reports. CPU (percent of one core)
    and RSS are what its QEMU uses of the host; "-" if they cannot be read. REASON: why the machine does not have what
    it wants.

    \b
    devalloc vm top -A --watch
    devalloc vm top -o wide
    """
    from devalloc.cli.node_machines import show_usage

    return show_usage(None if all_namespaces else namespace, watch, interval, output, socket, _table)


def _table(machines: Sequence[Machine], uses: Mapping[int, ProcessUsage], wide: bool) -> None:
    rows = [[*_row(machine, uses.get(machine.pid)), *(_more(machine) if wide else ())] for machine in machines]
    print_table((*HEADERS, *(WIDE if wide else ())), rows, wide=wide)


def _more(machine: Machine) -> list[Cell]:
    return [
        ", ".join(each.name or f"{each.pool}/{each.device}" for each in machine.devices),
        ", ".join(claim_names(machine)),
        ", ".join(machine.taps),
        str(machine.pid or ""),
    ]


def _row(machine: Machine, use: ProcessUsage | None) -> list[Cell]:
    scaling = machine.scaling if machine.HasField("scaling") else None
    applied = machine.applied if scaling is None or not scaling.HasField("applied") else scaling.applied
    return [
        full_name(machine),
        phase_text(machine),
        amounts_text(machine.wanted),
        amounts_text(machine.permitted),
        amounts_text(applied),
        amounts_text(machine.observed),
        "-" if scaling is None else amounts_text(scaling.guest_observed),
        f"{scaling.load1:.2f}" if scaling is not None and scaling.HasField("load1") else "-",
        "-" if use is None else f"{use.cores * 100:.0f}%",
        format_size(scaling.memory_used_bytes)
        if scaling is not None and scaling.HasField("memory_used_bytes")
        else "-",
        "-" if use is None else format_size(use.rss_bytes),
        machine.reason or ("" if scaling is None else scaling.reason),
    ]


@click.group(
    "vm",
    cls=VerbGroup,
    other_words={"run": "create", "ls": "list", "describe": "get", "rm": "delete"},
    advice={
        "start": "start a machine with `devalloc start vm/NAME`, or `vm create` one from a manifest",
        **{
            name: f"write `devalloc {name} vm/NAME`"
            for name in ("restart", "pause", "resume", "migrate", "console", "logs")
        },
    },
)
def vm() -> None:
    """Start, adopt, scale and stop machines on this node, and plug devices of claims into them.

    These commands use the node plugin (`devalloc node`) on this machine. To change machines that have a VirtualMachine
    object in the store, use `devalloc apply`.
    """


@verb("list")
@namespace_option
@all_namespaces_option
@output_option()
@socket_option
@timeout_option
def list_machines(namespace: str, all_namespaces: bool, output: str, socket: Path, timeout: float) -> int:
    """List the plugin's machines. VCPUS and MEMORY show what QEMU reports, and what is wanted.

    \b
    devalloc vm list -A -o wide
    """
    from devalloc_node.pb.node_pb2 import ListMachinesRequest

    space = "" if all_namespaces else namespace
    with connect_plugin(socket) as node:
        listed = list(node.ListMachines(ListMachinesRequest(namespace=space), timeout=timeout).machines)
    _print(listed, output, namespaces=all_namespaces)
    if not listed and output in ("table", "wide"):
        print_note("no machines" + ("" if all_namespaces else f" in namespace {namespace} (-A shows all)"))
    return 0


@verb("get")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@namespace_option
@output_option()
@socket_option
@timeout_option
def get(names: tuple[str, ...], namespace: str, output: str, socket: Path, timeout: float) -> int:
    """Show machines by name. Exit code 1 if one of them does not exist.

    \b
    devalloc vm get web -o yaml
    """
    from devalloc_node.pb.node_pb2 import GetMachineRequest

    listed, missing = [], 0
    for name in names:
        try:
            with connect_plugin(socket) as node:
                request = GetMachineRequest(machine=machine_ref(name, namespace))
                listed.append(node.GetMachine(request, timeout=timeout))
        except BadInput:
            raise
        except CommandFailed as error:
            error.show()
            missing += 1
    if output in ("json", "yaml") and len(names) == 1 and listed:
        print_content(message_content(listed[0]), output)
    else:
        _print(listed, output, namespaces=False)
    return 1 if missing else 0


@verb("create")
@files_option(required=True, help="A file with VirtualMachines, a folder, or - for stdin. Repeatable.")
@namespace_option
@socket_option
@timeout_option
def create(files: tuple[str, ...], namespace: str, socket: Path, timeout: float) -> int:
    """Start the machines of manifests, or adopt those with spec.adopt, with all devices of their claims or not at all.

    The claims must be allocated on this node. The command writes nothing to the store: the node plugin keeps the
    machines, and restarts them by their restartPolicy. For machines that follow their manifests, use `devalloc apply`.

    \b
    devalloc vm create -f vm.yaml
    """
    from devalloc.cli import machine_requests

    documents = read_manifests(files, namespace)
    code = documents.exit_code
    machines = []
    for document in documents.good:
        if document.content["kind"] == "VirtualMachine":
            machines.append(document)
        else:
            print_note(
                f"error: {document.source}: `devalloc vm create` creates VirtualMachines only, not "
                f"{document.content['kind']}"
            )
            code = 2
    with connect_plugin(socket):
        pass  # if the plugin does not answer, report it only once
    for document in machines:
        manifest = document.content
        name = f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}"
        try:
            request = machine_requests.machine_request(manifest)
            with connect_plugin(socket) as node:
                ask = node.AdoptMachine if "adopt" in manifest["spec"] else node.CreateMachine
                result = ask(request, timeout=timeout).result
        except CommandFailed as error:
            print_note(f"error: {document.source}: machine {name}: {error.message}")
            code = max(code, error.exit_code)
        else:
            code = max(code, print_result(name, "adopted" if "adopt" in manifest["spec"] else "created", result))
    return code


@dataclass(frozen=True, slots=True)
class MachineBounds:
    """Between what amounts a machine is scaled, as a user writes them."""

    cpu: str
    memory: str
    slot_size: str | None


@verb("adopt")
@click.argument("name", metavar="NAME")
@click.option("--qmp-socket", type=click.Path(path_type=Path), required=True, help="The socket of QEMU's monitor.")
@click.option("--cpu", "cpu", required=True, metavar="MIN..MAX", help="Bounds of its cores, such as 1..4 or 500m..2.")
@click.option("--memory", required=True, metavar="MIN..MAX", help="Bounds of its memory, such as 512Mi..2Gi.")
@click.option("--slot-size", metavar="BYTES", help="Add memory in DIMMs of this size [default: with virtio-mem].")
@click.option("--claim", "claims", multiple=True, metavar="NAME", help="Plug in this claim's devices; repeatable.")
@namespace_option
@socket_option
@timeout_option
@passed_as("bounds", MachineBounds)
def adopt(
    name: str,
    qmp_socket: Path,
    bounds: MachineBounds,
    claims: tuple[str, ...],
    namespace: str,
    socket: Path,
    timeout: float,
) -> int:
    """Let the plugin manage a QEMU that already runs.

    \b
    devalloc vm adopt web --qmp-socket /run/vms/web.qmp --cpu 1..4 --memory 512Mi..2Gi
    """
    from devalloc_node.pb.node_pb2 import AdoptMachineRequest, CpuBounds, MemoryBounds

    least_cpu, most_cpu = parse_bounds(bounds.cpu, "cpu")
    least, most = parse_bounds(bounds.memory, "memory")
    request = AdoptMachineRequest(
        machine=machine_ref(name, namespace),
        qmp_socket=str(qmp_socket.absolute()),
        cpu=CpuBounds(min_milli=least_cpu, max_milli=most_cpu),
        memory=MemoryBounds(
            min_bytes=least,
            max_bytes=most,
            method="" if bounds.slot_size is None else "dimm",
            slot_size_bytes=0 if bounds.slot_size is None else parse_bytes(bounds.slot_size),
        ),
        claims=[claim_ref(claim, namespace) for claim in claims],
    )
    with connect_plugin(socket) as node:
        return print_result(name, "adopted", node.AdoptMachine(request, timeout=timeout).result)


@verb("stop")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@grace_option
@force_option
@namespace_option
@socket_option
@timeout_option
def stop(names: tuple[str, ...], grace: float | None, force: bool, namespace: str, socket: Path, timeout: float) -> int:
    """Ask guests to power down, and wait. Machines keep their claims until `devalloc vm delete`.

    \b
    devalloc vm stop web --grace 1m --force
    """
    from devalloc_node.pb.node_pb2 import StopMachineRequest

    def ask(node: NodeStub, name: str) -> tuple[str, Result]:
        request = StopMachineRequest(machine=machine_ref(name, namespace), grace_ms=_ms(grace), force=force)
        return "stopped", node.StopMachine(request, timeout=timeout + (grace or 0)).result

    return ask_for_each(names, socket, ask)


@verb("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@grace_option
@force_option
@namespace_option
@socket_option
@timeout_option
def delete(
    names: tuple[str, ...], grace: float | None, force: bool, namespace: str, socket: Path, timeout: float
) -> int:
    """Stop machines and release their claims' devices. An adopted machine keeps running, without the devices.

    \b
    devalloc vm delete web
    """
    from devalloc_node.pb.node_pb2 import DeleteMachineRequest

    def ask(node: NodeStub, name: str) -> tuple[str, Result]:
        request = DeleteMachineRequest(machine=machine_ref(name, namespace), grace_ms=_ms(grace), force=force)
        reply = node.DeleteMachine(request, timeout=timeout + (grace or 0))
        return "deleted" if reply.found else "does not exist", reply.result

    return ask_for_each(names, socket, ask)


@verb("scale")
@click.argument("name", metavar="NAME")
@click.option("--vcpus", type=click.IntRange(1, 1024), help="How many CPUs its guest sees.")
@click.option("--cpu", metavar="CORES", help="Maximum CPU time of all vCPUs together, such as 1500m; 0 for no limit.")
@click.option("--memory", metavar="BYTES", help="How much memory it has, such as 2Gi.")
@namespace_option
@output_option("table", "json", "yaml")
@socket_option
@timeout_option
def scale(
    name: str,
    vcpus: int | None,
    cpu: str | None,
    memory: str | None,
    namespace: str,
    output: str,
    socket: Path,
    timeout: float,
) -> int:
    """Change a running machine's CPU and memory, within its bounds. Prints what it has afterwards.

    \b
    devalloc vm scale web --vcpus 4 --memory 2Gi
    """
    from devalloc_node.pb.node_pb2 import ScaleMachineRequest

    if vcpus is None and cpu is None and memory is None:
        raise BadInput("give at least one of --vcpus, --cpu and --memory")
    request = ScaleMachineRequest(machine=machine_ref(name, namespace))
    if vcpus is not None:
        request.vcpus = vcpus
    if cpu is not None:
        request.cpu_milli = parse_milli(cpu)
    if memory is not None:
        request.memory_bytes = parse_bytes(memory)
    with connect_plugin(socket) as node:
        reply = node.ScaleMachine(request, timeout=timeout)
    if output != "table":
        print_content(message_content(reply), output)
        return 1 if failure_message(reply.result) else 0
    code = 0
    for field, what in (("vcpus", "vCPUs"), ("cpu", "CPU"), ("memory", "memory")):
        if reply.HasField(field) and (why := failure_message(getattr(reply, field))):
            print_note(f"error: {name}: {what}: {why}")
            code = 1
    if not code and (why := failure_message(reply.result)):
        print_note(f"error: {name}: {why}")
        code = 1
    seen, has = reply.observed, []
    if seen.HasField("vcpus"):
        has.append(f"{seen.vcpus} vCPU{'s' if seen.vcpus != 1 else ''}")
    if seen.HasField("cpu_milli") and (request.HasField("cpu_milli") or is_bounded(seen)):
        has.append(f"{format_cores(seen.cpu_milli)} of CPU")
    if seen.HasField("memory_bytes"):
        has.append(f"{format_size(seen.memory_bytes)} of memory")
    if has:
        print_line(f"{name} has {', '.join(has[:-1])}{' and ' if has[1:] else ''}{has[-1]}")
    return code


@verb("watch")
@namespace_option
@all_namespaces_option
@output_option("table", "wide", "json", "yaml")
@socket_option
def watch(namespace: str, all_namespaces: bool, output: str, socket: Path) -> int:
    """Show the machines, then every change, until Ctrl-C.

    \b
    devalloc vm watch -A
    """
    from devalloc_node.pb import node_pb2 as pb

    feed, wide = GrowingTable(), output == "wide"
    with connect_plugin(socket) as node:
        for event in node.WatchMachines(pb.WatchMachinesRequest(namespace="" if all_namespaces else namespace)):
            if event.change == pb.CHANGE_SYNCED:
                continue
            change = enum_text(pb.Change.DESCRIPTOR, event.change)
            if output in ("json", "yaml"):
                print_content({"change": change, "machine": message_content(event.machine)}, output)
                if output == "yaml":
                    print_line("---")
            else:
                row = machine_row(event.machine, wide=wide, namespaces=all_namespaces)
                feed.row(["CHANGE", *machine_headers(wide=wide)], [change, *row])
    return 0


_MACHINES = (list_machines, get, create, adopt, stop, delete, scale, top, watch, power_down)
for _verb in (*_MACHINES, attach, detach, plug, unplug, unprepare):
    vm.add_command(_verb)


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else max(1, round(seconds * 1000))


def _print(machines: Sequence[Machine], output: str, *, namespaces: bool) -> None:
    if output == "name":
        for machine in machines:
            print_line(full_name(machine))
    elif output in ("json", "yaml"):
        print_objects([message_content(machine) for machine in machines], output)
    elif machines:
        wide = output == "wide"
        cells = [machine_row(machine, wide=wide, namespaces=namespaces) for machine in machines]
        print_table(machine_headers(wide=wide), cells, wide=wide)

"""``devalloc vm``: machines on this node, through the node plugin's socket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli.nodesocket import force_option, said, socket_option, timeout_option
from devalloc.cli.options import all_namespaces_option, duration, files_option, namespace_option, output_option
from devalloc.cli.output import note
from devalloc.cli.verb import BadInput, Verbs, verb
from devalloc.cli.vmdevices import attach, detach, plug, unplug, unprepare
from devalloc.cli.vmpowerdown import power_down
from devalloc.cli.vmtop import top

if TYPE_CHECKING:
    from collections.abc import Sequence

    from devalloc_node.pb.node_pb2 import Machine


@click.group(
    "vm", cls=Verbs, other_words={"start": "create", "run": "create", "ls": "list", "describe": "get", "rm": "delete"}
)
def vm() -> None:
    """Machines on this node: start, adopt, scale and stop them, and plug the devices of claims into them.

    Asks the node plugin (`devalloc node`) on this machine. Machines that VirtualMachine objects of the store stand for
    are changed there, with `devalloc apply`.
    """


@verb("list")
@namespace_option
@all_namespaces_option
@output_option()
@socket_option
@timeout_option
def list_machines(namespace: str, all_namespaces: bool, output: str, socket: Path, timeout: float) -> int:
    """List the machines in the plugin's care. VCPUS and MEMORY are what QEMU reports, of what is wanted.

    \b
    devalloc vm list -A -o wide
    """
    from devalloc.cli.nodesocket import connected
    from devalloc_node.pb.node_pb2 import ListMachinesRequest

    space = "" if all_namespaces else namespace
    with connected(socket) as node:
        found = list(node.ListMachines(ListMachinesRequest(namespace=space), timeout=timeout).machines)
    _print(found, output, namespaces=all_namespaces)
    if not found and output in ("table", "wide"):
        note("no machines" + ("" if all_namespaces else f" in namespace {namespace} (-A shows all)"))
    return 0


@verb("get")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@namespace_option
@output_option()
@socket_option
@timeout_option
def get(names: tuple[str, ...], namespace: str, output: str, socket: Path, timeout: float) -> int:
    """Show machines by name. Exit code 1 when one of them does not exist.

    \b
    devalloc vm get web -o yaml
    """
    from devalloc.cli.nodesocket import connected, content, machine_ref
    from devalloc.cli.output import dump
    from devalloc.cli.verb import Failed
    from devalloc_node.pb.node_pb2 import GetMachineRequest

    found, missing = [], 0
    for name in names:
        try:
            with connected(socket) as node:
                request = GetMachineRequest(machine=machine_ref(name, namespace))
                found.append(node.GetMachine(request, timeout=timeout))
        except BadInput:
            raise
        except Failed as error:
            error.show()
            missing += 1
    if output in ("json", "yaml") and len(names) == 1 and found:
        dump(content(found[0]), output)
    else:
        _print(found, output, namespaces=False)
    return 1 if missing else 0


@verb("create")
@files_option(required=True, help="A file with VirtualMachines, a folder, or - for stdin; may be given several times.")
@namespace_option
@socket_option
@timeout_option
def create(files: tuple[str, ...], namespace: str, socket: Path, timeout: float) -> int:
    """Start the machines of manifests, or adopt those with spec.adopt, with all devices of their claims or not at all.

    The claims must be allocated on this node. Nothing is written to the store: the node plugin keeps the machines, and
    starts them again as their restartPolicy says. Those that shall follow their manifests are objects there (`devalloc
    apply`).

    \b
    devalloc vm create -f vm.yaml
    """
    from devalloc.cli import machinespecs
    from devalloc.cli.documents import read
    from devalloc.cli.nodesocket import connected
    from devalloc.cli.verb import Failed

    documents = read(files, namespace)
    code = documents.exit_code
    machines = []
    for document in documents.good:
        if document.content["kind"] == "VirtualMachine":
            machines.append(document)
        else:
            note(f"error: {document.source}: only VirtualMachines are created here, not {document.content['kind']}")
            code = 2
    with connected(socket):
        pass  # where nobody answers, that is said once
    for document in machines:
        manifest = document.content
        name = f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}"
        try:
            request = machinespecs.request_of(manifest)
            with connected(socket) as node:
                ask = node.AdoptMachine if "adopt" in manifest["spec"] else node.CreateMachine
                result = ask(request, timeout=timeout).result
        except Failed as error:
            note(f"error: {document.source}: machine {name}: {error.message}")
            code = max(code, error.exit_code)
        else:
            code = max(code, said(name, "adopted" if "adopt" in manifest["spec"] else "created", result))
    return code


@verb("adopt")
@click.argument("name", metavar="NAME")
@click.option("--qmp-socket", type=click.Path(path_type=Path), required=True, help="The socket of QEMU's monitor.")
@click.option("--cpu", "cpu", required=True, metavar="MIN..MAX", help="Bounds of its cores, such as 1..4 or 500m..2.")
@click.option("--memory", required=True, metavar="MIN..MAX", help="Bounds of its memory, such as 512Mi..2Gi.")
@click.option("--slot-size", metavar="BYTES", help="Its memory grows by DIMMs of this size; else by virtio-mem.")
@click.option("--claim", "claims", multiple=True, metavar="NAME", help="Plug in this claim's devices; repeatable.")
@namespace_option
@socket_option
@timeout_option
def adopt(
    name: str,
    qmp_socket: Path,
    cpu: str,
    memory: str,
    slot_size: str | None,
    claims: tuple[str, ...],
    namespace: str,
    socket: Path,
    timeout: float,
) -> int:
    """Take a QEMU that runs already into care.

    \b
    devalloc vm adopt web --qmp-socket /run/vms/web.qmp --cpu 1..4 --memory 512Mi..2Gi
    """
    from devalloc.cli.machines import bounds_of, bytes_of
    from devalloc.cli.nodesocket import claim_ref, connected, machine_ref
    from devalloc_node.pb.node_pb2 import AdoptMachineRequest, CpuBounds, MemoryBounds

    least_cpu, most_cpu = bounds_of(cpu, "cpu")
    least, most = bounds_of(memory, "memory")
    request = AdoptMachineRequest(
        machine=machine_ref(name, namespace),
        qmp_socket=str(qmp_socket.absolute()),
        cpu=CpuBounds(min_milli=least_cpu, max_milli=most_cpu),
        memory=MemoryBounds(
            min_bytes=least,
            max_bytes=most,
            method="" if slot_size is None else "dimm",
            slot_size_bytes=0 if slot_size is None else bytes_of(slot_size),
        ),
        claims=[claim_ref(claim, namespace) for claim in claims],
    )
    with connected(socket) as node:
        return said(name, "adopted", node.AdoptMachine(request, timeout=timeout).result)


@verb("stop")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--grace", type=duration, metavar="DURATION", help="How long its guest may take; its own by default.")
@force_option
@namespace_option
@socket_option
@timeout_option
def stop(names: tuple[str, ...], grace: float | None, force: bool, namespace: str, socket: Path, timeout: float) -> int:
    """Ask guests to power down, and wait. Machines keep their claims, which `devalloc vm delete` gives back.

    \b
    devalloc vm stop web --grace 1m --force
    """
    from devalloc.cli.nodesocket import connected, machine_ref
    from devalloc_node.pb.node_pb2 import StopMachineRequest

    code = 0
    with connected(socket) as node:
        for name in names:
            request = StopMachineRequest(machine=machine_ref(name, namespace), grace_ms=_ms(grace), force=force)
            code = max(code, said(name, "stopped", node.StopMachine(request, timeout=timeout + (grace or 0)).result))
    return code


@verb("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--grace", type=duration, metavar="DURATION", help="How long its guest may take; its own by default.")
@force_option
@namespace_option
@socket_option
@timeout_option
def delete(
    names: tuple[str, ...], grace: float | None, force: bool, namespace: str, socket: Path, timeout: float
) -> int:
    """Stop machines and give their claims' devices back. An adopted machine goes on running, without the devices.

    \b
    devalloc vm delete web
    """
    from devalloc.cli.nodesocket import connected, machine_ref
    from devalloc_node.pb.node_pb2 import DeleteMachineRequest

    code = 0
    with connected(socket) as node:
        for name in names:
            request = DeleteMachineRequest(machine=machine_ref(name, namespace), grace_ms=_ms(grace), force=force)
            reply = node.DeleteMachine(request, timeout=timeout + (grace or 0))
            code = max(code, said(name, "deleted" if reply.found else "is not there", reply.result))
    return code


@verb("scale")
@click.argument("name", metavar="NAME")
@click.option("--vcpus", type=click.IntRange(1, 1024), help="How many CPUs its guest sees.")
@click.option("--cpu", metavar="CORES", help="Most that they may use together, such as 1500m; 0 for no bound.")
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
    """Change how much CPU and memory a running machine has, within its bounds. Tells what it has then.

    \b
    devalloc vm scale web --vcpus 4 --memory 2Gi
    """
    from devalloc.cli.machines import bytes_of, cores, is_bounded, milli_of, size
    from devalloc.cli.nodesocket import connected, content, failure, machine_ref
    from devalloc.cli.output import dump
    from devalloc_node.pb.node_pb2 import ScaleMachineRequest

    if vcpus is None and cpu is None and memory is None:
        raise BadInput("say what to change: --vcpus, --cpu or --memory")
    request = ScaleMachineRequest(machine=machine_ref(name, namespace))
    if vcpus is not None:
        request.vcpus = vcpus
    if cpu is not None:
        request.cpu_milli = milli_of(cpu)
    if memory is not None:
        request.memory_bytes = bytes_of(memory)
    with connected(socket) as node:
        reply = node.ScaleMachine(request, timeout=timeout)
    if output != "table":
        dump(content(reply), output)
        return 1 if failure(reply.result) else 0
    code = 0
    for field, what in (("vcpus", "vCPUs"), ("cpu", "CPU"), ("memory", "memory")):
        if reply.HasField(field) and (why := failure(getattr(reply, field))):
            note(f"error: {name}: {what}: {why}")
            code = 1
    if not code and (why := failure(reply.result)):
        note(f"error: {name}: {why}")
        code = 1
    seen, has = reply.observed, []
    if seen.HasField("vcpus"):
        has.append(f"{seen.vcpus} vCPU{'s' if seen.vcpus != 1 else ''}")
    if seen.HasField("cpu_milli") and (request.HasField("cpu_milli") or is_bounded(seen)):
        has.append(f"{cores(seen.cpu_milli)} of CPU")
    if seen.HasField("memory_bytes"):
        has.append(f"{size(seen.memory_bytes)} of memory")
    if has:
        click.echo(f"{name} has {', '.join(has[:-1])}{' and ' if has[1:] else ''}{has[-1]}")
    return code


@verb("watch")
@namespace_option
@all_namespaces_option
@output_option("table", "wide", "json", "yaml")
@socket_option
def watch(namespace: str, all_namespaces: bool, output: str, socket: Path) -> int:
    """Show the machines, then each that changes, until Ctrl-C.

    \b
    devalloc vm watch -A
    """
    from devalloc.cli import machines
    from devalloc.cli.nodesocket import connected, content, word
    from devalloc.cli.output import Feed, dump
    from devalloc_node.pb import node_pb2 as pb

    feed, wide = Feed(), output == "wide"
    with connected(socket) as node:
        for event in node.WatchMachines(pb.WatchMachinesRequest(namespace="" if all_namespaces else namespace)):
            if event.change == pb.CHANGE_SYNCED:
                continue
            change = word(pb.Change.DESCRIPTOR, event.change)
            if output in ("json", "yaml"):
                dump({"change": change, "machine": content(event.machine)}, output)
                if output == "yaml":
                    click.echo("---")
            else:
                row = machines.row(event.machine, wide=wide, namespaces=all_namespaces)
                feed.row(["CHANGE", *machines.headers(wide=wide)], [change, *row])
    return 0


_MACHINES = (list_machines, get, create, adopt, stop, delete, scale, top, watch, power_down)
for _verb in (*_MACHINES, attach, detach, plug, unplug, unprepare):
    vm.add_command(_verb)


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else max(1, round(seconds * 1000))


def _print(machines: Sequence[Machine], output: str, *, namespaces: bool) -> None:
    from devalloc.cli import machines as rows
    from devalloc.cli.nodesocket import content
    from devalloc.cli.output import dump_objects, table

    if output == "name":
        for machine in machines:
            click.echo(rows.full_name(machine))
    elif output in ("json", "yaml"):
        dump_objects([content(machine) for machine in machines], output)
    elif machines:
        wide = output == "wide"
        cells = [rows.row(machine, wide=wide, namespaces=namespaces) for machine in machines]
        table(rows.headers(wide=wide), cells)

"""``devalloc vm``: machines on this node, through the node plugin's socket."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.node_client import (
    ask_for_each,
    claim_ref,
    connect_plugin,
    failure_message,
    machine_ref,
    message_content,
    print_result,
)
from devalloc.cli.options.vm import MachineBounds
from devalloc.cli.render.cells import format_cores, format_size
from devalloc.cli.render.host import (
    full_name,
    is_bounded,
    machine_headers,
    machine_row,
    parse_bounds,
    parse_bytes,
    parse_milli,
)
from devalloc.cli.render.output import GrowingTable, enum_text, print_content, print_objects, print_table
from devalloc.cli.terminal import print_line, print_note
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2 import (
    AdoptMachineRequest,
    CpuBounds,
    DeleteMachineRequest,
    GetMachineRequest,
    ListMachinesRequest,
    Machine,
    MemoryBounds,
    Result,
    ScaleMachineRequest,
    StopMachineRequest,
)
from devalloc_node.pb.node_pb2_grpc import NodeStub


def list_machines(namespace: str, all_namespaces: bool, output: str, socket: Path, timeout: float) -> int:
    space = "" if all_namespaces else namespace
    with connect_plugin(socket) as node:
        listed = list(node.ListMachines(ListMachinesRequest(namespace=space), timeout=timeout).machines)
    _print(listed, output, namespaces=all_namespaces)
    if not listed and output in ("table", "wide"):
        print_note("no machines" + ("" if all_namespaces else f" in namespace {namespace} (-A shows all)"))
    return 0


def get(names: tuple[str, ...], namespace: str, output: str, socket: Path, timeout: float) -> int:
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


def adopt(
    name: str,
    qmp_socket: Path,
    bounds: MachineBounds,
    claims: tuple[str, ...],
    namespace: str,
    socket: Path,
    timeout: float,
) -> int:
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


def stop(names: tuple[str, ...], grace: float | None, force: bool, namespace: str, socket: Path, timeout: float) -> int:
    def ask(node: NodeStub, name: str) -> tuple[str, Result]:
        request = StopMachineRequest(machine=machine_ref(name, namespace), grace_ms=_ms(grace), force=force)
        return "stopped", node.StopMachine(request, timeout=timeout + (grace or 0)).result

    return ask_for_each(names, socket, ask)


def delete(
    names: tuple[str, ...], grace: float | None, force: bool, namespace: str, socket: Path, timeout: float
) -> int:
    def ask(node: NodeStub, name: str) -> tuple[str, Result]:
        request = DeleteMachineRequest(machine=machine_ref(name, namespace), grace_ms=_ms(grace), force=force)
        reply = node.DeleteMachine(request, timeout=timeout + (grace or 0))
        return "deleted" if reply.found else "does not exist", reply.result

    return ask_for_each(names, socket, ask)


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


def watch(namespace: str, all_namespaces: bool, output: str, socket: Path) -> int:
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

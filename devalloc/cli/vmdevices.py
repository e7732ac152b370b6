"""``devalloc vm``: what goes into machines that run, and comes out of them again."""

from __future__ import annotations

from pathlib import Path

import click

from devalloc.cli.nodesocket import force_option, said, socket_option, timeout_option
from devalloc.cli.options import namespace_option
from devalloc.cli.verb import BadInput, verb


@verb("attach")
@click.argument("machine", metavar="MACHINE")
@click.argument("claims", nargs=-1, required=True, metavar="CLAIM...")
@namespace_option
@socket_option
@timeout_option
def attach(machine: str, claims: tuple[str, ...], namespace: str, socket: Path, timeout: float) -> int:
    """Plug the devices of claims into a running machine: for each claim all of its devices, or none.

    \b
    devalloc vm attach web train
    """
    from devalloc.cli.nodesocket import claim_ref, connected, machine_ref
    from devalloc_node.pb.node_pb2 import AttachClaimRequest

    code = 0
    with connected(socket) as node:
        for claim in claims:
            request = AttachClaimRequest(claim=claim_ref(claim, namespace), machine=machine_ref(machine, namespace))
            reply = node.AttachClaim(request, timeout=timeout)
            devices = ", ".join(f"{device.pool}/{device.device}" for device in reply.devices)
            code = max(code, said(claim, f"attached to {machine}: {devices}", reply.result))
    return code


@verb("detach")
@click.argument("machine", metavar="MACHINE")
@click.argument("claims", nargs=-1, required=True, metavar="CLAIM...")
@force_option
@namespace_option
@socket_option
@timeout_option
def detach(machine: str, claims: tuple[str, ...], force: bool, namespace: str, socket: Path, timeout: float) -> int:
    """Take the devices of claims out of a machine. The claims stay prepared (`devalloc vm unprepare` undoes that).

    \b
    devalloc vm detach web train
    """
    from devalloc.cli.nodesocket import claim_ref, connected, machine_ref
    from devalloc_node.pb.node_pb2 import DetachClaimRequest

    code = 0
    with connected(socket) as node:
        for claim in claims:
            request = DetachClaimRequest(
                claim=claim_ref(claim, namespace), machine=machine_ref(machine, namespace), force=force
            )
            reply = node.DetachClaim(request, timeout=timeout)
            done = f"detached from {machine}" + (", which was ended" if reply.ended_machine else "")
            done = done if reply.found else f"is not in {machine}"
            code = max(code, said(claim, done, reply.result))
    return code


@verb("plug")
@click.argument("machine", metavar="MACHINE")
@click.argument("name", metavar="NAME")
@click.option("--disk", type=click.Path(path_type=Path), metavar="PATH", help="A disk: an image or block device.")
@click.option("--format", "disk_format", type=click.Choice(["raw", "qcow2"]), help="The image's; it is never guessed.")
@click.option("--read-only", is_flag=True, help="Its guest cannot write to the disk.")
@click.option("--nvme", is_flag=True, help="As an NVMe controller; as virtio otherwise.")
@click.option("--tap", metavar="INTERFACE", help="A network card on this TAP interface, which exists already.")
@click.option("--user-net", is_flag=True, help="A network card on the host's own sockets.")
@click.option("--mac", help="The network card's address.")
@namespace_option
@socket_option
@timeout_option
def plug(
    machine: str,
    name: str,
    disk: Path | None,
    disk_format: str | None,
    read_only: bool,
    nvme: bool,
    tap: str | None,
    user_net: bool,
    mac: str | None,
    namespace: str,
    socket: Path,
    timeout: float,
) -> int:
    """Plug a disk or a network card into a running machine, until it is unplugged or the machine ends.

    The guest sees NAME as the serial number of a disk. Devices of claims are attached instead.

    \b
    devalloc vm plug web data --disk /images/data.qcow2 --format qcow2
    devalloc vm plug web lan --tap tap0
    """
    from devalloc.cli.machines import plugged
    from devalloc.cli.nodesocket import connected, machine_ref
    from devalloc_node.pb import node_pb2 as pb

    request = pb.PlugDeviceRequest(machine=machine_ref(machine, namespace), name=name)
    if [disk is not None, tap is not None, user_net].count(True) != 1:
        raise BadInput("say what to plug in: one of --disk, --tap and --user-net")
    if disk is not None:
        if mac is not None:
            raise BadInput("--mac goes with --tap or --user-net")
        if disk_format is None:
            raise BadInput("say the image's --format, raw or qcow2: a guest can make one look like the other")
        device = "nvme" if nvme else "virtio"
        request.disk.CopyFrom(
            pb.Disk(path=str(disk.absolute()), format=disk_format, read_only=read_only, device=device)
        )
    else:
        if disk_format is not None or read_only or nvme:
            raise BadInput("--format, --read-only and --nvme go with --disk")
        request.nic.CopyFrom(pb.Nic(backend="user" if tap is None else "tap", interface=tap or "", mac=mac or ""))
    with connected(socket) as node:
        reply = node.PlugDevice(request, timeout=timeout)
    return said(name, f"plugged into {machine}: {plugged(reply.device)}", reply.result)


@verb("unplug")
@click.argument("machine", metavar="MACHINE")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@namespace_option
@socket_option
@timeout_option
def unplug(machine: str, names: tuple[str, ...], namespace: str, socket: Path, timeout: float) -> int:
    """Take out of a machine what was plugged in with `devalloc vm plug`. Its guest must let it go within --timeout.

    \b
    devalloc vm unplug web data
    """
    from devalloc.cli.nodesocket import connected, machine_ref
    from devalloc_node.pb.node_pb2 import UnplugDeviceRequest

    code = 0
    with connected(socket) as node:
        for name in names:
            request = UnplugDeviceRequest(machine=machine_ref(machine, namespace), name=name)
            reply = node.UnplugDevice(request, timeout=timeout)
            done = f"unplugged from {machine}" if reply.found else f"is not in {machine}"
            code = max(code, said(name, done, reply.result))
    return code


@verb("unprepare")
@click.argument("claims", nargs=-1, required=True, metavar="CLAIM...")
@click.option("--uid", default="", metavar="UID", help="Of the claim, where several that are prepared have its name.")
@force_option
@namespace_option
@socket_option
@timeout_option
def unprepare(claims: tuple[str, ...], uid: str, force: bool, namespace: str, socket: Path, timeout: float) -> int:
    """Give the devices of claims back to this host as they were found. The claims stay allocated.

    Takes them out of their machine first.

    \b
    devalloc vm unprepare train && devalloc release train
    """
    if uid and len(claims) > 1:
        raise BadInput("--uid is of one claim; name one at a time")
    from devalloc.cli.nodesocket import claim_ref, connected
    from devalloc_node.pb.node_pb2 import UnprepareClaimRequest

    code = 0
    with connected(socket) as node:
        for claim in claims:
            request = UnprepareClaimRequest(claim=claim_ref(claim, namespace, uid), force=force)
            reply = node.UnprepareClaim(request, timeout=timeout)
            ended = f"; {', '.join(reply.ended_machines)} ended for it" if reply.ended_machines else ""
            done = f"unprepared{ended}" if reply.found else "is not prepared here"
            code = max(code, said(claim, done, reply.result))
    return code

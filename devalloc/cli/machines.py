"""What tables say of machines, and how amounts are written on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from devalloc.cli.output import Cell, Styled

if TYPE_CHECKING:
    from devalloc_node.pb.node_pb2 import Amounts, Machine, MachineDevice

HEADERS = ("NAME", "PHASE", "VCPUS", "MEMORY", "DEVICES", "CLAIMS", "REASON")
WIDE = ("PLUGGED IN", "PID", "ID", "QMP SOCKET", "MESSAGE")
_STYLES = {"Running": "green", "Failed": "red", "Unknown": "red", "Stopped": ""}
_UNITS = ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"))


def phase(machine: Machine) -> Cell:
    """Its phase as a coloured word."""
    from devalloc.cli.nodesocket import word

    name = word(machine.DESCRIPTOR.enum_types_by_name["Phase"], machine.phase)
    return Styled(name, _STYLES.get(name, "yellow")) if _STYLES.get(name, "yellow") else name


def full_name(machine: Machine) -> str:
    """``namespace/name``."""
    return f"{machine.machine.namespace}/{machine.machine.name}"


def row(machine: Machine, *, wide: bool, namespaces: bool) -> list[Cell]:
    """Cells under HEADERS, and WIDE."""
    name = full_name(machine) if namespaces else machine.machine.name
    cells: list[Cell] = [
        name,
        phase(machine),
        vcpus(machine.wanted, machine.observed),
        memory(machine.wanted, machine.observed),
        str(len(machine.devices)),
        ", ".join(claims(machine)),
        machine.reason,
    ]
    if wide:
        plain = "; ".join(f"{each.name}: {plugged(each)}" for each in machine.devices if each.name)
        cells += [plain, str(machine.pid or ""), machine.machine_id, machine.qmp_socket, machine.message]
    return cells


def headers(*, wide: bool) -> list[str]:
    return [*HEADERS, *(WIDE if wide else ())]


def claims(machine: Machine) -> Sequence[str]:
    """Names of the claims whose devices are in it."""
    return list(dict.fromkeys(device.claim.name for device in machine.devices if device.HasField("claim")))


def plugged(device: MachineDevice) -> str:
    """What a device is that no claim stands for: ``/images/d (raw, virtio, read-only)``, ``tap0 52:54:00:00:00:01``."""
    disk, nic = device.disk, device.nic
    if device.HasField("disk"):
        return f"{disk.path} ({disk.format}, {disk.device}{', read-only' if disk.read_only else ''})"
    return f"{nic.interface or 'user network'} {nic.mac}".rstrip()


def vcpus(wanted: Amounts, observed: Amounts) -> str:
    """``2``, or ``2 of 4`` where it has not what is wanted; ``(4)`` where it has nothing, or nobody knows.

    ``2 at 1500m`` where they may not use all of their time.
    """
    want = str(wanted.vcpus) if wanted.HasField("vcpus") else ""
    told = _of(str(observed.vcpus) if observed.HasField("vcpus") else "", want)
    return f"{told} at {cores(observed.cpu_milli)}" if is_bounded(observed) else told


def memory(wanted: Amounts, observed: Amounts) -> str:
    """``2Gi``, or ``1Gi of 2Gi`` where it has not what is wanted."""
    want = size(wanted.memory_bytes) if wanted.HasField("memory_bytes") else ""
    return _of(size(observed.memory_bytes) if observed.HasField("memory_bytes") else "", want)


def amounts(of: Amounts) -> str:
    """``1500m 2Gi``: CPU time (vCPUs where that is not known) and memory; "-" where neither is known."""
    cpu = cores(of.cpu_milli) if of.HasField("cpu_milli") else str(of.vcpus) if of.HasField("vcpus") else ""
    memory = size(of.memory_bytes) if of.HasField("memory_bytes") else ""
    return " ".join(each for each in (cpu, memory) if each) or "-"


def is_bounded(amounts: Amounts) -> bool:
    """Whether its vCPUs together may use less than all of their time."""
    return amounts.HasField("cpu_milli") and amounts.cpu_milli < amounts.vcpus * 1000


def cores(milli: int) -> str:
    """Thousandths of a core as people write them: 1500m, 2."""
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def _of(have: str, want: str) -> str:
    if not have:
        return f"({want})" if want else ""
    return f"{have} of {want}" if want and want != have else have


def size(number: int) -> str:
    """Bytes as people write them: 512Mi, 1.5Gi; what is no whole number of the unit is rounded to a tenth."""
    for factor, unit in _UNITS:
        if number >= factor:
            return f"{number // factor}{unit}" if number % factor == 0 else f"{number / factor:.1f}{unit}"
    return str(number)


def bytes_of(text: str) -> int:
    """``2Gi`` as a number of bytes. Raises BadParameter."""
    return _whole(text, 1, "bytes, such as 512Mi or 2Gi")


def milli_of(text: str) -> int:
    """``1500m`` or ``1.5`` as thousandths of a core. Raises BadParameter."""
    return _whole(text, 1000, "cores, such as 2 or 1500m")


def bounds_of(text: str, amount: str) -> tuple[int, int]:
    """``512Mi..2Gi``, or one amount for both. ``amount`` is memory or cpu. Raises BadParameter."""
    parse = bytes_of if amount == "memory" else milli_of
    least, dots, most = text.partition("..")
    return (parse(least), parse(most)) if dots else (parse(text), parse(text))


def _whole(text: str, per: int, what: str) -> int:
    from devalloc.api.quantity import NANO, Quantity

    try:
        nano = Quantity.parse(text).nano * per
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not an amount of {what}: {error}") from None
    if nano % NANO or nano < 0 or nano >= NANO << 62:
        raise click.BadParameter(f"{text!r} is not an amount of {what}")
    return nano // NANO

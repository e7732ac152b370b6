"""Unix users that machines run as: one per machine, and one for its TPM, if the plugin is root (T12)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from devalloc_machines.qemu import adoption, machine_files
from devalloc_machines.qemu.records import MACHINES, MachineRecord
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import machine_id
from devalloc_node.errors import Denied
from devalloc_node.journal import Journal

PODS = range(65536, 65536 * 111)
"""Of pods with a user namespace: 65536 for each of 110, as the kubelet has them by default."""
LOCK = "users"
"""The lock under which they are given; those of machines end in a digest."""


def owners_among(
    users: range,
    passwd: Path = Path("/etc/passwd"),
    subuid: Path = Path("/etc/subuid"),
) -> list[str]:
    """Who else has some of these user ids, for people: users of the host, of directories as far as they are listed
    here, and of containers, which the kubelet gives out from 65536 on by default."""
    conflicts = []
    if users.start < PODS.stop and PODS.start < users.stop:
        conflicts.append(f"the kubelet gives {PODS[0]}-{PODS[-1]} to pods")
    for name, number, _ in _lines(passwd, 2):
        if number in users:
            conflicts.append(f"{number} is user {name} in {passwd}")
    for name, first, count in _lines(subuid, 1):
        if users.start < first + count and first < users.stop:
            conflicts.append(f"{first}-{first + count - 1} belong to containers of {name} in {subuid}")
    return conflicts


def _lines(file: Path, column: int) -> Iterator[tuple[str, int, int]]:
    """The name of each line, the number in a column, and the one after it or 0."""
    with suppress(OSError):  # there is none, or it says nothing
        for line in file.read_text(errors="replace").splitlines():
            parts = [*line.split(":"), "", "", ""]
            if parts[column].isdecimal():
                after = parts[column + 1]
                yield parts[0], int(parts[column]), int(after) if after.isdecimal() else 0


UserRole = Literal["user", "tpm_user"]
"""Members of a machine's record: whose QEMU is, and its TPM."""
_ROLES: tuple[UserRole, ...] = ("user", "tpm_user")


def free_user(
    key: str, config: MachineConfig, records: Journal, role: UserRole = "user", other: int | None = None
) -> int | None:
    """A user id that no other machine has; the same for the same machine, whose files are that user's. None: the
    plugin's own. It is given when it is written down: until then hold LOCK. ``other``: what the machine itself has in
    its other role. Raises Denied (``NoFreeUser``)."""
    if config.users is None or adoption.own_user() != 0:
        return None
    taken: set[object] = {other}
    for other_id in machine_files.machine_ids(config) - {machine_id(key)}:  # also those that the journal has lost
        for folder in (config.folder(other_id), config.tpm(other_id)):
            with suppress(OSError):
                taken.add(os.lstat(folder).st_uid)
    for machine, content in records.records(MACHINES).items():
        if machine == key and content.get(role) in config.users and content.get(role) != other:
            return int(content[role])
        taken.update(content.get(each) for each in _ROLES)
    for user in config.users:
        if user not in taken:
            return user
    raise Denied("NoFreeUser", f"all {len(config.users)} user ids for machines are in use")


def listener_uid(record: MachineRecord) -> int:
    """Whose process listens on the machine's socket. If that is a user of its own, no other will do, for it can put
    a link there, that leads to another QEMU of ours."""
    return adoption.own_user() if record.user is None else record.user

"""The users of the host that machines run as: one for each, where the plugin is root (T12)."""

from __future__ import annotations

import os
from contextlib import suppress

from devalloc_node.errors import Denied
from devalloc_node.machine import adopt, lifefile
from devalloc_node.machine.config import MachineConfig
from devalloc_node.machine.records import MACHINES, MachineRecord, Records
from devalloc_node.machine.spec import machine_id

LOCK = "users"
"""The lock under which they are given; those of machines end in a digest."""


def free(key: str, config: MachineConfig, records: Records) -> int | None:
    """A user id that no other machine has; the same for the same machine, whose files are that user's. None: the
    plugin's own. It is given when it is written down: until then hold LOCK. Raises Denied (``NoFreeUser``)."""
    if config.users is None or adopt.own_user() != 0:
        return None
    taken: set[object] = set()
    for other_id in lifefile.ids(config) - {machine_id(key)}:  # also those that the journal has lost
        with suppress(OSError):
            taken.add(os.lstat(config.folder(other_id)).st_uid)
    for other, content in records.records(MACHINES).items():
        taken.add(content.get("user"))
        if other == key and content.get("user") in config.users:
            return int(content["user"])
    for user in config.users:
        if user not in taken:
            return user
    raise Denied("NoFreeUser", f"all {len(config.users)} user ids for machines are taken", retryable=True)


def listener(record: MachineRecord) -> int:
    """Whose process listens on the machine's socket. Where that is a user of its own no other will do, for it can put
    a link there, that leads to another QEMU of ours."""
    return adopt.own_user() if record.user is None else record.user

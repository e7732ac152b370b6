"""Ask for a machine to move to another node while it runs, and take that back.

The request is one object. The controller and the plugins of both nodes carry it out, whatever becomes of the one who
asked. Deleting the object withdraws it, unless the machine has moved before.
"""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from devalloc.api.meta import DEVALLOC
from devalloc.api.views import MachineKey, MigrationView
from devalloc.machines.schedule.migrations import KIND, migrations_in
from devalloc.store import AlreadyExists, Key, NotFound, Object, Store

MAX_NAME = 253
_TOKEN_BYTES = 4


def begin_migration(store: Store, machine: MachineKey, target: str | None = None, purpose: str = "move") -> Object:
    """Create a migration of a machine, as ``new_migration``; returns it as stored. Raises StoreError."""
    while True:
        with suppress(AlreadyExists):
            return store.create(new_migration(machine, target, purpose))


def new_migration(machine: MachineKey, target: str | None = None, purpose: str = "move") -> Object:
    """A migration of a machine, with a name that no other one has. ``target``: the node; None: any that fits.
    ``purpose``: part of its name."""
    namespace, name = machine
    end = f"-{purpose}-{secrets.token_hex(_TOKEN_BYTES)}"
    spec = {"vmName": name} | ({} if target is None else {"targetNode": target})
    metadata = {"namespace": namespace, "name": f"{name[: MAX_NAME - len(end)].rstrip('.-')}{end}"}
    return {"apiVersion": DEVALLOC, "kind": KIND, "metadata": metadata, "spec": spec}


def withdraw_migration(store: Store, key: Key) -> None:
    """Delete a migration; nothing to do if there is none. The machine stays where it is, or has moved: its object says
    which. Raises StoreError."""
    with suppress(NotFound):
        store.delete(*key)


def has_purpose(name: str, purpose: str) -> bool:
    """Whether ``begin_migration`` created the migration of this name, for this purpose."""
    return re.search(rf"-{re.escape(purpose)}-[0-9a-f]{{{2 * _TOKEN_BYTES}}}$", name) is not None


def pending_migrations(objects: Iterable[Object]) -> dict[MachineKey, list[MigrationView]]:
    """By machine, the migrations among objects that are not over, the oldest first."""
    pending: dict[MachineKey, list[MigrationView]] = defaultdict(list)
    for view in map(MigrationView, migrations_in(objects)):
        if view.machine is not None and not view.is_over and not view.is_deleting:
            pending[view.machine].append(view)
    return pending


def migrations_by_machine(store: Store, namespace: str) -> dict[MachineKey, list[MigrationView]]:
    """All migrations of a namespace by their machines, also those that are over. The controller deletes those that
    ended; a tenant can have any number of the others. Raises StoreError."""
    by_machine: dict[MachineKey, list[MigrationView]] = defaultdict(list)
    for view in map(MigrationView, store.list(KIND, namespace).objects):
        if view.machine is not None:
            by_machine[view.machine].append(view)
    return by_machine

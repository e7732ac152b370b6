"""What the server has to be told of the hosts: how much there is for machines, and what else is on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from devalloc.scaling.permits.ledger import Key
from devalloc.scaling.resources import Resources
from devalloc.store import Object


@dataclass(frozen=True, slots=True)
class Host:
    """One node, as far as permits go."""

    limit: Resources
    """What there is for machines: the effective limit, with the oversubscription that is configured."""
    others: Mapping[Key, Resources] = field(default_factory=dict)
    """Pods that are no machines, by namespace and name, and what they take of the limit."""


Hosts = Callable[[], Mapping[str, Host]]
"""All nodes by name, as they are now. On one that is not named nothing is granted."""

Overhead = Callable[[Object], Resources]
"""What a VirtualMachine costs its node beside what it is permitted: its devices, its hypervisor."""

CanMove = Callable[[Object], bool]
"""Whether nothing that a VirtualMachine has keeps it on its node."""

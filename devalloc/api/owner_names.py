"""What the solver calls owners of devices beside claims: a machine, a part of it, and what asks on another node
for the devices of a claim that moves.

No object can have such a name, so that none of them is taken for a claim that a user made.
"""

from __future__ import annotations

from typing import NamedTuple

CLAIM, MACHINE = "DeviceClaim", "VirtualMachine"
_SEPARATOR = "/"


class Owner(NamedTuple):
    """An object that has devices, or asks for them."""

    kind: str
    namespace: str
    name: str


def owner_name(kind: str, name: str, part: str = "") -> str:
    """Name what asks or holds for an object; ``part``: which part of that, if there are several."""
    return _SEPARATOR.join(filter(None, (kind, name, part)))


def owner_of(key: tuple[str, str], kind: str = CLAIM) -> Owner:
    """Find the object whose devices an owner has. ``key``: of the owner in the solver, namespace and name; ``kind``: of
    the claims that it knows by their own names."""
    of, *names = key[1].split(_SEPARATOR)
    return Owner(of, key[0], names[0]) if names and of in (CLAIM, MACHINE) else Owner(kind, *key)


def object_name(name: object) -> object:
    """The name of the object that an owner of this name is; anything but a text as it is."""
    return owner_of(("", name)).name if isinstance(name, str) else name


def is_object(key: tuple[str, str]) -> bool:
    """Whether an owner is a claim that a user made."""
    return _SEPARATOR not in key[1]

"""Claims that hold devices and say all of it. They rest until they change, or what an allocation depends on does.

What rounds remember of them (``RoundMemory``) stays as it is meanwhile, so that a round costs what has changed, however
much is held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from devalloc.api.cordon import is_node, unschedulable_nodes
from devalloc.api.fencing import fence_statements, fenced_nodes
from devalloc.api.meta import DEVMGMT
from devalloc.api.views import ClaimView
from devalloc.controller.reconcile.postponed import CLAIM
from devalloc.store import Key, Object


class RoundMemory(Protocol):
    """What remembers something of each claim from round to round."""

    def settle(self, claims: Sequence[Object]) -> None:
        """Remember what is known of these although the next rounds do not have them."""

    def unsettle(self, claims: Sequence[Object]) -> None:
        """The next round has these again, or they are gone."""


@dataclass(slots=True)
class SettledClaims:
    """Of one loop. Not thread-safe."""

    memories: Sequence[RoundMemory] = ()
    _claims: dict[Key, Object] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._claims)

    def get(self, key: Key) -> Object | None:
        """The claim as it rests."""
        return self._claims.get(key)

    def add(self, claims: Mapping[Key, Object]) -> None:
        """Let these rest."""
        self._claims |= claims
        for memory in self.memories if claims else ():
            memory.settle([*claims.values()])

    def withdraw(self, keys: Iterable[Key]) -> None:
        """Let those of these rest no more that do."""
        claims = [claim for key in keys if (claim := self._claims.pop(key, None)) is not None]
        for memory in self.memories if claims else ():
            memory.unsettle(claims)

    def withdraw_all(self) -> Collection[Key]:
        """Let all rest no more; which these were."""
        keys = [*self._claims]
        self.withdraw(keys)
        return keys

    def replaced(self, objects: Mapping[Key, Object]) -> list[Object]:
        """Those that are others now, or gone, as they rest."""
        return [claim for key, claim in self._claims.items() if objects.get(key) is not claim]


def says_all(claim: Object, answer: Mapping[str, Any] | None) -> bool:
    """Whether no round has more to say of a claim on which it has nothing to write, until something changes."""
    view = ClaimView(claim)
    return (
        claim.get("apiVersion") == DEVMGMT
        and bool(view.entries)
        and answer is not None
        and bool(answer["allocated"])
        and not (answer.get("lost") or answer.get("warnings"))
        and not (view.is_deleting or view.wants_release or view.is_unsettled or view.has_admin_access)
        and view.group is None
    )


def may_matter(key: Key, old: Object | None, new: Object | None) -> bool:
    """Whether a change of an object may matter to claims that hold devices, and are others.

    Of pools the status does not: it says what claims hold. Nor does what Nodes say all day long.
    """
    if key.kind == CLAIM:
        return False
    if old is None or new is None:
        return True
    if key.kind == "DevicePool":
        return _without_status(old) != _without_status(new)
    if is_node(old) and is_node(new):
        states = [(unschedulable_nodes([one]), fenced_nodes([one]), fence_statements([one])) for one in (old, new)]
        return states[0] != states[1] or _without_status(old) != _without_status(new)
    return old != new


def _without_status(obj: Object) -> Object:
    unread = ("resourceVersion", "managedFields")
    metadata = {name: value for name, value in obj["metadata"].items() if name not in unread}
    return {**{name: value for name, value in obj.items() if name != "status"}, "metadata": metadata}

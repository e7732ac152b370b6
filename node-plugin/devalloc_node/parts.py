"""What a part adds to a node: a subclass of ``NodePart`` overrides what it has, and the node asks all parts alike.

``NodeSettings.parts`` names the parts of a node. An installed package adds one of its own by an entry point of the
group devalloc.node_parts: a function of the node that returns the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import Metric

from devalloc.program import Loop as Loop
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import PreparedDevice, StepKind
from devalloc_node.service.server import ExclusiveEndpoint, Service


class NodePart:
    """What all parts may have; nothing of it is there unless the part says so. All calls are safe for threads. They
    raise errors of ``devalloc_node.errors``."""

    def kinds(self) -> Mapping[str, StepKind]:
        """Return the kinds of steps that claims may have, by name."""
        return {}

    def lives(self, user: str) -> bool:
        """Whether something with this key runs that has devices of claims."""
        return False

    def address_of(self, ref: ClaimRef, device: PreparedDevice) -> str | None:
        """Return where who has a device of a claim is reached; None: that is not known."""
        return None

    def kept_for(self, node_name: str) -> Sequence[str]:
        """Return what it has that still belongs to the node with this name, which this node had before."""
        return ()

    def settle_previous_name(self, previous: str) -> None:
        """End what was taken away from this node when it had another name."""

    def recover(self) -> None:
        """Take up what an earlier run has left, before anything else is done."""

    def settle(self) -> None:
        """End what was taken away from this node while it was fenced. Called before anything is published or prepared,
        and again until it raises nothing."""

    def close(self) -> None:
        """Give back what the process has, at its end."""

    def warnings(self) -> Iterable[str]:
        """Return what an administrator should know at the start, in sentences."""
        return ()

    def endpoints(self) -> Mapping[str, Callable[[], ExclusiveEndpoint]]:
        """Return what is taken before any service is served, and given back after all: by what it is, for people."""
        return {}

    def services(self) -> Sequence[Service]:
        """Return what the node's own socket serves beside the node."""
        return ()

    def loops(self) -> Sequence[Loop]:
        """Return what goes on while the node serves; the first that raises ends the node."""
        return ()

    def metrics(self) -> Iterable[Metric]:
        """Return what it counts, for each scrape. If that raises, ``devalloc_node_state_readable`` is 0."""
        return ()


MakePart = Callable[[Any], NodePart]
"""Makes a part of a ``Node``, which is not complete yet: the part asks it for others only when it is asked itself."""

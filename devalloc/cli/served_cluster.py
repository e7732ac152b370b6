"""A cluster as people should see it: machines of a node whose plugin has ended are not known to run, though its Node is
Ready."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from devalloc.api.serving import unserved_text
from devalloc.cli.served_store import ServedView
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.node_leases import NodeLeases
from devalloc.store.kubernetes.store import KubernetesStore
from devalloc.store.protocol import Change, CommitOutcomes, CommitResult, Event, Fence, Listing

Object = dict[str, Any]
_LOOK_SECONDS = 5.0
"""How long an answer about the nodes counts."""


class ServedCluster(KubernetesStore):
    """A store whose reads know which nodes are served, if their user may list Leases in devalloc's namespace."""

    def __init__(self, client: Client, *, within: str | None) -> None:
        super().__init__(client, within=within)
        self._leases = NodeLeases(client, self.namespace, _LOOK_SECONDS)
        self.served = ServedView(self._why_unserved)

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        return self.served.shown(super().get(kind, namespace, name))

    def list(self, *what: Any, **named: Any) -> Listing:
        return self.served.listed(super().list(*what, **named))

    def watch(self, *what: Any, **named: Any) -> Generator[Event, None, None]:
        yield from self.served.watched(super().watch(*what, **named))

    def commit(self, changes: Sequence[Change], fence: Fence | None = None) -> CommitResult:
        read = super().get
        return super().commit([self.served.stored(each, read) for each in changes], fence)

    def commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None = None) -> CommitOutcomes:
        read = super().get
        return super().commit_each([[self.served.stored(one, read) for one in unit] for unit in units], fence)

    def _why_unserved(self, node: str) -> str:
        why = self._leases.unserved().get(node, "")
        return unserved_text(node, why) if why else ""

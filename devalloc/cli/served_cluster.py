"""A cluster as people should see it: machines of a node whose plugin has ended are not known to run, though its Node is
Ready."""

from __future__ import annotations

from devalloc.api.serving import unserved_text
from devalloc.cli.served_store import ServedReads, ServedView
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.node_leases import NodeLeases
from devalloc.store.kubernetes.store import KubernetesStore

_LOOK_SECONDS = 5.0
"""How long an answer about the nodes counts."""


class ServedCluster(ServedReads, KubernetesStore):
    """A store whose reads know which nodes are served, if their user may list Leases in devalloc's namespace."""

    def __init__(self, client: Client, *, within: str | None) -> None:
        super().__init__(client, within=within)
        self._leases = NodeLeases(client, self.namespace, _LOOK_SECONDS)
        self.served = ServedView(self._why_unserved)

    def _why_unserved(self, node: str) -> str:
        why = self._leases.unserved().get(node, "")
        return unserved_text(node, why) if why else ""

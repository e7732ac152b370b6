"""Which nodes of a cluster have a plugin that does not run, by the Leases that plugins renew."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from devalloc.api.serving import is_ahead, node_of_lease, silence
from devalloc.api.views import as_mapping
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client, path_segment

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PluginLease:
    """What the Lease of a node's plugin says."""

    renewal: str
    """Another text after each renewal."""
    why_ended: str
    """Why the plugin counts as ended; empty if it runs, or if its time does not tell."""
    is_ahead: bool = False
    """Its time is in the future, because a clock is wrong: only a lack of renewals shows an end."""


class NodeLeases:
    """Use from any thread. One request for all nodes, and an answer counts for a while."""

    def __init__(self, client: Client, namespace: str, seconds: float) -> None:
        """``namespace``: devalloc's own. ``seconds``: how long an answer counts."""
        self._client = client
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{path_segment(namespace)}/leases"
        self._seconds = seconds
        self._mutex = threading.Lock()
        self._until = 0.0
        self._leases: Mapping[str, PluginLease] | None = {}

    def unserved(self) -> Mapping[str, str]:
        """Nodes whose plugin has run and does not run now, and why that is believed. Empty if it may not be read, or
        cannot be read now: nothing depends on it."""
        return {node: lease.why_ended for node, lease in (self.of_nodes() or {}).items() if lease.why_ended}

    def of_nodes(self) -> Mapping[str, PluginLease] | None:
        """By node, those that there are. None if they may not be read, or cannot be read now."""
        with self._mutex:
            if time.monotonic() >= self._until:
                self._leases = self._read()
                self._until = time.monotonic() + self._seconds
            return self._leases

    def _read(self) -> Mapping[str, PluginLease] | None:
        try:
            leases = [lease for page in self._client.list(self._folder) for lease in page["items"]]
        except ApiError as error:
            log.debug("cannot read which node plugins run: %s", error)
            return None
        now = datetime.now(UTC)
        by_node = {node: lease for lease in leases if (node := node_of_lease(lease)) is not None}
        return {
            node: PluginLease(
                str((spec.get("holderIdentity"), spec.get("renewTime"))), silence(lease, now), is_ahead(lease, now)
            )
            for node, lease in by_node.items()
            for spec in [as_mapping(lease.get("spec"))]
        }

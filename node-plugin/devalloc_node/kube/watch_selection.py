"""Watch only the claims and machines of this node, while the controller labels them.

The controller writes the label ``devalloc.io/allocated-node`` on them, and promises on its Lease that all have it
(``devalloc.io/labels-nodes``). A controller of an earlier version promises nothing; then the node watches all objects.
"""

from __future__ import annotations

import logging
import random
import threading
from typing import Any, Protocol

from devalloc.api.kinds import ALLOCATABLE_KINDS
from devalloc.api.meta import CONTROLLER_LEASE, LABELS_NODES, NODE_LABEL, is_promised, node_label
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import path_segment
from devalloc.worker import repeat

log = logging.getLogger(__name__)

POLL_SECONDS = 30.0
"""The mean pause between two looks at the Lease."""


class LeaseReader(Protocol):
    """Raises ApiError."""

    def get(self, path: str) -> dict[str, Any]: ...


class SelectiveStore(Protocol):
    def select(self, kinds: tuple[str, ...], labels: str) -> None: ...


class OwnObjects:
    """Chooses what a node's store watches. Use from one thread."""

    def __init__(self, client: LeaseReader, store: SelectiveStore, node_name: str, namespace: str) -> None:
        """``namespace``: devalloc's own, where the Lease is."""
        self._client = client
        self._store = store
        self._label = f"{NODE_LABEL}={node_label(node_name)}"
        self._path = (
            f"/apis/coordination.k8s.io/v1/namespaces/{path_segment(namespace)}/leases/{path_segment(CONTROLLER_LEASE)}"
        )
        self.is_selective = False
        """Whether it watches only this node's objects."""

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set."""

        def look() -> float:
            self.look()
            return _random_pause()

        repeat(stop, look, POLL_SECONDS, "cannot choose what to watch", delay=_random_pause())

    def look(self) -> None:
        """Read the Lease, and choose."""
        try:
            is_labelled = is_promised(self._client.get(self._path), LABELS_NODES)
        except ApiError as error:
            if error.status not in (403, 404):
                log.info("cannot read the controller's Lease: %s", error)
                return  # it is as before, as far as is known
            is_labelled = False
        if is_labelled != self.is_selective:
            log.info("watching the claims and machines of %s", "this node" if is_labelled else "all nodes")
            self._store.select(ALLOCATABLE_KINDS, self._label if is_labelled else "")
            self.is_selective = is_labelled


def _random_pause() -> float:
    """Draw a number of seconds, so that not all nodes look at the same time."""
    return POLL_SECONDS * random.uniform(0.5, 1.5)

"""Renew the Lease by which others see that the plugin of this node runs (``devalloc.api.serving``)."""

from __future__ import annotations

import logging
import os
import random
import secrets
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from devalloc.api.serving import RENEW_SECONDS, lease_name, node_lease
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import path_segment
from devalloc.worker import repeat

log = logging.getLogger(__name__)

Object = dict[str, Any]


class LeaseWriter(Protocol):
    """Raises ApiError."""

    def get(self, path: str) -> Object: ...

    def create(self, path: str, body: Object) -> Object: ...

    def replace(self, path: str, body: Object) -> Object: ...


class NodeLease:
    """``run`` in a thread of the plugin. A write twice a minute; whether it succeeds changes nothing else."""

    def __init__(
        self,
        client: LeaseWriter,
        node_name: str,
        namespace: str,
        owner: Callable[[], Mapping[str, Any] | None] = lambda: None,
    ) -> None:
        """``namespace``: devalloc's own. ``owner``: an owner reference, with which it is deleted."""
        self._client, self._node, self._namespace, self._owner = client, node_name, namespace, owner
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{path_segment(namespace)}/leases"
        self._holder = f"{os.uname().nodename}_{os.getpid()}_{secrets.token_hex(4)}"
        self._stored: Object | None = None

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set."""
        what = "cannot show by a Lease that this plugin runs"
        repeat(stop, self._renew, RENEW_SECONDS, what, expected=(ApiError,))
        if self._stored is not None:
            try:
                self._give()
            except ApiError as error:
                log.warning("cannot show by a Lease that this plugin has ended: %s", error)

    def _renew(self) -> float:
        """Write it; seconds until the next time. Raises ApiError."""
        wanted = node_lease(self._node, self._namespace, self._holder, datetime.now(UTC))
        before, self._stored = self._stored, None  # if that fails, others may have written or deleted it
        before = self._read() if before is None else before
        if before is not None:
            self._stored = self._client.replace(self._path, {**wanted, "metadata": before["metadata"]})
        else:
            if (owner := self._owner()) is not None:
                wanted["metadata"]["ownerReferences"] = [dict(owner)]
            self._stored = self._client.create(self._folder, wanted)
        return RENEW_SECONDS * random.uniform(0.8, 1.0)

    def _give(self) -> None:
        """Unless the next plugin of the node has it already."""
        if (there := self._read()) is None or there.get("spec", {}).get("holderIdentity") != self._holder:
            return
        ended = node_lease(self._node, self._namespace, None, datetime.now(UTC))
        self._client.replace(self._path, {**ended, "metadata": there["metadata"]})

    @property
    def _path(self) -> str:
        return f"{self._folder}/{path_segment(lease_name(self._node))}"

    def _read(self) -> Object | None:
        try:
            return self._client.get(self._path)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

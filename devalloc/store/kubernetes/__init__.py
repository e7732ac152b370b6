"""A cluster as a store: the Kubernetes API behind the ``Store`` protocol.

- ``client``, ``credentials``, ``event_stream``: requests and watches, bounded in time and size
- ``reflector``, ``informer_cache``: each kind in memory, with an order of events of the process's own
- ``object_writer``, ``status_and_metadata``: one object, read back if the answer was lost
- ``transaction``, ``open_transactions``: several objects as one, and what a crash left of that
- ``uncertain_writes``: objects on which a write may still arrive
- ``resources``: kinds and their paths
"""

from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.store import NAMESPACE, KubernetesStore

__all__ = ["NAMESPACE", "ApiError", "Client", "KubernetesStore"]

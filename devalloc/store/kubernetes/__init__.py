"""A cluster as a store: the Kubernetes API behind the ``Store`` protocol.

- ``client``, ``api_error``: requests and watches, bounded in time and size
- ``reflector``, ``informer_cache``: each kind in memory, with an order of events of the process's own
- ``object_writer``: one object, read back if the answer was lost, and objects on which a write may still arrive
- ``transaction``: several objects as one, and what a crash left of that
- ``resources``: kinds and their paths
"""

from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.store import NAMESPACE, KubernetesStore

__all__ = ["NAMESPACE", "ApiError", "Client", "KubernetesStore"]

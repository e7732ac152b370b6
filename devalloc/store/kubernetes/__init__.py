"""A cluster as a store: the Kubernetes API behind the ``Store`` protocol."""

from devalloc.store.kubernetes.apierror import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.store import NAMESPACE, KubernetesStore

__all__ = ["NAMESPACE", "ApiError", "Client", "KubernetesStore"]

"""Where the permit server of a cluster is, as its controller publishes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from devalloc.scaling.permits.endpoint import NAME, parse_endpoint
from devalloc.store.kubernetes import ApiError
from devalloc.store.kubernetes.client import path_segment

if TYPE_CHECKING:
    from devalloc.scaling.permits.endpoint import PublishedEndpoint
    from devalloc.store.kubernetes import Client


def published_endpoint(client: Client, namespace: str) -> Callable[[], tuple[PublishedEndpoint, str]]:
    """A function that asks the API server where it is, and what this process's token is now; that raises ValueError."""

    def read() -> tuple[PublishedEndpoint, str]:
        path = f"/api/v1/namespaces/{path_segment(namespace)}/configmaps/{NAME}"
        where = f"the address of the permit server is unknown: ConfigMap {namespace}/{NAME}"
        try:
            place, token = parse_endpoint(client.get(path)), client.token()
        except ApiError as error:
            hint = "; devalloc controller --permits writes it" if error.is_not_found else ""
            raise ValueError(f"{where}: {error}{hint}") from None
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if token is None:
            raise ValueError("the permit server needs a token of the cluster, but the kubeconfig has none")
        return place, token

    return read

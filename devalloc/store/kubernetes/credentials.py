"""Credentials, connections and exceptions of the ``kubernetes`` library."""

from __future__ import annotations

import importlib
import socket
from pathlib import Path
from typing import Any

from devalloc.store.kubernetes.api_error import ApiError
from devalloc.version import VERSION

CONNECTIONS = 32
"""How many connections stay open: for watches and concurrent writes."""
_QUIET_SECONDS = 15
"""Idle seconds after which the kernel probes a connection; it repeats the probe after each third of that."""


def load_credentials(kubeconfig: Path | None) -> Any:
    """An ApiClient with the current credentials: of a kubeconfig's current context, or else of the pod's service
    account. Raises ApiError."""
    from kubernetes import client  # takes half a second and 40 MB, so only if needed
    from yaml import YAMLError

    config: Any = importlib.import_module("kubernetes.config")  # claims to be typed, but is not
    settings = client.Configuration()
    try:
        if kubeconfig is not None:
            config.load_kube_config(str(kubeconfig), client_configuration=settings, persist_config=False)
        else:
            config.load_incluster_config(settings)
    except credential_errors() as error:
        source = f"kubeconfig {kubeconfig}" if kubeconfig else "not in a pod, and no kubeconfig given"
        raise ApiError(0, "NoCredentials", f"{source}: {error}") from None
    except (
        YAMLError,
        TypeError,
        AttributeError,
        LookupError,
    ) as error:  # it parses any text and any YAML as a kubeconfig
        raise ApiError(0, "NoCredentials", f"not a kubeconfig: {kubeconfig}: {error}") from None
    settings.retries = False
    settings.connection_pool_maxsize = CONNECTIONS
    # Lets watches detect a server that disappeared silently.
    third = _QUIET_SECONDS // 3
    settings.socket_options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _QUIET_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    ]
    api = client.ApiClient(settings)
    api.user_agent = f"devalloc/{VERSION}"  # our name in audit logs and managedFields
    return api


def credential_errors() -> tuple[type[Exception], ...]:
    """The library's exceptions for unreadable credentials."""
    config: Any = importlib.import_module("kubernetes.config")
    return config.ConfigException, OSError, ValueError


def connect_errors() -> tuple[type[Exception], ...]:
    """Exceptions that mean that nothing was sent."""
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    return NewConnectionError, ConnectTimeoutError


def connection_errors() -> tuple[type[Exception], ...]:
    """Exceptions of connections."""
    from urllib3.exceptions import HTTPError

    return HTTPError, OSError

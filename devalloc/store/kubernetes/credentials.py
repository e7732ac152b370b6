"""Credentials and connections, which the ``kubernetes`` library gives, and what it raises."""

from __future__ import annotations

import importlib
import socket
from pathlib import Path
from typing import Any

from devalloc.store.kubernetes.apierror import ApiError
from devalloc.version import VERSION

CONNECTIONS = 32
"""Kept open: those of watches, and of writes side by side."""
_QUIET_SECONDS = 15
"""Of a connection, after which the kernel asks whether the other side is still there, and again each third of that."""


def loaded(kubeconfig: Path | None) -> Any:
    """An ApiClient with the credentials as they are now: of a kubeconfig's current context, else of the pod's service
    account. Raises ApiError."""
    from kubernetes import client  # half a second and 40 MB, for those that need it
    from yaml import YAMLError

    config: Any = importlib.import_module("kubernetes.config")  # says it is typed, and is not
    settings = client.Configuration()
    try:
        if kubeconfig is not None:
            config.load_kube_config(str(kubeconfig), client_configuration=settings, persist_config=False)
        else:
            config.load_incluster_config(settings)
    except no_credentials() as error:
        source = f"kubeconfig {kubeconfig}" if kubeconfig else "not in a pod, and no kubeconfig is given"
        raise ApiError(0, "NoCredentials", f"{source}: {error}") from None
    except (YAMLError, TypeError, AttributeError, LookupError) as error:  # any text and any YAML is parsed as one
        raise ApiError(0, "NoCredentials", f"{kubeconfig} is no kubeconfig: {error}") from None
    settings.retries = False
    settings.connection_pool_maxsize = CONNECTIONS
    # A server that went away without a word is noticed by its watches.
    third = _QUIET_SECONDS // 3
    settings.socket_options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _QUIET_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    ]
    api = client.ApiClient(settings)
    api.user_agent = f"devalloc/{VERSION}"  # what audit logs and managedFields call us
    return api


def no_credentials() -> tuple[type[Exception], ...]:
    """What the library raises where it cannot read them."""
    config: Any = importlib.import_module("kubernetes.config")
    return config.ConfigException, OSError, ValueError


def not_connected() -> tuple[type[Exception], ...]:
    """What is raised where nothing was sent."""
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    return NewConnectionError, ConnectTimeoutError


def broken() -> tuple[type[Exception], ...]:
    """What connections raise."""
    from urllib3.exceptions import HTTPError

    return HTTPError, OSError

"""Settings of the permit server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from devalloc.machines.permits.caller_auth import NodeTokenAuthenticator
from devalloc.net.localhost import is_loopback
from devalloc.scaling.permits import PORT
from devalloc.scaling.permits.arithmetic import PermitsArithmetic
from devalloc.settings import Network

DUMP_PORT = 10298
MIN_TOKEN_LENGTH = 16
"""Characters of a token."""


class UnsafeSettings(ValueError):
    """Settings that would let every process request permits."""


@dataclass(frozen=True, slots=True)
class PodPort:
    """Where agents ask by plain HTTP that send no token: they get permits only for machines that they name by their
    runner pods."""

    host: str
    """One address of this host."""
    port: int
    """0: any free port."""
    networks: tuple[Network, ...]
    """Clients with other addresses are cut off before a byte is read."""
    option: str
    """What sets it, for messages."""
    stranger: str
    """What is logged of a client that was cut off, with places for its address and how many more there were."""


@dataclass(frozen=True)
class Settings(PermitsArithmetic):
    """Durations are in seconds, amounts in thousandths of a CPU and bytes."""

    host: str = "127.0.0.1"
    """Address where it listens. On any other than loopback it needs a token, or certificates of callers."""
    port: int = PORT
    """For requests; 0: any free port."""
    dump_port: int | None = DUMP_PORT
    """For the state and the metrics; None: nowhere."""
    token: str | None = None
    """The token that callers must send as ``Authorization: Bearer``. Without TLS they send it unencrypted."""
    shown_to_all: bool = False
    """Whether anyone who can reach the port may read the state and the metrics without the token."""
    callers: NodeTokenAuthenticator | None = None
    """Authenticates callers, if each has its own token. It needs TLS."""
    tls: ssl.SSLContext | None = None
    """Serve with TLS; with ``verify_mode=CERT_REQUIRED``, only callers with a valid certificate."""
    plain: PodPort | None = None
    """Where agents ask that speak plain HTTP; None: nowhere."""
    migration_seconds: float = 3600.0
    """How long a migration may take before the server withdraws it."""
    resync: float = 30.0
    """Interval between checks of hosts and migrations."""
    max_connections: int = 1024
    """Maximum of each port; never more than a quarter of the descriptors that the process may have."""
    request_seconds: float = 5.0
    """Time limit for a request to arrive, and for the first one of a connection."""
    idle_seconds: float = 75.0
    """Time limit between two requests of a connection."""
    startup_seconds: float = 15.0
    """Time limit for reading all objects; then the server starts again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token is not None and len(self.token) < MIN_TOKEN_LENGTH:
            raise UnsafeSettings(
                f"the token must have at least {MIN_TOKEN_LENGTH} characters, but has {len(self.token)}"
            )
        if self.callers is not None and self.tls is None:
            raise UnsafeSettings("tokens of nodes would be sent unencrypted: give a TLS context")
        is_authenticated = self.tls is not None and (
            self.tls.verify_mode is ssl.CERT_REQUIRED or self.callers is not None
        )
        if not is_loopback(self.host) and self.token is None and not is_authenticated:
            raise UnsafeSettings(
                f"on {self.host} anyone could request permits: give a token, or a TLS context that verifies clients, "
                "or listen on 127.0.0.1"
            )

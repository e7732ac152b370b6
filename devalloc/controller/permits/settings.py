"""Settings of the permit server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from devalloc.controller.permits.caller_auth import CallerAuthenticator
from devalloc.net.localhost import is_loopback
from devalloc.scaling.messages.permits import PORT as PORT
from devalloc.scaling.permits.ledger import NO_OVERCOMMIT, NO_RESOURCES, fraction_of
from devalloc.scaling.resources import DEFAULT_COMPUTE_UNIT, Resources
from devalloc.scaling.versions import ProtocolEra

DUMP_PORT = 10298
MIN_TOKEN_LENGTH = 16
"""Characters of a token."""


class UnsafeSettings(ValueError):
    """Settings that would let every process request permits."""


@dataclass(frozen=True)
class Settings:
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
    callers: CallerAuthenticator | None = None
    """Authenticates callers, if each has its own token. It needs TLS."""
    tls: ssl.SSLContext | None = None
    """Serve with TLS; with ``verify_mode=CERT_REQUIRED``, only callers with a valid certificate."""
    era: ProtocolEra = ProtocolEra.V0_31
    """The release whose arithmetic it follows (``compat``)."""
    unit: Resources = DEFAULT_COMPUTE_UNIT
    """The compute unit, for agents that do not send one."""
    cpu_watermark: float | None = None
    """The part of a node at which machines should start to migrate away; None: 0.9, or 0.7 in v0.12."""
    memory_watermark: float | None = None
    system: Resources = NO_RESOURCES
    """In v0.12: the part of each node that is not for machines."""
    overcommit: Resources = NO_OVERCOMMIT
    """In the newest release: thousandths of the capacity that it may promise, for machines that set none."""
    migration_seconds: float = 3600.0
    """Time limit of a migration; then the server withdraws it."""
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
        if self.token is not None and len(self.token) < MIN_TOKEN_LENGTH:
            raise UnsafeSettings(
                f"the token must have at least {MIN_TOKEN_LENGTH} characters, but has {len(self.token)}"
            )
        if self.unit.cpu == 0 or self.unit.memory == 0:
            raise ValueError("the compute unit must have both CPU and memory")
        for name in ("cpu_watermark", "memory_watermark"):
            mark = getattr(self, name)
            if mark is not None and not 0 < mark <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {mark}")
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

    def limits(self, limit: Resources) -> tuple[Resources, Resources]:
        """Of a node with this effective limit: the total for machines, and the watermark."""
        total = limit.excess_over(self.system) if self.era is ProtocolEra.V0_12 else limit
        usual = 0.7 if self.era is ProtocolEra.V0_12 else 0.9
        cpu = usual if self.cpu_watermark is None else self.cpu_watermark
        memory = usual if self.memory_watermark is None else self.memory_watermark
        return total, fraction_of(total, cpu, memory)


def server_tls(certificate: str, key: str, clients: str | None = None) -> ssl.SSLContext:
    """A TLS context from PEM files. ``clients``: the authorities whose certificates those who ask must have.

    Raises OSError and ssl.SSLError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context

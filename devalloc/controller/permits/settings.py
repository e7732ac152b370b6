"""What the server of permits can be told."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from devalloc.controller.permits.callers import Callers
from devalloc.scaling.eras import Era
from devalloc.scaling.localhost import is_loopback
from devalloc.scaling.messages.plugin import PORT as PORT
from devalloc.scaling.permits.ledger import NOTHING, ONCE, fraction_of
from devalloc.scaling.resources import UNIT, Resources

DUMP_PORT = 10298
LEAST_TOKEN = 16
"""Characters of a token."""


class NotSafe(ValueError):
    """Settings that would let anybody ask."""


@dataclass(frozen=True)
class Settings:
    """Durations are in seconds, amounts in thousandths of a CPU and bytes."""

    host: str = "127.0.0.1"
    """Where it listens. Anywhere but on loopback it wants a token, or certificates of those who ask."""
    port: int = PORT
    """For requests; 0: any that is free."""
    dump_port: int | None = DUMP_PORT
    """For the state and the metrics; None: not at all."""
    token: str | None = None
    """What those who ask have to send as ``Authorization: Bearer``. Without TLS it can be read on its way."""
    shown_to_all: bool = False
    """The state and the metrics are for whoever gets to their port, without the token."""
    callers: Callers | None = None
    """Who those are that ask, where each has a token of his own. It needs TLS."""
    tls: ssl.SSLContext | None = None
    """Serve by TLS; with ``verify_mode=CERT_REQUIRED`` only those whose certificate is good can ask."""
    era: Era = Era.V0_31
    """Whose arithmetic is followed (``compat``)."""
    unit: Resources = UNIT
    """The compute unit, for agents that do not send one."""
    cpu_watermark: float | None = None
    """The part of a node from which on machines should leave it; None: 0.9, or 0.7 in v0.12."""
    memory_watermark: float | None = None
    system: Resources = NOTHING
    """In v0.12: what of each node is not for machines."""
    overcommit: Resources = ONCE
    """In the newest form: thousandths of what there is that may be promised, where a machine says nothing else."""
    migration_seconds: float = 3600.0
    """How long a migration may take before it is withdrawn."""
    resync: float = 30.0
    """How often hosts are looked at and migrations minded."""
    max_connections: int = 1024
    """Of each port; never more than a quarter of the descriptors that the process may have."""
    request_seconds: float = 5.0
    """How long a request may take to come in, and how long a connection may be open before the first one."""
    idle_seconds: float = 75.0
    """How long a connection may be open between two requests."""
    startup_seconds: float = 15.0
    """How long all objects may take to be read before the server gives up and begins again."""

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < LEAST_TOKEN:
            raise NotSafe(f"the token must have at least {LEAST_TOKEN} characters, and has {len(self.token)}")
        if self.unit.cpu == 0 or self.unit.memory == 0:
            raise ValueError("the compute unit must have some of both CPU and memory")
        for name in ("cpu_watermark", "memory_watermark"):
            mark = getattr(self, name)
            if mark is not None and not 0 < mark <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {mark}")
        if self.callers is not None and self.tls is None:
            raise NotSafe("tokens of nodes could be read on their way: give a TLS context")
        known = self.tls is not None and (self.tls.verify_mode is ssl.CERT_REQUIRED or self.callers is not None)
        if not is_loopback(self.host) and self.token is None and not known:
            raise NotSafe(
                f"on {self.host} anybody could ask for permits: give a token, or a TLS context that verifies clients, "
                "or listen on 127.0.0.1"
            )

    def limits(self, limit: Resources) -> tuple[Resources, Resources]:
        """Of a node with this effective limit: the total for machines, and the watermark."""
        total = limit.above(self.system) if self.era is Era.V0_12 else limit
        usual = 0.7 if self.era is Era.V0_12 else 0.9
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

"""Messages between an agent and the informant inside a machine, versions v1.0 to v2.0: HTTP with JSON, both ways.

Each end is a server for the other. Every body is JSON, that of a GET too; success is 200 and nothing else; errors are
text/plain. The informant's server has REGISTER, HEALTH_CHECK, DOWNSCALE, UPSCALE and UNREGISTER, the agent's has ID,
RESUME, SUSPEND and TRY_UPSCALE. ``decode_...`` raises Unreadable, which a server answers with 400 and BAD_JSON.

All that an agent says once it is registered is numbered: one counter for each of its servers, from 1, one more with
every 200 reply and every signed message. 0 is a violation of the protocol; a number that is not above the last one says
that the message was overtaken by another.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from devalloc.scaling.messages.monitor import MAX_TEXT, DownscaleResult
from devalloc.scaling.peer_json import (
    JsonFields,
    RequestError,
    Unreadable,
    bytes_to_quantity,
    cpu_to_quantity,
    decode_body,
    encode_message,
)
from devalloc.scaling.resources import ResourceFlags, Resources
from devalloc.scaling.versions import Version, VersionRange

PORT = 10301
"""Of the informant; an agent has any port, and tells which."""
MAX_BODY = 16 * 1024
"""Bytes of any body."""
BAD_JSON = "bad JSON"
EMPTY_BODY = b"{}"


class InformantVersion(Version):
    """Of the protocol between an agent and the informant inside a machine."""

    names = ("v1.0", "v1.1", "v1.2", "v2.0")

    @property
    def has_try_upscale(self) -> bool:
        """The informant may ask the agent for more."""
        return self >= 2

    @property
    def has_health_check(self) -> bool:
        """The agent may ask the informant whether it is well."""
        return self >= 3

    @property
    def signs_resources(self) -> bool:
        """Amounts come with the agent's id and a sequence number."""
        return self >= 4


INFORMANT_VERSIONS = VersionRange(InformantVersion(1), InformantVersion(4))


@dataclass(frozen=True, slots=True)
class Endpoint:
    method: str
    path: str


REGISTER = Endpoint("POST", "/register")
HEALTH_CHECK = Endpoint("PUT", "/health-check")
DOWNSCALE = Endpoint("PUT", "/downscale")
UPSCALE = Endpoint("PUT", "/upscale")
UNREGISTER = Endpoint("DELETE", "/unregister")
INFORMANT_ENDPOINTS = (REGISTER, HEALTH_CHECK, DOWNSCALE, UPSCALE, UNREGISTER)

ID = Endpoint("GET", "/id")
RESUME = Endpoint("POST", "/resume")
SUSPEND = Endpoint("POST", "/suspend")
TRY_UPSCALE = Endpoint("POST", "/try-upscale")
AGENT_ENDPOINTS = (ID, RESUME, SUSPEND, TRY_UPSCALE)


def find_endpoint(of: tuple[Endpoint, ...], method: str, path: str) -> Endpoint:
    """The endpoint of one of the servers that is asked for. Raises RequestError."""
    for one in of:
        if one.path == path:
            if one.method == method:
                return one
            raise RequestError(405, f"{path} must be {one.method}")
    raise RequestError(404, "there is no such endpoint")


@dataclass(frozen=True, slots=True)
class AgentDesc:
    """An agent's server, as it registers, and as it unregisters."""

    agent_id: UUID
    address: str
    """``ip:port``, where the agent is asked."""
    versions: VersionRange[InformantVersion]


@dataclass(frozen=True, slots=True)
class InformantDesc:
    """What an informant chose."""

    version: InformantVersion
    metrics_port: int
    """Where the guest serves its metrics as Prometheus text: the only way that there is."""


@dataclass(frozen=True, slots=True)
class SequenceStamp:
    """Who said it, and as the how many-th."""

    agent_id: UUID
    sequence: int


@dataclass(frozen=True, slots=True)
class ResourcesMessage:
    """Amounts, and who told them; None before v2.0, which does not say."""

    resources: Resources
    by: SequenceStamp | None


# -- what an agent says, and the informant's replies -----------------------------------------------------------------


def encode_agent(agent: AgentDesc) -> bytes:
    """For REGISTER and UNREGISTER."""
    return encode_message(
        {
            "agentID": str(agent.agent_id),
            "agentServeAddr": agent.address,
            "minProtoVersion": int(agent.versions.min),
            "maxProtoVersion": int(agent.versions.max),
        }
    )


def decode_agent(body: bytes) -> AgentDesc:
    fields = _read(body)
    least, most = (InformantVersion(fields.whole(name, 32)) for name in ("minProtoVersion", "maxProtoVersion"))
    return AgentDesc(_uuid(fields, "agentID"), fields.text("agentServeAddr"), VersionRange(least, most))


def encode_informant(informant: InformantDesc) -> bytes:
    """The reply to REGISTER."""
    metrics = {"prometheus": {"port": informant.metrics_port}}
    return encode_message({"protoVersion": int(informant.version), "metricsMethod": metrics})


def decode_informant(body: bytes, offered: VersionRange[InformantVersion]) -> InformantDesc:
    """The version must be one that was offered, and there must be a way to the metrics."""
    fields = _read(body)
    version = InformantVersion(fields.whole("protoVersion", 32))
    if version not in offered:
        raise Unreadable(f"protoVersion must be {offered}, not {version}")
    prometheus = fields.inner("metricsMethod").optional("prometheus")
    if prometheus is None:
        raise Unreadable("metricsMethod must offer a method: prometheus")
    port = prometheus.whole("port", 16)
    if port == 0:
        raise Unreadable("metricsMethod.prometheus.port must not be zero")
    return InformantDesc(version, port)


def encode_agent_id(agent_id: UUID) -> bytes:
    """For HEALTH_CHECK, which is answered with NOTHING."""
    return encode_message({"agentID": str(agent_id)})


def decode_agent_id(body: bytes) -> UUID:
    return _uuid(_read(body), "agentID")


def encode_resources(resources: Resources, version: InformantVersion, by: SequenceStamp) -> bytes:
    """For UPSCALE, which is answered with NOTHING, and DOWNSCALE."""
    amounts = {"cpu": cpu_to_quantity(resources.cpu), "memory": bytes_to_quantity(resources.memory)}
    if not version.signs_resources:
        return encode_message(amounts)
    return encode_message({"data": {**amounts, "id": {"agentID": str(by.agent_id)}}, "sequenceNumber": by.sequence})


def decode_resources(body: bytes, version: InformantVersion) -> ResourcesMessage:
    """Both amounts must be there."""
    message = _read(body)
    fields = message.inner("data") if version.signs_resources else message
    for name in ("cpu", "memory"):
        if not fields.has(name):
            raise Unreadable(f"{fields.path(name)} must be given")
    resources = Resources(fields.cpu("cpu"), fields.bytes("memory"))
    if not version.signs_resources:
        return ResourcesMessage(resources, None)
    return ResourcesMessage(resources, SequenceStamp(_uuid(fields.inner("id"), "agentID"), _sequence(message)))


def encode_downscale_result(result: DownscaleResult) -> bytes:
    """The reply to DOWNSCALE."""
    return encode_message({"Ok": result.ok, "Status": result.status[:MAX_TEXT]})


def decode_downscale_result(body: bytes) -> DownscaleResult:
    fields = _read(body)
    return DownscaleResult(fields.flag("Ok"), fields.text("Status")[:MAX_TEXT])


def encode_unregistered(was_active: bool) -> bytes:
    """The reply to UNREGISTER: whether this agent was the one in use."""
    return encode_message({"wasActive": was_active})


# -- what an informant says, and the agent's replies -----------------------------------------------------------------


def encode_expected_agent(agent_id: UUID) -> bytes:
    """For RESUME and SUSPEND. ID is asked with NOTHING."""
    return encode_message({"expectedID": str(agent_id)})


def decode_expected_agent(body: bytes) -> UUID:
    return _uuid(_read(body), "expectedID")


def encode_try_upscale(more: ResourceFlags, agent_id: UUID) -> bytes:
    """For TRY_UPSCALE."""
    return encode_message({"cpu": more.cpu, "memory": more.memory, "expectedID": str(agent_id)})


def decode_try_upscale(body: bytes) -> tuple[ResourceFlags, UUID]:
    fields = _read(body)
    return ResourceFlags(fields.flag("cpu"), fields.flag("memory")), _uuid(fields, "expectedID")


def encode_stamp(by: SequenceStamp) -> bytes:
    """The reply of an agent to whatever it is asked."""
    return encode_message({"data": {"agentID": str(by.agent_id)}, "sequenceNumber": by.sequence})


def decode_stamp(body: bytes) -> SequenceStamp:
    fields = _read(body)
    return SequenceStamp(_uuid(fields.inner("data"), "agentID"), _sequence(fields))


def check_json(body: bytes) -> None:
    """For a body of which nothing is used."""
    decode_body(body)


def _read(body: bytes) -> JsonFields:
    return JsonFields(decode_body(body))


def _uuid(fields: JsonFields, name: str) -> UUID:
    text = fields.text(name)
    try:
        return UUID(text[:64]) if text else UUID(int=0)
    except ValueError:
        raise Unreadable(f"{fields.path(name)} must be a UUID, not {text[:40]!r}") from None


def _sequence(fields: JsonFields) -> int:
    number = fields.whole("sequenceNumber", 64)
    if number == 0:
        raise Unreadable("sequenceNumber must be 1 or more")
    return number

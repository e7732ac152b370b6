"""Messages between an agent and the server of permits (the scheduler plugin of peers in use), versions v1.0 to v5.0.

A server uses it in this order, which is that of the checks::

    request = decode_request(body, method)             # what the message alone says, or RequestError
    ...                                                # RequestError(404, NO_POD) for a machine that it does not know
    ask = demand_in_bytes(request, slot_size, unit)    # what depends on the machine's slots, or RequestError
    ...                                                # its decision: permit, and whether the machine is migrated
    body = encode_reply(request.version, permit, slot_size, unit, migrate=False)   # 200, application/json

``RequestError`` is answered with its ``status`` and ``text`` as text/plain; ``detail`` is for the log. Read at most
MAX_BODY bytes of a body. An agent uses ``encode_request`` and ``decode_reply``, and ``WireResources`` to count as the
version does.

A version refuses only what an agent of that version could not have sent (T21).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any

from devalloc.scaling.peer_json import JsonFields, Unreadable, bytes_to_json, cpu_to_json, decode_body, encode_message
from devalloc.scaling.peer_json import RequestError as RequestError
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import PLUGIN_VERSIONS, PluginVersion

MAX_BODY = 1024
"""Bytes of a request that are read. A message that does not end within them is refused."""
MAX_SLOTS = 2**16 - 1
"""Slots that agents of the versions that count in slots can ask for."""
NO_POD = "pod not found"


@dataclass(frozen=True, slots=True)
class PodName:
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class WireResources:
    """CPU in thousandths, and memory as the version counts it: in slots of the machine or in bytes."""

    cpu: int
    memory: int

    def in_bytes(self, version: PluginVersion, slot_size: int) -> Resources:
        return Resources(self.cpu, self.memory if version.memory_is_bytes else self.memory * slot_size)

    @classmethod
    def of(cls, resources: Resources, version: PluginVersion, slot_size: int) -> WireResources:
        """As much of it as the version can say: whole slots, and whole CPUs where it has no parts of one."""
        cpu = resources.cpu if version.has_fractional_cpu else resources.cpu // 1000 * 1000
        return cls(cpu, resources.memory if version.memory_is_bytes else resources.memory // slot_size)


@dataclass(frozen=True, slots=True)
class LoadMetrics:
    """The load of a machine. What a version does not have is None."""

    load1: float
    """Load average of one minute."""
    load5: float | None = None
    """Load average of five minutes."""
    memory_usage: float | None = None
    """Bytes in use."""


@dataclass(frozen=True, slots=True)
class PermitRequest:
    """What an agent says: ``resources`` is all that the machine is to have, not what it is to have more."""

    version: PluginVersion
    pod: PodName
    resources: WireResources
    compute_unit: WireResources | None = None
    """From v4.0 on; it is in bytes."""
    last_permit: WireResources | None = None
    metrics: LoadMetrics | None = None


@dataclass(frozen=True, slots=True)
class PermitDemand:
    """A request in bytes."""

    resources: Resources
    last_permit: Resources | None
    step: Resources
    """An increase is granted in whole steps."""


@dataclass(frozen=True, slots=True)
class PermitReply:
    permit: WireResources
    migrate: bool = False
    """The machine is going to be migrated and must not be changed."""
    compute_unit: WireResources | None = None
    """Up to v2.1."""


# -- the server's side -----------------------------------------------------------------------------------------------


def decode_request(body: bytes, method: str = "POST") -> PermitRequest:
    """Checks 1 to 9, in order. Raises RequestError."""
    if method != "POST":
        raise RequestError(400, "must be POST", method[:20])
    try:
        request = _read_request(JsonFields(decode_body(body[:MAX_BODY])))
    except Unreadable as error:
        raise RequestError(400, "bad JSON", str(error)) from None
    _check_version(request)
    _check_unit(request)
    _check_metrics(request)
    return request


def demand_in_bytes(request: PermitRequest, slot_size: int, unit: Resources) -> PermitDemand:
    """The request in bytes, for a machine with slots of ``slot_size`` bytes; checks 12 and 13. Raises RequestError.

    ``unit`` is the compute unit configured here. It counts for versions whose agents send none; before v2.0 CPUs are
    granted one by one, and memory by the unit as it is configured, not by the multiple that agents get.
    """
    version = request.version
    if (sent := request.compute_unit) is not None:
        if sent.memory % slot_size:
            raise RequestError(
                400,
                "computeUnit.mem must be a multiple of the memory slot size of the VM "
                f"({bytes_to_json(slot_size)}), not {bytes_to_json(sent.memory)}",
            )
        step = Resources(sent.cpu, sent.memory)
    else:
        step = _smallest_expressible_step(unit, version, slot_size)
    if not version.has_fractional_cpu:
        if request.resources.cpu % 1000:
            raise RequestError(
                400, f"fractional CPU is not in protocol version {version}: {cpu_to_json(request.resources.cpu)}"
            )
        step = Resources(1000, lcm(unit.memory, slot_size))
    last = request.last_permit
    return PermitDemand(
        request.resources.in_bytes(version, slot_size),
        None if last is None else last.in_bytes(version, slot_size),
        step,
    )


def encode_reply(
    version: PluginVersion, permit: Resources, slot_size: int, unit: Resources, *, migrate: bool = False
) -> bytes:
    """The body of a 200. It leaves out what the version cannot express of the permit: no agent gets more than its
    permit.

    ``unit`` is the compute unit configured here, for versions whose agents learn it from the server.
    """
    message: dict[str, Any] = {"permit": _resources(WireResources.of(permit, version, slot_size), version)}
    if version.server_sends_unit:
        wire_unit = WireResources.of(_smallest_expressible_step(unit, version, slot_size), version, slot_size)
        message["resourceUnit"] = _resources(wire_unit, version)
    if migrate:
        message["migrate"] = {}
    return encode_message(message)


def _smallest_expressible_step(unit: Resources, version: PluginVersion, slot_size: int) -> Resources:
    """The smallest multiple of the unit that the version can say: in whole slots, and in whole CPUs before v2.0."""
    if version.memory_is_bytes:
        return unit
    slots = lcm(unit.memory, slot_size) // unit.memory
    cpus = 1 if version.has_fractional_cpu else lcm(unit.cpu, 1000) // unit.cpu
    return unit * lcm(slots, cpus)


def _read_request(fields: JsonFields) -> PermitRequest:
    pod = fields.inner("pod")
    unit, last, metrics = fields.optional("computeUnit"), fields.optional("lastPermit"), fields.optional("metrics")
    return PermitRequest(
        version=PluginVersion(fields.whole("protoVersion", 32)),
        pod=PodName(pod.text("namespace"), pod.text("name")),
        compute_unit=_read_resources(unit) if unit else None,
        resources=_read_resources(fields.inner("resources")),
        last_permit=_read_resources(last) if last else None,
        metrics=None
        if metrics is None
        else LoadMetrics(
            metrics.number("loadAvg1M", single=True) or 0.0,
            metrics.number("loadAvg5M", single=True),
            metrics.number("memoryUsageBytes", single=True),
        ),
    )


def _read_resources(fields: JsonFields) -> WireResources:
    return WireResources(fields.cpu("vCPUs"), fields.bytes("mem"))


def _check_version(request: PermitRequest) -> None:
    version = request.version
    if not version.is_valid:
        raise RequestError(400, f"invalid protocol version {version}: protoVersion is 0 or missing")
    if version not in PLUGIN_VERSIONS:
        raise RequestError(400, f"protocol version mismatch: need {PLUGIN_VERSIONS} but got {version}")
    if not version.memory_is_bytes:
        for name, amounts in (("resources", request.resources), ("lastPermit", request.last_permit)):
            if amounts is not None and amounts.memory > MAX_SLOTS:
                raise RequestError(
                    400,
                    f"{name}.mem is a number of memory slots in protocol version {version}, "
                    f"at most {MAX_SLOTS}, not {amounts.memory}",
                )
    if request.metrics is None and not version.allows_no_metrics:
        raise RequestError(400, f"metrics must not be null in protocol version {version}")


def _check_unit(request: PermitRequest) -> None:
    version, unit = request.version, request.compute_unit
    if not version.agent_sends_unit:
        if unit is not None:
            raise RequestError(400, f"computeUnit is not in protocol version {version}")
        return
    if unit is None:
        raise RequestError(400, f"computeUnit must be given in protocol version {version}")
    for name, amount in (("vCPUs", unit.cpu), ("mem", unit.memory)):
        if amount == 0:
            raise RequestError(400, f"computeUnit.{name} must not be zero")


def _check_metrics(request: PermitRequest) -> None:
    if (metrics := request.metrics) is None:
        return
    version = request.version
    has_load5, has_memory = metrics.load5 is not None, metrics.memory_usage is not None
    # Agents began to send the memory while v2.0 was current, without another version.
    optional_memory = version <= 3
    if has_load5 != has_memory and not (has_load5 and optional_memory):
        raise RequestError(400, "metrics must have both or none of loadAvg5M and memoryUsageBytes")
    if not has_load5 and version.has_extended_metrics:
        raise RequestError(400, f"metrics must have loadAvg5M and memoryUsageBytes in protocol version {version}")
    if has_load5 and not version.has_extended_metrics:
        raise RequestError(400, f"metrics loadAvg5M and memoryUsageBytes are not in protocol version {version}")


# -- the agent's side ------------------------------------------------------------------------------------------------


def encode_request(request: PermitRequest) -> bytes:
    """The body of a request. Raises ValueError where the version needs what is not there."""
    version, metrics = request.version, request.metrics
    message: dict[str, Any] = {
        "protoVersion": int(version),
        "pod": {"namespace": request.pod.namespace, "name": request.pod.name},
    }
    if version.agent_sends_unit:
        if request.compute_unit is None:
            raise ValueError(f"protocol version {version} needs a compute unit")
        message["computeUnit"] = _resources(request.compute_unit, version)
    message["resources"] = _resources(request.resources, version)
    if version >= 4:
        message["lastPermit"] = None if request.last_permit is None else _resources(request.last_permit, version)
    if metrics is None:
        if not version.allows_no_metrics:
            raise ValueError(f"protocol version {version} needs metrics")
        message["metrics"] = None
    else:
        message["metrics"] = {"loadAvg1M": metrics.load1}
        if version.has_extended_metrics:
            message["metrics"]["loadAvg5M"] = metrics.load5 or 0.0
            message["metrics"]["memoryUsageBytes"] = metrics.memory_usage or 0.0
    return encode_message(message)


def decode_reply(body: bytes) -> PermitReply:
    """A 200 of any version. Raises Unreadable."""
    fields = JsonFields(decode_body(body))
    unit = fields.optional("resourceUnit")
    return PermitReply(
        permit=_read_resources(fields.inner("permit")),
        migrate=fields.optional("migrate") is not None,
        compute_unit=_read_resources(unit) if unit else None,
    )


def _resources(resources: WireResources, version: PluginVersion) -> dict[str, Any]:
    memory = bytes_to_json(resources.memory) if version.memory_is_bytes else resources.memory
    return {"vCPUs": cpu_to_json(resources.cpu), "mem": memory}

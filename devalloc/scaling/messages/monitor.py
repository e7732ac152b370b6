"""The guest monitor protocol, v1.0: what an agent and the monitor in its machine's guest say to each other.

JSON in text frames of one WebSocket. The agent offers a range of versions, the monitor chooses one or refuses. From
then on the two directions have envelopes of their own:

    agent to monitor   {"content":{"target":{"cpu":0.25,"mem":1073741824}},"type":"DownscaleRequest","id":4}
    monitor to agent   {"type":"DownscaleResult","Ok":true,"Status":"...","id":4}

A reply carries the id of its request. The agent mints even ids, the monitor odd ones, all below 2^53, because a peer
may read them as floats. An InvalidMessage or InternalError gets no reply, so that two peers cannot go on for ever.

Whatever cannot be read is `Undecodable`, in words for a person: it ends the connection. A message of a type that v1.0
does not have is `Unrecognised`: it is answered with an InvalidMessage, and the connection stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any, NoReturn

from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import MONITOR_VERSIONS, MonitorVersion, VersionRange

PATH = "/monitor"
PORT = 10301
MAX_MESSAGE_BYTES = 32 * 1024
"""Of one message, both ways. The longest that is needed is a status of some sentences."""
MAX_TEXT = 2_000
"""Characters of a status or an error, sent or kept; what is longer is cut."""
MAX_ID = 2**53 - 1
FIRST_AGENT_ID, FIRST_MONITOR_ID, NEXT_ID = 2, 3, 2
_MAX_CPU = 2**32 - 1  # thousandths: what the wire type of the reference holds
_MAX_MEMORY = 2**64 - 1
_MAX_VERSION = 255  # the monitor's versions are bytes


class Undecodable(ValueError):
    """What a peer sent cannot be read. The text says what is wrong with it, in one sentence."""


@dataclass(frozen=True, slots=True)
class UpscaleNotification:
    """Agent to monitor: the machine has this now, in all."""

    granted: Resources


@dataclass(frozen=True, slots=True)
class DownscaleRequest:
    """Agent to monitor: may the machine be made this small?"""

    target: Resources


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """Agent to monitor, and the monitor's answer to it."""


@dataclass(frozen=True, slots=True)
class UpscaleRequest:
    """Monitor to agent: more memory is wanted. No reply; an UpscaleNotification may follow."""


@dataclass(frozen=True, slots=True)
class UpscaleConfirmation:
    """Monitor to agent: the reply to an UpscaleNotification."""


@dataclass(frozen=True, slots=True)
class DownscaleResult:
    """Monitor to agent: the reply to a DownscaleRequest. Not ok is *denied*, not failed."""

    ok: bool
    status: str = ""


@dataclass(frozen=True, slots=True)
class InvalidMessage:
    """Either way: the message with this id was not understood, or is not awaited. No reply."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class InternalError:
    """Either way: what the message with this id asks for was tried and did not work. No reply."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """A message of a type that this version does not have. It is only ever read."""

    type: str


ToMonitor = UpscaleNotification | DownscaleRequest | HealthCheck | InvalidMessage | InternalError
ToAgent = UpscaleRequest | UpscaleConfirmation | DownscaleResult | HealthCheck | InvalidMessage | InternalError


@dataclass(frozen=True, slots=True)
class VersionRefusal:
    """The monitor speaks none of the versions that were offered."""

    error: str


# The handshake


VersionOffer = VersionRange[MonitorVersion]
"""The versions that an agent speaks, both ends included."""


def encode_offer(offer: VersionOffer = MONITOR_VERSIONS) -> str:
    """What the agent sends first."""
    return _dumps({"min": offer.min, "max": offer.max})


def decode_offer(text: str | bytes) -> VersionOffer:
    """What the monitor reads first. The caller that chooses from the range judges whether it makes sense."""
    content = _object(text)
    least, most = (MonitorVersion(_integer(content, name, _MAX_VERSION)) for name in ("min", "max"))
    return VersionRange(least, most)


def encode_choice(choice: MonitorVersion | VersionRefusal) -> str:
    """The monitor's answer to an offer."""
    return _dumps({"error": _truncate(choice.error)} if isinstance(choice, VersionRefusal) else {"version": choice})


def decode_choice(text: str | bytes) -> MonitorVersion | VersionRefusal:
    """What the agent reads in answer to its offer: a version, or why there is none."""
    content = _CaseInsensitiveFields(_object(text))
    if content.get("error") is not None:
        return VersionRefusal(_text(content, "error"))
    return MonitorVersion(_integer(content, "version", _MAX_VERSION))


# Agent to monitor: nested


def encode_to_monitor(message: ToMonitor, id: int) -> str:
    """A message of the agent. Empty content is ``{}``, never null: some monitors read it into a structure."""
    content: dict[str, Any]
    match message:
        case UpscaleNotification(granted):
            content = {"granted": _amounts(granted)}
        case DownscaleRequest(target):
            content = {"target": _amounts(target)}
        case HealthCheck():
            content = {}
        case InvalidMessage(error) | InternalError(error):
            content = {"error": _truncate(error)}
    return _dumps({"content": content, "type": type(message).__name__, "id": id})


def decode_to_monitor(text: str | bytes) -> tuple[ToMonitor | Unrecognised, int]:
    """What the monitor reads: message and id. Strict: the fields of a known type are there and of their type."""
    envelope = _object(text)
    kind, id = _kind(envelope)
    reads = _MONITOR_DECODERS.get(kind)
    if reads is None:
        return Unrecognised(kind), id
    content = envelope.get("content")
    if not isinstance(content, dict):
        raise Undecodable(f"the content of a {kind} must be an object, not {_shown(content)}")
    return reads(content), id


_MONITOR_DECODERS: dict[str, Callable[[Mapping[str, Any]], ToMonitor]] = {
    "UpscaleNotification": lambda content: UpscaleNotification(_resources(content, "granted")),
    "DownscaleRequest": lambda content: DownscaleRequest(_resources(content, "target")),
    "HealthCheck": lambda _: HealthCheck(),
    "InvalidMessage": lambda content: InvalidMessage(_text(content, "error")),
    "InternalError": lambda content: InternalError(_text(content, "error")),
}


# Monitor to agent: flat


def encode_to_agent(message: ToAgent, id: int) -> str:
    """A message of the monitor. The fields of a DownscaleResult are capitalised."""
    fields: dict[str, Any] = {}
    match message:
        case DownscaleResult(ok, status):
            fields = {"Ok": ok, "Status": _truncate(status)}
        case InvalidMessage(error) | InternalError(error):
            fields = {"error": _truncate(error)}
    return _dumps({"type": type(message).__name__, **fields, "id": id})


def decode_to_agent(text: str | bytes) -> tuple[ToAgent | Unrecognised, int]:
    """What the agent reads: message and id. Fields as agents read them: in any case, and left out they are empty."""
    fields = _object(text)
    kind, id = _kind(fields)
    reads = _AGENT_DECODERS.get(kind)
    return (Unrecognised(kind) if reads is None else reads(_CaseInsensitiveFields(fields))), id


_AGENT_DECODERS: dict[str, Callable[[Mapping[str, Any]], ToAgent]] = {
    "UpscaleRequest": lambda _: UpscaleRequest(),
    "UpscaleConfirmation": lambda _: UpscaleConfirmation(),
    "DownscaleResult": lambda fields: DownscaleResult(_flag(fields, "Ok"), _text(fields, "Status", "")),
    "HealthCheck": lambda _: HealthCheck(),
    "InvalidMessage": lambda fields: InvalidMessage(_text(fields, "error", "")),
    "InternalError": lambda fields: InternalError(_text(fields, "error", "")),
}


class _CaseInsensitiveFields(dict[str, Any]):
    """Fields by their name in any case, as agents in use read them: the last counts, and null is as if left out."""

    def get(self, name: str, default: Any = None) -> Any:
        folded = name.casefold()
        matches = [value for key, value in self.items() if value is not None and key.casefold() == folded]
        return matches[-1] if matches else default


# Values


def _dumps(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _object(text: str | bytes) -> dict[str, Any]:
    """One JSON object. Numbers that are no integers are exact decimals, so that nothing is rounded on the way."""
    if len(text) > MAX_MESSAGE_BYTES:
        raise Undecodable(f"a message has at most {MAX_MESSAGE_BYTES} bytes, and this one {len(text)}")
    try:
        content = json.loads(text, parse_float=Decimal, parse_constant=_no_number)
    except RecursionError:
        raise Undecodable("the message is nested too deeply") from None
    except (ValueError, ArithmeticError) as error:
        raise Undecodable(f"not JSON: {_truncate(str(error), 200)}") from None
    if not isinstance(content, dict):
        raise Undecodable(f"a message must be a JSON object, not {_shown(content)}")
    return content


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _kind(envelope: Mapping[str, Any]) -> tuple[str, int]:
    kind = envelope.get("type")
    if not isinstance(kind, str):
        raise Undecodable(f"the type of a message must be a string, not {_shown(kind)}")
    return _truncate(kind, 100), _integer(envelope, "id", MAX_ID)


def _integer(content: Mapping[str, Any], name: str, most: int) -> int:
    number = content.get(name)
    if (
        isinstance(number, Decimal)
        and number.is_finite()
        and 0 <= number <= most
        and number == number.to_integral_value()
    ):
        number = int(number)
    if type(number) is not int or not 0 <= number <= most:
        raise Undecodable(f"{name} must be an integer from 0 to {most}, not {_shown(number)}")
    return number


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise Undecodable(f"{name} must be true or false, not {_shown(value)}")
    return value


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise Undecodable(f"{name} must be a string, not {_shown(value)}")
    return _truncate(value)


def _amounts(resources: Resources) -> dict[str, Any]:
    """CPUs as a number, whole ones without a point, and bytes."""
    whole, rest = divmod(resources.cpu, 1000)
    return {"cpu": whole if rest == 0 else resources.cpu / 1000, "mem": resources.memory}


def _resources(content: Mapping[str, Any], name: str) -> Resources:
    """CPUs, rounded up to thousandths, and bytes."""
    amounts = content.get(name)
    if not isinstance(amounts, dict):
        raise Undecodable(f"{name} must be an object with cpu and mem, not {_shown(amounts)}")
    cpu = amounts.get("cpu")
    if isinstance(cpu, bool) or not isinstance(cpu, int | Decimal) or not 0 <= cpu <= Decimal(_MAX_CPU) / 1000:
        raise Undecodable(f"{name}.cpu must be a number of CPUs from 0 to {_MAX_CPU // 1000}, not {_shown(cpu)}")
    memory = amounts.get("mem")
    if type(memory) is not int or not 0 <= memory <= _MAX_MEMORY:
        raise Undecodable(f"{name}.mem must be a number of bytes from 0 to {_MAX_MEMORY}, not {_shown(memory)}")
    return Resources(int((Decimal(cpu) * 1000).to_integral_value(ROUND_CEILING)), memory)


def _shown(value: Any) -> str:
    """A value for an error message; of what is nested only what it is, for it may be deep."""
    match value:
        case None:
            return "nothing"
        case dict():
            return "an object"
        case list():
            return "a list"
        case Decimal():
            return _truncate(str(value), 80)
    return _truncate(repr(value), 80)


def _truncate(text: str, most: int = MAX_TEXT) -> str:
    """At most so many characters, all of which can be sent: JSON may hold halves of a pair that UTF-8 cannot."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short.encode("utf-8", "replace").decode("utf-8")

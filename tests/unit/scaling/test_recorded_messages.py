"""What a real agent and devalloc said to each other is read, and is what devalloc writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from devalloc.scaling.messages import monitor, permits
from devalloc.scaling.versions import PluginVersion
from tests.support import reference_data

MESSAGES = reference_data.read(reference_data.DATA / "scaling" / "wire" / "agent.json.xz")
DECODABLE = {"", "POST / HTTP/1.1", "HTTP/1.1 200 OK"}
"""First lines of messages with content: of the other ones a text is the body."""
UNIT = permits.Resources(250, 2**30)


def _again(message: dict[str, Any]) -> str | bytes:
    """The body, read and written."""
    body = message["body"]
    match message["channel"], message["from"]:
        case "permits", "agent":
            return permits.encode_request(permits.decode_request(body.encode()))
        case "permits", _:
            permit = permits.decode_reply(body.encode()).permit
            resources = permits.Resources(permit.cpu, permit.memory)
            return permits.encode_reply(PluginVersion(7), resources, 1, UNIT)
        case _, "agent" if "type" not in body:
            return monitor.encode_offer(monitor.decode_offer(body))
        case _, "monitor" if "type" not in body:
            return monitor.encode_choice(monitor.decode_choice(body))
        case _, "agent":
            return monitor.encode_to_monitor(*monitor.decode_to_monitor(body))
        case _:
            return monitor.encode_to_agent(*monitor.decode_to_agent(body))


@pytest.mark.parametrize("message", [message for message in MESSAGES if message.get("line", "") in DECODABLE])
def test_a_recorded_message_is_read_and_written_again(message: dict[str, Any]) -> None:
    assert json.loads(_again(message)) == json.loads(message["body"])


def test_all_kinds_of_messages_were_recorded() -> None:
    kinds = {json.loads(message["body"]).get("type") for message in MESSAGES if message["channel"] == "monitor"}
    assert kinds >= {"HealthCheck", "UpscaleNotification", "UpscaleConfirmation", "DownscaleRequest", "DownscaleResult"}

"""What an agent and an informant inside a machine say to each other over HTTP, in every version."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc.scaling.peer_json import RequestError, Unreadable
from devalloc.scaling.resources import ResourceFlags, Resources
from devalloc.scaling.versions import VersionRange
from devalloc_neon import informant_messages as wire
from devalloc_neon.informant_messages import INFORMANT_VERSIONS, InformantVersion

ME = UUID("11111111-2222-3333-4444-555555555555")
ID = str(ME)
AMOUNTS = Resources(250, 2**30)


def test_an_agent_registers_with_what_it_can() -> None:
    agent = wire.AgentDesc(ME, "10.0.0.1:4000", INFORMANT_VERSIONS)
    body = {"agentID": ID, "agentServeAddr": "10.0.0.1:4000", "minProtoVersion": 1, "maxProtoVersion": 4}
    assert json.loads(wire.encode_agent(agent)) == body
    assert wire.decode_agent(json.dumps(body).encode()) == agent


def test_an_informant_says_what_it_chose_and_where_its_metrics_are() -> None:
    chosen = wire.InformantDesc(InformantVersion(4), 9100)
    body = {"protoVersion": 4, "metricsMethod": {"prometheus": {"port": 9100}}}
    assert json.loads(wire.encode_informant(chosen)) == body
    assert wire.decode_informant(json.dumps(body).encode(), INFORMANT_VERSIONS) == chosen


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"protoVersion": 5, "metricsMethod": {"prometheus": {"port": 1}}}, r"v1\.0 to v2\.0, not <unknown"),
        ({"metricsMethod": {"prometheus": {"port": 1}}}, "not <invalid: zero>"),
        ({"protoVersion": 4}, "must offer a method"),
        ({"protoVersion": 4, "metricsMethod": {"prometheus": None, "other": {}}}, "must offer a method"),
        ({"protoVersion": 4, "metricsMethod": {"prometheus": {}}}, "port must not be zero"),
        ({"protoVersion": 4, "metricsMethod": {"prometheus": {"port": 65536}}}, "port must be 0 to 65535"),
    ],
)
def test_a_reply_without_a_version_or_a_way_to_the_metrics_is_none(body: object, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        wire.decode_informant(json.dumps(body).encode(), INFORMANT_VERSIONS)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_amounts_are_plain_before_v2(version: int) -> None:
    body = wire.encode_resources(AMOUNTS, InformantVersion(version), wire.SequenceStamp(ME, 7))
    assert json.loads(body) == {"cpu": "250m", "memory": "1Gi"}
    assert wire.decode_resources(body, InformantVersion(version)) == wire.ResourcesMessage(AMOUNTS, None)


def test_amounts_are_signed_in_v2() -> None:
    body = wire.encode_resources(Resources(1000, 500), InformantVersion(4), wire.SequenceStamp(ME, 7))
    signed = {"data": {"cpu": "1", "memory": "500", "id": {"agentID": ID}}, "sequenceNumber": 7}
    assert json.loads(body) == signed
    assert wire.decode_resources(body, InformantVersion(4)) == wire.ResourcesMessage(
        Resources(1000, 500), wire.SequenceStamp(ME, 7)
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"cpu":"250m","memory":"1Gi"}', r"data\.cpu must be given"),
        (b'{"data":{"cpu":"250m","memory":null},"sequenceNumber":1}', r"data\.memory must be given"),
        (b'{"data":{"cpu":"-1","memory":"1Gi"},"sequenceNumber":1}', r"data\.cpu must not be negative"),
        (b'{"data":{"cpu":"1","memory":"1Gi"}}', "sequenceNumber must be 1 or more"),
        (b'{"data":{"cpu":"1","memory":"1Gi","id":{"agentID":"me"}},"sequenceNumber":1}', "must be a UUID, not 'me'"),
        (b"[]", "must be an object"),
        (b"", "no body"),
    ],
)
def test_amounts_that_are_not_all_there_are_none(body: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        wire.decode_resources(body, InformantVersion(4))


def test_replies_and_what_informants_ask() -> None:
    denied = DownscaleResult(False, "in use")
    assert json.loads(wire.encode_downscale_result(denied)) == {"Ok": False, "Status": "in use"}
    assert wire.decode_downscale_result(wire.encode_downscale_result(denied)) == denied
    assert wire.decode_downscale_result(b'{"Ok":true,"Status":"' + b"x" * 9000 + b'"}') == DownscaleResult(
        True, "x" * 2000
    )
    assert json.loads(wire.encode_unregistered(True)) == {"wasActive": True}
    assert json.loads(wire.encode_agent_id(ME)) == {"agentID": ID}
    assert wire.decode_agent_id(wire.encode_agent_id(ME)) == ME
    assert json.loads(wire.encode_expected_agent(ME)) == {"expectedID": ID}
    assert wire.decode_expected_agent(wire.encode_expected_agent(ME)) == ME
    assert json.loads(wire.encode_try_upscale(ResourceFlags(memory=True), ME)) == {
        "cpu": False,
        "memory": True,
        "expectedID": ID,
    }
    assert wire.decode_try_upscale(wire.encode_try_upscale(ResourceFlags(memory=True), ME)) == (
        ResourceFlags(memory=True),
        ME,
    )
    assert json.loads(wire.encode_stamp(wire.SequenceStamp(ME, 3))) == {"data": {"agentID": ID}, "sequenceNumber": 3}
    assert wire.decode_stamp(wire.encode_stamp(wire.SequenceStamp(ME, 3))) == wire.SequenceStamp(ME, 3)
    with pytest.raises(Unreadable, match="1 or more"):
        wire.decode_stamp(wire.encode_stamp(wire.SequenceStamp(ME, 0)))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/register", None), ("PUT", "/register", 405), ("GET", "/id", 404), ("DELETE", "/unregister", None)],
)
def test_a_wrong_method_is_405_and_a_wrong_path_404(method: str, path: str, status: int | None) -> None:
    if status is None:
        assert wire.find_endpoint(wire.INFORMANT_ENDPOINTS, method, path) == wire.Endpoint(method, path)
        return
    with pytest.raises(RequestError) as refused:
        wire.find_endpoint(wire.INFORMANT_ENDPOINTS, method, path)
    assert refused.value.status == status


def test_the_range_that_an_agent_offers_is_read_as_it_is() -> None:
    """That it is upside down, or of no version at all, is for the negotiation to find."""
    body = json.dumps({"agentID": ID, "minProtoVersion": 4, "maxProtoVersion": 2}).encode()
    assert wire.decode_agent(body).versions == VersionRange(InformantVersion(4), InformantVersion(2))
    assert wire.decode_agent(b"{}") == wire.AgentDesc(
        UUID(int=0), "", VersionRange(InformantVersion(0), InformantVersion(0))
    )

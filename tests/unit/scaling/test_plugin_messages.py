"""What an agent and the server of permits say to each other, in every version; what is refused, in which order."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.scaling.messages.permits import (
    LoadMetrics,
    PermitReply,
    PermitRequest,
    PodName,
    RequestError,
    WireResources,
    decode_reply,
    decode_request,
    demand_in_bytes,
    encode_reply,
    encode_request,
)
from devalloc.scaling.peer_json import Unreadable
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import PluginVersion

GIB = 2**30
UNIT = Resources(250, GIB)
SMALL = {"vCPUs": "500m", "mem": "2Gi"}
FULL = {"loadAvg1M": 0.3, "loadAvg5M": 0.2, "memoryUsageBytes": 1000}


def message(version: int, **changes: Any) -> dict[str, Any]:
    """What an agent of the version sends, with changes; a field that is changed to ... is left out."""
    sent: dict[str, Any] = {"protoVersion": version, "pod": {"namespace": "default", "name": "vm1-abcde"}}
    if version >= 6:
        sent["computeUnit"] = {"vCPUs": "250m", "mem": "1Gi"}
    sent["resources"] = SMALL if version >= 6 else {"vCPUs": "500m" if version >= 3 else 1, "mem": 2}
    if version >= 4:
        sent["lastPermit"] = None
    sent["metrics"] = {"loadAvg1M": 0.3} if version >= 7 else FULL
    sent.update(changes)
    return {name: value for name, value in sent.items() if value is not ...}


def refusal(body: Any, method: str = "POST") -> tuple[int, str]:
    with pytest.raises(RequestError) as refused:
        decode_request(body if isinstance(body, bytes) else json.dumps(body).encode(), method)
    return refused.value.status, refused.value.text


def read(body: Any) -> PermitRequest:
    return decode_request(body if isinstance(body, bytes) else json.dumps(body).encode())


def test_the_latest_version() -> None:
    body = (
        b'{"protoVersion":7,"pod":{"namespace":"default","name":"vm1-abcde"},'
        b'"computeUnit":{"vCPUs":"250m","mem":"1Gi"},"resources":{"vCPUs":"500m","mem":"2Gi"},'
        b'"lastPermit":{"vCPUs":"250m","mem":"1Gi"},"metrics":{"loadAvg1M":0.3}}'
    )
    request = decode_request(body)
    assert request == PermitRequest(
        version=PluginVersion(7),
        pod=PodName("default", "vm1-abcde"),
        resources=WireResources(500, 2 * GIB),
        compute_unit=WireResources(250, GIB),
        last_permit=WireResources(250, GIB),
        metrics=LoadMetrics(0.3),
    )
    assert encode_request(request) == body
    ask = demand_in_bytes(request, GIB, Resources(1, 1))
    assert (ask.resources, ask.last_permit, ask.step) == (Resources(500, 2 * GIB), UNIT, UNIT)
    assert encode_reply(PluginVersion(7), ask.resources, GIB, UNIT) == b'{"permit":{"vCPUs":"500m","mem":"2Gi"}}'
    migrating = encode_reply(PluginVersion(7), ask.resources, GIB, UNIT, migrate=True)
    assert migrating == b'{"permit":{"vCPUs":"500m","mem":"2Gi"},"migrate":{}}'


@pytest.mark.parametrize("version", range(1, 8))
def test_every_version_is_understood(version: int) -> None:
    request = read(message(version, lastPermit={"vCPUs": 1, "mem": 1}) if version in (4, 5) else message(version))
    ask = demand_in_bytes(request, GIB, UNIT)
    assert ask.resources == Resources(500 if version >= 3 else 1000, 2 * GIB)
    assert ask.last_permit == (Resources(1000, GIB) if version in (4, 5) else None)
    reply = json.loads(encode_reply(request.version, Resources(2000, 4 * GIB), GIB, UNIT))
    assert reply["permit"] == {"vCPUs": 2, "mem": "4Gi" if version >= 6 else 4}
    unit = {"vCPUs": "250m", "mem": 1} if version >= 3 else {"vCPUs": 1, "mem": 4}
    assert reply.get("resourceUnit") == (unit if version < 5 else None)


def test_slots_of_any_size_are_converted_both_ways() -> None:
    request = read(message(5, resources={"vCPUs": 1, "mem": 12}, lastPermit={"vCPUs": 1, "mem": 8}))
    ask = demand_in_bytes(request, 128 * 2**20, UNIT)
    assert (ask.resources.memory, ask.last_permit and ask.last_permit.memory) == (12 * 128 * 2**20, GIB)
    reply = decode_reply(encode_reply(PluginVersion(5), Resources(1000, GIB), 128 * 2**20, UNIT))
    assert reply == PermitReply(WireResources(1000, 8))


def test_many_slots_are_still_a_number() -> None:
    """An agent that counts in slots could not read "1Ki"."""
    assert json.loads(encode_reply(PluginVersion(3), Resources(1000, 2**30), 2**20, UNIT))["permit"]["mem"] == 1024


@pytest.mark.parametrize(
    ("version", "unit", "slot_size", "sent", "step"),
    [
        (4, UNIT, GIB, WireResources(250, 1), UNIT),
        (3, UNIT, GIB // 4, WireResources(250, 4), UNIT),
        (2, UNIT, GIB, WireResources(1000, 4), Resources(1000, GIB)),
        (1, Resources(600, GIB), GIB, WireResources(3000, 5), Resources(1000, GIB)),
        (1, Resources(1000, GIB), GIB, WireResources(1000, 1), Resources(1000, GIB)),
        (2, UNIT, 2 * GIB, WireResources(1000, 2), Resources(1000, 2 * GIB)),
        (4, UNIT, 2 * GIB, WireResources(500, 1), Resources(500, 2 * GIB)),
        (5, UNIT, 4 * GIB, None, Resources(1000, 4 * GIB)),
        (6, UNIT, GIB, None, UNIT),
    ],
)
def test_agents_that_send_no_unit_get_the_smallest_multiple_that_they_can_use(
    version: int, unit: Resources, slot_size: int, sent: WireResources | None, step: Resources
) -> None:
    assert demand_in_bytes(read(message(version)), slot_size, unit).step == step
    assert decode_reply(encode_reply(PluginVersion(version), UNIT, slot_size, unit)).compute_unit == sent


def test_no_reply_permits_more_than_the_permit() -> None:
    permit = Resources(1500, 2 * GIB + 5)
    assert decode_reply(encode_reply(PluginVersion(2), permit, GIB, UNIT)).permit == WireResources(1000, 2)
    assert decode_reply(encode_reply(PluginVersion(5), permit, GIB, UNIT)).permit == WireResources(1500, 2)
    assert decode_reply(encode_reply(PluginVersion(7), permit, GIB, UNIT)).permit == WireResources(1500, 2 * GIB + 5)


HUGE = b"1e99999999999999999999"
BAD_JSON = [
    b"",
    b" ",
    b"POST",
    b"[]",
    b'"x"',
    b"7",
    b"{",
    b"{'protoVersion':7}",
    b"\xef\xbb\xbf{}",
    b"[" * 1000,
    b'{"protoVersion":NaN}',
    b'{"x":"\n"}',
    *(
        json.dumps({"protoVersion": 7, **part}).encode().replace(b'"HUGE"', HUGE)
        for part in (
            {"protoVersion": "7"},
            {"protoVersion": -1},
            {"protoVersion": 7.0},
            {"protoVersion": 2**32},
            {"protoVersion": 10**50},
            {"protoVersion": True},
            {"pod": "default/vm1"},
            {"pod": {"name": 1}},
            {"resources": [1, 2]},
            {"resources": {"vCPUs": "much"}},
            {"resources": {"vCPUs": ""}},
            {"resources": {"mem": -1}},
            {"resources": {"mem": True}},
            {"computeUnit": {"mem": "1GB"}},
            {"lastPermit": {"mem": {}}},
            {"metrics": {"loadAvg1M": "0.3"}},
            {"metrics": {"loadAvg1M": 1e39}},
            {"metrics": {"loadAvg1M": "HUGE"}},
            {"resources": {"vCPUs": "HUGE"}},
            {"metrics": []},
        )
    ),
]


def test_what_cannot_be_decoded_is_refused() -> None:
    answers = {body: refusal(body) for body in BAD_JSON}
    assert {body: answer for body, answer in answers.items() if answer != (400, "bad JSON")} == {}


def test_the_log_learns_where_the_body_is_wrong() -> None:
    with pytest.raises(RequestError) as refused:
        read(message(7, resources={"vCPUs": "much"}))
    assert refused.value.detail.startswith("resources.vCPUs is not a quantity: 'much'")


def test_only_the_first_1024_bytes_count() -> None:
    body = json.dumps(message(7)).encode()
    padded = body[:-1] + b" " * (1023 - len(body)) + b"}"
    assert len(padded) == 1023
    assert read(padded) == read(padded[:-1] + b" }") == read(body)
    assert refusal(padded[:-1] + b"  }") == (400, "bad JSON")


def test_only_the_first_value_counts() -> None:
    body = json.dumps(message(7)).encode()
    assert read(b" \r\n\t" + body + b"} and more") == read(body + b"\x00" * 9000) == read(body)


def test_fields_are_found_as_peers_find_them() -> None:
    sent = message(7, PROTOVERSION=7, Resources={"VCPUS": 1, "meM": None, "other": [[]]}, unknown={"a": 1})
    request = read({name: value for name, value in sent.items() if name not in ("protoVersion", "resources")})
    assert request.resources == WireResources(1000, 0)


def test_of_a_field_that_is_there_twice_the_last_counts() -> None:
    body = json.dumps(message(7)).encode()
    twice = body[:-1] + b',"pod":{"name":"other"},"Resources":{"mem":"3Gi"}}'
    assert read(twice).pod == PodName("default", "other")
    assert read(twice).resources == WireResources(500, 3 * GIB)


def test_a_huge_number_is_fine_in_an_unused_field() -> None:
    body = json.dumps(message(7)).encode()
    assert read(body[:-1] + b',"unknown":[-' + HUGE + b"," + HUGE + b"]}") == read(body)


def test_missing_fields_are_zero() -> None:
    request = read({"protoVersion": 7, "computeUnit": {"vCPUs": 1, "mem": 1}})
    assert (request.pod, request.resources) == (PodName("", ""), WireResources(0, 0))
    assert (request.last_permit, request.metrics) == (None, None)


def test_names_with_invalid_characters_are_repaired() -> None:
    assert read(b'{"protoVersion":2,"pod":{"name":"\\ud800\xff"}}').pod.name == "\ufffd\ufffd"


ZERO = {"vCPUs": 0, "mem": 0}
REFUSED = [
    ("method", "GET", b"nothing", "must be POST"),
    ("no version", "POST", message(0), "<invalid: zero>"),
    ("null", "POST", b"null", "<invalid: zero>"),
    ("too new", "POST", message(9, computeUnit=...), r"need v1\.0 to v5\.0 but got <unknown = v5\.0 \+ 2>"),
    ("no metrics in 1", "POST", message(1, metrics=None), "metrics must not be null in protocol version v1.0"),
    ("metrics left out in 1", "POST", message(1, metrics=...), "metrics must not be null"),
    ("too many slots", "POST", message(5, resources={"mem": "1Gi"}), "number of memory slots"),
    ("too many slots permitted", "POST", message(5, lastPermit={"mem": 65536}), "lastPermit.mem .* not 65536"),
    ("unit in 5", "POST", message(5, computeUnit=SMALL), "computeUnit is not in protocol version v3.0"),
    ("unit in 1", "POST", message(1, computeUnit=ZERO), "computeUnit is not in"),
    ("no unit in 6", "POST", message(6, computeUnit=None), "computeUnit must be given"),
    ("unit left out in 7", "POST", message(7, computeUnit=...), "computeUnit must be given"),
    ("unit without CPU", "POST", message(7, computeUnit=ZERO), r"computeUnit.vCPUs must not be zero"),
    ("unit without memory", "POST", message(7, computeUnit={"vCPUs": 1}), r"computeUnit.mem must not be zero"),
    *(
        (f"one of two in {version}", "POST", message(version, metrics={one: 1}), "both or none")
        for version in range(1, 8)
        for one in ("memoryUsageBytes", "loadAvg5M")
        if version > 3 or one == "memoryUsageBytes"
    ),
    *((f"none of two in {v}", "POST", message(v, metrics={"loadAvg1M": 1}), "must have") for v in range(1, 7)),
    ("both in 7", "POST", message(7, metrics=FULL), "are not in protocol version v5.0"),
]


def test_what_a_version_cannot_have_sent_is_refused_with_the_reason() -> None:
    for name, method, body, reason in REFUSED:
        status, text = refusal(body, method)
        assert (name, status) == (name, 400)
        assert re.search(reason, text), (name, text)


def test_agents_of_every_age_are_understood() -> None:
    """No agent is refused for what the version that it names had not yet, or still had, in one of its releases."""
    ages: list[dict[str, Any]] = [
        *(message(version, metrics={"loadAvg1M": 1, "loadAvg5M": 2}) for version in (1, 2, 3)),
        *(message(version, metrics=FULL) for version in (1, 2, 3, 4, 5, 6)),
        *(message(version, metrics=None) for version in range(2, 8)),
        message(7, metrics={"loadAvg1M": 1, "loadAvg5M": None, "memoryUsageBytes": None}),
        message(7, metrics={}),
        message(4, lastPermit=...),
        message(3, computeUnit=None),
        message(7, resources=ZERO),
    ]
    assert [read(body).version for body in ages] == [body["protoVersion"] for body in ages]


def test_checks_come_in_their_order() -> None:
    """Each body is wrong in all the ways that are still to come; the first one is reported, and mended."""
    body = message(0, resources={"vCPUs": "x"}, metrics=None, computeUnit=ZERO)
    assert refusal(body, "PUT")[1] == "must be POST"
    assert refusal(body)[1] == "bad JSON"
    body["resources"] = {"vCPUs": "500m", "mem": 2}
    assert "invalid protocol version" in refusal(body)[1]
    body["protoVersion"] = 8
    assert "mismatch" in refusal(body)[1]
    body["protoVersion"] = 1
    assert "metrics must not be null" in refusal(body)[1]
    body["metrics"] = {"memoryUsageBytes": 1}
    assert "computeUnit is not in" in refusal(body)[1]
    del body["computeUnit"]
    assert "both or none" in refusal(body)[1]
    body["metrics"] = {}
    assert "must have" in refusal(body)[1]
    body["metrics"] = FULL
    with pytest.raises(RequestError, match=r"fractional CPU is not in protocol version v1\.0: 500m"):
        demand_in_bytes(read(body), GIB, UNIT)


def test_a_unit_is_whole_slots_of_the_machine() -> None:
    request = read(message(7))
    with pytest.raises(RequestError, match=r"computeUnit\.mem must be a multiple .*\(2Gi\), not 1Gi") as refused:
        demand_in_bytes(request, 2 * GIB, UNIT)
    assert refused.value.status == 400
    assert demand_in_bytes(request, GIB // 2, UNIT).step == UNIT


def test_replies_that_are_none() -> None:
    for body in (b"", b"[]", b'{"permit":[]}', b'{"permit":{"mem":"x"}}'):
        with pytest.raises(Unreadable):
            decode_reply(body)
    assert decode_reply(b"{}") == PermitReply(WireResources(0, 0))


@pytest.mark.parametrize("missing", ["computeUnit", "metrics"])
def test_an_agent_does_not_send_what_would_be_refused(missing: str) -> None:
    version = PluginVersion(7 if missing == "computeUnit" else 1)
    with pytest.raises(ValueError, match="needs"):
        encode_request(PermitRequest(version, PodName("a", "b"), WireResources(1000, 1)))


_amounts = st.builds(WireResources, st.integers(1, 100).map(lambda n: n * 1000), st.integers(1, 65535))
_loads = st.floats(0, 1000, width=32)
_names = st.text('ab-é\ufffd"\\', max_size=9)


@st.composite
def _requests(draw: st.DrawFn) -> PermitRequest:
    version = PluginVersion(draw(st.integers(1, 7)))
    load5, memory = (draw(_loads), draw(_loads)) if version.has_extended_metrics else (None, None)
    metrics = LoadMetrics(draw(_loads), load5, memory)
    return PermitRequest(
        version,
        PodName(draw(_names), draw(_names)),
        draw(_amounts),
        draw(_amounts) if version.agent_sends_unit else None,
        draw(st.none() | _amounts) if version >= 4 else None,
        draw(st.none() | st.just(metrics)) if version.allows_no_metrics else metrics,
    )


@settings(max_examples=50)
@given(_requests())
def test_what_an_agent_says_is_understood(request: PermitRequest) -> None:
    assert decode_request(encode_request(request)) == request


@settings(max_examples=40)
@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text("1Gm-", max_size=4),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["protoVersion", "pod", "name", "resources", "vCPUs", "mem", "metrics", "loadAvg1M"]),
                inner,
            )
        ),
    )
)
def test_anything_is_understood_or_refused_and_nothing_else(content: Any) -> None:
    try:
        decode_request(json.dumps(content).encode())
    except RequestError as error:
        refused = error
    else:
        return
    assert refused.status == 400

"""The messages of the guest monitor protocol: the texts of the wire, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.scaling.messages import monitor as wire
from devalloc.scaling.messages.monitor import (
    DownscaleRequest,
    DownscaleResult,
    HealthCheck,
    InternalError,
    InvalidMessage,
    Undecodable,
    Unrecognised,
    UpscaleConfirmation,
    UpscaleNotification,
    UpscaleRequest,
    VersionRefusal,
)
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import MONITOR_VERSIONS, MonitorVersion

GIB = 2**30

TO_MONITOR = [
    ('{"content":{"target":{"cpu":0.25,"mem":1073741824}},"type":"DownscaleRequest","id":4}',
     DownscaleRequest(Resources(250, GIB)), 4),
    ('{"content":{"granted":{"cpu":2,"mem":4294967296}},"type":"UpscaleNotification","id":6}',
     UpscaleNotification(Resources(2000, 4 * GIB)), 6),
    ('{"content":{},"type":"HealthCheck","id":2}', HealthCheck(), 2),
    ('{"content":{"error":"too late"},"type":"InvalidMessage","id":8}', InvalidMessage("too late"), 8),
    ('{"content":{"error":"no"},"type":"InternalError","id":10}', InternalError("no"), 10),
]  # fmt: skip
TO_AGENT = [
    ('{"type":"DownscaleResult","Ok":true,"Status":"...","id":4}', DownscaleResult(True, "..."), 4),
    ('{"type":"UpscaleConfirmation","id":6}', UpscaleConfirmation(), 6),
    ('{"type":"UpscaleRequest","id":3}', UpscaleRequest(), 3),
    ('{"type":"HealthCheck","id":2}', HealthCheck(), 2),
    ('{"type":"InvalidMessage","error":"what?","id":8}', InvalidMessage("what?"), 8),
    ('{"type":"InternalError","error":"no","id":10}', InternalError("no"), 10),
]


def test_each_message_is_these_bytes_both_ways() -> None:
    for text, message, id in TO_MONITOR:
        assert wire.encode_to_monitor(message, id) == text
        assert wire.decode_to_monitor(text) == (message, id)
    for text, reply, id in TO_AGENT:
        assert wire.encode_to_agent(reply, id) == text
        assert wire.decode_to_agent(text) == (reply, id)


def test_the_handshake_is_these_bytes_both_ways() -> None:
    assert wire.encode_offer() == '{"min":1,"max":1}'
    assert wire.decode_offer('{"min":1,"max":1}') == MONITOR_VERSIONS
    assert wire.encode_choice(MonitorVersion(1)) == '{"version":1}'
    assert wire.decode_choice('{"version":1}') == 1
    assert wire.encode_choice(VersionRefusal("none shared")) == '{"error":"none shared"}'
    assert wire.decode_choice('{"error":"none shared"}') == VersionRefusal("none shared")


def test_an_agent_reads_fields_in_any_case_and_what_is_left_out_as_empty() -> None:
    result = '{"id":4,"type":"DownscaleResult",%s}'
    assert wire.decode_to_agent(result % '"ok":true,"STATUS":"x"') == (DownscaleResult(True, "x"), 4)
    for fields, ok in (('"ok":true,"Ok":false', False), ('"Ok":false,"OK":true', True), ('"Ok":true,"oK":null', True)):
        assert wire.decode_to_agent(result % fields) == (DownscaleResult(ok), 4), "the last that is not null counts"
    assert wire.decode_to_agent('{"id":4,"type":"DownscaleResult"}') == (DownscaleResult(False), 4)
    assert wire.decode_to_agent(result % '"Ok":null,"more":[1]') == (DownscaleResult(False), 4)


def test_a_type_of_another_version_is_no_mistake_of_the_peer() -> None:
    assert wire.decode_to_agent('{"type":"UpscaleHint","id":5}') == (Unrecognised("UpscaleHint"), 5)
    assert wire.decode_to_monitor('{"type":"DownscaleHint","id":12,"content":null}') == (
        Unrecognised("DownscaleHint"),
        12,
    )
    # What only the other side sends is not for this one.
    assert wire.decode_to_monitor('{"type":"UpscaleRequest","id":12,"content":{}}')[0] == Unrecognised("UpscaleRequest")
    assert wire.decode_to_agent('{"type":"DownscaleRequest","id":5}')[0] == Unrecognised("DownscaleRequest")


DAMAGED = [
    "", "nonsense", "{", "[]", "3", "null", '"text"', "{}", '{"type":"HealthCheck"}', '{"id":2}',
    '{"type":5,"id":2}', '{"type":null,"id":2}', '{"Type":"HealthCheck","Id":2}',
    '{"type":"HealthCheck","id":"2"}', '{"type":"HealthCheck","id":-2}', '{"type":"HealthCheck","id":true}',
    '{"type":"HealthCheck","id":2.5}', '{"type":"HealthCheck","id":NaN}', '{"type":"HealthCheck","id":1e999}',
    '{"type":"HealthCheck","id":2,"content":{},"x":NaN}', '{"type":"HealthCheck","id":9007199254740992}',
    '{"type":"HealthCheck","id":null}',
    '{"type":"HealthCheck","id":2}{"type":"HealthCheck","id":4}',
    "[" * 20_000, '{"type":"HealthCheck","id":2,"x":' + "[" * 10_000 + "]" * 10_000 + "}",
    '{"type":"HealthCheck","id":' + "9" * 5_000 + "}", '{"type":"HealthCheck","id":1e' + "9" * 5_000 + "}",
    '{"type":"HealthCheck","id":2,"x":"' + "x" * wire.MAX_MESSAGE_BYTES + '"}',
    '{"type":"InvalidMessage","id":2,"error":5,"content":{"error":5}}',
]  # fmt: skip


def test_an_unreadable_message_is_refused_in_a_sentence() -> None:
    for text in DAMAGED:
        for decode in (wire.decode_to_agent, wire.decode_to_monitor):
            with pytest.raises(Undecodable) as raised:
                decode(text)
            assert 10 < len(str(raised.value)) < 400, text[:100]
    for text in ('{"type":"DownscaleResult","id":4,"Ok":1}', '{"type":"DownscaleResult","id":4,"Ok":true,"Status":{}}'):
        with pytest.raises(Undecodable):
            wire.decode_to_agent(text)


def test_a_monitor_refuses_invalid_amounts() -> None:
    request = '{"content":{"target":%s},"type":"DownscaleRequest","id":4}'
    for target in (
        "null", "[]", "{}", '{"cpu":1}', '{"mem":1}', '{"cpu":null,"mem":1}', '{"cpu":-1,"mem":1}',
        '{"cpu":1,"mem":-1}',
        '{"cpu":NaN,"mem":1}', '{"cpu":Infinity,"mem":1}', '{"cpu":-Infinity,"mem":1}', '{"cpu":1e300,"mem":1}',
        '{"cpu":1,"mem":1.5}', '{"cpu":1,"mem":1.0}', '{"cpu":1,"mem":1e3}', '{"cpu":1,"mem":18446744073709551616}',
        '{"cpu":true,"mem":1}', '{"cpu":1,"mem":true}', '{"cpu":"1","mem":1}', '{"cpu":1,"mem":"1Gi"}',
    ):  # fmt: skip
        with pytest.raises(Undecodable, match=r"target|not a number"):
            wire.decode_to_monitor(request % target)
    for content in ("null", "[]", "3"):
        with pytest.raises(Undecodable, match="content"):
            wire.decode_to_monitor('{"type":"HealthCheck","id":2,"content":' + content + "}")
    with pytest.raises(Undecodable, match="content"):
        wire.decode_to_monitor('{"type":"HealthCheck","id":2}')


def test_cpus_are_rounded_up_to_thousandths_and_never_by_way_of_a_float() -> None:
    def cpu(number: str) -> int:
        text = '{"type":"DownscaleRequest","id":4,"content":{"target":{"mem":0,"cpu":' + number + "}}}"
        message, _ = wire.decode_to_monitor(text)
        assert isinstance(message, DownscaleRequest)
        return message.target.cpu

    assert [cpu(n) for n in ("1.1", "0.0001", "0", "0.250", "2.5e-1", "4294967.295")] == [
        1100,
        1,
        0,
        250,
        250,
        2**32 - 1,
    ]


def test_damaged_offers_and_choices_are_refused() -> None:
    for text in ('{"min":1}', '{"min":1,"max":256}', '{"min":-1,"max":1}', '{"min":"1","max":1}', "[1,1]", ""):
        with pytest.raises(Undecodable):
            wire.decode_offer(text)
    for text in ("{}", '{"version":256}', '{"version":null}', '{"error":5}', '{"version":"1"}', "1"):
        with pytest.raises(Undecodable):
            wire.decode_choice(text)


TEXTS = st.text(max_size=40)
AMOUNTS = st.builds(Resources, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
IDS = st.integers(0, wire.MAX_ID)
FAULTS = st.builds(InvalidMessage, TEXTS) | st.builds(InternalError, TEXTS)
REQUESTS = (
    st.builds(UpscaleNotification, AMOUNTS) | st.builds(DownscaleRequest, AMOUNTS) | st.just(HealthCheck()) | FAULTS
)
REPLIES = (
    st.builds(DownscaleResult, st.booleans(), TEXTS)
    | st.sampled_from([UpscaleRequest(), UpscaleConfirmation(), HealthCheck()])
    | FAULTS
)


@settings(max_examples=50)
@given(REQUESTS, IDS)
def test_what_the_agent_says_the_monitor_reads(message: wire.ToMonitor, id: int) -> None:
    assert wire.decode_to_monitor(wire.encode_to_monitor(message, id)) == (message, id)


@settings(max_examples=50)
@given(REPLIES, IDS)
def test_what_the_monitor_says_the_agent_reads(message: wire.ToAgent, id: int) -> None:
    assert wire.decode_to_agent(wire.encode_to_agent(message, id)) == (message, id)


@settings(max_examples=30)
@given(st.text())
def test_a_long_text_is_cut_and_always_fits(text: str) -> None:
    long = text * 3_000
    sent = wire.encode_to_agent(DownscaleResult(False, long), 4)
    assert len(sent.encode()) < wire.MAX_MESSAGE_BYTES
    message, _ = wire.decode_to_agent(sent)
    assert isinstance(message, DownscaleResult)
    assert len(message.status) <= wire.MAX_TEXT


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["type", "id", "content", "Ok", "Status", "error", "granted", "target", "cpu", "mem"]) | TEXTS
KINDS = st.sampled_from([type(m).__name__ for _, m, _ in [*TO_MONITOR]] + [type(m).__name__ for _, m, _ in TO_AGENT])


@given(
    st.text() | st.binary() | st.builds(
        lambda fields, kind, id: json.dumps(fields | {"type": kind, "id": id}),
        st.dictionaries(NAMES, JSON | st.dictionaries(NAMES, JSON, max_size=3), max_size=4), KINDS | JSON, IDS | JSON,
    )
)  # fmt: skip
def test_whatever_a_peer_sends_is_a_message_or_undecodable(sent: Any) -> None:
    for decode in (wire.decode_to_agent, wire.decode_to_monitor):
        try:
            message, id = decode(sent)
        except Undecodable as error:
            str(error).encode()
            continue
        assert 0 <= id <= wire.MAX_ID
        assert len(repr(message)) < 4 * wire.MAX_TEXT
    for shake in (wire.decode_offer, wire.decode_choice):
        try:
            shake(sent)
        except Undecodable as error:
            str(error).encode()

"""Messages between Neon's agent and devalloc, recorded on the wire.

``tests/data/scaling/wire``: the newest agent with devalloc's permit server and guest monitor. The agent's messages go
to both of devalloc's programs again, which must answer as they did. No server or monitor of others was recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from devalloc.machines.permits import Settings
from devalloc.scaling.messages import monitor
from devalloc.scaling.messages.permits import RequestError, decode_reply, decode_request, encode_reply, encode_request
from devalloc.scaling.resources import DEFAULT_COMPUTE_UNIT, Resources
from devalloc.scaling.versions import PluginVersion
from devalloc.store.sqlite import SQLiteStore
from devalloc_neon.plain_port import PlainListener
from tests.conformance.test_guest_monitor_process import started
from tests.support.fake_guest_tree import MIB, GuestTree
from tests.support.fake_tree import memory_folder
from tests.support.permit_bench import GIB, Client, PermitBench, machine, node_of, running, serving, write_status_part
from tests.support.reference_data import DATA, read
from tests.support.waiting import until

MESSAGES: list[dict[str, Any]] = read(DATA / "scaling" / "wire" / "agent.json.xz")
POD = "vm1-x7k2p"


def recorded(channel: str, sender: str) -> list[dict[str, Any]]:
    messages = [each for each in MESSAGES if (each["channel"], each["from"]) == (channel, sender)]
    assert messages
    return messages


REQUESTS = [each["body"] for each in recorded("permits", "agent")]
ANSWERS = [each for each in recorded("permits", "server") if " 200 " in each["line"]]


@pytest.mark.parametrize("body", REQUESTS)
def test_a_request_is_understood_and_written_the_same(body: str) -> None:
    request = decode_request(body.encode())
    assert json.loads(encode_request(request)) == json.loads(body)


@pytest.mark.parametrize("body", [each["body"] for each in ANSWERS])
def test_an_answer_is_understood_and_written_the_same(body: str) -> None:
    reply = decode_reply(body.encode())
    assert not reply.migrate
    permit = Resources(reply.permit.cpu, reply.permit.memory)
    assert encode_reply(PluginVersion(7), permit, GIB, DEFAULT_COMPUTE_UNIT).decode() == body


TO_MONITOR = [each["body"] for each in recorded("monitor", "agent") if "content" in each["body"]]
TO_AGENT = [each["body"] for each in recorded("monitor", "monitor") if "type" in each["body"]]


@pytest.mark.parametrize("body", TO_MONITOR)
def test_a_message_to_the_monitor_is_understood_and_written_the_same(body: str) -> None:
    message, number = monitor.decode_to_monitor(body)
    assert not isinstance(message, monitor.Unrecognised)
    assert json.loads(monitor.encode_to_monitor(message, number)) == json.loads(body)


@pytest.mark.parametrize("body", TO_AGENT)
def test_a_message_of_the_monitor_is_understood_and_written_the_same(body: str) -> None:
    message, number = monitor.decode_to_agent(body)
    assert not isinstance(message, monitor.Unrecognised)
    assert json.loads(monitor.encode_to_agent(message, number)) == json.loads(body)


def test_the_handshake_is_that_of_the_record() -> None:
    (offer,) = {each["body"] for each in recorded("monitor", "agent") if "content" not in each["body"]}
    (choice,) = {each["body"] for each in recorded("monitor", "monitor") if "type" not in each["body"]}
    assert json.loads(monitor.encode_offer(monitor.decode_offer(offer))) == json.loads(offer)
    assert json.loads(monitor.encode_choice(monitor.decode_choice(choice))) == json.loads(choice)


def answers_of_monitor(folder: Path, used: int, messages: Iterable[str]) -> list[Any]:
    """What a guest monitor answers, as a process of its own in a guest of 16 GiB that uses so much; first to the offer
    of the record."""
    GuestTree(folder, memory=16 * GIB, used=used)
    offer = next(each["body"] for each in recorded("monitor", "agent") if "content" not in each["body"])
    with (
        started("by itself", "--root", str(folder)) as (_, port, _),
        connect(f"ws://127.0.0.1:{port}/monitor", proxy=None) as agent,
    ):

        def answer(message: str) -> Any:
            agent.send(message)
            content = json.loads(agent.recv(60))
            return None if "ask again" in content.get("Status", "") else content  # it has measured for too short a time

        return [until(partial(answer, message), "it has measured") for message in (offer, *messages)]


def numbers_only(answer: dict[str, Any]) -> dict[str, Any]:
    """With the numbers of its ``Status`` alone: the words are for people."""
    return {**answer, "Status": re.findall(r"\d+ MiB", answer.get("Status", ""))}


def test_the_guest_monitor_answers_every_recorded_message_as_it_did(tmp_path: Path) -> None:
    """One answer to each, in the order of the record. Of messages that differ in their number alone one is recorded, so
    some have no recorded answer."""
    choice, *answers = answers_of_monitor(tmp_path, 100 * MIB, TO_MONITOR)
    assert choice in [json.loads(each["body"]) for each in recorded("monitor", "monitor")]
    by_number = {answer["id"]: answer for answer in map(json.loads, TO_AGENT)}
    kinds = {"DownscaleRequest": "DownscaleResult", "UpscaleNotification": "UpscaleConfirmation"}
    compared = 0
    for message, answer in zip(map(json.loads, TO_MONITOR), answers, strict=True):
        assert (answer["id"], answer.get("Ok", True)) == (message["id"], True)
        assert answer["type"] == kinds.get(message["type"], message["type"])
        if message["id"] in by_number:
            assert numbers_only(answer) == numbers_only(by_number[message["id"]])
            compared += 1
    assert compared == 14


@pytest.mark.parametrize(("number", "target", "used"), [(118, 2, 1800), (136, 3, 3100)])
def test_the_guest_monitor_denies_what_it_denied(tmp_path: Path, number: int, target: int, used: int) -> None:
    """The record has these two denials without their requests: one of the same target has the same answer."""
    (denial,) = [answer for answer in map(json.loads, TO_AGENT) if answer["id"] == number]
    request = next(body for body in TO_MONITOR if f'"mem":{target * GIB}}}}},"type":"DownscaleRequest"' in body)
    _, answer = answers_of_monitor(tmp_path, used * MIB, [request])
    assert numbers_only({**answer, "id": number}) == numbers_only(denial)


@pytest.fixture(scope="module")
def bench() -> Iterator[PermitBench]:
    """A machine that a pod runs, on a node of 16 CPUs and 32 GiB, and the port for Neon's agents."""
    plain = PlainListener("127.0.0.1", 0, (ip_network("127.0.0.0/8"),))
    with memory_folder() as folder:
        with closing(SQLiteStore(Path(folder) / "store.db")) as store:
            running(store, machine("vm1", most=Resources(16_000, 32 * GIB)), Resources(250, GIB))
            write_status_part(store, "vm1", runnerPod=POD)
        sixteen = node_of(Resources(16_000, 32 * GIB))
        with serving(Path(folder) / "store.db", sixteen, Settings(port=0, dump_port=None, plain=plain)) as made:
            yield made


def test_every_recorded_request_is_answered_as_it_was(bench: PermitBench) -> None:
    """Byte for byte as the agent sent them, at the port for agents: permits are whole answers, and never more than was
    asked for. Requests by other names than a runner pod's get the recorded 404."""
    assert bench.addresses.plain is not None
    (not_found,) = {each["body"] for each in recorded("permits", "server") if " 404 " in each["line"]}
    answered = 0
    with closing(Client(bench.addresses.plain)) as agent:
        for body in REQUESTS:
            request = decode_request(body.encode())
            status, _, answer = agent.post(body.encode(), **{"Content-Type": "application/json"})
            if str(request.pod) != f"default/{POD}":
                assert (status, answer.decode()) == (404, not_found)
                continue
            assert status == 200, answer
            permit = decode_reply(answer).permit
            assert permit.cpu <= request.resources.cpu
            assert permit.memory <= request.resources.memory
            answered += 1
    assert answered > 30
    assert answered < len(REQUESTS)


def test_refusals_begin_as_recorded() -> None:
    """Those that both servers gave, by their first words: agents show them to people."""
    texts = [each["body"] for each in recorded("permits", "server") if " 400 " in each["line"]]
    unit = {"vCPUs": 0, "mem": "1Gi"}
    tried = []
    for method, body in (
        ("GET", b""),
        ("POST", b"{"),
        ("POST", json.dumps({**json.loads(REQUESTS[0]), "protoVersion": 0}).encode()),
        ("POST", json.dumps({**json.loads(REQUESTS[0]), "protoVersion": 8}).encode()),
        ("POST", json.dumps({**json.loads(REQUESTS[0]), "computeUnit": None}).encode()),
        ("POST", json.dumps({**json.loads(REQUESTS[0]), "computeUnit": unit}).encode()),
    ):
        with pytest.raises(RequestError) as refused:
            decode_request(body, method)
        assert refused.value.status == 400
        tried.append(refused.value.text)
    assert set(tried) <= set(texts), set(tried) - set(texts)

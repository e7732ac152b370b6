"""The port for agents that speak plain HTTP and send no token: who may connect there, and what is granted there."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from devalloc.controller.certificate import self_signed_with_pem
from devalloc.machines.permits import Settings, doors
from devalloc.machines.permits.settings import UnsafeSettings
from devalloc.net.http_server import ClientLog, is_within
from devalloc.scaling.resources import Resources
from devalloc.store.sqlite import SQLiteStore
from devalloc_neon.plain_port import PLAIN_HTTP, PlainListener
from tests.support.fake_tree import memory_folder
from tests.support.permit_bench import GIB, Client, PermitBench, machine, node_of, permit_of, running, serving
from tests.support.permit_bench import write_status_part as write_status
from tests.support.waiting import until

TEN = node_of(Resources(10_000, 10 * GIB))
HERE = (ip_network("127.0.0.2/32"),)
CUT = (ConnectionError, http.client.HTTPException)
TOKEN = "0123456789abcdef"


@pytest.fixture
def bench() -> Iterator[PermitBench]:
    """A server that wants a token at its own port, and lets in 127.0.0.2 without one at another."""
    with memory_folder() as folder:
        with closing(SQLiteStore(Path(folder) / "store.db")) as store:
            running(store, machine("web"), None)
            running(store, machine("other", most=Resources(500, GIB)), None)
            write_status(store, "web", runnerPod="web-x7k2p")
        settings = Settings(port=0, dump_port=0, token=TOKEN, plain=PlainListener("127.0.0.1", 0, HERE))
        with serving(Path(folder) / "store.db", TEN, settings) as made:
            yield made


def plain_agent(bench: PermitBench, source: str = "127.0.0.2") -> Client:
    assert bench.addresses.plain is not None
    client = Client(bench.addresses.plain)
    client._connection.source_address = (source, 0)
    return client


def test_an_agent_gets_permits_for_what_it_names_by_a_runner_pod_and_for_nothing_else(bench: PermitBench) -> None:
    with closing(plain_agent(bench)) as agent:
        assert agent.ask("web-x7k2p", 2, "2Gi") == {"permit": {"vCPUs": 2, "mem": "2Gi"}}
        for name in ("web", "other", "nobody"):
            status, _, body = agent.post(json.dumps(agent.message(name, 2, "2Gi")).encode())
            assert (status, body) == (404, b"pod not found"), name
    permit = permit_of(bench.store, "web")
    assert permit is not None
    assert (permit["cpus"], permit["memory"]) == ("2", "2Gi")
    assert permit_of(bench.store, "other") is None


def test_other_addresses_are_cut_off_and_the_port_of_nodes_still_wants_its_token(
    bench: PermitBench, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with closing(plain_agent(bench, "127.0.0.3")) as stranger, pytest.raises(CUT):
            stranger.ask("web-x7k2p", 2, "2Gi")
    text = bench.server.metrics.text().decode()
    assert 'devalloc_permit_connections_refused_total{reason="address"} 2.0' in text
    (line,) = [record.getMessage() for record in caplog.records if "--neon-agents" in record.getMessage()]
    assert line.startswith(
        "127.0.0.3 asked for permits at --neon-permits and was cut off: its address is in no network"
    )
    with closing(bench.client()) as anyone:
        assert anyone.post(b"{}")[0] == 401
        assert anyone.post(b"{}", Authorization=f"Bearer {TOKEN}")[0] == 400


def test_requests_there_are_as_bounded_as_those_of_nodes(bench: PermitBench) -> None:
    with closing(plain_agent(bench)) as agent:
        padded = agent.message("web-x7k2p", 2, "2Gi") | {"more": "x" * 2000}
        assert agent.post(json.dumps({"more": "x" * 2000, **padded}).encode())[::2] == (400, b"bad JSON")
        agent._connection.request("GET", "/")
        answer = agent._connection.getresponse()
        assert (answer.status, answer.read()) == (400, b"must be POST")


@pytest.mark.parametrize(
    ("host", "networks", "what"),
    [
        ("0.0.0.0", HERE, "stands for all"),
        ("::", HERE, "stands for all"),
        ("localhost", HERE, "one IP address"),
        ("127.0.0.1", (), "networks"),
        ("127.0.0.1", (ip_network("10.0.0.0/8"), ip_network("0.0.0.0/0")), "0.0.0.0/0 contains every address"),
        ("127.0.0.1", (ip_network("::/0"),), "contains every address"),
    ],
)
def test_a_port_that_would_be_open_to_everyone_is_refused(host: str, networks: Any, what: str) -> None:
    with pytest.raises(UnsafeSettings, match=what):
        PlainListener(host, 10297, networks)


def test_an_ipv4_address_is_the_same_however_it_is_spelled() -> None:
    networks = (ip_network("10.1.0.0/16"), ip_network("fd00::/8"))
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1"):
        assert is_within(address, networks), address
    for address in ("10.2.0.1", "::ffff:10.2.0.1", "fe80::1", "", "web"):
        assert not is_within(address, networks), address


def test_a_port_in_use_keeps_no_node_from_its_permits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doors, "DUMP_RETRY_SECONDS", 0.05)
    with closing(SQLiteStore(tmp_path / "store.db")) as store:
        running(store, machine("web"), None)
        write_status(store, "web", runnerPod="web-x7k2p")
    with socket.create_server(("127.0.0.1", 0)) as other:
        plain = PlainListener("127.0.0.1", other.getsockname()[1], HERE)
        settings = Settings(port=0, dump_port=None, plain=plain)
        with serving(tmp_path / "store.db", TEN, settings) as bench, closing(bench.client()) as node:
            assert bench.addresses.plain is None
            assert node.ask("web", 2, "2Gi")["permit"] == {"vCPUs": 2, "mem": "2Gi"}
            assert caplog.text.count(f"port {plain.port} (--neon-permits)") == 1
            other.close()

            def answered() -> bool:
                with closing(Client((plain.host, plain.port))) as agent:
                    agent._connection.source_address = ("127.0.0.2", 0)
                    try:
                        return bool(agent.ask("web-x7k2p", 3, "3Gi"))
                    except ConnectionRefusedError:
                        return False

            until(answered, "agents are answered")


def test_plain_http_at_the_tls_port_is_logged_and_not_with_each_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context, _ = self_signed_with_pem(["127.0.0.1"])
    with serving(
        tmp_path / "store.db", TEN, Settings(port=0, dump_port=None, tls=context), plain_http=PLAIN_HTTP
    ) as bench:
        for _ in range(3):
            with closing(bench.client()) as agent, pytest.raises(CUT):
                agent.ask("web-x7k2p", 2, "2Gi")
        until(lambda: "speaks plain HTTP" in caplog.text, "it is logged")
    lines = [record.getMessage() for record in caplog.records if "plain HTTP" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("127.0.0.1 speaks plain HTTP to the permit server, which serves TLS;")
    assert "--neon-permits" in lines[0]


def test_the_next_line_counts_those_that_were_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    times = iter((0.0, 1.0, 59.0, 60.0, 61.0))
    notices = ClientLog(PLAIN_HTTP, lambda: next(times))
    for _ in range(5):
        notices.note("10.0.0.9")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "more" not in lines[0]
    assert "(2 more since the last such line)" in lines[1]


@pytest.mark.parametrize(("slot", "granted"), [(None, 3 * GIB), (2**29, 3 * 2**29)])
def test_memory_in_slots_is_not_less_than_what_was_asked_for(tmp_path: Path, slot: int | None, granted: int) -> None:
    """An agent before v4.0 asks for three slots, of a machine whose object names no slot size."""
    with closing(SQLiteStore(tmp_path / "store.db")) as store:
        running(store, machine("web", least=Resources(250, 2**29)), None)
    more = {} if slot is None else {"memory_slot": slot}
    with serving(tmp_path / "store.db", TEN, Settings(port=0, dump_port=0, **more)) as bench:
        with closing(bench.client(version=4)) as agent:
            assert agent.ask("web", 2, 3)["permit"] == {"vCPUs": 2, "mem": 3}
        permit = bench.state()["machines"]["default/web"]["permit"]
        assert permit == {"cpu": 2, "memory": "3Gi" if granted == 3 * GIB else "1536Mi"}

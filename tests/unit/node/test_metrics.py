"""What is told to Prometheus: few values a label, gauges read when asked, nobody from elsewhere."""

from __future__ import annotations

import http.client
import os
import socket
import stat
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from devalloc_node import tally
from devalloc_node.errors import Denied
from devalloc_node.journal import open_journal
from devalloc_node.machine.process import Traffic, traffic
from devalloc_node.machine.view import Amounts, Machine
from devalloc_node.metrics import Metrics, State, Utilisation, served
from devalloc_node.service import server


def told(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"devalloc_node_{name}", labels)


def test_a_request_that_breaks_off_is_an_error() -> None:
    metrics = Metrics()
    with metrics.timed("PrepareClaim") as timed:
        timed.result = "done"
    with pytest.raises(ZeroDivisionError), metrics.timed("PrepareClaim"):
        raise ZeroDivisionError
    assert told(metrics, "requests_total", method="PrepareClaim", result="done") == 1
    assert told(metrics, "requests_total", method="PrepareClaim", result="error") == 1
    assert told(metrics, "request_seconds_count", method="PrepareClaim") == 2


def test_how_things_stand_is_read_for_each_scrape() -> None:
    states = [
        State({"vfio": 2}, {"prepared": 1}, {"Running": 3}, vcpus=8, memory_bytes=1 << 30, attached_devices=2),
        State(quarantined=1),
    ]
    now = [states[0]]
    metrics = Metrics(lambda: now[0])
    assert told(metrics, "prepared_devices", binding="vfio") == 2
    assert told(metrics, "claims", state="prepared") == 1
    assert told(metrics, "machines", phase="Running") == 3
    assert (told(metrics, "plugged_vcpus"), told(metrics, "plugged_memory_bytes")) == (8, 1 << 30)
    now[0] = states[1]
    assert told(metrics, "prepared_devices", binding="vfio") is None
    assert told(metrics, "journal_quarantined") == 1


def test_each_machine_is_told_with_its_process_what_it_was_given_and_what_it_uses() -> None:
    web = Utilisation("default/web", 4711, ("tap0", "tap1"), 1.5, 1 << 30, 12.25, 1 << 29)
    metrics = Metrics(lambda: State(utilisation=[web, Utilisation("default/hung", 4712)]))
    assert told(metrics, "machine_info", machine="default/web", pid="4711", tap="tap0,tap1") == 1
    assert told(metrics, "machine_info", machine="default/hung", pid="4712", tap="") == 1
    of = {"machine": "default/web"}
    assert told(metrics, "machine_allocated_cpus", **of) == 1.5
    assert told(metrics, "machine_allocated_memory_bytes", **of) == 1 << 30
    assert told(metrics, "machine_cpu_seconds_total", **of) == 12.25
    assert told(metrics, "machine_resident_memory_bytes", **of) == 1 << 29
    assert told(metrics, "machine_allocated_cpus", machine="default/hung") is None, "nobody knows"


def test_what_goes_through_its_tap_interfaces_is_counted_as_its_own_network_has_it(tmp_path: Path) -> None:
    (tmp_path / "7" / "net").mkdir(parents=True)
    (tmp_path / "7" / "net" / "dev").write_text(
        "Inter-|   Receive                            |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
        "    lo:   11       1 0 0 0 0 0 0  11 1 0 0 0 0 0 0\n"
        "  tap0: 1000       9 0 0 0 0 0 0  70 2 0 0 0 0 0 0\n"
        " tap00:    1       1 0 0 0 0 0 0   1 1 0 0 0 0 0 0\n"
        " broken: ?\n"
    )
    found = traffic(7, ["tap0", "tap1", "broken"], tmp_path)
    assert found == {"tap0": Traffic(1000, 70)}
    assert traffic(8, ["tap0"], tmp_path) == {}
    metrics = Metrics(lambda: State(utilisation=[Utilisation("default/web", 7, ("tap0",), traffic=found)]))
    of = {"machine": "default/web", "tap": "tap0"}
    assert told(metrics, "machine_network_received_bytes_total", **of) == 1000
    assert told(metrics, "machine_network_sent_bytes_total", **of) == 70


def test_what_a_machine_uses_is_read_off_its_process(tmp_path: Path) -> None:
    machine = Machine("default/web", "", "Running", observed=Amounts(1500, 2, 1 << 30), pid=os.getpid())
    stopped = Machine("default/db", "", "Stopped")
    with closing(open_journal(tmp_path)) as journal:
        (found,) = tally.state(journal, [machine, stopped]).utilisation
    assert (found.machine, found.pid, found.cpus, found.memory_bytes) == ("default/web", os.getpid(), 1.5, 1 << 30)
    assert 0 < (found.cpu_seconds or 0) <= time.process_time() + 1
    assert (found.resident_bytes or 0) > 1 << 20


def test_machines_that_ended_are_counted() -> None:
    metrics = Metrics()
    assert told(metrics, "machines_ended_total") == 0
    metrics.ended()
    assert told(metrics, "machines_ended_total") == 1


def test_publications_that_failed_are_counted() -> None:
    metrics = Metrics()
    assert told(metrics, "publish_failures_total") == 0
    metrics.publish_failed()
    assert told(metrics, "publish_failures_total") == 1


def test_a_state_that_cannot_be_read_says_so_and_hides_nothing_else() -> None:
    metrics = Metrics(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    metrics.removed("claim", 2)
    assert told(metrics, "state_readable") == 0
    assert told(metrics, "reconcile_removals_total", what="claim") == 2


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_is_served_on_loopback(address: str) -> None:
    if address.startswith("[") and not Path("/proc/net/if_inet6").exists():
        address = "127.0.0.1:0"
    metrics = Metrics()
    metrics.removed("claim")
    with served(metrics, address) as where:
        host, _, port = where.rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=60)
        connection.request("GET", "/metrics")
        assert b'devalloc_node_reconcile_removals_total{what="claim"} 1.0' in connection.getresponse().read()


def test_a_page_that_a_browser_of_this_host_shows_reads_none_of_it() -> None:
    with served(Metrics(), "127.0.0.1:0") as where:
        for host, status in ((where, 200), ("localhost", 200), ("attacker.example", 421)):
            connection = http.client.HTTPConnection(where, timeout=60)
            connection.request("GET", "/metrics", headers={"Host": host})
            assert connection.getresponse().status == status, host


def test_is_served_on_a_socket_of_its_owner_which_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # by a plugin that was killed
    with served(Metrics(), f"unix:{path}"), socket.socket(socket.AF_UNIX) as client:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        client.connect(str(path))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        with client.makefile("rb") as answer:
            assert b"devalloc_node_state_readable 1.0" in answer.read()
    assert not path.exists()


def test_what_another_instance_serves_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with served(Metrics(), f"unix:{path}"):
        before = path.stat().st_ino
        with pytest.raises(Denied, match="another process serves") as error, served(Metrics(), f"unix:{path}"):
            pytest.fail("it was served")
        assert error.value.code == "SocketInUse"
        assert path.stat().st_ino == before
    assert list(tmp_path.iterdir()) == []


def test_an_instance_that_ends_takes_no_socket_away_from_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor its place while that looks who has it."""
    path = tmp_path / "metrics.sock"
    with ExitStack() as first:
        first.enter_context(served(Metrics(), f"unix:{path}"))
        ending = threading.Thread(target=first.close)

        def answers(path: Path) -> bool:
            ending.start()
            ending.join(0.1)
            return False  # it has closed its socket by now

        monkeypatch.setattr(server, "answers", answers)
        with served(Metrics(), f"unix:{path}"):
            ending.join()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))


def test_what_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("precious")
    with pytest.raises(Denied, match="is no socket"), served(Metrics(), f"unix:{tmp_path / 'notes'}"):
        pytest.fail("it was served")
    assert (tmp_path / "notes").read_text() == "precious"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("0.0.0.0:9180", "can be reached from elsewhere"),
        ("192.0.2.1:9180", "can be reached from elsewhere"),
        ("[::]:9180", "can be reached from elsewhere"),
        ("9180", "is no address"),
        ("127.0.0.1:99999", "is no address"),
        ("nowhere.example:9180", "is no address"),
    ],
)
def test_nobody_from_elsewhere_is_served(address: str, words: str) -> None:
    with pytest.raises(ValueError, match=words), served(Metrics(), address):
        pytest.fail("it was served")

"""Prometheus metrics: few values per label, gauges read on request, no access from other hosts."""

from __future__ import annotations

import http.client
import os
import socket
import stat
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from devalloc_machines.qemu.process import NetworkTraffic, traffic
from devalloc_machines.qemu.records import UNKNOWN_AMOUNTS, MachineAmounts, MachineView, State
from devalloc_machines.qemu.spec import EmulatedDevice, Nic
from devalloc_machines.service.metrics import guest_metrics, machine_metrics
from devalloc_node.errors import Denied
from devalloc_node.metrics.registry import NodeMetrics, NodeState, metrics_served
from devalloc_node.net import unix_sockets
from tests.support.node_errors import raises


def sample(metrics: NodeMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"devalloc_node_{name}", labels)


def test_a_request_that_breaks_off_is_an_error() -> None:
    metrics = NodeMetrics()
    with metrics.timed("PrepareClaim") as timed:
        timed.result = "done"
    with pytest.raises(ZeroDivisionError), metrics.timed("PrepareClaim"):
        raise ZeroDivisionError
    assert sample(metrics, "requests_total", method="PrepareClaim", result="done") == 1
    assert sample(metrics, "requests_total", method="PrepareClaim", result="error") == 1
    assert sample(metrics, "request_seconds_count", method="PrepareClaim") == 2


def test_how_things_stand_is_read_for_each_scrape() -> None:
    states = [
        NodeState({"vfio": 2}, {"prepared": 1}, attached_devices=2),
        NodeState(quarantined=1),
    ]
    now = [states[0]]
    metrics = NodeMetrics(lambda: now[0])
    assert sample(metrics, "prepared_devices", binding="vfio") == 2
    assert sample(metrics, "claims", state="prepared") == 1
    assert sample(metrics, "attached_devices") == 2
    now[0] = states[1]
    assert sample(metrics, "prepared_devices", binding="vfio") is None
    assert sample(metrics, "journal_quarantined") == 1


def _running(key: str, pid: int, *taps: str, observed: MachineAmounts = UNKNOWN_AMOUNTS) -> MachineView:
    cards = tuple(EmulatedDevice(tap, Nic(interface=tap)) for tap in taps)
    return MachineView(key, "", State.RUNNING, observed=observed, pid=pid, plain=cards)


def test_the_metrics_of_a_machine_show_its_process_allocation_and_usage(tmp_path: Path) -> None:
    ticks, pages = os.sysconf("SC_CLK_TCK"), (1 << 29) // os.sysconf("SC_PAGE_SIZE")
    (tmp_path / "4711").mkdir()
    numbers = [0] * 11 + [ticks * 12, ticks // 4, 0, 0, 0, 0, 0, 0, 99, 0, pages]
    (tmp_path / "4711" / "stat").write_text(f"4711 (qemu (a b)) S {' '.join(map(str, numbers[1:]))}")
    web = _running("default/web", 4711, "tap0", "tap1", observed=MachineAmounts(1500, 2, 1 << 30))
    hung = _running("default/hung", 4712)
    metrics = NodeMetrics(lambda: NodeState(of_parts=[*machine_metrics([web, hung], tmp_path)]))
    assert sample(metrics, "machine_info", machine="default/web", pid="4711", tap="tap0,tap1") == 1
    assert sample(metrics, "machine_info", machine="default/hung", pid="4712", tap="") == 1
    of = {"machine": "default/web"}
    assert sample(metrics, "machine_allocated_cpus", **of) == 1.5
    assert sample(metrics, "machine_allocated_memory_bytes", **of) == 1 << 30
    assert sample(metrics, "machine_cpu_seconds_total", **of) == 12.25
    assert sample(metrics, "machine_resident_memory_bytes", **of) == 1 << 29
    assert sample(metrics, "machine_allocated_cpus", machine="default/hung") is None, "it is unknown"


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
    counted = traffic(7, ["tap0", "tap1", "broken"], tmp_path)
    assert counted == {"tap0": NetworkTraffic(1000, 70)}
    assert traffic(8, ["tap0"], tmp_path) == {}
    web = _running("default/web", 7, "tap0")
    metrics = NodeMetrics(lambda: NodeState(of_parts=[*machine_metrics([web], tmp_path)]))
    of = {"machine": "default/web", "tap": "tap0"}
    assert sample(metrics, "machine_network_received_bytes_total", **of) == 1000
    assert sample(metrics, "machine_network_sent_bytes_total", **of) == 70


def test_what_a_machine_uses_is_read_off_its_process(tmp_path: Path) -> None:
    machine = MachineView("default/web", "", State.RUNNING, observed=MachineAmounts(1500, 2, 1 << 30), pid=os.getpid())
    stopped = MachineView("default/db", "", State.STOPPED)
    metrics = NodeMetrics(lambda: NodeState(of_parts=[*machine_metrics([machine, stopped])]))
    assert (sample(metrics, "machines", phase="Running"), sample(metrics, "machines", phase="Stopped")) == (1, 1)
    assert (sample(metrics, "plugged_vcpus"), sample(metrics, "plugged_memory_bytes")) == (2, 1 << 30)
    assert sample(metrics, "machine_allocated_cpus", machine="default/web") == 1.5
    assert sample(metrics, "machine_allocated_cpus", machine="default/db") is None, "it does not run"
    of = {"machine": "default/web"}
    assert sample(metrics, "machine_info", **of, pid=str(os.getpid()), tap="") == 1
    assert sample(metrics, "machine_allocated_memory_bytes", **of) == 1 << 30
    assert 0 < (sample(metrics, "machine_cpu_seconds_total", **of) or 0) <= time.process_time() + 1
    assert (sample(metrics, "machine_resident_memory_bytes", **of) or 0) > 1 << 20


def _guest_metrics(metrics: NodeMetrics) -> list[tuple[tuple[str, str], float]]:
    (family,) = [one for one in metrics.registry.collect() if one.name == "devalloc_node_guest_metric"]
    return [((each.labels["machine"], each.labels["name"]), each.value) for each in family.samples]


def test_metrics_of_guests_have_the_machine_and_their_name() -> None:
    reported = {"default/web": {"queue": 3.0, "load": 0.5}}
    metrics = NodeMetrics(lambda: NodeState(of_parts=[*guest_metrics(reported, 7)]))
    assert dict(_guest_metrics(metrics)) == {("default/web", "queue"): 3.0, ("default/web", "load"): 0.5}
    assert sample(metrics, "guest_lines_dropped_total") == 7


def test_machines_that_ended_are_counted() -> None:
    metrics = NodeMetrics()
    assert sample(metrics, "machines_ended_total") == 0
    metrics.ended()
    assert sample(metrics, "machines_ended_total") == 1


def test_publications_that_failed_are_counted() -> None:
    metrics = NodeMetrics()
    assert sample(metrics, "publish_failures_total") == 0
    metrics.publish_failed()
    assert sample(metrics, "publish_failures_total") == 1


def test_a_state_that_cannot_be_read_says_so_and_hides_nothing_else() -> None:
    metrics = NodeMetrics(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    metrics.removed("claim", 2)
    assert sample(metrics, "state_readable") == 0
    assert sample(metrics, "reconcile_removals_total", what="claim") == 2


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_is_served_on_loopback(address: str) -> None:
    if address.startswith("[") and not Path("/proc/net/if_inet6").exists():
        address = "127.0.0.1:0"
    metrics = NodeMetrics()
    metrics.removed("claim")
    with metrics_served(metrics, address) as where:
        host, _, port = where.rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=60)
        connection.request("GET", "/metrics")
        assert b'devalloc_node_reconcile_removals_total{what="claim"} 1.0' in connection.getresponse().read()


def test_a_page_that_a_browser_of_this_host_shows_reads_none_of_it() -> None:
    with metrics_served(NodeMetrics(), "127.0.0.1:0") as where:
        for host, status in ((where, 200), ("localhost", 200), ("attacker.example", 421)):
            connection = http.client.HTTPConnection(where, timeout=60)
            connection.request("GET", "/metrics", headers={"Host": host})
            assert connection.getresponse().status == status, host


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET /metrics HTTP/1.0\r\nHost: attacker.example\r\n\r\n", b"421"),
        (b"GET /metrics HTTP/x\r\nHost: localhost\r\n\r\n", b"400"),
    ],
)
def test_what_is_refused_is_answered_once_and_with_nothing_else(
    request_text: bytes, status: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with metrics_served(NodeMetrics(), "127.0.0.1:0") as where:
        host, _, port = where.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(request_text)
            with client.makefile("rb") as answer:
                text = answer.read()
    assert status in text
    assert b"devalloc_node" not in text
    assert text.count(b"\r\n\r\n") <= 1
    assert capsys.readouterr().err == "", "no thread has failed"


def test_is_served_on_a_socket_of_its_owner_which_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # by a plugin that was killed
    with metrics_served(NodeMetrics(), f"unix:{path}"), socket.socket(socket.AF_UNIX) as client:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        client.connect(str(path))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        with client.makefile("rb") as answer:
            assert b"devalloc_node_state_readable 1.0" in answer.read()
    assert not path.exists()


def test_what_another_instance_serves_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with metrics_served(NodeMetrics(), f"unix:{path}"):
        before = path.stat().st_ino
        with (
            raises(Denied, "SocketInUse", match="another process serves"),
            metrics_served(NodeMetrics(), f"unix:{path}"),
        ):
            pytest.fail("it was served")
        assert path.stat().st_ino == before
    assert list(tmp_path.iterdir()) == []


def test_an_instance_that_ends_takes_no_socket_away_from_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor its place while that looks who has it."""
    path = tmp_path / "metrics.sock"
    with ExitStack() as first:
        first.enter_context(metrics_served(NodeMetrics(), f"unix:{path}"))
        ending = threading.Thread(target=first.close)

        def answers(path: Path) -> bool:
            ending.start()
            ending.join(0.1)
            return False  # it has closed its socket by now

        monkeypatch.setattr(unix_sockets, "has_listener", answers)
        with metrics_served(NodeMetrics(), f"unix:{path}"):
            ending.join()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))


def test_what_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("precious")
    with pytest.raises(Denied, match="is not a socket"), metrics_served(NodeMetrics(), f"unix:{tmp_path / 'notes'}"):
        pytest.fail("it was served")
    assert (tmp_path / "notes").read_text() == "precious"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("0.0.0.0:9180", "is reachable from other hosts"),
        ("192.0.2.1:9180", "is reachable from other hosts"),
        ("[::]:9180", "is reachable from other hosts"),
        ("9180", "invalid address for metrics"),
        ("127.0.0.1:99999", "invalid address for metrics"),
        ("nowhere.example:9180", "invalid address for metrics"),
    ],
)
def test_metrics_are_served_on_local_addresses_only(address: str, words: str) -> None:
    with pytest.raises(ValueError, match=words), metrics_served(NodeMetrics(), address):
        pytest.fail("it was served")

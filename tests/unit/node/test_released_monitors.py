"""`nvidia-persistenced` lets a GPU go for a claim, where the admin allows that, and holds it again afterwards."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devalloc.inventory.monitors import RELEASABLE
from devalloc.inventory.pci import Address
from devalloc.programs.inventory_options import InventoryOptions
from devalloc_node.binding.registry import step_kinds
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.boundary import DryRun
from devalloc_node.host.persistence import persistence, set_persistence
from tests.support import pci_cards
from tests.support.binding_runner import BindingRunner
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_host import FakeHost, LocalHost
from tests.support.node_errors import raises

GPU, DEVICE = "0000:01:00.0", "0000-01-00-0"
RELEASE = {"release_from": frozenset({"nvidia-persistenced"})}


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    host.add(pci_cards.gpu())
    host.persistenced(GPU)
    return host


class TestHandOver:
    def test_without_the_option_the_reason_names_it(self, host: FakeHost) -> None:
        reason = DiscoveredPools.on(host.root).unavailable(DEVICE)
        assert reason == (
            "in use: nvidia-persistenced; stop it (nvidia-smi -i 0000:01:00.0 -pm 0), "
            "or allow devalloc to (--release-from nvidia-persistenced)"
        )
        with pytest.raises(Denied) as caught:
            BindingRunner.on(host).prepare(DEVICE)
        assert caught.value.message == f"{GPU} is {reason}"

    def test_with_it_the_daemon_lets_the_gpu_go_and_holds_it_again(self, host: FakeHost) -> None:
        assert DiscoveredPools.on(host.root, **RELEASE).unavailable(DEVICE) is None
        hand = BindingRunner.on(host, **RELEASE)
        hand.prepare(DEVICE)
        assert hand.kinds_of(DEVICE)[0] == "persistence"
        assert host.driver_of(GPU) == "vfio-pci"
        assert not LocalHost(host).persistence(GPU)
        hand.unprepare(DEVICE)
        assert host.driver_of(GPU) == "nvidia"
        assert LocalHost(host).persistence(GPU)

    def test_another_user_beside_it_counts(self, host: FakeHost) -> None:
        host.process(4711, "python3", ("/dev/nvidia0",))
        assert DiscoveredPools.on(host.root, **RELEASE).unavailable(DEVICE) == "in use: python3 4711"
        with pytest.raises(Denied, match="python3 4711"):
            BindingRunner.on(host, **RELEASE).prepare(DEVICE)
        assert LocalHost(host).persistence(GPU)

    def test_a_program_with_its_name_keeps_the_gpu(self, host: FakeHost) -> None:
        """Every process can give itself any name; this one does not let go."""
        host.process(4711, "nvidia-persiste", ("/dev/nvidia0",))
        with raises(Denied, "DeviceInUse"):
            BindingRunner.on(host, **RELEASE).prepare(DEVICE)
        assert host.driver_of(GPU) == "nvidia"
        assert LocalHost(host).persistence(GPU), "it holds the GPU again"

    def test_a_daemon_that_cannot_be_asked_counts_as_a_user(self, host: FakeHost) -> None:
        (host.root / "run/nvidia-persistenced/socket").unlink()
        reason = "in use: nvidia-persistenced; stop it (nvidia-smi -i 0000:01:00.0 -pm 0)"
        assert DiscoveredPools.on(host.root, **RELEASE).unavailable(DEVICE) == reason

    def test_a_monitor_that_cannot_let_one_gpu_go_counts(self, host: FakeHost) -> None:
        host.process(813, "nv-hostengine", ("/dev/nvidia0",))
        reason = "in use: nv-hostengine; stop it (systemctl stop nvidia-dcgm)"
        assert DiscoveredPools.on(host.root, **RELEASE).unavailable(DEVICE) == reason

    def test_a_daemon_that_has_ended_meanwhile_is_nothing_to_put_back(self, host: FakeHost) -> None:
        hand = BindingRunner.on(host, **RELEASE)
        hand.prepare(DEVICE)
        host.daemon_runs = False
        kind = step_kinds(hand.host)["persistence"]
        assert kind.read(GPU) == 0
        with pytest.raises(Denied) as caught:
            kind.apply(GPU, 1, Deadline.after(1))
        assert caught.value.code == "DeviceGone", "which counts as undone"

    def test_a_daemon_that_cannot_be_asked_whether_it_holds_a_gpu_is_an_error(self, host: FakeHost) -> None:
        """It would count as one that does not hold the GPU, and would not hold it afterwards."""
        host.held_by_daemon.clear()
        with raises(Failed, "HostRefused", match=f"nvidia-persistenced does not change its hold of {GPU}: No such dev"):
            step_kinds(BindingRunner.on(host, **RELEASE).host)["persistence"].read(GPU)

    def test_a_daemon_that_fails_to_hold_a_gpu_again_is_an_error(self, host: FakeHost) -> None:
        """Else it would count as done, and the GPU would be held by no one."""
        hand = BindingRunner.on(host, **RELEASE)
        hand.prepare(DEVICE)
        with raises(
            Failed, "HostRefused", match=f"nvidia-persistenced does not change its hold of {GPU}: Input/output"
        ):
            step_kinds(hand.host)["persistence"].apply(GPU, 1, Deadline.after(1))

    def test_a_dry_run_asks_nothing_of_it(self, host: FakeHost) -> None:
        reported: list[str] = []
        with pytest.raises(Denied, match="dry run"):
            DryRun(LocalHost(host), reported.append).set_persistence(GPU, False, Deadline.after(1))
        assert reported == [f"would have nvidia-persistenced let go {GPU}"]
        assert LocalHost(host).persistence(GPU)

    def test_the_option_takes_those_that_can(self) -> None:
        assert RELEASABLE == ("nvidia-persistenced",)
        assert InventoryOptions(release_from=RELEASABLE).policy["release_from"] == frozenset(RELEASABLE)


Answer = Callable[[tuple[int, ...]], bytes]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[[Answer], Path]]:
    """A server of ONC RPC that gives an answer to one call."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = tmp_path / "socket"
    listening.bind(os.fspath(path))
    listening.listen()
    threads: list[threading.Thread] = []

    def serve(answer: Answer) -> None:
        with listening.accept()[0] as caller:
            (mark,) = struct.unpack(">I", caller.recv(4))
            call = caller.recv(mark & 0x7FFFFFFF)
            caller.sendall(answer(struct.unpack(f">{len(call) // 4}I", call)))

    def start(answer: Answer) -> Path:
        threads.append(threading.Thread(target=serve, args=(answer,), daemon=True))
        threads[-1].start()
        return path

    yield start
    for thread in threads:
        thread.join()
    listening.close()


def accepted(number: int, *results: int, parts: int = 1) -> bytes:
    body = struct.pack(f">{6 + len(results)}I", number, 1, 0, 0, 0, 0, *results)
    size = len(body) // parts
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(
        struct.pack(">I", len(piece) | (0x80000000 if piece is pieces[-1] else 0)) + piece for piece in pieces
    )


class TestItsProtocol:
    ADDRESS = Address(0x10000, 0x41, 0, 1)

    def test_a_call_to_set_it(self, daemon: Callable[[Answer], Path]) -> None:
        calls: list[tuple[int, ...]] = []

        def answer(call: tuple[int, ...]) -> bytes:
            calls.append(call)
            return accepted(call[0], 0)

        set_persistence(daemon(answer), self.ADDRESS, enabled=False, seconds=5)
        # A call (0) of RPC 2, program 35006, version 1, procedure 1, no credentials; the address; disabled.
        assert calls[0][1:] == (0, 2, 35006, 1, 1, 0, 0, 0, 0, 0x10000, 0x41, 0, 1, 0)

    @pytest.mark.parametrize("parts", [1, 2])
    @pytest.mark.parametrize("mode", [0, 1])
    def test_a_call_to_get_it(self, daemon: Callable[[Answer], Path], mode: int, parts: int) -> None:
        path = daemon(lambda call: accepted(call[0], 0, mode, parts=parts) if call[5] == 2 else b"")
        assert persistence(path, self.ADDRESS, 5) is bool(mode)

    @pytest.mark.parametrize(("status", "code"), [(2, errno.ENODEV), (7, errno.EPERM), (11, errno.EIO)])
    def test_its_refusals(self, daemon: Callable[[Answer], Path], status: int, code: int) -> None:
        with pytest.raises(OSError, match=f"status {status} of nvidia-persistenced") as caught:
            set_persistence(daemon(lambda call: accepted(call[0], status)), self.ADDRESS, enabled=True, seconds=5)
        assert caught.value.errno == code

    @pytest.mark.parametrize(
        "answer",
        [
            b"",
            b"\x80\0\0\x04abcd",
            b"\xff\xff\xff\xff",
            struct.pack(">7I", 0x80000018, 1, 1, 1, 0, 0, 0),  # denied
            struct.pack(">7I", 0x80000018, 9, 1, 0, 0, 0xFFFFFFFC, 0),  # a verifier that is longer than the answer
        ],
    )
    def test_nonsense_is_an_error(self, daemon: Callable[[Answer], Path], answer: bytes) -> None:
        with pytest.raises(OSError, match="nvidia-persistenced"):
            persistence(daemon(lambda call: answer), self.ADDRESS, 5)

    def test_an_answer_in_parts_without_end_is_an_error(self, daemon: Callable[[Answer], Path]) -> None:
        path = daemon(lambda call: struct.pack(">I", 0) * 1000 + accepted(call[0], 0, 1))
        with pytest.raises(OSError, match="too long") as caught:
            persistence(path, self.ADDRESS, 5)
        assert caught.value.errno == errno.EMSGSIZE

    def test_the_time_is_for_the_whole_answer(
        self, daemon: Callable[[Answer], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However often something comes: each part here takes a second."""
        seconds = iter(range(1000))
        monkeypatch.setattr("devalloc_node.host.persistence.time.monotonic", lambda: float(next(seconds)))
        path = daemon(lambda call: struct.pack(">I", 0) * 10 + accepted(call[0], 0, 1))
        with pytest.raises(TimeoutError, match="did not answer in time"):
            persistence(path, self.ADDRESS, 5)

"""A socket of the plugin: who may open it, when it is taken away, and when its place is left to others."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from devalloc_node.errors import Denied, Failed
from devalloc_node.net.unix_sockets import MAX_PATH_BYTES, check_path
from devalloc_node.service.server import serve
from tests.support.node_errors import raises


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")  # short: paths of sockets are


def serving(path: Path) -> bool:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def test_only_the_owner_can_open_it(folder: Path) -> None:
    path = folder / "new" / "node.sock"
    server = serve(path, [])
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert os.listdir(path.parent) == ["node.sock"]
        assert serving(path)
    finally:
        server.stop()
    assert os.listdir(path.parent) == []


def test_it_has_its_mode_from_the_first_moment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two calls that change the folder, a socket that others may open lies where others cannot go."""
    seen: list[tuple[str, int]] = []

    def watched(name: str, function):
        def call(*arguments, **keywords):
            for place, _, names in os.walk(folder):
                private = stat.S_IMODE(os.stat(place).st_mode) == 0o700 and place != str(folder)
                for each in names:
                    mode = stat.S_IMODE(os.lstat(f"{place}/{each}").st_mode)
                    seen.append((name, mode))
                    assert private or mode == 0o600
            return function(*arguments, **keywords)

        return call

    folder.chmod(0o755)
    before = os.umask(0)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "chmod", watched("chmod", os.chmod))
            patch.setattr(Path, "rename", watched("rename", Path.rename))
            patch.setattr(Path, "rmdir", watched("rmdir", Path.rmdir))
            server = serve(folder / "node.sock", [])
        server.stop()
    finally:
        os.umask(before)
    assert seen == [("chmod", 0o777), ("rename", 0o600), ("rmdir", 0o600)]


def test_a_dead_socket_is_replaced(folder: Path) -> None:
    path = folder / "node.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = serve(path, [])
    try:
        assert serving(path)
    finally:
        server.stop()


def test_a_socket_that_answers_is_left_alone(folder: Path) -> None:
    path = folder / "node.sock"
    first = serve(path, [])
    try:
        with raises(Denied, "SocketInUse", match="another process serves") as error:
            serve(path, [])
        advice = "On a store, a second plugin on this host needs its own --node-name, --state and --socket"
        assert advice in error.value.message
        assert serving(path)
        assert os.listdir(folder) == ["node.sock"]
    finally:
        first.stop()


@pytest.mark.parametrize(
    "make", [lambda path: path.write_text("precious"), Path.mkdir, lambda path: path.symlink_to("x")]
)
def test_what_is_no_socket_is_left_alone(folder: Path, make) -> None:
    path = folder / "node.sock"
    make(path)
    before = os.lstat(path)
    with raises(Denied, "SocketNotOurs"):
        serve(path, [])
    assert os.lstat(path) == before
    assert os.listdir(folder) == ["node.sock"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a socket of another user")
def test_another_users_socket_is_left_alone(folder: Path) -> None:
    path = folder / "node.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    os.chown(path, 12345, 12345)
    with pytest.raises(Denied, match="belongs to user 12345"):
        serve(path, [])
    assert path.is_socket()


def test_stopping_leaves_the_socket_of_a_successor(folder: Path) -> None:
    path = folder / "node.sock"
    first = serve(path, [])
    path.unlink()
    second = serve(path, [])
    try:
        first.stop()
        assert serving(path)
    finally:
        second.stop()
    assert not path.exists()


def test_the_longest_path_works_and_one_byte_more_is_refused(folder: Path) -> None:
    room = MAX_PATH_BYTES - len(os.fsencode(folder)) - 1
    path = folder / ("ä" * (room // 2) + "x" * (room % 2))
    assert len(os.fsencode(path)) == MAX_PATH_BYTES
    server = serve(path, [])
    try:
        assert serving(path)
    finally:
        server.stop()
    with raises(
        Denied, "SocketPathTooLong", match=f"has {MAX_PATH_BYTES + 1} bytes, but the kernel allows {MAX_PATH_BYTES}"
    ):
        serve(path.with_name(path.name + "x"), [])


def test_of_two_that_start_at_once_one_serves(folder: Path) -> None:
    path = folder / "node.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    barrier = threading.Barrier(4)
    outcomes: list[object] = []

    def start() -> None:
        barrier.wait()
        try:
            outcomes.append(serve(path, []))
        except Denied as error:
            outcomes.append(error.code)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    servers = [each for each in outcomes if not isinstance(each, str)]
    try:
        assert sorted(each for each in outcomes if isinstance(each, str)) == ["SocketInUse"] * 3
        assert serving(path)
    finally:
        for server in servers:
            server.stop()
    assert os.listdir(folder) == []


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_nothing_is_put_where_others_may_write(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(Denied, match="choose a folder of your own") as error:
        serve(folder / "node.sock", [])
    assert (error.value.code, os.listdir(folder)) == ("SocketFolderShared", [])


def test_bytes_that_are_no_message_are_the_callers_mistake(folder: Path) -> None:
    """What monitors count as INTERNAL would be ours. Of calls with one answer and of streams."""
    server = serve(folder / "node.sock", [])
    try:
        with grpc.insecure_channel(f"unix:{folder}/node.sock") as channel:
            one, several = (f"/grpc.health.v1.Health/{name}" for name in ("Check", "Watch"))
            with pytest.raises(grpc.RpcError, match=one) as refused:
                channel.unary_unary(one)(b"\xff\xff\xff", timeout=60)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            stream = channel.unary_stream(several)(b"\xff\xff\xff", timeout=60)
            with pytest.raises(grpc.RpcError, match=several) as refused:
                next(stream)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert serving(folder / "node.sock")
    finally:
        server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another group")
def test_nothing_is_put_where_a_group_of_others_may_write(folder: Path) -> None:
    folder.chmod(0o770)
    check_path(folder / "node.sock")
    os.chown(folder, -1, 12345)
    with raises(Denied, "SocketFolderShared"):
        check_path(folder / "node.sock")
    folder.chmod(0o750)
    check_path(folder / "node.sock")


def test_the_holder_of_the_folders_lock_is_named_after_a_bounded_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("devalloc_node.net.unix_sockets._LOCK_SECONDS", 0.05)
    path = folder / "node.sock"
    with locked(folder), pytest.raises(Failed, match=rf"locked .* by process {os.getpid()} \(") as error:
        serve(path, [])
    assert (error.value.code, os.listdir(folder)) == ("SocketFolderBusy", [])
    server = serve(path, [])
    with locked(folder):
        server.stop()
    assert "the next start removes it" in caplog.text
    server = serve(path, [])
    assert serving(path)
    server.stop()
    assert os.listdir(folder) == []


def test_reflection_lists_what_is_served(folder: Path) -> None:
    path = folder / "node.sock"
    server = serve(path, [])
    try:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=60)
    finally:
        server.stop()
    names = {service.name for service in answer.list_services_response.service}
    assert names == {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


def test_streams_of_the_standard_services_hold_up_no_other_call(folder: Path) -> None:
    path, over = folder / "node.sock", threading.Event()

    def nothing() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        over.wait(60)
        yield from ()

    server = serve(path, [])
    with grpc.insecure_channel(f"unix:{path}") as channel:
        reflected = reflection_pb2_grpc.ServerReflectionStub(channel)
        watched = health_pb2_grpc.HealthStub(channel)
        streams = [reflected.ServerReflectionInfo(nothing()) for _ in range(12)]
        streams += [watched.Watch(health_pb2.HealthCheckRequest()) for _ in range(12)]
        assert all(serving(path) for _ in range(5))
        over.set()
    server.stop(0)


def test_it_stops_though_a_watcher_leaves_at_that_moment(folder: Path) -> None:
    path = folder / "node.sock"
    server = serve(path, [])
    channel = grpc.insecure_channel(f"unix:{path}")
    watchers = [health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()) for _ in range(6)]
    for watcher in watchers:
        assert next(watcher).status == health_pb2.HealthCheckResponse.SERVING
    channel.close()
    stopping = threading.Thread(target=server.stop, args=(0,), daemon=True)
    stopping.start()
    stopping.join(60)
    assert not stopping.is_alive()

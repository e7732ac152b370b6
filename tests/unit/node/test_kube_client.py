"""The client of the API server against servers that misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import incluster_config

from devalloc.store.kubernetes import client as kube_client
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc_node.deadline import Deadline

Reply = tuple[int, bytes]


def status(code: int, reason: str, **details: Any) -> Reply:
    content = {"kind": "Status", "code": code, "reason": reason, "message": f"it is {reason}", "details": details}
    return code, json.dumps(content).encode()


class Server:
    """Gives its replies one after the other, the last one for ever; None: hangs up."""

    def __init__(self) -> None:
        self.replies: list[Reply | None] = [(200, b"{}")]
        self.requests: list[tuple[str, str, str | None]] = []
        self.retry_after: str | None = None
        self.silences = 0
        """Requests that are not answered before it ``speaks``."""
        self.speaks = threading.Event()
        self.stands_still = False
        """After a part of a reply, until it ``speaks``."""

    def next(self) -> Reply | None:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(kube_client, "PAUSE_SECONDS", 0.001)
    return Server()


@pytest.fixture
def client(server: Server, tmp_path: Path) -> Iterator[Client]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            server.requests.append((self.command, self.path, self.headers.get("Authorization")))
            if server.silences:
                server.silences -= 1
                server.speaks.wait(60)
            reply = server.next()
            if reply is None:
                self.close_connection = True
                return
            self.send_response(reply[0])
            part = b"%x\r\n%b\r\n" % (len(reply[1]), reply[1])
            if server.stands_still:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Content-Length", str(len(reply[1])))
            if server.retry_after is not None:
                self.send_header("Retry-After", server.retry_after)
            self.end_headers()
            self.wfile.write(part if server.stands_still else reply[1])
            if server.stands_still:
                server.speaks.wait(60)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True).start()
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{listener.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    yield Client.connect(tmp_path / "kubeconfig")
    server.speaks.set()
    listener.shutdown()
    listener.server_close()


def test_the_token_and_the_parameters_are_sent(client: Client, server: Server) -> None:
    assert client.get("/api/v1/nodes", {"fieldSelector": "spec.nodeName=a,spec.driver=b"}) == {}
    assert server.requests == [
        ("GET", "/api/v1/nodes?fieldSelector=spec.nodeName%3Da%2Cspec.driver%3Db", "Bearer secret")
    ]


def test_a_server_that_wants_to_be_left_alone_is(client: Client, server: Server) -> None:
    server.retry_after = "600"
    server.replies = [(429, b"Too many requests, please try again later.")]
    for use in (lambda: client.get("/a"), lambda: client.create("/a", {})):
        with pytest.raises(ApiError, match="Too many requests") as caught:
            use()
        assert caught.value.retry_after == 600
    assert len(server.requests) == 2, "for longer than this test waits"
    server.retry_after = "Mon, 01 Jan 2029 00:00:00 GMT"
    server.replies.append((200, b"{}"))
    assert client.get("/a") == {}


@pytest.mark.parametrize("kind", ["token", "tokenFile"])
def test_credentials_that_were_replaced_are_read_anew(
    client: Client, server: Server, tmp_path: Path, kind: str
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    config = json.loads(kubeconfig.read_text())

    def put(token: str) -> None:
        (tmp_path / "file").write_text(token)
        config["users"][0]["user"] = {kind: token if kind == "token" else str(tmp_path / "file")}
        kubeconfig.write_text(json.dumps(config))

    put("first")
    client = Client.connect(kubeconfig)
    assert client.get("/a") == {}
    put("second")
    server.replies = [status(401, "Unauthorized"), (201, b"{}")]
    assert client.create("/a", {}) == {}
    assert [token for _, _, token in server.requests] == ["Bearer first", "Bearer first", "Bearer second"]
    assert client.token() == "second", "for others who want to know who this is"


def test_credentials_that_are_not_taken_are_an_error(client: Client, server: Server, tmp_path: Path) -> None:
    server.replies = [status(401, "Unauthorized")]
    for _ in range(2):
        with pytest.raises(ApiError, match="it is Unauthorized") as caught:
            client.get("/a")
        assert caught.value.status == 401
        (tmp_path / "kubeconfig").unlink(missing_ok=True)
    assert len(server.requests) == 3, "once with each, and where there are no others not again"


def test_a_token_that_cannot_be_read_is_an_error(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a pod is read again now and then; a moment without it must not end the plugin."""

    class Loader(incluster_config.InClusterConfigLoader):  # type: ignore[misc]
        def __init__(self, **about: Any) -> None:
            super().__init__(**about)
            self._token_refresh_period = timedelta(0)

    for name, content in (("token", "secret"), ("ca.crt", "none")):
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(incluster_config, "InClusterConfigLoader", Loader)
    client = Client.connect()
    (tmp_path / "token").unlink()
    with pytest.raises(ApiError, match=r"no credentials: .*No such file") as caught:
        client.get("/a")
    assert caught.value.status == 0


@pytest.mark.parametrize("first", [None, (500, b"oops"), (503, b""), status(429, "TooManyRequests")])
def test_reads_are_tried_again(client: Client, server: Server, first: Reply | None) -> None:
    server.replies = [first, (200, b'{"a": 1}')]
    assert client.get("/x") == {"a": 1}
    assert len(server.requests) == 2


def test_reads_end_after_three_tries(client: Client, server: Server) -> None:
    server.replies = [status(503, "Unavailable")]
    with pytest.raises(ApiError, match="it is Unavailable"):
        client.get("/x")
    assert len(server.requests) == 3


def test_reads_end_with_the_deadline(client: Client, server: Server) -> None:
    with pytest.raises(ApiError, match="no time left"):
        client.get("/x", until=Deadline.after(0).at)
    assert server.requests == []


@pytest.mark.parametrize("reply", [None, status(500, "InternalError"), status(409, "Conflict")])
def test_writes_are_not_tried_again(client: Client, server: Server, reply: Reply | None) -> None:
    server.replies = [reply]
    for write in (client.create, client.replace):
        server.requests.clear()
        with pytest.raises(ApiError):
            write("/x", {})
        assert len(server.requests) == 1


def test_a_request_with_less_time_gives_up_sooner_and_the_next_has_another_connection(
    client: Client, server: Server
) -> None:
    server.silences = 1
    hurried = client.within(0.2)
    with pytest.raises(ApiError) as raised:
        hurried.replace("/x", {})
    assert (raised.value.reason, raised.value.is_unknown) == ("NoAnswer", True)
    assert not server.speaks.is_set(), "it would not have answered"
    assert hurried.replace("/x", {}) == {}
    assert client.requests() == {("update", 0): 1, ("update", 200): 1}
    server.speaks.set()


def test_a_write_that_was_put_off_is_tried_again(client: Client, server: Server) -> None:
    server.replies = [status(429, "TooManyRequests"), (201, b'{"made": true}')]
    assert client.create("/x", {}) == {"made": True}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (status(404, "NotFound", name="c1", kind="resourceclaims"), True),
        (status(404, "NotFound"), False),
        ((404, b"404 page not found"), False),
        ((404, b'{"kind": "Other"}'), False),
        (status(403, "Forbidden", name="c1"), False),
    ],
)
def test_not_found_is_only_what_the_api_says_of_an_object(
    client: Client, server: Server, reply: Reply, expected: bool
) -> None:
    server.replies = [reply]
    with pytest.raises(ApiError) as error:
        client.get("/x")
    assert error.value.is_not_found == expected


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe"])
def test_an_answer_other_than_an_object_is_an_error(client: Client, server: Server, content: bytes) -> None:
    server.replies = [(200, content)]
    with pytest.raises(ApiError, match="not a JSON object"):
        client.get("/x")


def test_answers_are_bounded(client: Client, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_client, "MAX_RESPONSE", 100)
    server.replies = [(200, json.dumps({"a": "x" * 200}).encode())]
    with pytest.raises(ApiError) as error:
        client.get("/x")
    assert error.value.reason == "TooLarge"


def test_deleting_what_is_gone_is_no_error(client: Client, server: Server) -> None:
    server.replies = [status(404, "NotFound", name="a")]
    client.delete("/x", "uid", "1")
    server.replies = [status(409, "Conflict")]
    with pytest.raises(ApiError):
        client.delete("/x", "uid", "2")


def lines(*events: Any) -> Reply:
    return 200, b"".join(json.dumps(event).encode() + b"\n" for event in events)


def test_a_watch_gives_its_events(client: Client, server: Server) -> None:
    events = [{"type": "ADDED", "object": {"metadata": {"name": f"a{number}"}}} for number in range(3)]
    server.replies = [lines(*events)]
    assert list(client.watch("/x", {}, "7", threading.Event())) == events
    assert "resourceVersion=7" in server.requests[0][1]


def test_a_watch_of_a_server_that_stands_still_ends(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is there, as of one process that is stopped; it is another server that answers the next watch."""
    monkeypatch.setattr(kube_client, "WATCH_SILENCE_SECONDS", 0.2)
    event = {"type": "ADDED", "object": {"metadata": {"name": "a"}}}
    server.replies, server.stands_still = [lines(event)], True
    watched = client.watch("/x", {}, "7", threading.Event())
    assert list(watched) == [event]


def test_a_watch_that_is_too_old_says_so(client: Client, server: Server) -> None:
    for reply in (lines({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}), status(410, "Expired")):
        server.replies = [reply]
        with pytest.raises(ApiError) as error:
            list(client.watch("/x", {}, "7", threading.Event()))
        assert error.value.is_gone


@pytest.mark.parametrize("content", [b"nonsense\n", b"[]\n", b'{"object": 1}\n', b'{"object": {}}\n', b"x" * 200])
def test_a_watch_of_nonsense_is_an_error(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(kube_client, "MAX_EVENT", 100)
    server.replies = [(200, content)]
    with pytest.raises(ApiError):
        list(client.watch("/x", {}, "7", threading.Event()))


def test_missing_credentials_have_their_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "empty").write_text("{}")
    for path in (tmp_path / "empty", tmp_path / "missing", None):
        with pytest.raises(ApiError) as error:
            Client.connect(path)
        assert error.value.reason == "NoCredentials"

"""A thin client of the API server: JSON in and out, bounded in time, tries and size.

The ``kubernetes`` library provides credentials (kubeconfig, rotating in-cluster tokens) and connections; this client
builds paths itself. It loads the credentials again if the server no longer accepts them. It repeats reads without an
answer, but repeats writes only if the server has done nothing (429): if the answer to a write is lost, it is unknown
whether it was done (``ApiError.is_unknown``).
"""

from __future__ import annotations

import copy
import importlib
import json
import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from devalloc.backoff import backoff_delay
from devalloc.store.kubernetes.api_error import ApiError, Object, error_of_response, parse_object
from devalloc.version import VERSION

CONNECTIONS = 32
"""How many connections stay open: for watches and concurrent writes."""
_QUIET_SECONDS = 15
"""Idle seconds after which the kernel probes a connection; it repeats the probe after each third of that."""


def load_credentials(kubeconfig: Path | None, context: str | None = None) -> Any:
    """An ApiClient with the current credentials: of a kubeconfig's current or named context, or else of the pod's
    service account. Raises ApiError."""
    from kubernetes import client  # takes half a second and 40 MB, so only if needed

    config: Any = importlib.import_module("kubernetes.config")  # claims to be typed, but is not
    settings = client.Configuration()
    try:
        if kubeconfig is not None:
            config.load_kube_config(
                str(kubeconfig), context=context, client_configuration=settings, persist_config=False
            )
        else:
            config.load_incluster_config(settings)
    except credential_errors() as error:
        source = f"kubeconfig {kubeconfig}" if kubeconfig else "not in a pod, and no kubeconfig given"
        raise ApiError(0, "NoCredentials", f"{source}: {error}") from None
    except malformed_errors() as error:
        raise ApiError(0, "NoCredentials", f"not a kubeconfig: {kubeconfig}: {_fault_of(error)}") from None
    settings.retries = False
    settings.connection_pool_maxsize = CONNECTIONS
    # Lets watches detect a server that disappeared silently.
    third = _QUIET_SECONDS // 3
    settings.socket_options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _QUIET_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    ]
    api = client.ApiClient(settings)
    api.user_agent = f"devalloc/{VERSION}"  # our name in audit logs and managedFields
    return api


def credential_errors() -> tuple[type[Exception], ...]:
    """The library's exceptions for unreadable credentials."""
    config: Any = importlib.import_module("kubernetes.config")
    return config.ConfigException, OSError, ValueError


def malformed_errors() -> tuple[type[Exception], ...]:
    """The library's exceptions for files that are no kubeconfig: it reads any text and any YAML as one."""
    from yaml import YAMLError

    return YAMLError, TypeError, AttributeError, LookupError


def _fault_of(error: Exception) -> str:
    """What is wrong with such a file, in one line."""
    from yaml import MarkedYAMLError, YAMLError

    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}; correct it there, or name another file"
    if isinstance(error, YAMLError):
        return "it is not text; name another file"
    return "it lacks clusters, contexts and users; name another file"


def connect_errors() -> tuple[type[Exception], ...]:
    """Exceptions that mean that nothing was sent."""
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    return NewConnectionError, ConnectTimeoutError


def connection_errors() -> tuple[type[Exception], ...]:
    """Exceptions of connections."""
    from urllib3.exceptions import HTTPError

    return HTTPError, OSError


MAX_EVENT = 4 << 20
"""Maximum bytes of a line of a watch; objects in etcd have at most 1.5 MiB."""


def read_lines(raw: Any) -> Iterator[bytes]:
    """The lines of a stream, until it ends or the read times out. Raises ApiError."""
    from urllib3.exceptions import ReadTimeoutError

    rest = b""
    try:
        for chunk in raw.stream(1 << 16):
            rest += chunk
            *whole, rest = rest.split(b"\n")
            yield from (line for line in whole if line.strip())
            if len(rest) > MAX_EVENT:
                raise ApiError(0, "TooLarge", f"an event of the watch is larger than {MAX_EVENT >> 20} MiB")
    except ReadTimeoutError:
        return
    except connection_errors() as error:
        raise ApiError(0, "NoAnswer", f"the watch broke: {error}") from None


def parse_event(line: bytes) -> Object:
    """Parse an event whose object has metadata. Raises ApiError, also for error events of the server."""
    event = parse_object(line)
    content = event.get("object") if event else None
    if event is None or not isinstance(content, dict):
        raise ApiError(0, "NoAnswer", f"the watch sent an invalid event: {line[:80]!r}")
    if event.get("type") == "ERROR":
        code = content.get("code")
        message = str(content.get("message", ""))
        raise ApiError(code if isinstance(code, int) else 500, str(content.get("reason", "")), message)
    if not isinstance(content.get("metadata"), dict):
        raise ApiError(0, "NoAnswer", f"the watch sent an object without metadata: {line[:80]!r}")
    return event


class ConnectionCutter(threading.Thread):
    """Cuts a watch's connection to end it: otherwise the reader would wait for the next event."""

    def __init__(self, raw: Any, stop: threading.Event, over: threading.Event) -> None:
        super().__init__(name="watch-end", daemon=True)
        self._stop_asked, self._over = stop, over
        connection = getattr(raw, "connection", None)
        sock = getattr(connection, "sock", None)
        # A duplicate descriptor: the connection's own number may be reused before this is called.
        self._descriptor = os.dup(sock.fileno()) if sock is not None else None

    def run(self) -> None:
        try:
            while not self._over.is_set() and not self._stop_asked.wait(0.25):
                pass
            if self._descriptor is not None and not self._over.is_set():
                with suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as sock:
                    sock.shutdown(socket.SHUT_RDWR)
        finally:
            if self._descriptor is not None:
                os.close(self._descriptor)


log = logging.getLogger(__name__)

Params = Mapping[str, str]

RESPONSE_SECONDS = 10.0
"""Time limit of one try, in seconds."""
TRIES = 3
PAUSE_SECONDS = 0.2
"""Seconds before the second try; doubled before the third."""
MAX_RESPONSE = 64 << 20
"""Maximum bytes of an answer; a list of a node's slices is a few hundred KiB."""
WATCH_SECONDS = 240
"""Seconds after which the server ends a watch, and the client starts a new one."""
WATCH_SILENCE_SECONDS = 150.0
"""Seconds of silence after which the client restarts a watch: an idle server sends a bookmark every two minutes, but a
hanging one keeps its connections open."""
PAGE = 500
"""Objects of a page of a list."""

_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"


class Client:
    """Requests as one user. Thread-safe."""

    def __init__(self, load: Callable[[], Any]) -> None:
        """``load``: creates an ApiClient of the kubernetes library with the current credentials."""
        self._load = load
        self._api = load()
        self._answer_seconds: float | None = None
        """Overrides ``RESPONSE_SECONDS``."""
        self._request_counts: Counter[tuple[str, int]] = Counter()
        self._counting = threading.Lock()

    def requests(self) -> dict[tuple[str, int], int]:
        """Number of requests by verb of the API (get, list, watch, create, update, patch, apply, delete) and HTTP
        status, 0 without an answer."""
        with self._counting:
            return dict(self._request_counts)

    def token(self) -> str | None:
        """The current token of requests; None if the credentials are not a token. Raises ApiError."""
        try:
            headers: dict[str, str] = self._api.param_serialize("GET", "/", auth_settings=["BearerToken"])[2]
        except credential_errors() as error:
            raise ApiError(0, "NoCredentials", f"no credentials: {error}") from None
        sent = next((value for name, value in headers.items() if name.lower() == "authorization"), "")
        scheme, _, token = sent.partition(" ")
        return token.strip() or None if scheme.lower() == "bearer" else None

    def within(self, seconds: float) -> Client:
        """A client for the same user with a shorter time limit for each try. Both share the request counts."""
        other = copy.copy(self)
        other._answer_seconds = min(seconds, self._most)
        return other

    def reconnected(self) -> Client:
        """A client for the same user with connections of its own, which may reach another API server. Both share the
        request counts. Raises ApiError."""
        other = copy.copy(self)
        other._api = self._load()
        return other

    @property
    def _most(self) -> float:
        """Time limit of one try, in seconds."""
        return RESPONSE_SECONDS if self._answer_seconds is None else self._answer_seconds

    @classmethod
    def connect(cls, kubeconfig: Path | None = None, context: str | None = None) -> Client:
        """Connect with a kubeconfig's current context, or the named one, or else with the service account of this pod.

        Raises ApiError if there are no credentials; it does not contact the server.
        """
        return cls(partial(load_credentials, kubeconfig, context))

    def get(self, path: str, params: Params | None = None, *, until: float | None = None) -> Object:
        """``until``: deadline on the monotonic clock. Raises ApiError."""
        return self._read("get", path, params, until)

    def list(self, path: str, params: Params | None = None) -> Iterator[Object]:
        """The pages of a consistent list; each contains its objects in ``items``. Raises ApiError: ``is_gone`` if the
        list is too old for the next page."""
        more: dict[str, str] = {}
        while True:
            page = self._read("list", path, {**(params or {}), "limit": str(PAGE), **more}, None)
            if not isinstance(page.get("items"), list) or not isinstance(page.get("metadata"), dict):
                raise ApiError(0, "NoAnswer", f"GET {path}: the answer is not a list")
            yield page
            if not (token := page["metadata"].get("continue")):
                return
            # The token contains the resource version, which must not be sent as well.
            params = {k: v for k, v in (params or {}).items() if not k.startswith("resourceVersion")}
            more = {"continue": str(token)}

    def _read(self, verb: str, path: str, params: Params | None, until: float | None) -> Object:
        due = time.monotonic() + TRIES * self._most if until is None else until
        return self._retried(
            lambda: self._request(verb, "GET", path, params, None, due),
            due,
            lambda error: error.status in (0, 429) or error.status >= 500,
        )

    def create(self, path: str, body: Object, params: Params | None = None) -> Object:
        """The object as stored. Raises ApiError."""
        return self._write("create", "POST", path, params, body)

    def replace(self, path: str, body: Object, params: Params | None = None) -> Object:
        """The object as stored. Raises ApiError."""
        return self._write("update", "PUT", path, params, body)

    def apply(self, path: str, body: Object, manager: str, params: Params | None = None) -> Object:
        """Create the object, or set its fields as in ``body`` (server-side apply), even if others manage them. Returns
        the object as stored. Unknown fields are an error. Raises ApiError."""
        query = {**(params or {}), "fieldManager": manager, "force": "true", "fieldValidation": "Strict"}
        return self._write("apply", "PATCH", path, query, body, _APPLY)

    def patch(self, path: str, operations: Sequence[Object]) -> Object:
        """Apply a JSON patch (RFC 6902), which changes only the paths that it names; returns the object as stored.
        Raises ApiError."""
        return self._write("patch", "PATCH", path, None, list(operations), "application/json-patch+json")

    def delete(self, path: str, uid: str, resource_version: str = "", *, propagation: str = "") -> Object | None:
        """Delete exactly this object, with a resource version only in that state; None if it was already gone.
        ``propagation``: of the deletion to its dependents; the server's default for its kind by default. Raises
        ApiError."""
        preconditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
        options: Object = {"preconditions": preconditions} | ({"propagationPolicy": propagation} if propagation else {})
        try:
            return self._write("delete", "DELETE", path, None, options)
        except ApiError as error:
            if not error.is_not_found:
                raise
            return None

    def watch(
        self,
        path: str,
        params: Params,
        resource_version: str,
        stop: threading.Event,
        begun: Callable[[], None] = lambda: None,
    ) -> Iterator[Object]:
        """Events of a list until the server ends the watch, is silent for too long, or ``stop`` is set. The object of a
        BOOKMARK event has only a resource version, from which to continue. ``begun``: called when the server has
        accepted the watch.

        Raises ApiError: ``is_gone`` means to list again.
        """
        query = {
            **params,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        response = self._send("watch", "GET", path, query, None, (RESPONSE_SECONDS, WATCH_SILENCE_SECONDS))
        raw, over = response.response, threading.Event()
        try:
            if response.status >= 300:
                raise error_of_response(response, raw.read(MAX_RESPONSE))
            ConnectionCutter(raw, stop, over).start()
            begun()
            for line in read_lines(raw):
                if stop.is_set():
                    return
                yield parse_event(line)
        except ApiError:
            if not stop.is_set():
                raise
        finally:
            over.set()
            raw.close()

    def _write(self, verb: str, method: str, path: str, params: Params | None, body: Any, form: str = _JSON) -> Object:
        due = time.monotonic() + TRIES * self._most
        return self._retried(
            lambda: self._request(verb, method, path, params, body, due, form),
            due,
            lambda error: error.status == 429,  # any other write may have been done
        )

    def _retried(self, send: Callable[[], Object], due: float, is_transient: Callable[[ApiError], bool]) -> Object:
        for number in range(TRIES):
            try:
                return send()
            except ApiError as error:
                pause = max(backoff_delay(number + 1, PAUSE_SECONDS), error.retry_after)
                if not is_transient(error) or number == TRIES - 1 or due - time.monotonic() < pause:
                    raise
                threading.Event().wait(pause)
        raise AssertionError("the last try raises")

    def _request(
        self, verb: str, method: str, path: str, params: Params | None, body: Any, due: float, form: str = _JSON
    ) -> Object:
        left = due - time.monotonic()
        if left <= 0:
            raise ApiError(0, "NoTime", f"{method} {path}: no time left")
        response = self._send(verb, method, path, params, body, min(self._most, left), form)
        try:
            content = response.response.read(MAX_RESPONSE + 1)
        except connection_errors() as error:
            raise ApiError(0, "NoAnswer", f"{method} {path}: the answer is incomplete: {error}") from None
        finally:
            response.response.release_conn()
        if response.status >= 300:
            raise error_of_response(response, content)
        if len(content) > MAX_RESPONSE:
            raise ApiError(0, "TooLarge", f"{method} {path}: the answer is larger than {MAX_RESPONSE >> 20} MiB")
        if (answer := parse_object(content)) is None:
            raise ApiError(0, "NoAnswer", f"{method} {path}: the answer is not a JSON object")
        return answer

    def _send(
        self, verb: str, method: str, path: str, params: Params | None, body: Any, timeout: Any, form: str = _JSON
    ) -> Any:
        response = self._sent(verb, method, path, params, body, timeout, form)
        if response.status != 401:
            return response
        # They may have been replaced: the library reads a token's file again only after some time, or never.
        try:
            self._api = self._load()
        except ApiError as error:
            log.warning("the API server no longer accepts the credentials, and there are no new ones: %s", error)
            return response
        response.response.close()  # not read completely, so its connection cannot be reused
        return self._sent(verb, method, path, params, body, timeout, form)

    def _sent(
        self, verb: str, method: str, path: str, params: Params | None, body: Any, timeout: Any, form: str = _JSON
    ) -> Any:
        from kubernetes.client.exceptions import ApiException

        headers = {"Accept": _JSON, "Content-Type": form}
        if form == _APPLY and body is not None:
            body = json.dumps(body)  # the library does not serialize objects as YAML
        try:
            _, url, headers, _, _ = self._api.param_serialize(
                method, path, query_params=[*(params or {}).items()], header_params=headers,
                auth_settings=["BearerToken"],
            )  # fmt: skip
        except credential_errors() as error:  # it reads a token that is about to expire
            raise ApiError(0, "NoCredentials", f"{method} {path}: no credentials: {error}") from None
        status = 0
        try:
            response = self._api.call_api(method, url, headers, body, _request_timeout=timeout)
            status = response.status
            return response
        except ApiException as error:  # TLS
            raise _tls_error(self._api.configuration.host, str(error.reason), f"{method} {path}") from None
        except connect_errors() as error:
            server, why = self._api.configuration.host, str(error).partition(": ")[2] or error  # after its own name
            text = f"cannot reach the API server at {server}: {why} ({method} {path})"
            raise ApiError(0, "NoConnection", text) from None
        except connection_errors() as error:
            raise ApiError(0, "NoAnswer", f"{method} {path}: {error}") from None
        finally:
            with self._counting:
                self._request_counts[verb, status] += 1


def _tls_error(server: str, reason: str, request: str) -> ApiError:
    """``reason``: the library's message, which starts with the name of an exception."""
    why = " ".join(reason.partition("\n")[2].split()) or reason
    if "CERTIFICATE_VERIFY_FAILED" in why:
        text = (
            f"cannot verify the certificate of the API server at {server}: {why}; set `certificate-authority` of the "
            f"cluster in the kubeconfig to its authority, and `server` to a name that it covers ({request})"
        )
        return ApiError(0, "NoConnection", text)
    if "WRONG_VERSION_NUMBER" in why:
        text = f"no TLS connection to the API server at {server}: {why}; is it an https server? ({request})"
        return ApiError(0, "NoConnection", text)
    return ApiError(0, "NoAnswer", f"{request}: {why}")


def path_segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")

"""A thin client of the API server: JSON in and out, bounded in time, tries and size.

The ``kubernetes`` library gives credentials (kubeconfig, in-cluster tokens that rotate) and connections; paths are raw.
Credentials that the server does not take any more are read anew.
Reads are tried again when the server does not answer; writes are not, except where it said that it did nothing (429):
of one whose answer was lost nobody knows whether it was done (``ApiError.is_unknown``).
"""

from __future__ import annotations

import copy
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from devalloc.store.kubernetes.apierror import ApiError, Object, parsed, refusal
from devalloc.store.kubernetes.credentials import broken, loaded, no_credentials, not_connected
from devalloc.store.kubernetes.eventstream import Cutter, event_of, lines

log = logging.getLogger(__name__)

Params = Mapping[str, str]

ANSWER_SECONDS = 10.0
"""How long one try may take."""
TRIES = 3
PAUSE_SECONDS = 0.2
"""Before the second try; twice as long before the third."""
MAX_ANSWER = 64 << 20
"""Bytes of an answer; a list of a node's slices is a few hundred KiB."""
WATCH_SECONDS = 240
"""After which the server ends a watch, and it is begun again."""
SILENT_SECONDS = 150.0
"""Without a word, after which a watch is begun again: a server where nothing happens says every two minutes how far it
is (a bookmark), and one that stands still keeps its connections."""
PAGE = 500
"""Objects of a page of a list."""

_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"


class Client:
    """Requests as one user. Safe for threads."""

    def __init__(self, load: Callable[[], Any]) -> None:
        """``load``: makes an ApiClient of the kubernetes library, with the credentials as they are then."""
        self._load = load
        self._api = load()
        self._answer_seconds: float | None = None
        """Instead of ``ANSWER_SECONDS``."""
        self._asked: Counter[tuple[str, int]] = Counter()
        self._counting = threading.Lock()

    def requests(self) -> dict[tuple[str, int], int]:
        """How many there were, by verb of the API (get, list, watch, create, update, patch, apply, delete) and HTTP
        status, 0 where there was no answer."""
        with self._counting:
            return dict(self._asked)

    def token(self) -> str | None:
        """The token that requests are sent with, as it is now; None for credentials that are none. Raises ApiError."""
        try:
            headers: dict[str, str] = self._api.param_serialize("GET", "/", auth_settings=["BearerToken"])[2]
        except no_credentials() as error:
            raise ApiError(0, "NoCredentials", f"no credentials: {error}") from None
        sent = next((value for name, value in headers.items() if name.lower() == "authorization"), "")
        scheme, _, token = sent.partition(" ")
        return token.strip() or None if scheme.lower() == "bearer" else None

    def within(self, seconds: float) -> Client:
        """The same user, of whom each try is given up after so long, where that is sooner. They count together."""
        other = copy.copy(self)
        other._answer_seconds = min(seconds, self._most)
        return other

    @property
    def _most(self) -> float:
        """How long one try may take."""
        return ANSWER_SECONDS if self._answer_seconds is None else self._answer_seconds

    @classmethod
    def connect(cls, kubeconfig: Path | None = None) -> Client:
        """With a kubeconfig's current context, else with the service account of the pod that this runs in.

        Raises ApiError when there are no credentials; whether the server answers is not tried.
        """
        return cls(partial(loaded, kubeconfig))

    def get(self, path: str, params: Params | None = None, *, until: float | None = None) -> Object:
        """``until``: the moment of the monotonic clock by which the answer is due. Raises ApiError."""
        return self._read("get", path, params, until)

    def list(self, path: str, params: Params | None = None) -> Iterator[Object]:
        """The pages of a list, all of one moment; each has its objects under ``items``. Raises ApiError: ``is_gone``
        where that moment is too long ago for the next page."""
        more: dict[str, str] = {}
        while True:
            page = self._read("list", path, {**(params or {}), "limit": str(PAGE), **more}, None)
            if not isinstance(page.get("items"), list) or not isinstance(page.get("metadata"), dict):
                raise ApiError(0, "NoAnswer", f"GET {path}: the answer is no list")
            yield page
            if not (token := page["metadata"].get("continue")):
                return
            # The moment is in the token, and may not be named as well.
            params = {k: v for k, v in (params or {}).items() if not k.startswith("resourceVersion")}
            more = {"continue": str(token)}

    def _read(self, verb: str, path: str, params: Params | None, until: float | None) -> Object:
        due = time.monotonic() + TRIES * self._most if until is None else until
        for number in range(TRIES):
            try:
                return self._request(verb, "GET", path, params, None, due)
            except ApiError as error:
                last = number == TRIES - 1 or not (error.status in (0, 429) or error.status >= 500)
                pause = max(PAUSE_SECONDS * 2**number, error.retry_after)
                if last or due - time.monotonic() < pause:
                    raise
                threading.Event().wait(pause)
        raise AssertionError("the last try raises")

    def create(self, path: str, body: Object, params: Params | None = None) -> Object:
        """The object as stored. Raises ApiError."""
        return self._write("create", "POST", path, params, body)

    def replace(self, path: str, body: Object, params: Params | None = None) -> Object:
        """The object as stored. Raises ApiError."""
        return self._write("update", "PUT", path, params, body)

    def apply(self, path: str, body: Object, manager: str, params: Params | None = None) -> Object:
        """Create the object, or make its fields as in ``body`` (server-side apply), also where another manager set
        them; the object as stored. A field that the server does not know is an error. Raises ApiError."""
        query = {**(params or {}), "fieldManager": manager, "force": "true", "fieldValidation": "Strict"}
        return self._write("apply", "PATCH", path, query, body, _APPLY)

    def patch(self, path: str, operations: Sequence[Object]) -> Object:
        """A JSON patch (RFC 6902): what it does not name stays byte for byte. The object as stored. Raises ApiError."""
        return self._write("patch", "PATCH", path, None, list(operations), "application/json-patch+json")

    def delete(self, path: str, uid: str, resource_version: str = "", *, propagation: str = "") -> Object | None:
        """Delete exactly this object, with a resource version only as it was seen; None where it was gone already.
        ``propagation``: what becomes of what it owns, by the server's default for its kind. Raises ApiError."""
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
        """Events of a list until the server ends the watch, says nothing for long, or ``stop`` is set; of those of type
        BOOKMARK the object is only the resource version to go on from. ``begun``: called when the server has taken it.

        Raises ApiError: ``is_gone`` means to list again.
        """
        query = {
            **params,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        response = self._send("watch", "GET", path, query, None, (ANSWER_SECONDS, SILENT_SECONDS))
        raw, over = response.response, threading.Event()
        try:
            if response.status >= 300:
                raise refusal(response, raw.read(MAX_ANSWER))
            Cutter(raw, stop, over).start()
            begun()
            for line in lines(raw):
                if stop.is_set():
                    return
                yield event_of(line)
        except ApiError:
            if not stop.is_set():
                raise
        finally:
            over.set()
            raw.close()

    def _write(self, verb: str, method: str, path: str, params: Params | None, body: Any, form: str = _JSON) -> Object:
        due = time.monotonic() + TRIES * self._most
        for number in range(TRIES):
            try:
                return self._request(verb, method, path, params, body, due, form)
            except ApiError as error:
                pause = max(PAUSE_SECONDS * 2**number, error.retry_after)
                if error.status != 429 or number == TRIES - 1 or due - time.monotonic() < pause:
                    raise
                threading.Event().wait(pause)
        raise AssertionError("the last try raises")

    def _request(
        self, verb: str, method: str, path: str, params: Params | None, body: Any, due: float, form: str = _JSON
    ) -> Object:
        left = due - time.monotonic()
        if left <= 0:
            raise ApiError(0, "NoTime", f"{method} {path}: no time is left")
        response = self._send(verb, method, path, params, body, min(self._most, left), form)
        try:
            content = response.response.read(MAX_ANSWER + 1)
        except broken() as error:
            raise ApiError(0, "NoAnswer", f"{method} {path}: the answer broke off: {error}") from None
        finally:
            response.response.release_conn()
        if response.status >= 300:
            raise refusal(response, content)
        if len(content) > MAX_ANSWER:
            raise ApiError(0, "TooLarge", f"{method} {path}: the answer has more than {MAX_ANSWER >> 20} MiB")
        if (answer := parsed(content)) is None:
            raise ApiError(0, "NoAnswer", f"{method} {path}: the answer is no JSON object")
        return answer

    def _send(
        self, verb: str, method: str, path: str, params: Params | None, body: Any, timeout: Any, form: str = _JSON
    ) -> Any:
        response = self._sent(verb, method, path, params, body, timeout, form)
        if response.status != 401:
            return response
        # They may have been replaced since: the library looks at a token's file by the clock, or never.
        try:
            self._api = self._load()
        except ApiError as error:
            log.warning("the API server does not take the credentials any more, and there are no others: %s", error)
            return response
        response.response.close()  # not read to its end, so nobody can go on with its connection
        return self._sent(verb, method, path, params, body, timeout, form)

    def _sent(
        self, verb: str, method: str, path: str, params: Params | None, body: Any, timeout: Any, form: str = _JSON
    ) -> Any:
        from kubernetes.client.exceptions import ApiException

        headers = {"Accept": _JSON, "Content-Type": form}
        if form == _APPLY and body is not None:
            body = json.dumps(body)  # the library takes no object for YAML
        try:
            _, url, headers, _, _ = self._api.param_serialize(
                method, path, query_params=[*(params or {}).items()], header_params=headers,
                auth_settings=["BearerToken"],
            )  # fmt: skip
        except no_credentials() as error:  # it reads a token that is due to be replaced
            raise ApiError(0, "NoCredentials", f"{method} {path}: no credentials: {error}") from None
        status = 0
        try:
            response = self._api.call_api(method, url, headers, body, _request_timeout=timeout)
            status = response.status
            return response
        except ApiException as error:  # TLS
            raise _of_tls(self._api.configuration.host, str(error.reason), f"{method} {path}") from None
        except not_connected() as error:
            server, why = self._api.configuration.host, str(error).partition(": ")[2] or error  # after its own name
            text = f"the API server at {server} cannot be reached: {why} ({method} {path})"
            raise ApiError(0, "NoConnection", text) from None
        except broken() as error:
            raise ApiError(0, "NoAnswer", f"{method} {path}: {error}") from None
        finally:
            with self._counting:
                self._asked[verb, status] += 1


def _of_tls(server: str, reason: str, request: str) -> ApiError:
    """``reason``: the library's, which begins with the name of an exception."""
    why = " ".join(reason.partition("\n")[2].split()) or reason
    if "CERTIFICATE_VERIFY_FAILED" in why:
        text = (
            f"the certificate of the API server at {server} cannot be verified: {why}; name the authority that signed "
            f"it as `certificate-authority` of the cluster in the kubeconfig, and a server that it is for ({request})"
        )
        return ApiError(0, "NoConnection", text)
    if "WRONG_VERSION_NUMBER" in why:
        text = f"no TLS connection to the API server at {server}: {why}; is it an https server? ({request})"
        return ApiError(0, "NoConnection", text)
    return ApiError(0, "NoAnswer", f"{request}: {why}")


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")

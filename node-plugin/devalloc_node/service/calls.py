"""What every call of our own service has: a deadline, a status for each failure, an audit record and a metric."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import grpc

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.journal.audit_log import audit
from devalloc_node.metrics.registry import NodeMetrics, TimedRequest
from devalloc_node.operations.change_feed import (
    ChangeKind,
    ChangeNotifier,
    TooManyWatchers,
    WatcherSlots,
    watch_changes,
)
from devalloc_node.operations.claim_registry import UNDO_SECONDS
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.service import replies
from devalloc_node.service.peer_credentials import CallingProcess, caller_of
from devalloc_node.service.request_fields import BadField

log = logging.getLogger(__name__)

CALL_SECONDS = 40.0
"""How long a call waits whose caller does not say how long."""
MOST_SECONDS = 600.0
"""The longest that a call waits, whatever its caller would: it keeps others from what it works on."""
_MARGIN_SECONDS = (0.5, 3.0)
"""Between the work's deadline and the caller's, for the answer to get there: a tenth of the time, within these. Of
longer times one second is gRPC's, which tells them in whole seconds, rounded up."""
_NEVER_SECONDS = 1e9
"""What gRPC tells of a caller without a deadline is longer."""
_SEVERITY = (pb.Result.DONE, pb.Result.DENIED, pb.Result.FAILED, pb.Result.UNKNOWN)
_RESULTS = {
    pb.Result.DONE: "done",
    pb.Result.DENIED: "denied",
    pb.Result.FAILED: "failed",
    pb.Result.UNKNOWN: "unknown",
}

CHANGES = {ChangeKind.IS: pb.CHANGE_IS, ChangeKind.GONE: pb.CHANGE_GONE, ChangeKind.SYNCED: pb.CHANGE_SYNCED}
WATCHERS = 8
"""Streams at a time; each takes one of the server's threads."""
WATCH_SECONDS = 1.0
"""How often a watcher looks, when nothing tells that something changed."""

Reply = TypeVar("Reply")
Key = TypeVar("Key")
Value = TypeVar("Value")


class CallHandler:
    """Handles the calls of a service. Safe for threads."""

    def __init__(self, metrics: NodeMetrics) -> None:
        self._metrics = metrics

    def change(
        self,
        context: grpc.ServicerContext,
        method: str,
        about: Mapping[str, Any],
        reply_type: Callable[..., Reply],
        work: Callable[[Deadline, str], Reply],
        *,
        longer: float = 0.0,
        takes_back: bool = False,
    ) -> Reply:
        """A call that changes something: the work's reply, or one whose ``result`` says why not.

        ``work`` gets the deadline and the caller as a text; a reply without ``result`` is done. ``about``: for the
        record. ``longer``: seconds that the caller asked for. ``takes_back``: what it began is taken back if the
        deadline passes.
        """
        caller = caller_of(context)
        began = time.monotonic()
        with self.failures_as_status(context, method) as timed:
            try:
                reply: Any = work(call_deadline(context, longer, takes_back=takes_back), str(caller))
                if not reply.HasField("result"):
                    reply.result.CopyFrom(replies.done())
            except NodeError as error:
                reply = reply_type(result=replies.result(error))
            timed.result = _RESULTS[reply.result.outcome]
            _record(method, about, caller, reply.result, time.monotonic() - began)
            return reply  # type: ignore[no-any-return]

    def read(self, context: grpc.ServicerContext, method: str, work: Callable[[], Reply]) -> Reply:
        """A call that changes nothing."""
        with self.failures_as_status(context, method):
            return work()

    @contextmanager
    def failures_as_status(self, context: grpc.ServicerContext, method: str) -> Iterator[TimedRequest]:
        """Inside, whatever is raised ends this call alone, with the gRPC status for it."""
        with self._metrics.timed(method) as timed:
            try:
                yield timed
                if timed.result == "error":
                    timed.result = "done"
            except BadField as error:
                timed.result = "invalid"
                _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except TooManyWatchers as error:
                timed.result = "denied"
                _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            except Denied as error:
                timed.result = "denied"
                missing = error.code.endswith("NotFound")
                code = grpc.StatusCode.NOT_FOUND if missing else grpc.StatusCode.FAILED_PRECONDITION
                _abort(context, code, f"{error.message} [{error.code}]")
            except NodeError as error:
                timed.result = "failed" if isinstance(error, Failed) else "unknown"
                _abort(context, grpc.StatusCode.FAILED_PRECONDITION, f"{error.message} [{error.code}]")
            except GeneratorExit:
                timed.result = "done"  # a watcher that has seen enough
                raise
            except Exception as error:
                if not context.is_active():
                    timed.result = "done"  # the caller has gone
                    raise
                log.exception("%s failed", method)
                _abort(context, grpc.StatusCode.INTERNAL, f"this is a bug in devalloc: {error!r:.200}; see the log")


class ChangeStreams:
    """What watches changes, of all services together. Safe for threads."""

    def __init__(self, notifier: ChangeNotifier) -> None:
        """``notifier`` beats when something changed that watchers want to know."""
        self.notifier = notifier
        self._places = WatcherSlots(WATCHERS)

    def watch(
        self, context: grpc.ServicerContext, read: Callable[[], Mapping[Key, Value]]
    ) -> Iterator[tuple[ChangeKind, Key | None, Value | None]]:
        """As ``watch_changes``, until the caller has gone. Raises TooManyWatchers."""
        with self._places.one():
            context.add_callback(self.notifier.beat)  # so that one who leaves is not waited with
            yield from watch_changes(read, self.notifier, context.is_active, interval=WATCH_SECONDS)


def call_deadline(context: grpc.ServicerContext, longer: float = 0.0, *, takes_back: bool = False) -> Deadline:
    """When the work must have ended, and whether its caller has gone.

    ``takes_back``: so early that the caller still hears what became of what was begun and is taken back afterwards.
    """
    seconds, left = CALL_SECONDS + longer, context.time_remaining()
    if left is not None and left <= _NEVER_SECONDS:
        least, most = _MARGIN_SECONDS
        margin = max(least, min(most, left / 10))
        if takes_back:
            margin += min(UNDO_SECONDS, left / 4)
        seconds = max(0.0, min(MOST_SECONDS + longer, left - margin))
    cancelled = threading.Event()
    if not context.add_callback(cancelled.set):
        cancelled.set()
    return replace(Deadline.after(seconds), cancelled=cancelled)


def worst_result(results: list[pb.Result]) -> pb.Result:
    """The one that says most of all together; done when there are none."""
    return max(results, key=lambda one: _SEVERITY.index(one.outcome), default=replies.done())


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, details: str) -> NoReturn:
    context.abort(code, details[: replies.MESSAGE])
    raise AssertionError("abort raises")


def _record(method: str, about: Mapping[str, Any], caller: CallingProcess, result: pb.Result, seconds: float) -> None:
    audit(
        "request",
        method=method,
        **about,
        outcome=_RESULTS[result.outcome],
        code=result.code,
        message=result.message,
        seconds=round(seconds, 3),
        uid=caller.uid,
        pid=caller.pid,
        program=caller.program,
    )

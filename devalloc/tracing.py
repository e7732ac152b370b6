"""Traces of claims, sent to an OpenTelemetry collector: one for each claim, from its creation to a guest.

The ID of a claim's trace is the claim's UID, and the ID of its first span comes from that as well. So the controller
and the node plugins write spans of one trace, and need not pass an ID on: nothing is written on the claim. Without
``start_tracing`` a span costs nothing and needs no library.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

EXPORT_SECONDS: Final = 5.0
"""Of one request to the collector, and of all at the end. Spans that do not get there are dropped; who makes them never
waits.
"""
_MOST_BITS: Final = 2**128
_PATH: Final = "/v1/traces"

_tracer: _Tracer | None = None


def start_tracing(endpoint: str, service: str, instance: str) -> Callable[[], None]:
    """Send spans from now on; the returned function sends what is left, and ends it.

    ``endpoint``: base address of OTLP over HTTP, such as ``http://collector:4318``. What else OpenTelemetry's variables
    can set (``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_TRACES_SAMPLER``, ...) holds. ``service``, ``instance``: who writes.
    Raises ModuleNotFoundError without the packages of the extra ``otel``.
    """
    global _tracer
    started = _tracer = _Tracer(endpoint, service, instance)

    def stop() -> None:
        global _tracer
        _tracer = None
        started.stop()

    return stop


def record_first_span(uid: str, name: str, began: float, ended: float, **attributes: str) -> None:
    """The span of a claim that all its others are below. Times: seconds of the Unix epoch."""
    if _tracer is not None:
        _tracer.record(uid, name, int(began * 1e9), int(ended * 1e9), attributes, is_first=True)


@contextmanager
def span(name: str, uids: Iterable[str], **attributes: str) -> Iterator[None]:
    """What happens inside is a span of each of these claims; what is raised is its error."""
    tracer = _tracer
    if tracer is None:
        yield
        return
    began, error = time.time_ns(), ""
    try:
        yield
    except BaseException as problem:
        error = getattr(problem, "code", "") or type(problem).__name__
        raise
    finally:
        ended = time.time_ns()
        for uid in uids:
            tracer.record(uid, name, began, ended, attributes, error)


class _Tracer:
    """Safe for threads."""

    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from devalloc.version import VERSION

        exporter = OTLPSpanExporter(endpoint.rstrip("/") + _PATH, timeout=EXPORT_SECONDS)
        names = {"service.name": service, "service.version": VERSION, "service.instance.id": instance}
        self._api = trace
        self._ids = _claim_ids()
        self._provider = TracerProvider(resource=Resource.create(names), id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._spans = self._provider.get_tracer("devalloc", VERSION)

    def record(
        self,
        uid: str,
        name: str,
        began: int,
        ended: int,
        attributes: dict[str, str],
        error: str = "",
        *,
        is_first: bool = False,
    ) -> None:
        """``began``, ``ended``: nanoseconds of the Unix epoch."""
        trace = self._api
        ids = trace_id(uid), first_span_id(uid)
        if is_first:
            with self._ids.next(*ids):
                one = self._spans.start_span(name, trace.set_span_in_context(trace.INVALID_SPAN), start_time=began)
        else:
            above = trace.SpanContext(*ids, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
            context = trace.set_span_in_context(trace.NonRecordingSpan(above))
            one = self._spans.start_span(name, context, start_time=began)
        one.set_attributes({"devalloc.claim.uid": uid, **attributes})
        if error:
            one.set_attribute("error.type", error)
            one.set_status(trace.StatusCode.ERROR, error)
        one.end(ended)

    def stop(self) -> None:
        """Export what is queued, for ``EXPORT_SECONDS``: the library itself tries for half a minute."""
        exporting = threading.Thread(target=self._provider.shutdown, daemon=True)
        exporting.start()
        exporting.join(EXPORT_SECONDS)


def trace_id(uid: str) -> int:
    """Of a claim: its UID, which is a number of 128 bits; of other texts a digest."""
    try:
        number = uuid.UUID(uid).int
    except ValueError:
        number = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:16])
    return number or _MOST_BITS - 1  # 0 is no valid ID


def first_span_id(uid: str) -> int:
    """Of a claim."""
    return int.from_bytes(hashlib.sha256(f"first span of {uid}".encode()).digest()[:8]) or 1


def _claim_ids() -> Any:
    """Random IDs, except inside ``next``."""
    import contextvars

    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    given = contextvars.ContextVar[tuple[int, int] | None]("given", default=None)

    class ClaimIds(RandomIdGenerator):
        @contextmanager
        def next(self, trace: int, span_id: int) -> Iterator[None]:
            before = given.set((trace, span_id))
            try:
                yield
            finally:
                given.reset(before)

        def generate_trace_id(self) -> int:
            ids = given.get()
            return super().generate_trace_id() if ids is None else ids[0]

        def generate_span_id(self) -> int:
            ids = given.get()
            return super().generate_span_id() if ids is None else ids[1]

    return ClaimIds()

"""Spans of claims: whose trace they belong to, and that nothing waits for a collector."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid

import pytest

from devalloc import tracing
from devalloc.tracing import record_first_span, span, start_tracing
from devalloc_node.errors import Denied
from tests.support.otlp_collector import attributes, collecting

UID = "01234567-89ab-cdef-0123-456789abcdef"


def test_spans_of_two_processes_are_one_trace_whose_id_is_the_claims_uid() -> None:
    with collecting() as collector:
        for service in ("controller", "node"):
            stop = start_tracing(collector.endpoint, service, "a")
            if service == "controller":
                record_first_span(UID, "allocate", 1.5, 2.0)
            else:
                with span("prepare", [UID], caller="kubelet"):
                    pass
            stop()
        first, prepared = collector.spans
        assert collector.services == {"controller", "node"}
        assert {one.trace_id for one in collector.spans} == {uuid.UUID(UID).bytes}
        assert (first.name, first.parent_span_id, prepared.parent_span_id) == ("allocate", b"", first.span_id)
        assert (first.start_time_unix_nano, first.end_time_unix_nano) == (1_500_000_000, 2_000_000_000)
        assert attributes(prepared) == {"devalloc.claim.uid": UID, "caller": "kubelet"}


def test_work_for_several_claims_is_in_the_trace_of_each() -> None:
    others = [str(uuid.UUID(int=number)) for number in (0, 1)] + ["no-uuid"]
    with collecting() as collector:
        stop = start_tracing(collector.endpoint, "node", "a")
        with span("start machine", others):
            pass
        stop()
        assert sorted(attributes(one)["devalloc.claim.uid"] for one in collector.spans) == sorted(others)
        assert len({one.trace_id for one in collector.spans}) == 3
        assert all(any(one.trace_id) for one in collector.spans), "no ID is 0, which is none"


def test_what_is_raised_is_the_error_of_its_span() -> None:
    with collecting() as collector:
        stop = start_tracing(collector.endpoint, "node", "a")
        with pytest.raises(Denied), span("prepare", [UID]):
            raise Denied("DeviceInUse", "it is in use")
        stop()
        (one,) = collector.spans
        assert (one.status.code, one.status.message, attributes(one)["error.type"]) == (2, "DeviceInUse", "DeviceInUse")


def test_a_collector_that_does_not_answer_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither work nor the end of the process: the library would try for half a minute, as long as a Pod has to end."""
    monkeypatch.setattr(tracing, "EXPORT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections, and never answers
        stop = start_tracing(f"http://127.0.0.1:{silent.getsockname()[1]}", "node", "a")
        began = time.process_time(), time.monotonic()
        for _ in range(10_000):  # more than are queued
            with span("prepare", [UID]):
                pass
        made = time.monotonic() - began[1]
        assert made < 60, "with a request for each it would be hours"
        stopping = time.monotonic()
        stop()
        assert time.monotonic() - stopping < 20


def test_without_an_endpoint_no_library_is_loaded() -> None:
    script = (
        "import sys; from devalloc.tracing import span\n"
        "with span('prepare', ['a']): pass\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

"""The kubelet's DRAPlugin, v1 and v1beta1: prepare and unprepare pods' claims.

The contract: every claim of a request has an entry in the reply, and one that fails has an error there; the call itself
never fails because of one claim. The kubelet gives a call 45 s and asks again later, so what is not done by then gets a
retryable error, and continues or is undone by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeVar

import grpc

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError
from devalloc_node.model.grant import ClaimRef, check_ref
from devalloc_node.model.step import Prepared
from devalloc_node.pb import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from devalloc_node.service.resource_health import cut
from devalloc_node.service.server import Service

log = logging.getLogger(__name__)

VERSIONS = {
    "v1.DRAPlugin": (dra_v1_pb2, dra_v1_pb2_grpc),
    "v1beta1.DRAPlugin": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc),
}
"""By what the registration calls them: messages and service."""

CALL_SECONDS = 40.0
"""A reply is on its way by then: the kubelet waits 45 s."""
_MARGIN_SECONDS = 1.0
MOST_CLAIMS = 1000
"""Of one call. A pod has a few dozen."""
_ERROR_BYTES = 2048

T = TypeVar("T")


class ClaimPreparer(Protocol):
    """Who prepares. Safe for threads; both calls are idempotent."""

    def prepare(self, ref: ClaimRef, deadline: Deadline) -> Prepared:
        """Raises NodeError."""

    def unprepare(self, ref: ClaimRef, deadline: Deadline) -> None:
        """Raises NodeError. It is no error that the claim is unknown (T9)."""


@dataclass(frozen=True, slots=True)
class ClaimError:
    """The error of a claim that failed."""

    text: str


class KubeletPlugin:
    """Prepares and unprepares for the kubelet, in both versions."""

    def __init__(
        self, claims: ClaimPreparer, *, workers: int = 16, per_call: int = 8, call_seconds: float = CALL_SECONDS
    ) -> None:
        """``workers``: claims that are worked on at the same time; ``per_call``: of these, for one call."""
        self._claims = claims
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="claims")
        self._per_call = per_call
        self._call_seconds = call_seconds

    def service(self, version: str) -> Service:
        """One of VERSIONS, for the server."""
        messages, services = VERSIONS[version]
        prepare, unprepare = self._prepare, self._unprepare

        class Servicer(services.DRAPluginServicer):  # type: ignore[misc,name-defined]
            def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:
                return prepare(messages, request, context)

            def NodeUnprepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:
                return unprepare(messages, request, context)

        return Service(
            messages.DESCRIPTOR.services_by_name["DRAPlugin"].full_name,
            lambda server: services.add_DRAPluginServicer_to_server(Servicer(), server),
        )

    def stop(self) -> None:
        """Take on nothing any more. What is under way ends by itself."""
        self._pool.shutdown(wait=False)

    def _prepare(self, messages: ModuleType, request: Any, context: grpc.ServicerContext) -> Any:
        response = messages.NodePrepareResourcesResponse()
        for uid, answer in self._each(request.claims, self._claims.prepare, "prepare", context).items():
            entry = response.claims[uid]
            if isinstance(answer, ClaimError):
                entry.error = answer.text
                continue
            for device in answer.devices:
                added = entry.devices.add(
                    request_names=dict.fromkeys(name.partition("/")[0] for name in device.requests),
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=answer.cdi_ids.get(device.key, ()),
                )
                if device.share is not None and messages is dra_v1_pb2:
                    added.share_id = device.share
        return response

    def _unprepare(self, messages: ModuleType, request: Any, context: grpc.ServicerContext) -> Any:
        response = messages.NodeUnprepareResourcesResponse()
        for uid, answer in self._each(request.claims, self._claims.unprepare, "unprepare", context).items():
            response.claims[uid].error = answer.text if isinstance(answer, ClaimError) else ""
        return response

    def _each(
        self,
        claims: Iterable[Any],
        work: Callable[[ClaimRef, Deadline], T],
        what: str,
        context: grpc.ServicerContext,
    ) -> dict[str, T | ClaimError]:
        """What became of each claim of a call, by its UID."""
        answers: dict[str, T | ClaimError] = {}
        refs: dict[str, ClaimRef] = {}
        for claim in claims:
            ref = ClaimRef(claim.namespace, claim.name, claim.uid)
            try:
                check_ref(ref)
                if refs.setdefault(ref.uid, ref) != ref:
                    raise Denied("ClaimUidTwice", f"the call has two claims with this UID: {refs[ref.uid]} and {ref}")
            except Denied as error:
                answers[ref.uid] = _claim_error(ref, error, what)
            if len(refs) + len(answers) > MOST_CLAIMS:
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"the call has more than {MOST_CLAIMS} claims; request fewer at a time",
                )
        waiting = [ref for uid, ref in refs.items() if uid not in answers]
        return answers | self._run(waiting, work, what, self._deadline(context))

    def _run(
        self, refs: list[ClaimRef], work: Callable[[ClaimRef, Deadline], T], what: str, deadline: Deadline
    ) -> dict[str, T | ClaimError]:
        answers: dict[str, T | ClaimError] = {}
        queue = iter(refs)
        running: dict[Future[T | ClaimError], ClaimRef] = {}

        def one(ref: ClaimRef) -> T | ClaimError:
            try:
                return work(ref, deadline.before(_MARGIN_SECONDS))
            except Exception as error:
                return _claim_error(ref, error, what)

        while True:
            while len(running) < self._per_call and not deadline.passed and (ref := next(queue, None)) is not None:
                try:
                    running[self._pool.submit(one, ref)] = ref
                except RuntimeError:
                    answers[ref.uid] = ClaimError("Stopping: this instance of the plugin is ending; try again")
            if not running:
                break
            done, _ = wait(running, timeout=deadline.seconds, return_when=FIRST_COMPLETED)
            if not done:
                break
            for future in done:
                answers[running.pop(future).uid] = future.result()
        for future, ref in running.items():
            begun = not future.cancel()
            answers[ref.uid] = ClaimError(
                f"Unfinished: it takes longer than {self._call_seconds:.0f} s to {what} {ref}, and continues; try again"
                if begun
                else f"Busy: the plugin had no time to {what} {ref}, because other calls took it; try again"
            )
        for ref in queue:
            answers[ref.uid] = ClaimError(
                f"Busy: the plugin had no time to {what} {ref}, because other calls took it; try again"
            )
        return answers

    def _deadline(self, context: grpc.ServicerContext) -> Deadline:
        left = context.time_remaining()
        seconds = self._call_seconds if left is None else min(self._call_seconds, left - _MARGIN_SECONDS)
        return Deadline.after(max(0.0, seconds))


def _claim_error(ref: ClaimRef, error: Exception, what: str) -> ClaimError:
    if isinstance(error, NodeError):
        log.warning("cannot %s %s: %s: %s", what, _named(ref), error.code, error.message)
        return ClaimError(cut(f"{error.code}: {error.message}", _ERROR_BYTES))
    log.error("cannot %s %s", what, _named(ref), exc_info=error)
    return ClaimError(
        cut(
            f"Internal: this is a bug in devalloc: {type(error).__name__}: {error} "
            "(the log of devalloc node has the details; please report it)",
            _ERROR_BYTES,
        )
    )


def _named(ref: ClaimRef) -> str:
    return ascii(f"{ref} ({ref.uid})"[:400])

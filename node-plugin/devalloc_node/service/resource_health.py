"""The kubelet's DRAResourceHealth, v1 and v1alpha1: report device health while a client listens.

A listener gets the complete list when it comes, whenever something changes, and every few seconds, because the kubelet
takes for unknown what it did not hear of for half a minute. One that reads slowly misses lists, never the last one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import grpc

from devalloc_node.health.watch import DeviceHealth, HealthFeed
from devalloc_node.pb import health_v1_pb2, health_v1_pb2_grpc, health_v1alpha1_pb2, health_v1alpha1_pb2_grpc
from devalloc_node.service.server import ClientLimits, Service

VERSIONS = {
    "v1.DRAResourceHealth": (health_v1_pb2, health_v1_pb2_grpc),
    "v1alpha1.DRAResourceHealth": (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc),
}
"""By what the registration calls them: messages and service."""

REPEAT_SECONDS = 10.0
"""How often the list is sent though nothing changed."""
UNHEARD_SECONDS = 3 * int(REPEAT_SECONDS)
"""After so long without news of a device the kubelet is to take it for unknown."""
MESSAGE_BYTES = 1024
_LISTENERS = 8
"""Streams at the same time: the kubelet has one for each version and instance."""
_POLL_SECONDS = 0.25
_STATES = {"unknown": 0, "healthy": 1, "unhealthy": 2}


class ResourceHealth:
    """Tells how the devices are, in both versions."""

    def __init__(self, feed: HealthFeed, *, repeat: float = REPEAT_SECONDS, limits: ClientLimits | None = None) -> None:
        """``repeat``: seconds between lists while nothing changes."""
        self._feed = feed
        self._repeat = repeat
        self._most_bytes = (limits or ClientLimits()).message_bytes
        self._listeners = threading.BoundedSemaphore(_LISTENERS)
        self._stopped = threading.Event()

    def service(self, version: str) -> Service:
        """One of VERSIONS, for the server."""
        messages, services = VERSIONS[version]
        watch = self._watch

        class Servicer(services.DRAResourceHealthServicer):  # type: ignore[misc,name-defined]
            def NodeWatchResources(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
                return watch(messages, context)

        return Service(
            messages.DESCRIPTOR.services_by_name["DRAResourceHealth"].full_name,
            lambda server: services.add_DRAResourceHealthServicer_to_server(Servicer(), server),
        )

    def stop(self) -> None:
        """End all streams soon."""
        self._stopped.set()

    def _watch(self, messages: ModuleType, context: grpc.ServicerContext) -> Iterator[Any]:
        if not self._listeners.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{_LISTENERS} listeners are connected, which is the maximum; close one",
            )
        try:
            while self._is_served(context):
                checkup = self._feed.snapshot()
                yield _listed(messages, checkup.devices, self._most_bytes)
                self._wait(checkup.version, context)
        finally:
            self._listeners.release()

    def _wait(self, version: int, context: grpc.ServicerContext) -> None:
        """Wait for a change, or until the listener has gone."""
        until = time.monotonic() + self._repeat
        while (left := until - time.monotonic()) > 0 and self._is_served(context):
            if self._feed.wait(version, min(left, _POLL_SECONDS)):
                return

    def _is_served(self, context: grpc.ServicerContext) -> bool:
        return context.is_active() and not self._stopped.is_set()


def _listed(messages: ModuleType, devices: tuple[DeviceHealth, ...], most_bytes: int) -> Any:
    """The list; if there are so many devices that it would not pass, with shorter messages."""
    for length in (MESSAGE_BYTES, 128, 0):
        response = messages.NodeWatchResourcesResponse(
            devices=[
                messages.DeviceHealth(
                    device=messages.DeviceIdentifier(pool_name=each.pool, device_name=each.device),
                    health=_STATES[each.health.state],
                    last_updated_time=int(each.seen),
                    health_check_timeout_seconds=UNHEARD_SECONDS,
                    message=cut(each.health.message, length),
                )
                for each in devices
            ]
        )
        if response.ByteSize() <= most_bytes:
            break
    return response


def cut(text: str, most: int) -> str:
    """At most so many bytes in UTF-8, with three dots where something is missing."""
    content = text.encode("utf-8", "replace")
    if len(content) <= most:
        return content.decode()
    return content[: most - 3].decode("utf-8", "ignore") + "..." if most > 3 else ""

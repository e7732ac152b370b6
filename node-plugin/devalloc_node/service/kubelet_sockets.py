"""The two sockets of one plugin instance: first the one with the services, then the one the kubelet finds it by.

The kubelet finds the plugin by a socket below ``plugins_registry`` that says where the services are. Deviation from
upstream's helper, whose constant allows socket paths of 108 bytes: the kernel binds 107.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from devalloc.api.fields import is_subdomain_name
from devalloc_node.errors import Denied
from devalloc_node.health.watch import HealthFeed
from devalloc_node.model.grant import is_uid, shown
from devalloc_node.net.unix_sockets import MAX_PATH_BYTES
from devalloc_node.pb import registration_pb2 as pb
from devalloc_node.pb import registration_pb2_grpc as pb_grpc
from devalloc_node.service import kubelet, resource_health
from devalloc_node.service.kubelet import ClaimPreparer, KubeletPlugin
from devalloc_node.service.resource_health import ResourceHealth
from devalloc_node.service.server import Service, SocketServer, serve

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KubeletPaths:
    """Where things of one plugin instance lie below the kubelet's folder."""

    registration: Path
    """The socket that the kubelet finds by itself."""
    endpoint: Path
    """The socket that it is sent to."""
    data: Path
    """The driver's own folder."""


def kubelet_paths(kubelet: Path, driver: str, pod_uid: str | None = None) -> KubeletPaths:
    """The sockets of a driver; with ``pod_uid`` (of the pod that this instance runs in) its own, so that the old and
    the new instance of a rolling update serve side by side.

    Raises Denied ``DriverNameInvalid``, ``PodUidInvalid``, and ``SocketPathTooLong`` if no allowed name is short
    enough for the kubelet's folder.
    """
    if len(driver) > 63 or not is_subdomain_name(driver):
        raise Denied(
            "DriverNameInvalid",
            f"invalid driver name {shown(driver)}: it must be a DNS name in lower case of at most 63 characters",
        )
    if pod_uid is not None and not is_uid(pod_uid):
        raise Denied(
            "PodUidInvalid",
            f"{shown(pod_uid)} is not the UID of a pod: it must be at most 64 letters, digits and dashes",
        )
    data = kubelet / "plugins" / driver
    endpoints = ["dra.sock"] if pod_uid is None else [f"dra-{pod_uid}.sock", f"dra-{_hashed(pod_uid, 8)}.sock"]
    return KubeletPaths(registration_socket(kubelet, driver, pod_uid), _short_enough(data, endpoints), data)


def registration_socket(kubelet: Path, driver: str, pod_uid: str | None) -> Path:
    """The first of the allowed names whose path is short enough; the names were checked."""
    names = [f"{driver}-reg.sock"]
    if pod_uid is not None:
        short, shortest = _hashed(pod_uid, 8), _hashed(f"{driver}\0{pod_uid}", 16)
        names = [f"{driver}-{pod_uid}-reg.sock", f"{driver}-{short}-reg.sock", f"dra-{shortest}-reg.sock"]
    return _short_enough(kubelet / "plugins_registry", names)


def _hashed(text: str, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).decode().rstrip("=")


def _short_enough(folder: Path, names: Sequence[str]) -> Path:
    """The first name whose path the kernel takes."""
    for name in names:
        path = folder / name
        length = len(os.fsencode(path))
        if length <= MAX_PATH_BYTES:
            return path
    raise Denied(
        "SocketPathTooLong",
        f"the socket {path} would have {length} bytes, but the kernel allows {MAX_PATH_BYTES}; give the kubelet and "
        "this plugin a shorter folder (--root-dir there, --kubelet-dir here)",
    )


class Registration(pb_grpc.RegistrationServicer):
    """Answers the kubelet's questions, and keeps what it said."""

    def __init__(
        self,
        driver: str,
        endpoint: Path,
        versions: Sequence[str],
        on_status: Callable[[bool, str], None] = lambda registered, error: None,
    ) -> None:
        """``versions``: what the endpoint serves, the preferred first, such as ``v1.DRAPlugin``."""
        self._info = pb.PluginInfo(type="DRAPlugin", name=driver, endpoint=str(endpoint), supported_versions=versions)
        self._on_status = on_status
        self._lock = threading.Lock()
        self._registered = False
        self._error = ""

    @property
    def service(self) -> Service:
        return Service(
            pb.DESCRIPTOR.services_by_name["Registration"].full_name,
            lambda server: pb_grpc.add_RegistrationServicer_to_server(self, server),
        )

    @property
    def status(self) -> tuple[bool, str]:
        """Whether the kubelet said that it registered the plugin, and else why not (empty: it said nothing yet)."""
        with self._lock:
            return self._registered, self._error

    def GetInfo(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> pb.PluginInfo:
        return self._info

    def NotifyRegistrationStatus(
        self, request: pb.RegistrationStatus, context: grpc.ServicerContext
    ) -> pb.RegistrationStatusResponse:
        error = "" if request.plugin_registered else request.error[:1024] or "the kubelet gave no reason"
        with self._lock:
            self._registered, self._error = request.plugin_registered, error
        if error:
            log.error("the kubelet did not register %s: %s", self._info.name, error)
        else:
            log.info("the kubelet registered %s", self._info.name)
        self._on_status(request.plugin_registered, error)
        return pb.RegistrationStatusResponse()


VERSIONS = (*kubelet.VERSIONS, *resource_health.VERSIONS)
"""What can be served, as the registration calls it; the kubelet takes the first DRAPlugin that it knows."""


class KubeletSockets:
    """What the kubelet is served, from construction until ``stop``."""

    def __init__(
        self,
        paths: KubeletPaths,
        driver: str,
        claims: ClaimPreparer,
        feed: HealthFeed,
        *,
        versions: Sequence[str] = VERSIONS,
        on_status: Callable[[bool, str], None] = lambda registered, error: None,
    ) -> None:
        """Raises Denied ``VersionUnknown`` and what ``serve`` raises."""
        unknown = [version for version in versions if version not in VERSIONS]
        if unknown or not any(version in kubelet.VERSIONS for version in versions):
            raise Denied(
                "VersionUnknown",
                f"cannot serve {', '.join(unknown) or 'no DRAPlugin at all'}; supported: {', '.join(VERSIONS)}",
            )
        self._plugin = KubeletPlugin(claims)
        self._health = ResourceHealth(feed)
        services = [
            (self._plugin if version in kubelet.VERSIONS else self._health).service(version) for version in versions
        ]
        self._registration = Registration(driver, paths.endpoint, versions, on_status)
        # The kubelet dials the endpoint as soon as it sees the registration.
        self._endpoint: SocketServer = serve(paths.endpoint, services)
        try:
            self._registrar: SocketServer = serve(paths.registration, [self._registration.service])
        except BaseException:
            self._endpoint.stop(grace=0)
            self._plugin.stop()
            raise

    @property
    def status(self) -> tuple[bool, str]:
        """Whether the kubelet said that it registered the plugin, and else why not."""
        return self._registration.status

    def is_lost(self) -> bool:
        """Whether the kubelet does not find one of the sockets any more."""
        return self._registrar.is_lost() or self._endpoint.is_lost()

    def stop(self, grace: float = 10.0) -> None:
        """Sign off first, so that the kubelet dials no socket that is about to close; then let calls end."""
        self._registrar.stop(grace=1.0)
        self._health.stop()
        self._endpoint.stop(grace)
        self._plugin.stop()

"""The two sockets of one plugin instance: first the one with the services, then the one the kubelet finds it by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from devalloc_node.errors import Denied
from devalloc_node.health.watch import HealthFeed
from devalloc_node.service import kubelet, resource_health
from devalloc_node.service.kubelet import ClaimPreparer, KubeletPlugin
from devalloc_node.service.registration import KubeletPaths, Registration
from devalloc_node.service.resource_health import ResourceHealth
from devalloc_node.service.server import SocketServer, serve

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

"""What the tests build once on a machine, into the user's cache: ``python -m tests.support.builds [NAME...]``.

Without names it says what is not built yet, with the time, download and disk space that this takes. With names it
builds those, and says how far it is. The builds run one after the other and before the tests that need them: compilers
and tests both keep all CPUs busy, and side by side they would only slow each other down.

``make test`` builds none of them: it compares with upstream's recorded answers, and skips what needs a browser.
``make test-all`` needs them all.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.support.debian_programs import RELEASE
from tests.support.go_build import cache_folder
from tests.support.kube_build import API_SERVER, CONTAINERD, HELM, KUBECTL, KUBERNETES, NODE, RUNTIME
from tests.support.network_tools import PLUGINS
from tests.support.promtool import PROMETHEUS

_KUBERNETES = [f"kubernetes-{KUBERNETES}/{name}" for name in (*API_SERVER, *KUBECTL, *NODE)]
_RUNTIME = [f"containerd-{CONTAINERD}/{name}" for name in RUNTIME]


@dataclass(frozen=True)
class Build:
    """Times are of two CPUs, sizes in MB; ``disk`` counts what compilers keep in caches of their own, too."""

    name: str
    title: str
    module: str
    minutes: int
    download: int
    disk: int
    results: tuple[str, ...]
    """Patterns of paths in the cache: it is built if each has a match. One that was built from other sources is built
    anew by the tests that need it."""

    def is_built(self, cache: Path) -> bool:
        return all(any(cache.glob(pattern)) for pattern in self.results)


BUILDS = {
    build.name: build
    for build in (
        Build(
            "upstream",
            "Kubernetes' own allocator, from Go modules",
            "tests.support.upstream_allocator",
            minutes=2,
            download=150,
            disk=700,
            results=("upstream-allocator-*/peer",),
        ),
        Build(
            "selectors",
            "Kubernetes' own CEL of selectors, from the same modules",
            "tests.support.upstream_cel",
            minutes=1,
            download=10,
            disk=100,
            results=("upstream-selectors-*/selectors",),
        ),
        Build(
            "browser",
            "a browser, from Debian packages",
            "tests.support.chromium",
            minutes=1,
            download=150,
            disk=400,
            results=("images/chromium-*/chromium",),
        ),
        Build(
            "machines",
            "test machines with QEMU and Linux, from Debian packages",
            "tests.support.images",
            minutes=6,
            download=780,
            disk=1200,
            results=(
                *(f"images/{name}-*/versions.json" for name in ("micro", "firmware", "python", "sriov")),
                "kernel-modules/*/vfio.ko",
            ),
        ),
        Build(
            "kubernetes",
            "Kubernetes, containerd, helm and our container images, from Go modules and packages",
            "tests.support.kube_build",
            minutes=20,
            download=1900,
            disk=8000,
            results=(*_KUBERNETES, *_RUNTIME, f"helm-{HELM}/helm", "runc-*/runc", "probe-image-*/image-*.tar"),
        ),
        Build(
            "network",
            "nft from Debian packages, and CNI's reference plugins from Go modules",
            "tests.support.network_tools",
            minutes=1,
            download=40,
            disk=150,
            results=(f"nft-{RELEASE}/nft", *(f"cni-plugins-{PLUGINS}/{name}" for name in ("bridge", "host-local"))),
        ),
        Build(
            "promtool",
            "Prometheus' judge of alerts, from Go modules",
            "tests.support.promtool",
            minutes=4,
            download=160,
            disk=1900,
            results=(f"promtool-{PROMETHEUS}/promtool",),
        ),
    )
}


def plan(missing: Iterable[Build]) -> str:
    """What is going to be built, as text."""
    builds = [*missing]
    if not builds:
        return "Everything that the tests build once is there."
    lines = [
        f"  {build.title}: about {build.minutes} min, {_size(build.download)} to download, {_size(build.disk)} on disk"
        for build in builds
    ]
    minutes = sum(build.minutes for build in builds)
    download, disk = sum(build.download for build in builds), sum(build.disk for build in builds)
    total = f"about {minutes} min on two CPUs, {_size(download)} to download, {_size(disk)} on disk"
    return "\n".join([f"The tests build this first, once on this machine ({total}):", *lines])


def _size(megabytes: int) -> str:
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes} MB"


def run(build: Build) -> bool:
    """Build it, or find it built; it says on standard error how far it is. False if it could not be built."""
    started = time.monotonic()
    announced = not build.is_built(cache_folder())
    if announced:
        print(f"== building {build.title}: about {build.minutes} min, {_size(build.download)}", flush=True)
    done = subprocess.run([sys.executable, "-m", build.module], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        print(
            f"== {build.title}: could not be built, see above. Its tests are skipped, and fail with CI=true", flush=True
        )
    elif announced:
        print(f"== {build.title}: built in {time.monotonic() - started:.0f} s", flush=True)
    return not done.returncode


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BUILDS]
    if unknown:
        print(f"unknown build {unknown[0]!r}: one of {', '.join(BUILDS)}", file=sys.stderr)
        return 2
    if not names:
        print(plan(build for build in BUILDS.values() if not build.is_built(cache_folder())))
        return 0
    results = [run(BUILDS[name]) for name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

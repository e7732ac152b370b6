"""The one image of the cluster tests, packed by ourselves: a static program that is sandbox and workload at once.

No registry is asked. Run this module to build ahead of the tests: ``python -m tests.support.kube_images``.
"""

from __future__ import annotations

import hashlib
import inspect
import shutil
import sys
import tempfile
from pathlib import Path

from deploy.images import oci, tree
from tests.support.go_build import Progress, cache_folder, locked, run, toolchain

SOURCE = Path(__file__).parent / "kube_probe"
IMAGE = "devalloc.test/probe:1"


def archive(progress: Progress = lambda line: None) -> Path:
    """The image as an OCI archive, for ``ctr images import``; built where its source was not yet.

    Raises Unavailable.
    """
    folder = cache_folder() / f"probe-image-{_digest(*(path.read_bytes() for path in sorted(SOURCE.iterdir())))}"
    packed = folder / f"image-{_digest(*(inspect.getsource(module).encode() for module in (oci, tree)))}.tar"
    program = folder / "probe"
    with locked(folder):
        if not program.exists():
            go = toolchain(progress)
            unfinished = folder / "probe.unfinished"
            run([go, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(unfinished), "."], SOURCE)
            unfinished.replace(program)
        if not packed.exists():
            with tempfile.TemporaryDirectory(dir=folder) as made:
                _pack(program, Path(made))
                (Path(made) / "image.tar").replace(packed)
    return packed


def _pack(program: Path, folder: Path) -> None:
    """An image of one layer that holds one program, ``/probe``."""
    (folder / "root").mkdir()
    shutil.copy(program, folder / "root" / "probe")
    tree.pack(folder / "root", folder / "layer.tar")
    layer = oci.layer(folder / "layer.tar", "tests/support/kube_probe")
    oci.write(folder / "image.tar", IMAGE, [layer], {"Entrypoint": ["/probe"]})


def _digest(*contents: bytes) -> str:
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:12]


if __name__ == "__main__":
    print(archive(lambda line: print(line, file=sys.stderr)))

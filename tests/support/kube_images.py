"""The one image of the cluster tests, packed by ourselves: a static program that is sandbox and workload at once.

No registry is asked. Run this module to build ahead of the tests: ``python -m tests.support.kube_images``.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import tarfile
from pathlib import Path

from tests.support.go_build import Progress, cache_folder, locked, run, toolchain

SOURCE = Path(__file__).parent / "kube_probe"
IMAGE = "devalloc.test/probe:1"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def archive(progress: Progress = lambda line: None) -> Path:
    """The image as an OCI archive, for ``ctr images import``; built where its source was not yet.

    Raises Unavailable.
    """
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(SOURCE.iterdir()))).hexdigest()[:12]
    folder = cache_folder() / f"probe-image-{digest}"
    with locked(folder):
        if not (folder / "image.tar").exists():
            go = toolchain(progress)
            program = folder / "probe"
            run([go, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(program), "."], SOURCE)
            (folder / "image.new").write_bytes(_oci_archive(program.read_bytes()))
            (folder / "image.new").replace(folder / "image.tar")
    return folder / "image.tar"


def _oci_archive(program: bytes) -> bytes:
    """An image of one layer that holds one program, ``/probe``."""
    layer = _tar({"probe": program}, mode=0o755)
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": ["/probe"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs: list[bytes] = [layer]

    def described(kind: str, blob: bytes) -> dict[str, object]:
        blobs.append(blob)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": _digest(blob), "size": len(blob)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("config.v1+json", json.dumps(config).encode()),
        "layers": [described("layer.v1.tar", layer)],
    }
    entry = described("manifest.v1+json", json.dumps(manifest).encode())
    index = {"schemaVersion": 2, "manifests": [entry | {"annotations": {"io.containerd.image.name": IMAGE}}]}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
    return _tar(files | {f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}": blob for blob in blobs})


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


if __name__ == "__main__":
    print(archive(lambda line: print(line, file=sys.stderr)))

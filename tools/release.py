"""All files of a release, from the last commit: ``make release``. The same commit makes the same bytes on the same day.

They are written to ``dist/vVERSION``: the wheel and the sdist, the container images of each architecture, the Helm
chart, the CRDs, one file with all manifests, a bill of materials (CycloneDX) for each of them, and SHA256SUMS. "On the
same day", because Debian replaces packages of the images by security updates.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deploy.images import bom, inspection, layers, wheels
from deploy.images.build import build
from deploy.images.cache import Unavailable
from deploy.images.contents import SOURCE, Contents, contents
from deploy.images.inspection import Tree
from devalloc.version import VERSION

IMAGE_PREFIX = "localhost/"
"""Which no container runtime pulls from anywhere."""
SUMS = "SHA256SUMS"


class Refused(Exception):
    """The tree cannot be released as it is."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        print(describe_commit(SOURCE), file=sys.stderr)
        folder = options.out or SOURCE / "dist" / f"v{VERSION}"
        empty(folder)
        prefix = os.environ.get("DEVALLOC_IMAGE_PREFIX") or IMAGE_PREFIX
        wheels.build(folder, _say)
        wheels.build_source(folder, _say)
        _write(folder / f"devalloc-{VERSION}.cdx.json", package_bom(contents()))
        _write(folder / f"devalloc-chart-{VERSION}.tgz", chart(SOURCE / "deploy" / "helm", prefix))
        _write(folder / f"devalloc-crds-{VERSION}.yaml", _command("crds"))
        _write(folder / f"devalloc-{VERSION}.yaml", _command("install", "--dry-run=client", "--image-prefix", prefix))
        if not options.no_images:
            _images(folder, prefix, contents(), fresh=options.fresh)
        _write(folder / SUMS, sums(folder))
    except (Refused, Unavailable) as reason:
        print(f"no release: {reason}", file=sys.stderr)
        return 1
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"default: dist/v{VERSION}; what is in it is removed")
    parser.add_argument("--no-images", action="store_true", help="without the container images")
    parser.add_argument("--fresh", action="store_true", help="ask Debian for newer packages than the cache has")
    return parser


def describe_commit(source: Path) -> str:
    """Which commit is released. Raises Refused if files differ from it, or if its tag is of another version."""
    changed = _git(source, "status", "--porcelain").splitlines()
    if changed:
        raise Refused(
            f"{len(changed)} files differ from the last commit, such as {changed[0][3:]}: commit or remove them"
        )
    commit = _git(source, "rev-parse", "--short=12", "HEAD").strip()
    tags = [tag for tag in _git(source, "tag", "--points-at", "HEAD").split() if tag.startswith("v")]
    if f"v{VERSION}" in tags:
        return f"release v{VERSION} of commit {commit}"
    if tags:
        raise Refused(f"the commit has the tag {tags[0]}, and devalloc/version.py is {VERSION}")
    return f"commit {commit} has no tag v{VERSION}: these files are a trial, not the release"


def _git(source: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(source), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout


def chart(folder: Path, prefix: str) -> bytes:
    """The Helm chart as an archive that helm installs, with the prefix of the images as its default."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    values = files["values.yaml"].decode()
    if values.count('  prefix: ""\n') != 1:
        raise Refused("deploy/helm/values.yaml has no image.prefix to fill in")
    files["values.yaml"] = values.replace('  prefix: ""\n', f'  prefix: "{prefix}"\n').encode()
    return archive({f"devalloc/{name}": content for name, content in files.items()})


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar.gz: sorted, of no time and no owner."""
    plain, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        # helm looks for Chart.yaml as it reads, so that comes first
        for name in sorted(files, key=lambda name: (not name.endswith("/Chart.yaml"), name)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(files[name]), 0o644
            tar.addfile(member, io.BytesIO(files[name]))
    with gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0) as stream:
        stream.write(plain.getvalue())
    return packed.getvalue()


def package_bom(catalog: Contents) -> bytes:
    """A bill of materials of the wheel with all extras: the versions that the tests run with and the images have."""
    pins = {name: pin for image in catalog.images.values() for name, pin in wheels.locked(image.lock).items()}
    parts = [bom.wheel_component(name, pin.version) for name, pin in pins.items()]
    return bom.document("devalloc", VERSION, parts, "application")


def _images(folder: Path, prefix: str, catalog: Contents, *, fresh: bool) -> None:
    for image in catalog.images.values():
        trees: dict[str, Tree] = {}
        for platform in catalog.platforms.values():
            path = folder / f"{image.name}-{VERSION}-{platform.name}.tar"
            reference = f"{prefix}{image.name}:{VERSION}"
            build(image, catalog, reference, path, _say, platform=platform, fresh=fresh and not trees)
            tree = trees[platform.name] = inspection.read(path)
            if problems := [*inspection.problems(tree, platform)]:
                raise Refused(f"{path.name}: {problems[0]} (and {len(problems) - 1} more)")
            _write(path.with_name(f"{image.name}-{VERSION}-{platform.name}.cdx.json"), tree.files[layers.BOM])
        fresh = False


def sums(folder: Path) -> bytes:
    """What ``sha256sum --check`` reads, for all files of a folder."""
    return "".join(f"{digest}  {name}\n" for name, digest in _digests(folder)).encode()


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.iterdir()):
        if path.name != SUMS:
            with path.open("rb") as file:
                yield path.name, hashlib.file_digest(file, "sha256").hexdigest()


def _command(*words: str) -> bytes:
    """What devalloc prints, without a cluster."""
    command = [sys.executable, "-m", "devalloc.cli", *words]
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("DEVALLOC_", "KUBE"))}
    done = subprocess.run(command, cwd=SOURCE, env=settings, capture_output=True, check=False)
    if done.returncode:
        raise Refused(f"devalloc {words[0]} failed: {done.stderr.decode().strip()}")
    return done.stdout


def empty(folder: Path) -> None:
    """Make the folder, or remove the files of another release from it. Raises Refused if it has other content."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = sorted(folder.iterdir())
    for path in entries:
        if not (path.is_file() and (path.name == SUMS or path.name.startswith("devalloc-"))):
            raise Refused(f"{path} is no file of a release: give an empty folder with --out")
    for path in entries:
        path.unlink()


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _say(line: str) -> None:
    print(f"  {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

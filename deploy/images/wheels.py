"""The wheels of an image: which ones (its lock), and how they are installed for a Python that need not be this one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.images.cache import Progress, Unavailable
from deploy.images.contents import CONSTRAINTS, SOURCE, Contents, Image, requirements

_CONSTRAINTS_HEAD = """\
# The versions that the tests run with and that the images have: written by python -m deploy.images constrain.
"""
_HEAD = """\
# The wheels of the image devalloc-{}, for Python {}: written by python -m deploy.images lock.
"""


def constrain(contents: Contents, progress: Progress) -> None:
    """Write the constraints anew: the newest wheels that can be installed together for the tests, of which the images
    have a part. Raises Unavailable."""
    progress("looking for the newest wheels")
    lines = sorted(f"{name}=={version}\n" for name, version, _ in _resolved(requirements(["dev"]), contents))
    CONSTRAINTS.write_text(_CONSTRAINTS_HEAD + "".join(lines))


def lock(image: Image, contents: Contents, progress: Progress) -> None:
    """Write the image's lock anew: the versions that the tests run with. Raises Unavailable."""
    progress(f"{image.name}: looking for its wheels")
    wheels = _resolved([*requirements(image.extras), "--constraint", str(CONSTRAINTS)], contents)
    lines = sorted(f"{name}=={version} --hash=sha256:{digest}\n" for name, version, digest in wheels)
    image.lock.write_text(_HEAD.format(image.key, contents.base.python) + "".join(lines))


def _resolved(words: list[str], contents: Contents) -> list[tuple[str, str, str]]:
    """Name, version and digest of each wheel that pip would install. Raises Unavailable."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        _pip("install", "--dry-run", "--ignore-installed", "--report", str(report), *_target(Path(folder), contents),
             *words)  # fmt: skip
        return [
            (
                one["metadata"]["name"].lower().replace("_", "-"),
                one["metadata"]["version"],
                one["download_info"]["archive_info"]["hashes"]["sha256"],
            )
            for one in json.loads(report.read_text())["install"]
        ]


def constrained() -> dict[str, str]:
    """Versions by package, with which the tests run."""
    return _versions(CONSTRAINTS)


def locked(image: Image) -> dict[str, str]:
    """Versions by package."""
    return _versions(image.lock)


def _versions(file: Path) -> dict[str, str]:
    lines = [line.split()[0] for line in file.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==", 1) for line in lines)


def install(image: Image, contents: Contents, site: Path, progress: Progress) -> None:
    """Install what the lock names into a folder, not compiled. Raises Unavailable."""
    progress(f"{image.name}: fetching {len(locked(image))} wheels")
    _pip("install", "--no-compile", "--no-deps", "--require-hashes", "-r", str(image.lock), *_target(site, contents))
    for path in site.glob("*.dist-info"):
        for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):  # of this installation
            (path / name).unlink(missing_ok=True)


def build(folder: Path, progress: Progress) -> Path:
    """devalloc's own wheel. Raises Unavailable."""
    progress("building devalloc's wheel")
    _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(SOURCE))
    (wheel,) = folder.glob("devalloc-*.whl")
    return wheel


def _target(folder: Path, contents: Contents) -> list[str]:
    platforms = [word for platform in contents.dependencies.platforms for word in ("--platform", platform)]
    python = ["--python-version", contents.base.python, "--implementation", "cp"]
    return ["--target", str(folder), "--only-binary", ":all:", *platforms, *python]


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", words[0], "--quiet", "--disable-pip-version-check", *words[1:]]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"pip {words[0]} failed: {' '.join((done.stderr or done.stdout).split())[-600:]}")

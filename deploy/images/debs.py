"""Debian packages for images and test machines: fetched and unpacked by a user without root, beside what is installed.

apt itself resolves, downloads and verifies them, with an empty status of installed packages and folders of its own. The
mirror is the one that this machine's apt uses for Debian, else Debian's. Programs out of such a tree run with the
loader and the libraries of that tree (``program``), so this machine needs none of them and may be of another release.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from deploy.images.cache import Progress, Unavailable

ARCHITECTURE = "amd64"
LIBRARIES = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio")
RELEASES = ("bullseye", "bookworm", "trixie", "forky", "oldstable", "stable", "testing", "unstable", "sid")
"""What the releases in a machine's list are called when the list is of Debian and not of something else."""
MIRROR, SECURITY_MIRROR = "http://deb.debian.org/debian", "http://deb.debian.org/debian-security"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
UNNEEDED_FOLDERS = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/bug",
)


def unpack(release: str, packages: Sequence[str], folder: Path, progress: Progress) -> dict[str, str]:
    """Unpack the packages, and all they depend on, into ``folder``/root; versions by package. Raises Unavailable.

    The lists of packages and the archives stay below ``folder`` while this runs, and are removed at the end.
    """
    root = folder / "root"
    archives = fetch(release, packages, folder, progress)
    extract(archives, root)
    for path in UNNEEDED_FOLDERS:
        shutil.rmtree(root / path, ignore_errors=True)
    shutil.rmtree(folder / "apt")
    return dict(sorted(name_and_version(archive) for archive in archives))


def fetch(
    release: str, packages: Sequence[str], folder: Path, progress: Progress, architecture: str = ARCHITECTURE
) -> list[Path]:
    """The archives of the packages and of all they depend on, below ``folder``/apt. Raises Unavailable."""
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise Unavailable(f"no {tool} here: images are built from Debian packages, by a Debian or Ubuntu machine")
    state = folder / "apt"
    for part in ("lists/partial", "archives/partial"):
        (state / part).mkdir(parents=True, exist_ok=True)
    (state / "status").write_text("")
    (state / "sources.list").write_text(_sources(release, architecture))
    options = _options(state, architecture)
    progress(f"Debian {release}: reading the lists of packages")
    _run(["apt-get", *options, "update"], _Complaints)
    wanted = _run(["apt-get", *options, "install", "--yes", "--print-uris", *packages])
    files = re.findall(r"^'\S+' (\S+\.deb) (\d+) ", wanted, re.MULTILINE)
    total = sum(int(size) for _, size in files) / 1e6
    progress(f"Debian {release}: downloading {len(files)} packages ({total:.0f} MB)")
    _run(["apt-get", *options, "install", "--yes", "--download-only", *packages])
    return [state / "archives" / name for name, _ in files]


def extract(archives: Iterable[Path], root: Path) -> None:
    """Unpack them into a folder, which is made."""
    root.mkdir()
    # base-files first: it makes /lib and /bin links to what is below /usr, which others then unpack through
    for archive in sorted(archives, key=lambda archive: (not archive.name.startswith("base-files_"), archive.name)):
        _run(["dpkg-deb", "--extract", str(archive), str(root)])


def control_file(archive: Path) -> str:
    """What a package says of itself: name, version, licences not."""
    return _run(["dpkg-deb", "--field", str(archive)])


def program(root: Path, path: str) -> list[str]:
    """The command that runs a program of such a tree on this machine: ``program(root, "usr/bin/python3.13")``."""
    libraries = ":".join(str(root / part) for part in LIBRARIES)
    loader = next(
        (root / part / "ld-linux-x86-64.so.2" for part in LIBRARIES if (root / part / "ld-linux-x86-64.so.2").exists()),
        None,
    )
    if loader is None:
        raise Unavailable(f"{root} contains no C library")
    return [str(loader), "--library-path", libraries, str(root / path)]


def _sources(release: str, architecture: str) -> str:
    """The release and its security updates, from the mirrors that this machine knows."""
    main, security = MIRROR, SECURITY_MIRROR
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in listed.stdout.splitlines():
        uri, _, name = line.partition(" ")
        if name in RELEASES:
            main = uri.rstrip("/")
        elif name.endswith("-security") and name.removesuffix("-security") in RELEASES:
            security = uri.rstrip("/")
    options = f"[arch={architecture}{f' signed-by={KEYRING}' if KEYRING.exists() else ''}]"
    return f"deb {options} {main} {release} main\ndeb {options} {security} {release}-security main\n"


def _options(state: Path, architecture: str) -> list[str]:
    """apt with folders of its own; what the machine says of proxies and certificates stays."""
    values = {
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::State::extended_states": state / "extended_states",
        "Dir::Cache": state,
        "Dir::Cache::archives": state / "archives",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",  # the folders belong to who runs this
        "APT::Install-Recommends": "false",
        "APT::Install-Suggests": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false",
        "APT::Update::Post-Invoke": "",
        "DPkg::Post-Invoke": "",
    }
    return [word for key, value in values.items() for word in ("-o", f"{key}={value}")]


_Complaints = re.compile(r"^(?:E|W|Err:\d+)[: ].*(?:GPG|signature|NO_PUBKEY|Failed to fetch).*$", re.MULTILINE)
"""apt-get update ends well though it could not fetch or verify a list; these lines tell."""


def _run(command: Sequence[str], complaint: re.Pattern[str] | None = None) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"})
    match = complaint.search(result.stdout + "\n" + result.stderr) if complaint else None
    if result.returncode or match:
        words = match[0] if match else " ".join((result.stderr or result.stdout).split())[-400:]
        raise Unavailable(f"{_without_options(command)} failed: {words}")
    return result.stdout


def _without_options(command: Iterable[str]) -> str:
    words = [word for word in command if "::" not in word and word != "-o"]
    return " ".join(words[:3])


def name_and_version(archive: Path) -> tuple[str, str]:
    """Of a package, by the name of its archive."""
    name, version, _ = archive.name.split("_")
    return name, version.replace("%3a", ":")

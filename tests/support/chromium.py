"""Headless Chromium, unpacked from Debian's packages into the cache by a user who need not be root.

Run this module to fetch it ahead of the tests: ``python -m tests.support.chromium``. It runs with the loader and the
libraries of its own tree, so that this machine needs none of them.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from deploy.images import debs
from tests.support import images
from tests.support.go_build import Progress, Unavailable

RELEASE = "bookworm"
PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core", "fonts-liberation2")
HOME = "usr/lib/chromium"
UNUSED = ("usr/lib/x86_64-linux-gnu/dri", "usr/lib/gcc", "usr/share/X11", "usr/share/sounds")
"""Half of what is unpacked is for drawing with a graphics card."""
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>{fonts}</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
  <alias binding="strong"><family>system-ui</family><prefer><family>Liberation Sans</family></prefer></alias>
  <alias binding="strong"><family>sans-serif</family><prefer><family>Liberation Sans</family></prefer></alias>
  <alias binding="strong"><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


def chromium(progress: Progress = lambda line: None) -> Path:
    """An executable that is Chromium, for itself and its children alike. Raises Unavailable."""
    return images.built("chromium", _build, [sys.modules[__name__]], progress).folder / "chromium"


def _build(folder: Path, final: Path, progress: Progress) -> dict[str, str]:
    versions = debs.unpack(RELEASE, PACKAGES, folder, progress)
    root = folder / "root"
    for path in UNUSED:
        shutil.rmtree(root / path, ignore_errors=True)
    for library in root.glob("usr/lib/x86_64-linux-gnu/libLLVM*"):
        library.unlink()
    loader, *rest = debs.program(root, f"{HOME}/chromium-headless-shell")
    # It looks for what belongs to it beside the program that runs, which is the loader
    shutil.copy(loader, root / HOME / "loader")
    (folder / "fonts.conf").write_text(_FONTS.format(fonts=final / "root/usr/share/fonts"))
    words = [word.replace(str(folder), str(final)) for word in (str(root / HOME / "loader"), *rest)]
    launcher = folder / "chromium"
    launcher.write_text(
        f"#!/bin/sh\nexport FONTCONFIG_FILE={shlex.quote(str(final / 'fonts.conf'))}\n"
        f'exec {shlex.join(words)} --no-zygote --browser-subprocess-path={shlex.quote(str(final / "chromium"))} "$@"\n'
    )
    launcher.chmod(0o755)
    return versions


if __name__ == "__main__":
    try:
        print(chromium(lambda line: print(line, file=sys.stderr)))
    except Unavailable as reason:
        sys.exit(f"no browser: {reason}")

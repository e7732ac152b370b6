"""What is in an image, for those who look for known flaws: a bill of materials (CycloneDX 1.5)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

Component = dict[str, Any]
_NO_LICENSE = ("", "UNKNOWN")
_LICENSES = {
    "cel-python": "Apache-2.0",  # its LICENSE file; the metadata names none
    "qemu-qmp": "LGPL-2.0-or-later",  # without its modules that are GPL-2.0, which contents.toml leaves out
}
"""Licences of packages whose metadata does not say it, or says it of more than is in an image."""


def debian_component(name: str, version: str, release: str, architecture: str) -> Component:
    """Of a Debian package; its licence stands in /usr/share/doc/<name>/copyright."""
    return _component(name, version, f"pkg:deb/debian/{name}@{version}?arch={architecture}&distro={release}")


def wheel_components(site: Path) -> list[Component]:
    """Of what is installed in a folder."""
    return [_wheel(HeaderParser().parsestr(path.read_text())) for path in sorted(site.glob("*.dist-info/METADATA"))]


def document(name: str, version: str, components: Sequence[Component], kind: str = "container") -> bytes:
    """All of an image or package (CycloneDX's ``kind``), the same for the same components."""
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": kind, "name": name, "version": version}},
        "components": sorted(components, key=lambda component: str(component["purl"])),
    }
    return json.dumps(content, indent=1).encode() + b"\n"


def wheel_component(name: str, version: str) -> Component:
    """Of a package of which nothing else is to hand."""
    return _component(name, version, f"pkg:pypi/{_normalized(name)}@{version}")


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.lower())


def _wheel(metadata: Message) -> Component:
    name = str(metadata["Name"])
    component = wheel_component(name, str(metadata["Version"]))
    if (license_name := _LICENSES.get(_normalized(name)) or license_of(metadata)) not in _NO_LICENSE:
        component["licenses"] = [{"license": {"name": license_name}}]
    return component


def license_of(metadata: Message) -> str:
    """An expression where there is one, else a short word for it, else the classifiers."""
    short = str(metadata["License"] or "").strip()
    classes = [line.rpartition("::")[2].strip() for line in metadata.get_all("Classifier", []) if "License ::" in line]
    return str(metadata["License-Expression"] or (short if "\n" not in short else "") or ", ".join(classes))


def _component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def versions_of(content: bytes) -> Mapping[str, str]:
    """Versions by package, of such a document."""
    return {
        component["purl"].partition("@")[0]: component["version"] for component in json.loads(content)["components"]
    }

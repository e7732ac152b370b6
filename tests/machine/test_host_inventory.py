"""What discovery says of this very machine, against what others say of it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.discovery_view import DiscoveredPools

OURS = re.compile(r"02..|03..|12..|0108|0b40")
"""PCI classes of the kinds that are published."""


def listed_by_lspci() -> dict[str, tuple[str, str, str]]:
    """Class, vendor and device of each function, as lspci prints them."""
    text = subprocess.run(["lspci", "-Dnmm"], capture_output=True, text=True, check=True).stdout
    rows = [[word for word in shlex.split(line) if not word.startswith("-")] for line in text.splitlines()]
    return {address: (kind, vendor, device) for address, kind, vendor, device, *_ in rows}


def listed_by_sysfs() -> dict[str, tuple[str, str, str]]:
    """The same read from the files, for machines without lspci."""
    functions = {}
    for folder in Path("/sys/bus/pci/devices").glob("*"):
        kind, vendor, device = ((folder / name).read_text().strip()[2:] for name in ("class", "vendor", "device"))
        functions[folder.name] = (kind[:4], vendor, device)
    return functions


@pytest.fixture(scope="module")
def host() -> DiscoveredPools:
    return DiscoveredPools.on(Path("/"))


def test_it_lists_what_lspci_lists_of_these_kinds(host: DiscoveredPools) -> None:
    listed = listed_by_lspci() if shutil.which("lspci") else listed_by_sysfs()
    expected = {a: (vendor, device) for a, (kind, vendor, device) in listed.items() if OURS.fullmatch(kind)}
    published = {}
    for name in host.devices:
        attributes = host.attributes(name)
        if attributes["function"] != "mdev" and attributes["state"] == "exists":
            ids = (str(attributes["vendorID"])[2:], str(attributes["deviceID"])[2:])
            published[str(attributes["pciBusID"])] = ids
    assert published == expected


def test_nothing_of_it_is_unreadable(host: DiscoveredPools) -> None:
    assert host.problems == []


def test_the_interface_of_the_default_route_is_never_offered(host: DiscoveredPools) -> None:
    routes = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    carriers = {row[0] for row in routes if row[1] == row[7] == "00000000"}
    reserved = set()
    for interface in carriers:
        device = Path("/sys/class/net", interface, "device").resolve()
        addresses = re.findall(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", str(device))
        reserved |= {addresses[-1]} if addresses else set()
    for address in reserved:
        (name,) = host.names(pciBusID=address, state="exists")
        assert "reserved: default route" in (host.unavailable(name) or "")

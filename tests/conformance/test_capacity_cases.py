"""The tables of host capacity (``cases/scaling/capacity.yaml``), all in one test that tells every row that fails."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from devalloc.api.quantity import Quantity
from devalloc.inventory.capacity import (
    Capacity,
    CapacityConfig,
    defaults,
    images,
    parse_bandwidth,
    parse_ratio,
    parse_size,
    sizes,
)
from devalloc.inventory.capacity.admission import Admission, Request
from devalloc.inventory.capacity.cpus import counted
from devalloc.inventory.capacity.memory import total_in
from devalloc.inventory.capacity.status import host_status, resource_status
from tests.support.capacity import host, machine, stores

Row = dict[str, Any]
CASES = yaml.safe_load((Path(__file__).parent / "cases" / "scaling" / "capacity.yaml").read_text())


def _bytes(value: Any) -> Any:
    """``4Gi`` as a number; whatever else as it is."""
    return Quantity.parse(value).as_integer() if isinstance(value, str) and value[:1].isdigit() else value


def _request(row: Row) -> Request:
    return Request(**{**row, "cpu": 1000 * row.get("cpu", 0)})


def _admission(row: Row) -> Admission:
    machines = [machine(**{key: _bytes(value) for key, value in each.items()}) for each in row.get("machines", [])]
    found = Admission(host(**row.get("host", {})), lambda: machines, stores(**row.get("stores", {})))
    for name, request in row.get("reserved", {}).items():
        found.reserve(name, _request(request))
    return found


def _ratio(row: Row) -> str:
    config = CapacityConfig(ratios={name: parse_ratio(text) for name, text in row["given"].items()})
    return str(config.ratio(row["of"]))


def _limit(row: Row) -> int:
    ratio = parse_ratio(row["ratio"])
    if "cpu" in row:
        return Capacity("cpu", 1000 * row["cpu"], ratio, "detected").effective_limit // 1000
    return Capacity("memory", row["bytes"], ratio, "detected").effective_limit


def _status(row: Row) -> Any:
    machines = [machine(**{key: _bytes(value) for key, value in each.items()}) for each in row.get("machines", [])]
    capacity, asked = host(**row.get("host", {})), stores(**row.get("stores", {}))
    found = resource_status(capacity, row["resource"], machines, asked).to_dict()
    whole = host_status(capacity, lambda: machines, asked).to_dict()
    assert whole[row["resource"]] == found
    assert whole["disk_breakdown"] == row.get("breakdown", whole["disk_breakdown"])
    return {key: found[key] for key in row["expect"]}


def _default_bandwidth(row: Row) -> Any:
    found = host(cpu=row["cpus"], network=row["network"], disk_io=row["disk_io"])
    milli = int(1000 * row["machine"])
    disk_io = defaults.default_disk_io(found, milli)
    return {"network": [*defaults.default_network(found, milli)], "disk_io": [disk_io.sustained, disk_io.burst]}


def _images(row: Row) -> Any:
    fraction = {"image_fraction": parse_ratio(row["fraction"])} if "fraction" in row else {}
    config = CapacityConfig(disk=parse_size(row["disk"]), **fraction)
    found, used = host(disk=row["disk"], config=config), images.image_bytes(stores(**row["stores"]))
    text = images.image_shortage(found, used)
    shown = text.removeprefix("image storage limit reached: ") if text else None
    return {"limit": found.image_limit, "used": used, "shortage": shown}


def _pull(row: Row) -> Any:
    text = images.pull_shortage(row["given"])
    return text.removeprefix("insufficient disk to pull an image: ") if text else None


_SECTIONS: dict[str, Callable[[Row], Any]] = {
    "bandwidth": lambda row: parse_bandwidth(row["given"]),
    "size": lambda row: parse_size(row["given"]),
    "human": lambda row: sizes.human(row["given"]),
    "cpuinfo": lambda row: counted(row["given"]),
    "meminfo": lambda row: total_in(row["given"]),
    "ratio": _ratio,
    "limit": _limit,
    "status": _status,
    "default_bandwidth": _default_bandwidth,
    "shaping": lambda row: [defaults.upload_ceiling(row["rate"]), defaults.download_bucket(row["rate"])],
    "images": _images,
    "pull": _pull,
    "validate": lambda row: _admission(row).validate(_request(row["request"]), row.get("id", "")),
    "can_allocate": lambda row: _admission(row).can_allocate(row["resource"], row["amount"]),
}


def _complaint(section: str, row: Row) -> str | None:
    try:
        answer = _SECTIONS[section](row)
    except Exception as error:
        if "error" in row and row["error"] in str(error):
            return None
        return f"{section}: {row}: {type(error).__name__}: {error}"
    if "error" in row or answer != row.get("expect"):
        return f"{section}: {row}: {answer!r}"
    return None


def test_every_row_of_the_tables() -> None:
    assert CASES.keys() == _SECTIONS.keys()
    rows = [(section, row) for section, listed in CASES.items() for row in listed]
    complaints = [text for section, row in rows if (text := _complaint(section, row)) is not None]
    assert not complaints, "\n".join([f"{len(complaints)} of {len(rows)} rows", *complaints])


def test_ratios_that_binary_has_exactly_or_rounds_up_give_what_a_product_of_floats_gives() -> None:
    """That is how the reference computes limits."""
    for ratio in ("1", "1.5", "2", "2.25", "4", "0.2", "1.1"):
        for capacity in [*range(3000), 75 << 30, 10**12 + 7, (1 << 40) - 1]:
            exact = Capacity("memory", capacity, Fraction(ratio), "detected").effective_limit
            assert exact == int(float(capacity) * float(ratio)), (capacity, ratio)

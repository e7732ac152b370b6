"""What a host has for machines: amounts as they are written, limits, what counts, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

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
from tests.support.tables.forms import Failure, Form, Verdict, explained

Row = dict[str, Any]


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


def _judge(content: dict[str, Any]) -> Iterator[Verdict]:
    for section in [name for name in _SECTIONS if name in content]:
        for number, row in enumerate(content[section], 1):
            yield _judged(section, f"{section} {row.get('name', row.get('given', number))}", row)


def _judged(section: str, name: str, row: Row) -> Verdict:
    """A row says what is answered, or with which words it is refused."""
    try:
        got = _SECTIONS[section](row)
    except Exception as error:
        refused = "error" in row and row["error"] in str(error)
        return Verdict(name, [] if refused else [Failure(row.get("error", row.get("expect")), explained(error))])
    if "error" in row:
        return Verdict(name, [Failure(f"an error: {row['error']}", got)])
    return Verdict(name, [] if got == row.get("expect") else [Failure(row.get("expect"), got)])


def _fits(content: dict[str, Any]) -> bool:
    """Its sections have plain names, so that one alone says nothing."""
    known = [content[name] for name in _SECTIONS.keys() & content.keys()]
    return len(known) > 1 and all(
        isinstance(rows, list) and all(isinstance(row, dict) for row in rows) for rows in known
    )


FORMS = [Form("host capacity", _fits, _judge, sections=lambda name: name in _SECTIONS)]

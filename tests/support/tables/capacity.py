"""What a host has for machines: amounts as they are written, limits, what counts, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from devalloc.api.quantity import Quantity
from devalloc.inventory.capacity import (
    Capacity,
    CapacityConfig,
    parse_bandwidth,
    parse_ratio,
    parse_size,
    stored,
)
from devalloc.inventory.capacity.config import format_size, resource_named
from devalloc.inventory.capacity.cpus import count_cpus
from devalloc.inventory.capacity.host import HostCapacity, parse_mem_total
from devalloc.inventory.capacity.machines import (
    MachineUsage,
    bucket_bytes,
)
from devalloc.inventory.capacity.room import Admission, Request
from devalloc.inventory.capacity.status import (
    DiskUsageSources,
    ResourceStatus,
    UsageUnknown,
    disk_breakdown,
    host_status,
    machine_amounts,
    sum_amounts,
)
from tests.support.capacity_fakes import host, machine, stores
from tests.support.tables.table_form import CaseVerdict, Failure, TableForm, explained

Row = dict[str, Any]


def _bytes(value: Any) -> Any:
    """``4Gi`` as a number; whatever else as it is."""
    return Quantity.parse(value).as_integer() if isinstance(value, str) and value[:1].isdigit() else value


def _request(row: Row) -> Request:
    return Request(**{**row, "cpu": 1000 * row.get("cpu", 0)})


def _admission(row: Row) -> Admission:
    machines = [machine(**{key: _bytes(value) for key, value in each.items()}) for each in row.get("machines", [])]
    admission = Admission(host(**row.get("host", {})), lambda: machines, stores(**row.get("stores", {})))
    for name, request in row.get("reserved", {}).items():
        admission.reserve(name, _request(request))
    return admission


def _ratio(row: Row) -> str:
    config = CapacityConfig(**{f"oversub_{name}": parse_ratio(text) for name, text in row["given"].items()})
    return str(config.ratio(row["of"]))


def _limit(row: Row) -> int:
    ratio = parse_ratio(row["ratio"])
    if "cpu" in row:
        return Capacity("cpu", 1000 * row["cpu"], ratio, "detected").effective_limit // 1000
    return Capacity("memory", row["bytes"], ratio, "detected").effective_limit


def resource_status(
    host: HostCapacity, resource: str, machines: Iterable[MachineUsage], stores: DiskUsageSources
) -> ResourceStatus:
    """One resource by its name. Raises UnknownResource, and UsageUnknown when what counts cannot be told."""
    name, listed = resource_named(resource), list(machines)
    allocated = sum_amounts(map(machine_amounts, listed)).of(name)
    if name == "disk":
        content, failures = disk_breakdown(listed, stores)
        if failures:
            raise UsageUnknown(f"get allocated disk: {'; '.join(failures)}")
        allocated = content.total
    return ResourceStatus(host.of(name), allocated)


def _status(row: Row) -> Any:
    machines = [machine(**{key: _bytes(value) for key, value in each.items()}) for each in row.get("machines", [])]
    capacity, requests = host(**row.get("host", {})), stores(**row.get("stores", {}))
    status = resource_status(capacity, row["resource"], machines, requests).to_dict()
    whole = host_status(capacity, lambda: machines, requests).to_dict()
    assert whole[row["resource"]] == status
    assert whole["disk_breakdown"] == row.get("breakdown", whole["disk_breakdown"])
    return {key: status[key] for key in row["expect"]}


def _images(row: Row) -> Any:
    fraction = {"image_fraction": parse_ratio(row["fraction"])} if "fraction" in row else {}
    config = CapacityConfig(disk=parse_size(row["disk"]), **fraction)
    capacity, used = host(disk=row["disk"], config=config), stored.image_bytes(stores(**row["stores"]))
    text = stored.image_shortage(capacity, used)
    shown = text.removeprefix("image storage limit reached: ") if text else None
    return {"limit": capacity.image_limit, "used": used, "shortage": shown}


def _pull(row: Row) -> Any:
    text = stored.pull_shortage(row["given"])
    return text.removeprefix("insufficient disk to pull an image: ") if text else None


_SECTIONS: dict[str, Callable[[Row], Any]] = {
    "bandwidth": lambda row: parse_bandwidth(row["given"]),
    "size": lambda row: parse_size(row["given"]),
    "human": lambda row: format_size(row["given"]),
    "cpuinfo": lambda row: count_cpus(row["given"]),
    "meminfo": lambda row: parse_mem_total(row["given"]),
    "ratio": _ratio,
    "limit": _limit,
    "status": _status,
    "shaping": lambda row: bucket_bytes(row["rate"]),
    "images": _images,
    "pull": _pull,
    "validate": lambda row: _admission(row).validate(_request(row["request"]), row.get("id", "")),
    "can_allocate": lambda row: _admission(row).can_allocate(row["resource"], row["amount"]),
}


def _judge(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    for section in [name for name in _SECTIONS if name in content]:
        for number, row in enumerate(content[section], 1):
            yield _judged(section, f"{section} {row.get('name', row.get('given', number))}", row)


def _judged(section: str, name: str, row: Row) -> CaseVerdict:
    """A row says what is answered, or with which words it is refused."""
    try:
        got = _SECTIONS[section](row)
    except Exception as error:
        refused = "error" in row and row["error"] in str(error)
        return CaseVerdict(name, [] if refused else [Failure(row.get("error", row.get("expect")), explained(error))])
    if "error" in row:
        return CaseVerdict(name, [Failure(f"an error: {row['error']}", got)])
    return CaseVerdict(name, [] if got == row.get("expect") else [Failure(row.get("expect"), got)])


def _fits(content: dict[str, Any]) -> bool:
    """Its sections have plain names, so that one alone says nothing."""
    sections = [content[name] for name in _SECTIONS.keys() & content.keys()]
    return len(sections) > 1 and all(
        isinstance(rows, list) and all(isinstance(row, dict) for row in rows) for rows in sections
    )


FORMS = [TableForm("host capacity", _fits, _judge, sections=lambda name: name in _SECTIONS)]

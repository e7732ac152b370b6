"""What the guest shows: the gauges that goals are computed from, and what it observes of its CPUs and memory."""

from __future__ import annotations

from devalloc.scaling import metrics
from devalloc_node.guest import cpus
from devalloc_node.guest.memory import MemoryPolicy, read_memory
from devalloc_node.guest.system import GuestSystem


def gauges(system: GuestSystem, guard: MemoryPolicy, is_connected: bool) -> str:
    """In Prometheus' text format. Raises OSError, ValueError: without all of them an agent would judge by half."""
    load1, load5, *_ = system.read("proc/loadavg").split()
    float(load1), float(load5)
    now = read_memory(system)
    values = [
        ("host_load1", "Processes that run or wait for a CPU or a disk, averaged over 1 minute.", load1),
        ("host_load5", "Processes that run or wait for a CPU or a disk, averaged over 5 minutes.", load5),
        (metrics.MEMORY, "Memory that the guest has online.", now.total),
        ("host_memory_available_bytes", "Memory that is available without swapping.", now.available),
        ("host_memory_cached_bytes", "Page cache.", now.cached),
        (metrics.CPUS, "CPUs that the guest uses.", len(cpus.online(system))),
        ("devalloc_guest_cpus_present", "CPUs that the machine has.", len(cpus.present(system))),
        ("devalloc_guest_memory_used_bytes", "Memory in use as the monitor measures it.", guard.used),
        ("devalloc_guest_memory_threshold_bytes", "Usage at which the monitor requests more memory.", guard.threshold),
        ("devalloc_guest_agent_connected", "Whether an agent is connected.", int(is_connected)),
    ]
    return "".join(f"# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n" for name, help, value in values)

"""A guest's /proc and /sys as files, which play the kernel when they are asked to."""

from __future__ import annotations

from pathlib import Path

from devalloc_machines.guest.system import GuestSystem

MIB = 2**20
GIB = 2**30


class GuestTree(GuestSystem):
    """CPUs come and go with a write to their ``online``; memory is what the test says."""

    def __init__(self, root: Path, *, cpus: int = 4, online: int = 1, memory: int = GIB, used: int = 100 * MIB) -> None:
        super().__init__(str(root))
        self.folder = root
        self.refuses: dict[str, int] = {}
        self.written: list[tuple[str, str]] = []
        self.put("proc/loadavg", "0.25 0.50 0.75 1/100 4242\n")
        self.set_memory(memory, used)
        self._online = set(range(online))
        for cpu in range(cpus):
            self.plug_cpu(cpu)

    def put(self, name: str, content: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def set_memory(self, total: int, used: int) -> None:
        """``used`` is anonymous, a quarter of it inactive."""
        kib = {
            "MemTotal": total, "MemFree": total - used - total // 8, "MemAvailable": total - used, "Cached": total // 8,
            "Active(anon)": used - used // 4, "Inactive(anon)": used // 4,
        }  # fmt: skip
        self.put("proc/meminfo", "".join(f"{name}:{amount // 1024:>12} kB\n" for name, amount in kib.items()))

    def plug_cpu(self, cpu: int) -> None:
        self.put(f"sys/devices/system/cpu/cpu{cpu}/online", f"{int(cpu in self._online)}\n")
        if cpu == 0:
            (self.folder / "sys/devices/system/cpu/cpu0/online").unlink()  # as on x86
        self._tell_cpus()

    def plug_block(self, number: int) -> None:
        self.put(f"sys/devices/system/memory/memory{number}/state", "offline\n")

    @property
    def online_cpus(self) -> set[int]:
        return set(self._online)

    def states(self) -> dict[int, str]:
        """Of the memory blocks."""
        folder = self.folder / "sys/devices/system/memory"
        return {int(p.name[6:]): (p / "state").read_text().strip() for p in sorted(folder.glob("memory*"))}

    def write(self, name: str, value: str) -> None:
        if name in self.refuses:
            raise OSError(self.refuses[name], "refused", self.path(name))
        super().write(name, value)
        self.written.append((name.rpartition("/sys/devices/system/")[2], value))
        parts = name.split("/")
        if parts[-1] == "online" and parts[-2].startswith("cpu"):
            cpu = int(parts[-2][3:])
            (self._online.add if value == "1" else self._online.discard)(cpu)
            self._tell_cpus()
        elif parts[-1] == "state":
            self.put(name, "online\n")

    def _tell_cpus(self) -> None:
        there = sorted(int(path.name[3:]) for path in (self.folder / "sys/devices/system/cpu").glob("cpu[0-9]*"))
        self.put("sys/devices/system/cpu/present", ",".join(map(str, there)) + "\n")
        self.put("sys/devices/system/cpu/online", ",".join(map(str, sorted(self._online & set(there)))) + "\n")

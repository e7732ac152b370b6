"""A QEMU as its monitor shows it: a real socket, QMP spoken over it, and a guest that obeys, refuses or says nothing.

Only what the node plugin asks is known; every other command is the error that QEMU gives. ``trouble`` makes one command
go wrong in the ways that a real one can.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

BLOCK = 2 << 20
FIRMWARE_WINDOW = 2 << 20
"""Of a port that reserves nothing."""
GREETING = {"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 0}, "package": ""}, "capabilities": ["oob"]}}

Trouble = Literal["hang", "die", "garbage", "huge", "late"]


class Error(Exception):
    """What QEMU answers instead of a value."""

    def __init__(self, text: str, kind: str = "GenericError") -> None:
        super().__init__(text)
        self.kind = kind


class FakeQemu:
    """One machine. Its socket is at ``path`` from the moment it is made."""

    def __init__(
        self,
        path: Path,
        *,
        ports: int = 4,
        cpus: int = 1,
        most_cpus: int = 4,
        base: int = 512 << 20,
        room: int = 2 << 30,
        listener: socket.socket | None = None,
    ) -> None:
        """``listener``: a socket that listens already, and was handed over."""
        self.path = path
        self.guest: Literal["obeys", "refuses", "silent"] = "obeys"
        """What it does about devices and CPUs that are to be given back."""
        self.native = False
        """Hot-plug as PCIe has it: a second device_del is refused while the first is under way."""
        self.loses_events = False
        self.trouble: dict[str, Trouble] = {}
        self.stuck_at: int | None = None
        """Bytes at which virtio-mem moves no further."""
        self.commands: list[tuple[str, dict[str, Any]]] = []
        """All commands but those that only ask."""
        self.devices: dict[str, dict[str, Any]] = {}
        self.leaving: set[str] = set()
        self.backends: dict[str, str] = {}
        self.nodes: dict[str, dict[str, Any]] = {}
        """Of these, the block nodes, as they were added; ``fd`` is what a file stands on."""
        self.nets: dict[str, dict[str, Any]] = {}
        self.sets: dict[int, list[tuple[int, str, bool]]] = {}
        """Sets of descriptors: each with what it was said to be, and whether it was taken away while it is in use."""
        self.named: dict[str, int] = {}
        """Descriptors that wait for a command that names them."""
        self.refuses: dict[str, str] = {}
        """Commands that are refused, and in what words."""
        self._given: list[int] = []
        self.gives_addresses = True
        """Whether its guest gives devices addresses, as far as the windows of their ports have any."""
        self.placed: set[str] = set()
        """Devices that have been given addresses."""
        self.bar_sizes: dict[str, int] = {}
        """Bytes of a prefetchable BAR, by the address of a card of the host, or the id of another device."""
        self.windows: dict[str, int] = {}
        """Bytes of prefetchable addresses that ports reserve, by their ids."""
        self.ports = [f"port{n}" for n in range(ports)]
        self.expanders: dict[str, int] = {}
        """Guest nodes of expander buses, by their ids. A port whose id begins with one, and a hyphen, is there."""
        self.cpus: dict[int, str | None] = {n: f"/machine/unattached/device[{n}]" for n in range(cpus)}
        self.most_cpus = most_cpus
        self.base, self.room, self.size, self.requested = base, room, 0, 0
        self.status = "running"
        self.kvm = True
        self.version = {"major": 7, "minor": 2, "micro": 0}
        self.uuid = "00000000-0000-0000-0000-000000000000"
        self.connections = 0
        self.left_over: list[dict[str, Any]] = []
        """What it had to say to its last client; the next one gets it before the greeting."""
        self._server = listener or socket.socket(socket.AF_UNIX)
        if listener is None:
            self._server.bind(str(path))
            self._server.listen(8)
        self._clients: list[socket.socket] = []
        self._mutex = threading.RLock()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """As when QEMU ends."""
        for each in (self._server, *self._clients):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        with self._mutex:
            held = [*self.named.values(), *(fd for fds in self.sets.values() for fd, _, _ in fds)]
            held += [
                each["fd"] for each in (*self.nodes.values(), *self.nets.values()) if isinstance(each.get("fd"), int)
            ]
            self._close(*held)
            self.named, self.sets, self.nodes, self.nets = {}, {}, {}, {}

    def event(self, name: str, **data: Any) -> None:
        if not self.loses_events:
            self._send({"event": name, "data": data, "timestamp": {"seconds": 1, "microseconds": 0}})

    def let_go(self, name: str) -> None:
        """The guest has let go of a device: QEMU removes it and, of a card, its children first."""
        with self._mutex:
            slot = self.devices.pop(name, {}).get("bus")
            self.placed.discard(name)
            self.leaving.discard(name)
            siblings = [other for other, device in self.devices.items() if slot and device.get("bus") == slot]
        self.event("DEVICE_DELETED", path=f"/machine/peripheral/{name}/child")
        for other in siblings:
            self.let_go(other)
        self.event("DEVICE_DELETED", device=name, path=f"/machine/peripheral/{name}")

    # The wire: one client at a time, as QEMU has it.

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            self._clients = [client]
            with contextlib.suppress(OSError, ValueError):
                self._talk(client)
            client.close()
            given, self._given = self._given, []
            self._close(*given)

    def _talk(self, client: socket.socket) -> None:
        if self._wrong(client, "greeting"):
            return
        for message in self.left_over:
            self._send(message)
        self.left_over = []
        self._send(GREETING)
        buffer = b""
        decoder = json.JSONDecoder()
        while True:
            more, fds, _, _ = socket.recv_fds(client, 65536, 4)
            if fds:
                self._close(*self._given)
                self._given = fds
            if not more:
                return
            buffer += more
            while text := buffer.decode().lstrip():
                try:
                    message, end = decoder.raw_decode(text)
                except ValueError:
                    break
                buffer = text[end:].encode()
                if not self._answer(client, message):
                    return

    def _answer(self, client: socket.socket, message: dict[str, Any]) -> bool:
        command, arguments = message["execute"], message.get("arguments", {})
        reply: dict[str, Any] = {"id": message["id"]} if "id" in message else {}
        if self._wrong(client, command):
            return False
        try:
            reply["return"] = self._do(command, arguments)
        except Error as error:
            reply["error"] = {"class": error.kind, "desc": str(error)}
        self._send(reply)
        return True

    def _wrong(self, client: socket.socket, command: str) -> bool:
        """Go wrong in the way that is asked for; whether the line is of no use any more."""
        match self.trouble.get(command):
            case "hang":
                while client.recv(65536):  # until the other side gives up
                    pass
                return True
            case "die":
                self.close()
                return True
            case "garbage":
                client.sendall(b"\x00\xff{ no JSON\r\n")
                return True
            case "huge":
                client.sendall(b'{"return": "' + b"x" * (5 << 20) + b'"}\r\n')
                return True
            case "late":
                time.sleep(0.5)
        return False

    def _send(self, message: Mapping[str, Any]) -> None:
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.sendall(json.dumps(message).encode() + b"\r\n")

    # What it does.

    def _do(self, command: str, a: dict[str, Any]) -> Any:
        if not command.startswith(("query-", "qom-list", "qom-get", "qmp_", "human-")):
            self.commands.append((command, a))
        if command in self.refuses:
            raise Error(self.refuses[command])
        action: Callable[[dict[str, Any]], Any] | None = getattr(self, "_do_" + command.replace("-", "_"), None)
        if action is None:
            raise Error(f"The command {command} has not been found", "CommandNotFound")
        with self._mutex:
            return action(a)

    def _do_qmp_capabilities(self, a: dict[str, Any]) -> Any:
        return {}

    def _do_query_status(self, a: dict[str, Any]) -> Any:
        return {"status": self.status, "running": self.status == "running", "singlestep": False}

    def _do_query_kvm(self, a: dict[str, Any]) -> Any:
        return {"enabled": self.kvm, "present": True}

    def _do_query_version(self, a: dict[str, Any]) -> Any:
        return {"qemu": self.version, "package": ""}

    def _do_query_uuid(self, a: dict[str, Any]) -> Any:
        return {"UUID": self.uuid}

    def _do_cont(self, a: dict[str, Any]) -> Any:
        if self.status != "suspended":  # as QEMU does: only waking the guest helps
            self.status = "running"
        return {}

    def _do_stop(self, a: dict[str, Any]) -> Any:
        self.status = "paused"
        return {}

    def _do_query_pci(self, a: dict[str, Any]) -> Any:
        """As firmware numbers it: each port a bus of its own. Before it runs nothing behind a port is shown."""
        if self.status == "prelaunch":
            return [{"bus": 0, "devices": [{"bus": 0, "slot": n, "function": 0} for n in range(len(self.ports))]}]
        buses = []
        for number, port in enumerate(self.ports, 1):
            behind = [device for device in self.devices.values() if device.get("bus") == port]
            first = 1 << 40 | number << 44
            window = {"base": first, "limit": first + self.windows.get(port, FIRMWARE_WINDOW) - 1}
            low = {"base": number << 24, "limit": (number << 24) + FIRMWARE_WINDOW - 1}
            devices = []
            for device in behind:
                function = int(device.get("addr", "0x0.0").partition(".")[2] or 0)
                regions = self._regions(device, window, low)
                place = {"bus": number, "slot": 0, "function": function}
                devices.append({**place, "qdev_id": device["id"], "regions": regions})
            bus = {"number": 0, "secondary": number, "prefetchable_range": window, "memory_range": low}
            behind_it = {"bus": bus, "devices": devices}
            buses.append({"bus": 0, "slot": number, "function": 0, "qdev_id": port, "pci_bridge": behind_it})
        return [{"bus": 0, "devices": buses}]

    def _regions(self, device: Mapping[str, Any], window: Mapping[str, int], low: Mapping[str, int]) -> list[Any]:
        """A BAR of registers, and one of memory where the card has any; what does not fit has no address."""
        host = device.get("host") or device.get("sysfsdev") or device["id"]
        memory = self.bar_sizes.get(host, 0)
        gives = self.gives_addresses and self.status == "running"
        if gives:
            self.placed.add(device["id"])
        gives = device["id"] in self.placed
        fits = memory <= window["limit"] - window["base"] + 1
        registers = {"bar": 0, "type": "memory", "size": 1 << 14, "prefetch": False, "mem_type_64": False}
        rom = {"bar": 6, "type": "memory", "size": 1 << 19, "address": -1, "prefetch": False, "mem_type_64": False}
        ports = {"bar": 5, "type": "io", "size": 128, "address": -1}
        regions = [{**registers, "address": low["base"] if gives else -1}, rom, ports]
        if memory:
            large = {"bar": 1, "type": "memory", "size": memory, "prefetch": True, "mem_type_64": True}
            regions.append({**large, "address": window["base"] if gives and fits else -1})
        return regions

    def _do_qom_list(self, a: dict[str, Any]) -> Any:
        path = a["path"].removeprefix("/machine/")
        if path == "/objects":
            return [{"name": name, "type": "child<memory-backend-ram>"} for name in self.backends]
        if path == "peripheral":
            there = [*((port, "pcie-root-port") for port in self.ports)]
            there += [(name, "pxb-pcie") for name in self.expanders]
            there += [(name, device["driver"]) for name, device in self.devices.items()]
            if self.room:
                there.append(("vmem0", "virtio-mem-pci"))
            return [{"name": name, "type": f"child<{kind}>"} for name, kind in there]
        if path == "peripheral-anon":
            return []
        port = path.split("/")[1]
        if path.count("/") == 1:
            names = [("type", "string"), ("pref64-reserve", "size"), ("mem-reserve", "size"), (port, "child<PCIE>")]
            return [{"name": name, "type": kind} for name, kind in names]
        on = [device for device in self.devices.values() if device.get("bus") == port]
        return [{"name": f"child[{n}]", "type": f"link<{device['driver']}>"} for n, device in enumerate(on)]

    def _do_qom_get(self, a: dict[str, Any]) -> Any:
        name = a["path"].rpartition("/")[2]
        if name == "vmem0":
            self._move()
            return {"size": self.size, "requested-size": self.requested}[a["property"]]
        if name in self.expanders:
            return self.expanders[name]
        if name in self.ports and a["property"] == "parent_bus":
            bus = name.partition("-")[0]
            return f"/machine/unattached/device[9]/{bus}" if bus in self.expanders else "/machine/q35/pcie.0"
        if name in self.ports:
            reserve = self.windows.get(name) if a["property"] == "pref64-reserve" else None
            return (1 << 64) - 1 if reserve is None else reserve
        if name not in self.devices:
            raise Error(f"Device '{name}' not found", "DeviceNotFound")
        device = self.devices[name]
        bus = device["bus"]
        properties = {"parent_bus": f"/machine/peripheral/{bus}/{bus}", "realized": True}
        properties |= {"netdev": device.get("netdev"), "mac": device.get("mac", "52:54:00:12:34:56")}
        return properties[a["property"]]

    def _do_qom_set(self, a: dict[str, Any]) -> Any:
        if a["value"] > self.room or a["value"] % BLOCK:
            raise Error(f"'requested-size' cannot exceed the memory backend size ({self.room:#x})")
        self.requested = a["value"]
        return {}

    def _move(self) -> None:
        """As far towards what is requested as the guest goes."""
        stop = self.stuck_at
        between = stop is not None and min(self.size, self.requested) < stop < max(self.size, self.requested)
        if stop is not None and (between or self.size == stop):
            self.size = stop
        else:
            self.size = self.requested

    def _do_query_memory_devices(self, a: dict[str, Any]) -> Any:
        dimms = [
            {"type": "dimm", "data": {"id": name, "size": int(self.backends[device["memdev"]])}}
            for name, device in self.devices.items()
            if device["driver"] == "pc-dimm"
        ]
        if not self.room:
            return dimms
        self._move()
        data = {"id": "vmem0", "block-size": BLOCK, "size": self.size, "requested-size": self.requested}
        return [*dimms, {"type": "virtio-mem", "data": {**data, "max-size": self.room, "node": 0}}]

    def _do_query_memory_size_summary(self, a: dict[str, Any]) -> Any:
        dimms = sum(int(self.backends[d["memdev"]]) for d in self.devices.values() if d["driver"] == "pc-dimm")
        return {"base-memory": self.base, "plugged-memory": self.size + dimms}

    def _do_query_hotpluggable_cpus(self, a: dict[str, Any]) -> Any:
        slots = []
        for number in reversed(range(self.most_cpus)):
            slot = {"type": "max-x86_64-cpu", "vcpus-count": 1}
            slot["props"] = {"socket-id": 0, "core-id": number, "thread-id": 0, "node-id": 0}
            if number in self.cpus:
                slot["qom-path"] = self.cpus[number]
            slots.append(slot)
        return slots

    def _do_device_add(self, a: dict[str, Any]) -> Any:
        name = a["id"]
        if name in self.devices or name in (path.rpartition("/")[2] for path in self.cpus.values() if path):
            raise Error(f"Duplicate device ID '{name}'")
        if a["driver"].endswith("-cpu"):
            self.cpus[a["core-id"]] = f"/machine/peripheral/{name}"
            return {}
        if a["driver"] == "no-such-device":
            raise Error("'no-such-device' is not a valid device model name")
        if a["driver"] == "pc-dimm" and a["memdev"] not in self.backends:
            raise Error(f"object '{a['memdev']}' not found")
        if a.get("drive", "") not in {"", *self.nodes}:
            raise Error(f"Property '{a['driver']}.drive' can't find value '{a['drive']}'")
        if a.get("netdev", "") not in {"", *self.nets}:
            raise Error(f"Property '{a['driver']}.netdev' can't find value '{a['netdev']}'")
        self.devices[name] = dict(a)
        return {}

    def _do_device_del(self, a: dict[str, Any]) -> Any:
        name = a["id"]
        cpus = {path.rpartition("/")[2]: number for number, path in self.cpus.items() if path}
        if name not in self.devices and name not in cpus:
            raise Error(f"Device '{name}' not found", "DeviceNotFound")
        if name in self.leaving and self.native:
            raise Error(f"Device {name} is already in the process of unplug")
        self.leaving.add(name)
        # QEMU's events may overtake its answer, and so do these.
        if self.guest == "refuses" and name in cpus:
            info = {"device": name, "source": 3, "status": 1, "slot": "1", "slot-type": "CPU"}
            self.event("ACPI_DEVICE_OST", info=info)
        elif self.guest == "refuses":
            self.event("DEVICE_UNPLUG_GUEST_ERROR", device=name, path=f"/machine/peripheral/{name}")
        elif self.guest == "obeys" and name in cpus:
            del self.cpus[cpus[name]]
            self.event("DEVICE_DELETED", path=f"/machine/peripheral/{name}/lapic")
        elif self.guest == "obeys":
            self.let_go(name)
        return {}

    def _backend(self, name: str, content: str) -> Any:
        if name in self.backends:
            raise Error(f"Duplicate ID '{name}'")
        self.backends[name] = content
        return {}

    def _do_object_add(self, a: dict[str, Any]) -> Any:
        if a["id"] in self.backends:
            raise Error(f"attempt to add duplicate property '{a['id']}' to object (type 'container')")
        self.backends[a["id"]] = str(a.get("size", 0))  # a secret has none
        return {}

    def _do_object_del(self, a: dict[str, Any]) -> Any:
        del self.backends[a["id"]]
        return {}

    def _do_add_fd(self, a: dict[str, Any]) -> Any:
        self.sets.setdefault(a["fdset-id"], []).append((self._taken(), a.get("opaque", ""), False))
        return {"fdset-id": a["fdset-id"], "fd": self.sets[a["fdset-id"]][-1][0]}

    def _do_remove_fd(self, a: dict[str, Any]) -> Any:
        if a["fdset-id"] not in self.sets:
            raise Error(f"File descriptor named 'fdset-id:{a['fdset-id']}' not found")
        self.sets[a["fdset-id"]] = [(fd, opaque, True) for fd, opaque, _ in self.sets[a["fdset-id"]]]
        self._clean_sets()
        return {}

    def _do_query_fdsets(self, a: dict[str, Any]) -> Any:
        by_set = {number: [{"fd": fd, "opaque": opaque} for fd, opaque, _ in fds] for number, fds in self.sets.items()}
        return [{"fdset-id": number, "fds": fds} for number, fds in by_set.items()]

    def _do_getfd(self, a: dict[str, Any]) -> Any:
        self._close(*[self.named[name] for name in [a["fdname"]] if name in self.named])
        self.named[a["fdname"]] = self._taken()
        return {}

    def _do_closefd(self, a: dict[str, Any]) -> Any:
        if a["fdname"] not in self.named:
            raise Error(f"File descriptor named '{a['fdname']}' not found")
        self._close(self.named.pop(a["fdname"]))
        return {}

    def _do_netdev_add(self, a: dict[str, Any]) -> Any:
        self._backend(a["id"], a["type"])
        self.nets[a["id"]] = dict(a)
        if "fd" in a:
            self.nets[a["id"]]["fd"] = self.named.pop(a["fd"])
        return {}

    def _do_netdev_del(self, a: dict[str, Any]) -> Any:
        if a["id"] not in self.nets:
            raise Error(f"Device '{a['id']}' not found", "DeviceNotFound")
        del self.backends[a["id"]]
        self._close(*[fd for fd in [self.nets.pop(a["id"]).get("fd")] if fd is not None])
        return {}

    def _do_human_monitor_command(self, a: dict[str, Any]) -> Any:
        assert a["command-line"] == "info network"
        text = ""
        nets = dict(self.nets)
        for name, device in self.devices.items():
            net = nets.pop(device.get("netdev"), None)
            if net is not None:
                text += f"{name}: index=0,type=nic,model={device['driver']},macaddr={device.get('mac')}\r\n"
                text += f" \\ {net['id']}: index=0,type={net['type']},fd=16\r\n"
        return text + "".join(f"{name}: index=0,type={net['type']},fd=16\r\n" for name, net in nets.items())

    def _do_blockdev_add(self, a: dict[str, Any]) -> Any:
        name, node = a["node-name"], dict(a)
        if len(name) > 31 or not name[0].isalpha():
            raise Error(f"Invalid node-name: '{name}'")
        if "filename" in a and a["filename"].startswith("/dev/fdset/"):
            node["fd"] = self._duplicate(int(a["filename"].rpartition("/")[2]), a["read-only"])
        elif "file" in a and a["file"] not in self.nodes:
            raise Error(f"Cannot find device='' nor node-name='{a['file']}'")
        self._backend(name, a["driver"])
        self.nodes[name] = node
        return {}

    def _do_blockdev_del(self, a: dict[str, Any]) -> Any:
        name = a["node-name"]
        if name not in self.nodes:
            raise Error(f"Failed to find node with node-name='{name}'")
        if name in [node.get("file") for node in self.nodes.values()] + [d.get("drive") for d in self.devices.values()]:
            raise Error(f"Node {name} is in use")
        del self.backends[name]
        self._close(*[fd for fd in [self.nodes.pop(name).get("fd")] if fd is not None])
        self._clean_sets()
        return {}

    def _do_query_named_block_nodes(self, a: dict[str, Any]) -> Any:
        return [
            {"node-name": name, "drv": node["driver"], "ro": node["read-only"], "file": "/dev/fdset/…"}
            for name, node in self.nodes.items()
        ]

    def _taken(self) -> int:
        if not self._given:
            raise Error("No file descriptor supplied via SCM_RIGHTS")
        return self._given.pop(0)

    def _duplicate(self, number: int, read_only: bool) -> int:
        """Of a set, what is open for what is asked: QEMU has no other way to open such a file."""
        wanted = os.O_RDONLY if read_only else os.O_RDWR
        for fd, _, _ in self.sets.get(number, []):
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == wanted:
                return os.dup(fd)
        raise Error(f"Could not open '/dev/fdset/{number}': Permission denied")

    def _clean_sets(self) -> None:
        """A set goes with the last that stands on it, once it was taken away."""
        used = [node.get("filename") for node in self.nodes.values()]
        for number, fds in list(self.sets.items()):
            if f"/dev/fdset/{number}" not in used and all(removed for _, _, removed in fds):
                self._close(*[fd for fd, _, _ in self.sets.pop(number)])

    def _close(self, *fds: int) -> None:
        for fd in fds:
            os.close(fd)

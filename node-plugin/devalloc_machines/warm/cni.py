"""CNI: run the plugins of a network's list, as the specification of CNI 1.1 has it, for one attachment at a time.

What was added is in a file before the first plugin runs, with the list as it was then, so that DEL gets the same
configuration and result even if the plugin was killed or the list was changed since. These files outlive a reboot,
because what plugins write down (host-local's leases) does, too. GC is not used: it would remove what other runtimes
have in a network of the same name; instead DEL runs for each attachment that is left over.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from devalloc_machines.warm.addresses import UPLINK, CniNetwork

CniCommand = Literal["ADD", "CHECK", "DEL"]
VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_WITH_CHECK = VERSIONS[2:]
"""Those with CHECK, and with a result for DEL."""
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,252}")
_MAX_BYTES = 1 << 20
_MAX_PLUGINS = 32
_MAX_TEXT = 400
_EXHAUSTED = re.compile(r"no ip addresses available|could not allocate ip in range", re.IGNORECASE)
"""What host-local and whereabouts say if a range has no free address: CNI has no error code for it."""


@dataclass(frozen=True, slots=True)
class CniList:
    """A network: the plugins that make it, in order."""

    name: str
    version: str
    plugins: tuple[Mapping[str, Any], ...]
    is_checked: bool = True
    """Whether CHECK may be used."""

    def to_content(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "cniVersion": self.version,
            "disableCheck": not self.is_checked,
            "plugins": list(self.plugins),
        }


@dataclass(frozen=True, slots=True)
class Attachment:
    """One setup in a network."""

    id: str
    """CNI_CONTAINERID"""
    namespace: str
    """The file of the network namespace."""
    mac: str
    """What plugins are asked to give the interface."""
    network: CniList
    bin_dirs: tuple[str, ...]
    result: Mapping[str, Any] | None = None
    """What the last plugin returned; None: ADD has not come to its end."""


class AddressesExhausted(OSError):
    """A network has no free address."""


def load_list(network: CniNetwork) -> CniList:
    """The list of that name, or the first, in the order of names of files. Raises OSError with what is wrong."""
    folder = network.conf_dir
    problems = []
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".conflist", ".conf", ".json"):
            continue
        try:
            content = json.loads(_read(path))
            each = _parsed(content if path.suffix == ".conflist" or "plugins" in content else _single(content))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            problems.append(f"{path.name}: {error}")
            continue
        if network.name in ("", each.name):
            return each
    what = f"named {network.name}" if network.name else "at all"
    more = f" ({'; '.join(problems)[:_MAX_TEXT]})" if problems else ""
    raise OSError(errno.ENOENT, f"has no list of CNI plugins {what}{more}", str(folder))


def _single(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """A file with one plugin."""
    return {"name": content["name"], "cniVersion": content.get("cniVersion", "0.3.1"), "plugins": [content]}


def _parsed(content: Any) -> CniList:
    """Raises ValueError, LookupError, TypeError."""
    name, version, plugins = content["name"], content.get("cniVersion", ""), content["plugins"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("the name of a network must be letters, digits, '_', '.' and '-'")
    if version not in VERSIONS:
        raise ValueError(f"cniVersion must be one of {', '.join(VERSIONS)}, not {version!r}")
    if not isinstance(plugins, list) or not 0 < len(plugins) <= _MAX_PLUGINS:
        raise ValueError(f"plugins must be a list of 1 to {_MAX_PLUGINS}")
    for plugin in plugins:
        kind = plugin.get("type")
        if not isinstance(kind, str) or not _NAME.fullmatch(kind):
            raise ValueError("each plugin must have a type that is the name of a program, without a path")
    return CniList(name, version, tuple(plugins), content.get("disableCheck") not in (True, "true"))


# The attachments that there are.


def write_attachment(cache: Path, attachment: Attachment) -> None:
    """Raises OSError."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = {
        "namespace": attachment.namespace,
        "mac": attachment.mac,
        "network": attachment.network.to_content(),
        "binDirs": attachment.bin_dirs,
        "result": attachment.result,
    }
    temporary = cache / f".{attachment.id}.new"
    with open(temporary, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(cache / f"{attachment.id}.json")


def read_attachment(cache: Path, name: str) -> Attachment | None:
    """None if there is none. Raises OSError if it cannot be read."""
    path = cache / f"{name}.json"
    try:
        content = json.loads(_read(path))
        return Attachment(
            name,
            str(content["namespace"]),
            str(content["mac"]),
            _parsed(content["network"]),
            tuple(map(str, content["binDirs"])),
            content["result"],
        )
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"cannot be read ({error}): delete the attachment by hand (cnitool del), then this file"
        raise OSError(errno.EINVAL, why, str(path)) from error


def attachments(cache: Path) -> Sequence[str]:
    """Their ids."""
    return [path.stem for path in sorted(cache.glob("*.json"))] if cache.is_dir() else []


def drop_attachment(cache: Path, name: str) -> None:
    """Raises OSError."""
    (cache / f"{name}.json").unlink(missing_ok=True)


# What plugins do.


def add(attachment: Attachment, seconds: float) -> Attachment:
    """Run ADD of all plugins; the attachment with their result. Raises OSError."""
    due = time.monotonic() + seconds
    result: Mapping[str, Any] | None = None
    for plugin in attachment.network.plugins:
        result = _run("ADD", plugin, replace(attachment, result=result), due)
        if result is None:
            raise OSError(errno.EPROTO, "returned no result from ADD", f"CNI plugin {plugin['type']}")
    return replace(attachment, result=result)


def check(attachment: Attachment, seconds: float) -> None:
    """Run CHECK of all plugins, if the list has it. Raises OSError."""
    if attachment.network.version not in _WITH_CHECK or not attachment.network.is_checked:
        return
    due = time.monotonic() + seconds
    for plugin in attachment.network.plugins:
        _run("CHECK", plugin, attachment, due)


def delete(attachment: Attachment, seconds: float) -> None:
    """Run DEL of all plugins, the last first, from whatever ADD left. May be done again. Raises OSError."""
    due = time.monotonic() + seconds
    if attachment.network.version not in _WITH_CHECK:
        attachment = replace(attachment, result=None)
    for plugin in reversed(attachment.network.plugins):
        _run("DEL", plugin, attachment, due)


def ipv4_of(attachment: Attachment) -> tuple[str, int, str, tuple[str, ...]]:
    """The address, its prefix, the gateway (empty: none) and nameservers of a result. Raises OSError."""
    result = attachment.result or {}
    try:
        interfaces = result.get("interfaces") or []
        for each in result.get("ips") or []:
            at = ipaddress.ip_interface(each["address"])
            number = each.get("interface")
            if at.version != 4 or (number is not None and not interfaces[number].get("sandbox")):
                continue
            ways = (route.get("gw", "") for route in result.get("routes") or [] if route["dst"] == "0.0.0.0/0")
            servers = [str(server) for server in (result.get("dns") or {}).get("nameservers") or []]
            plain = tuple(server for server in servers if ":" not in server)
            return str(at.ip), at.network.prefixlen, str(each.get("gateway") or next(ways, "") or ""), plain
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise OSError(errno.EPROTO, f"returned an invalid result: {error}", attachment.network.name) from error
    raise OSError(errno.EADDRNOTAVAIL, "gave the setup no IPv4 address", f"network {attachment.network.name}")


def _run(
    command: CniCommand, plugin: Mapping[str, Any], attachment: Attachment, due: float
) -> Mapping[str, Any] | None:
    """What one plugin returned; None for nothing. Raises OSError."""
    kind = str(plugin["type"])
    try:
        done = _process(_program(kind, attachment.bin_dirs), _environment(command, attachment),
            json.dumps(_configuration(plugin, attachment)).encode(), due)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"did not end {command} in time", f"CNI plugin {kind}") from None
    if done.returncode:
        if command == "ADD" and _EXHAUSTED.search(why := _why(done)):
            raise AddressesExhausted(
                errno.EADDRNOTAVAIL,
                f"network {attachment.network.name} has no free address: return a setup, or give the network a larger "
                f"range of addresses (CNI plugin {kind}: {why})",
            )
        raise OSError(errno.EPROTO, f"{command}: {_why(done)}", f"CNI plugin {kind}")
    if command != "ADD":
        return None
    try:
        result = json.loads(done.stdout)
        return {**result}
    except (ValueError, TypeError) as error:
        raise OSError(errno.EPROTO, f"returned an invalid result from ADD: {error}", f"CNI plugin {kind}") from error


def _process(
    program: str, environment: Mapping[str, str], text: bytes, due: float
) -> subprocess.CompletedProcess[bytes]:
    """Raises TimeoutExpired, when all that it has started is killed; OSError."""
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment, cwd="/", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(text, timeout=max(0.0, due - time.monotonic()))
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess([program], process.returncode, out[:_MAX_BYTES], err[:_MAX_BYTES])


def _program(kind: str, bin_dirs: Sequence[str]) -> str:
    for folder in bin_dirs:
        path = os.path.join(folder, kind)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise OSError(
        errno.ENOENT, f"is not in {', '.join(bin_dirs)}; install it or set --cni-bin-dir", f"CNI plugin {kind}"
    )


def _environment(command: CniCommand, attachment: Attachment) -> dict[str, str]:
    """If the namespace is gone, DEL gets none, as the specification has it."""
    is_there = os.path.exists(attachment.namespace)
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": attachment.id,
        "CNI_NETNS": attachment.namespace if is_there or command != "DEL" else "",
        "CNI_IFNAME": UPLINK,
        "CNI_ARGS": f"IgnoreUnknown=1;MAC={attachment.mac}",
        "CNI_PATH": ":".join(attachment.bin_dirs),
    }


def _configuration(plugin: Mapping[str, Any], attachment: Attachment) -> dict[str, Any]:
    """For its standard input."""
    network = attachment.network
    content = {key: value for key, value in plugin.items() if key != "capabilities"}
    capabilities = plugin.get("capabilities") or {}
    given = {"mac": attachment.mac} if capabilities.get("mac") else {}
    content |= {"runtimeConfig": given} if given else {}
    content |= {"name": network.name, "cniVersion": network.version}
    content |= {"prevResult": attachment.result} if attachment.result is not None else {}
    return content


def _why(done: subprocess.CompletedProcess[bytes]) -> str:
    """What a plugin says, for people."""
    with suppress(ValueError, LookupError, TypeError):
        content = json.loads(done.stdout)
        words = [str(content["msg"]), str(content.get("details") or "")]
        return "; ".join(filter(None, words))[:_MAX_TEXT]
    text = (done.stderr or done.stdout).decode(errors="replace")
    return " ".join(text.split())[-_MAX_TEXT:] or f"ended with {done.returncode}"


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"is larger than {_MAX_BYTES} bytes")
    return content

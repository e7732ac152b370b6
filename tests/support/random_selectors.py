"""Random selectors over the devices of the kept answers: well-typed mostly, and wrong in every way now and then."""

from __future__ import annotations

import re
from random import Random

_ATTRIBUTES = {
    "gpu.example.com": ("model", "vendor", "index", "memoryMiB", "mig", "ecc", "driverVersion", "firmware"),
    "nic.example.com": ("address", "speed", "rdma", "mtu", "version", "name", "model"),
    "lists.example.com": ("models", "ids", "flags", "versions", "model", "version", "int", "big", "small"),
    "nope": ("x",),
}
_CAPACITY = {
    "gpu.example.com": ("memory", "cores"),
    "nic.example.com": ("bandwidth", "vfs"),
    "lists.example.com": ("memory", "tiny", "huge", "zero"),
    "nope": ("x",),
}

LEAVES: dict[str, tuple[str, ...]] = {
    "int": ("0", "1", "2", "3", "-1", "100", "9223372036854775807", "81920", "int(2.5)"),
    "text": ('"a"', '""', '"A100-SXM4-80GB"', '"nvidia"', '"1.0.0"', '"b"', '"80Gi"', '"eth-0"', '"é😀"'),
    "list": (
        *("[1, 2, 3]", '["a", "b"]', "[true, false]", "[3.5, 1.0]"),
        *('device.attributes["lists.example.com"].ids', 'device.attributes["lists.example.com"].models'),
    ),
    "bool": (
        *("true", "false", "device.allowMultipleAllocations", 'device.attributes["gpu.example.com"].mig'),
        *('device.attributes["nic.example.com"].rdma', 'has(device.attributes["gpu.example.com"].model)'),
    ),
    "scalar": ("<int0>", "<text0>", "<bool0>", "1.5"),
    "other": ("1.0", "2u", "null", "dyn(1)", 'duration("1s")'),
    "path": tuple(f'["{domain}"].{name}' for domain, names in _ATTRIBUTES.items() for name in names),
    "capacity": tuple(f'device.capacity["{domain}"].{name}' for domain, names in _CAPACITY.items() for name in names),
    "presence": tuple(f'["{domain}"].{name}' for domain in _ATTRIBUTES for name in ("model", "version", "index", "x")),
    "order": ("<", "<=", ">", ">=", "==", "!="),
    "same": ("==", "!="),
    "math": ("+", "-", "*", "/", "%"),
}
GRAMMAR: dict[str, tuple[str, ...]] = {
    "attribute": (
        *("device.attributes<path>",) * 6,
        'device.attributes["gpu.example.com"].?index.orValue(<scalar0>)',
        'device.attributes["nic.example.com"][?"model"].orValue(<scalar0>)',
        'cel.bind(d, device.attributes["lists.example.com"], d.model)',
    ),
    "int": (
        "(<int> <math> <int>)",
        "size(<text>)",
        "<list>.size()",
        "<attribute>",
        "(<bool> ? <int> : <int>)",
        "<text>.indexOf(<text0>)",
        "<version>.major()",
        "<version>.patch()",
        "<quantity>.compareTo(<quantity>)",
        "<list>.sum()",
        "<list>.min()",
        "<list>.max()",
        "<list>.indexOf(<scalar>)",
        "sign(<quantity>)",
        "int(<text0>)",
        "-<int>",
    ),
    "text": (
        "(<text> + <text>)",
        "<attribute>",
        "device.driver",
        "<text>.lowerAscii()",
        "<text>.upperAscii()",
        "<text>.trim()",
        "<text>.replace(<text0>, <text0>)",
        "<text>.substring(<int0>)",
        "string(<scalar>)",
        "<text>.split(<text0>).join(<text0>)",
        '"%s-%s".format([<scalar>, <scalar>])',
        '<text>.find("[a-z0-9]+")',
        "<text>.charAt(<int0>)",
        "(<bool> ? <text> : <text>)",
    ),
    "version": ("<attribute>", "semver(<text>)", 'semver("550.0.0-rc.1")'),
    "quantity": ("<capacity>", "<capacity>", "quantity(<text>)", 'quantity("1Gi")', 'quantity("-1500m")'),
    "list": (
        *LEAVES["list"],
        "<list>.map(x#, <mapped>)",
        "<list>.filter(x#, <tested>)",
        "(<list> + <list>)",
        "<list>.sort()",
        "<list>.reverse()",
        "<list>.distinct()",
        "[<scalar>, <scalar>]",
        "<text>.split(<text0>)",
        "lists.range(4)",
        "<list>.slice(1, 2)",
    ),
    "mapped": ("x#", "[x#]", "x# == <scalar>", "string(x#)", 'dyn(x#) == 1 ? "one" : "other"'),
    "tested": ("x# <order> <scalar>", "x# in <list>", "dyn(x#) < 2", "<bool>"),
    "scalar": ("<int>", "<text>", "<bool>", "<attribute>", "<other>"),
    "bool": (
        "(<bool> && <bool>)",
        "(<bool> || <bool>)",
        "!<bool>",
        "(<bool> ? <bool> : <bool>)",
        "(<scalar> <same> <scalar>)",
        "(<attribute> <order> <scalar>)",
        "(<int> <order> <int>)",
        "(<text> <order> <text>)",
        "(<scalar> in <list>)",
        "<text>.startsWith(<text0>)",
        "<text>.endsWith(<text0>)",
        "<text>.contains(<text0>)",
        "<text>.matches(<text0>)",
        "<quantity>.isGreaterThan(<quantity>)",
        "<version>.isLessThan(<version>)",
        "(<quantity> <same> <quantity>)",
        "(<version> <same> <version>)",
        "<list>.all(x#, <tested>)",
        "<list>.exists(x#, <tested>)",
        "<list>.exists_one(x#, <tested>)",
        "has(device.attributes<presence>)",
        "<attribute>.includes(<scalar>)",
        "(<list> <same> <list>)",
        "sets.contains(<list>, <list>)",
        "sets.intersects(<list>, <list>)",
    ),
}
"""What may stand for each kind of expression: ``<kind>`` one level down, ``<kind0>`` a leaf, ``#`` the level."""

_HOLE = re.compile(r"<([a-z]+)(0?)>")


def selector(seed: int) -> str:
    """The selector of that number."""
    random = Random(seed)
    return _expanded(random, "bool", random.randrange(1, 5))


def _expanded(random: Random, kind: str, depth: int) -> str:
    leaf = (depth <= 0 and kind in LEAVES) or kind not in GRAMMAR
    template = random.choice(LEAVES[kind] if leaf else GRAMMAR[kind])
    level = max(depth, 0)
    filled = _HOLE.sub(lambda hole: _expanded(random, hole[1], 0 if hole[2] else level - 1), template)
    return filled.replace("#", str(level))

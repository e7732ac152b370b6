"""The environment of selectors, as text: variables and functions with their types.

One line per overload, in the notation of the official runtime's environment files. The names and types are those of
Kubernetes 1.37 (``k8s.io/apiserver/pkg/cel``): the standard functions, optional types, strings version 2, lists version
3, sets, two-variable comprehensions, and the Kubernetes libraries.
"""

from __future__ import annotations

from devalloc_solver.cel.library.formats import NAMES

QUANTITY = "kubernetes.Quantity"
SEMVER = "kubernetes.Semver"
URL = "kubernetes.URL"
IP = "net.IP"
CIDR = "net.CIDR"
FORMAT = "kubernetes.NamedFormat"
DURATION = "google.protobuf.Duration"
TIMESTAMP = "google.protobuf.Timestamp"

EXTENSIONS = ("bindings", "lists", "optional", "sets", "two-var-comprehensions")

VARIABLES = {
    "device": "dyn",
    "device.driver": "string",
    "device.attributes": "map<string, map<string, dyn>>",
    "device.capacity": f"map<string, map<string, {QUANTITY}>>",
    IP: f"type<{IP}>",
    CIDR: f"type<{CIDR}>",
}
"""``device`` itself is there for whole uses of it; its fields are variables of their own, so that they have types."""

SHARING_GATE = "DRAConsumableCapacity"
LIST_GATE = "DRAListTypeAttributes"

GATED_VARIABLES = {SHARING_GATE: {"device.allowMultipleAllocations": "bool"}}
GATED_FUNCTIONS = {LIST_GATE: ("dyn.includes(dyn) -> bool",)}
GATES = frozenset({*GATED_VARIABLES, *GATED_FUNCTIONS})
"""The feature gates that change the language."""

_COMPARABLE = ("int", "uint", "double", "bool", DURATION, TIMESTAMP, "string", "bytes")
_NUMBERS = ("int", "uint", "double")


def _order(operator: str) -> tuple[str, ...]:
    """An ordering operator: within each comparable type, and between the three kinds of numbers."""
    same = [(kind, kind) for kind in _COMPARABLE]
    mixed = [(left, right) for left in _NUMBERS for right in _NUMBERS if left != right]
    return tuple(f"_{operator}_({left}, {right}) -> bool" for left, right in same + mixed)


REPLACED = ("string", "_<_", "_<=_", "_>_", "_>=_")
"""Standard functions that get further overloads; the runtime wants all of them in one place."""

FUNCTIONS = (
    *_order("<"),
    *_order("<="),
    *_order(">"),
    *_order(">="),
    *(
        f"string({kind}) -> string"
        for kind in ("bool", "bytes", "double", DURATION, "int", "string", TIMESTAMP, "uint", IP, CIDR)
    ),
    # strings
    "string.charAt(int) -> string",
    "string.format(list<dyn>) -> string",
    "string.indexOf(string) -> int",
    "string.indexOf(string, int) -> int",
    "list<~A>.indexOf(~A) -> int",
    "list<string>.join() -> string",
    "list<string>.join(string) -> string",
    "string.lastIndexOf(string) -> int",
    "string.lastIndexOf(string, int) -> int",
    "list<~A>.lastIndexOf(~A) -> int",
    "string.lowerAscii() -> string",
    "string.replace(string, string) -> string",
    "string.replace(string, string, int) -> string",
    "string.split(string) -> list<string>",
    "string.split(string, int) -> list<string>",
    "strings.quote(string) -> string",
    "string.substring(int) -> string",
    "string.substring(int, int) -> string",
    "string.trim() -> string",
    "string.upperAscii() -> string",
    # optional values
    "optional.unwrap(list<optional_type<~A>>) -> list<~A>",
    "list<optional_type<~A>>.unwrapOpt() -> list<~A>",
    # regular expressions
    "string.find(string) -> string",
    "string.findAll(string) -> list<string>",
    "string.findAll(string, int) -> list<string>",
    # lists
    *(f"list<{kind}>.isSorted() -> bool" for kind in _COMPARABLE),
    *(f"list<{kind}>.min() -> {kind}" for kind in _COMPARABLE),
    *(f"list<{kind}>.max() -> {kind}" for kind in _COMPARABLE),
    *(f"list<{kind}>.sum() -> {kind}" for kind in ("int", "uint", "double", DURATION)),
    # quantities
    f"quantity(string) -> {QUANTITY}",
    "isQuantity(string) -> bool",
    f"sign({QUANTITY}) -> int",
    f"{QUANTITY}.add({QUANTITY}) -> {QUANTITY}",
    f"{QUANTITY}.add(int) -> {QUANTITY}",
    f"{QUANTITY}.sub({QUANTITY}) -> {QUANTITY}",
    f"{QUANTITY}.sub(int) -> {QUANTITY}",
    f"{QUANTITY}.asApproximateFloat() -> double",
    f"{QUANTITY}.asInteger() -> int",
    f"{QUANTITY}.isInteger() -> bool",
    # versions
    f"semver(string) -> {SEMVER}",
    f"semver(string, bool) -> {SEMVER}",
    "isSemver(string) -> bool",
    "isSemver(string, bool) -> bool",
    f"{SEMVER}.major() -> int",
    f"{SEMVER}.minor() -> int",
    f"{SEMVER}.patch() -> int",
    *(f"{kind}.compareTo({kind}) -> int" for kind in (QUANTITY, SEMVER)),
    *(f"{kind}.isGreaterThan({kind}) -> bool" for kind in (QUANTITY, SEMVER)),
    *(f"{kind}.isLessThan({kind}) -> bool" for kind in (QUANTITY, SEMVER)),
    # URLs
    f"url(string) -> {URL}",
    "isURL(string) -> bool",
    *(f"{URL}.{part}() -> string" for part in ("getScheme", "getHost", "getHostname", "getPort", "getEscapedPath")),
    f"{URL}.getQuery() -> map<string, list<string>>",
    # addresses
    f"ip(string) -> {IP}",
    f"{CIDR}.ip() -> {IP}",
    "isIP(string) -> bool",
    "ip.isCanonical(string) -> bool",
    f"{IP}.family() -> int",
    f"{IP}.isUnspecified() -> bool",
    f"{IP}.isLoopback() -> bool",
    f"{IP}.isLinkLocalMulticast() -> bool",
    f"{IP}.isLinkLocalUnicast() -> bool",
    f"{IP}.isGlobalUnicast() -> bool",
    f"cidr(string) -> {CIDR}",
    "isCIDR(string) -> bool",
    f"{CIDR}.containsIP(string) -> bool",
    f"{CIDR}.containsIP({IP}) -> bool",
    f"{CIDR}.containsCIDR(string) -> bool",
    f"{CIDR}.containsCIDR({CIDR}) -> bool",
    f"{CIDR}.masked() -> {CIDR}",
    f"{CIDR}.prefixLength() -> int",
    # named formats
    f"format.named(string) -> optional_type<{FORMAT}>",
    *(f"format.{name}() -> {FORMAT}" for name in NAMES),
    f"{FORMAT}.validate(string) -> optional_type<list<string>>",
)


def environment_text(gates: frozenset[str], whole: bool = False) -> str:
    """The environment for the enabled ``gates`` as an environment file of the official runtime (YAML).

    ``whole`` leaves out the variables for the fields of ``device``, so that these are fields for the checker too.
    """
    variables = dict(VARIABLES)
    functions = list(FUNCTIONS)
    for gate in sorted(gates & GATES):
        variables |= GATED_VARIABLES.get(gate, {})
        functions += GATED_FUNCTIONS.get(gate, ())
    if whole:
        variables = {name: kind for name, kind in variables.items() if not name.startswith("device.")}
    by_name: dict[str, list[tuple[str, str]]] = {}
    for line in functions:
        signature, _, result = line.rpartition(" -> ")
        by_name.setdefault(_function_name(signature), []).append((signature, result))
    lines = ["stdlib:", "  exclude_functions:", *(f'  - name: "{name}"' for name in REPLACED)]
    lines += ["extensions:", *(f"  - name: {name}" for name in EXTENSIONS)]
    lines += ["variables:"]
    for name, kind in variables.items():
        lines += [f"  - name: {name}", f'    type: "{kind}"']
    lines += ["functions:"]
    for name, overloads in by_name.items():
        lines += [f'  - name: "{name}"', "    overloads:"]
        for signature, result in overloads:
            lines += [f"    - signature: '{_escaped(signature, name)}'", f'      return: "{result}"']
    return "\n".join(lines) + "\n"


_NAMESPACES = ("strings.", "format.", "ip.", "optional.")


def _function_name(signature: str) -> str:
    head = signature[: signature.index("(")]
    return head if head.startswith(_NAMESPACES) else head.rpartition(".")[2]


def _escaped(signature: str, name: str) -> str:
    """A name that is not a plain identifier is written with backslashes before its odd characters."""
    if name.startswith("_"):
        written = "".join("\\" + letter if letter in "<>=" else letter for letter in name)
        return written + signature[len(name) :]
    if name.startswith(_NAMESPACES):
        return name.replace(".", "\\.") + signature[len(name) :]
    return signature

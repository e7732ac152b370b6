"""The kinds of devices, one row for each. Discovery, options, messages and guides read this table.

It imports only the standard library, because the command reads it for its help.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

_NVIDIA, _AMD, _INTEL, _MOORE_THREADS, _HYGON, _METAX = 0x10DE, 0x1002, 0x8086, 0x1ED5, 0x1D94, 0x9999
_GPU_VENDORS = frozenset({_NVIDIA, _AMD, _INTEL, _MOORE_THREADS, _HYGON, _METAX})
_WITHOUT_CONSOLE = frozenset({0x0302, 0x0380})
"""Classes of displays that the VGA of a BMC never has."""


_BRIDGE = 0x06
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}[a-z0-9]", re.ASCII)
_MODEL = re.compile(r"([0-9a-f]{4}):([0-9a-f]{4})", re.ASCII)
_CLASS = re.compile(r"[0-9a-f]{2}(?:[0-9a-f]{2})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """How devices of a kind are recognised, and what is special about them."""

    name: str
    """Its name in options, in the attribute ``kind``, and in the driver of its pools: ``gpu``; of what is no PCI
    function also in the name of its pools."""
    plural: str
    """Its name in messages: ``GPUs``."""
    classes: Mapping[str, frozenset[int] | None]
    """The vendors of each PCI class; None: all vendors. ``02`` is a base class, ``0108`` also has the subclass. Empty:
    its devices are not PCI functions."""
    description: str
    """Which devices it contains, for docs/inventory.md."""
    offered: str
    """Whether they are offered, for docs/inventory.md."""
    device_ids: frozenset[tuple[int, int]] | None = None
    """The models, each by vendor and device ID, for a kind whose PCI class others have too; None: all."""
    is_offered: bool = True
    """False: the host itself needs these devices, always."""
    takes_whole_slot: bool = False
    """The other functions of the slot go with such a device, such as the audio function of a GPU."""
    shares_with_host: bool = False
    """Its virtual functions are usable while the host uses the card (T4)."""
    needs_erasing: bool = False
    """Not offered before a policy says how devices are erased between their owners (T7)."""
    sysfs_class: str = ""
    """The class of sysfs whose members have its devices, if these are no PCI functions: ``mdev_bus``."""
    parents: str = ""
    """What such a member is, as MODULE:CLASS: a subclass of ``devalloc.inventory.device_parents.DeviceParent``."""

    def matches(self, subclass: int, vendor: int, device: int | None) -> bool:
        """True for a PCI function of this kind.

        ``subclass``: with the base class, such as 0x0302. ``device``: its device ID, None if the host does not say.
        """
        if self.device_ids is not None and (vendor, device) not in self.device_ids:
            return False
        return self.has_class(subclass, vendor)

    def has_class(self, subclass: int, vendor: int) -> bool:
        """True for a PCI function of one of its classes."""
        code = f"{subclass:04x}"
        for each in (code, code[:2]):
            if each in self.classes:
                vendors = self.classes[each]
                if vendors is None or vendor in vendors:
                    return True
        return False


NIC = DeviceKind(
    "nic", "NICs", {"02": None}, "network controllers", "yes, unless the host needs them", shares_with_host=True
)
STORAGE = DeviceKind(
    "storage",
    "NVMe devices",
    {"0108": None},
    "NVMe",
    "only with `--erase-policy external`, see [below](#storage)",
    needs_erasing=True,
)
MDEV = DeviceKind(
    "mdev",
    "mediated devices",
    {},
    "mediated devices for PCI slots (`vfio-pci`) of a parent that is not a PCI function",
    "yes",
    sysfs_class="mdev_bus",
    parents="devalloc.inventory.mdev_parents:MdevParent",
)
DEVICE_KINDS = {
    kind.name: kind
    for kind in (
        DeviceKind(
            "gpu",
            "GPUs",
            {
                "0300": frozenset({_NVIDIA, _AMD, _INTEL}),  # VGA: not that of a BMC or an emulator
                "0302": _GPU_VENDORS,  # 3D controller
                "0380": _GPU_VENDORS,  # other display controller: not that of an emulator
                "1200": _GPU_VENDORS - {_INTEL},  # processing accelerator; of Intel these are NPUs and FPGAs
            },
            "PCI classes 0302, 0380, 1200 of GPU vendors (1200 not of Intel); class 0300 of NVIDIA, AMD, Intel",
            "yes, except the boot display",
            takes_whole_slot=True,
        ),
        NIC,
        DeviceKind(
            "accelerator",
            "accelerators",
            {"12": None, "0b40": None},  # processing accelerators; co-processors such as QAT and vector engines
            "processing accelerators: NPUs, FPGAs, QAT, Gaudi",
            "yes",
        ),
        STORAGE,
        MDEV,
        DeviceKind(
            "display",
            "displays",
            {"03": None},
            "the VGA of a BMC or an emulator",
            "never",
            is_offered=False,
            takes_whole_slot=True,
        ),
    )
}
"""By name. A function that several rows match has the kind of the first."""

DEFAULT_ALLOWED = ("gpu", "vgpu", "vf")
"""What a node plugin may take from its host by default: kinds of whole cards, vGPUs, virtual functions."""
ALLOWABLE = tuple(dict.fromkeys((*DEFAULT_ALLOWED, *(kind.name for kind in DEVICE_KINDS.values() if kind.is_offered))))
"""What an admin can allow."""


def find_kind(subclass: int, vendor: int, device: int | None, added: Collection[DeviceKind] = ()) -> str | None:
    """The kind of a PCI function (see ``DeviceKind.matches``); None: devalloc does not publish it.

    ``added``: kinds of the admin's (``read_added_kinds``). The models that they name come before the classes of the
    table, and their classes after. What the host may need (a VGA, a bridge), and what holds data, stays what it is.
    """
    built_in = next((kind for kind in DEVICE_KINDS.values() if kind.matches(subclass, vendor, device)), None)
    own = None if built_in is None else built_in.name
    is_needed = built_in is not None and not built_in.is_offered and subclass not in _WITHOUT_CONSOLE
    if subclass >> 8 == _BRIDGE or is_needed or (built_in is not None and built_in.needs_erasing):
        return own
    named = (kind.name for kind in added if kind.device_ids and (vendor, device) in kind.device_ids)
    return next(named, own) or next((kind.name for kind in added if kind.has_class(subclass, vendor)), None)


def read_added_kinds(texts: Iterable[str]) -> tuple[DeviceKind, ...]:
    """The kinds that an admin adds: ``NAME=ID[,ID...]``, of classes (``0107``, ``0c``) and models (``1000:00e6``).

    A name may be there several times. Raises ValueError.
    """
    classes: dict[str, dict[str, frozenset[int] | None]] = {}
    models: dict[str, set[tuple[int, int]]] = {}
    owners: dict[str, str] = {}
    for text in texts:
        name, _, listed = text.partition("=")
        if not listed:
            raise ValueError(f"invalid kind {text[:80]!r}: write NAME=ID[,ID...], such as hba=0107 or chip=1ae0:0063")
        if not _NAME.fullmatch(name):
            why = "a name has 2 to 32 lower-case letters, digits and '-', and begins with a letter"
            raise ValueError(f"invalid name of a kind {name[:40]!r}: {why}")
        if name in DEVICE_KINDS or name in DEFAULT_ALLOWED:
            raise ValueError(f"kind {name} exists already: choose another name")
        for one in listed.lower().split(","):
            if owners.setdefault(one, name) != name:
                raise ValueError(f"kind {name}: {one} is of kind {owners[one]} already; name it once")
            if model := _MODEL.fullmatch(one):
                models.setdefault(name, set()).add((int(model[1], 16), int(model[2], 16)))
            elif not _CLASS.fullmatch(one):
                raise ValueError(f"kind {name}: {one[:40]!r} is not a PCI class (0107) or model (1000:00e6)")
            else:
                _refuse_class(name, one)
                classes.setdefault(name, {})[one] = None
    return tuple(
        DeviceKind(
            name,
            f"devices of kind {name}",
            classes.get(name, {}),
            "as the admin says",
            "yes",
            device_ids=frozenset(models.get(name, ())),
        )
        for name in dict.fromkeys([*classes, *models])
    )


def _refuse_class(name: str, code: str) -> None:
    if code[:2] == f"{_BRIDGE:02x}":
        raise ValueError(f"kind {name}: the host needs its bridges (class {code})")
    owner = next((kind for kind in DEVICE_KINDS.values() if not {code, code[:2]}.isdisjoint(kind.classes)), None)
    if owner is not None:
        raise ValueError(f"kind {name}: class {code} is of kind {owner.name}; name models (VENDOR:DEVICE) instead")


def kinds_by_name(added: Iterable[DeviceKind] = ()) -> dict[str, DeviceKind]:
    """The kinds of the table and those that the admin adds."""
    return {**DEVICE_KINDS, **{kind.name: kind for kind in added}}


def allowable(added: Iterable[DeviceKind] = ()) -> tuple[str, ...]:
    """What an admin can allow, with the kinds that the admin adds."""
    return (*ALLOWABLE, *(kind.name for kind in added))


def offered_plurals(kinds: Collection[DeviceKind]) -> str:
    """Those of these kinds that are offered, or all if none is, for a sentence: ``GPUs, NICs or accelerators``."""
    *most, last = [kind.plural for kind in kinds if kind.is_offered] or [kind.plural for kind in kinds]
    return f"{', '.join(most)} or {last}" if most else last


def check_names(names: Collection[str], valid: Collection[str]) -> None:
    """Raise ValueError if a name is not among the valid ones."""
    if unknown := sorted(set(names) - set(valid)):
        raise ValueError(f"unknown kinds of devices: {', '.join(unknown)} (valid: {', '.join(sorted(valid))})")

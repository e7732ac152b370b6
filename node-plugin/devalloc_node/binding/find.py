"""From a granted device to what it is on this host."""

from __future__ import annotations

from typing import TypeVar

from devalloc.inventory import locate
from devalloc.inventory.locate import Located
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding.config import BindingConfig
from devalloc_node.errors import Denied
from devalloc_node.grant import GrantedDevice

Wanted = TypeVar("Wanted", bound=Located)


def located(tree: Tree, config: BindingConfig, granted: GrantedDevice) -> Located:
    """Raises Denied ``DeviceUnknown`` or ``DeviceGone``."""
    try:
        return locate.locate(tree, config.node_name, granted.pool, granted.device)
    except locate.DeviceUnknown as error:
        raise Denied("DeviceUnknown", str(error)) from error
    except locate.DeviceGone as error:
        raise Denied("DeviceGone", str(error), retryable=True) from error


def find(
    tree: Tree, config: BindingConfig, granted: GrantedDevice, wanted: type[Wanted], seen: Located | None = None
) -> Wanted:
    """As ``located``, for a binding that knows one form of devices. ``seen``: it was found already."""
    found = seen or located(tree, config, granted)
    if not isinstance(found, wanted):
        raise Denied("DeviceUnknown", f"{granted.device!r} is no longer the kind of device that it was")
    return found

"""Find the device of a grant on this host."""

from __future__ import annotations

from typing import TypeVar

from devalloc.inventory import locate
from devalloc.inventory.locate import LocatedDevice
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding.config import BindingConfig
from devalloc_node.errors import Denied
from devalloc_node.model.grant import GrantedDevice

Wanted = TypeVar("Wanted", bound=LocatedDevice)


def locate_device(tree: Tree, config: BindingConfig, granted: GrantedDevice) -> LocatedDevice:
    """Raises Denied ``DeviceUnknown`` or ``DeviceGone``."""
    try:
        return locate.locate(tree, config.node_name, granted.pool, granted.device)
    except locate.DeviceUnknown as error:
        raise Denied("DeviceUnknown", str(error)) from error
    except locate.DeviceGone as error:
        raise Denied("DeviceGone", str(error), retryable=True) from error


def locate_device_of_kind(
    tree: Tree,
    config: BindingConfig,
    granted: GrantedDevice,
    wanted: type[Wanted],
    located: LocatedDevice | None = None,
) -> Wanted:
    """As ``locate_device``, for a binding that knows one form of devices. ``located``: it was found already."""
    location = located or locate_device(tree, config, granted)
    if not isinstance(location, wanted):
        raise Denied("DeviceUnknown", f"{granted.device!r} is now another kind of device than when it was allocated")
    return location

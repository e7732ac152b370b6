"""Check that the profile in a VgpuConfig is the one that was allocated."""

from __future__ import annotations

from devalloc.api.configs import VgpuConfig
from devalloc.api.decode import decode
from devalloc.inventory import vgpu
from devalloc.inventory.pci import PciFunction
from devalloc_node.errors import Denied
from devalloc_node.model.grant import GrantedDevice


def refuse_other_profile(granted: GrantedDevice, function: PciFunction, profile_id: str) -> None:
    """Raises Denied ``ConfigInvalid`` where a config asks for another profile than was allocated."""
    configs = [
        config for config in (*granted.class_configs, *granted.claim_configs) if config.get("kind") == "VgpuConfig"
    ]
    if not configs:
        return
    parent = vgpu.read_parent(function, profile_id)
    names = {profile.name for profile in parent.profiles if profile.id == profile_id} if parent else set()
    for config in configs:
        wanted = decode(dict(config)).object
        if not isinstance(wanted, VgpuConfig) or wanted.spec.profile not in {profile_id, *names}:
            requested = wanted.spec.profile if isinstance(wanted, VgpuConfig) else "something unreadable"
            raise Denied("ConfigInvalid", f"a VgpuConfig requests {requested}, but {granted.device} is {profile_id}")

"""What to ask an admin for, after an API server has refused a request of a user."""

from __future__ import annotations

import re
from typing import Final

from devalloc.api.kinds import API_KINDS

_REFUSED: Final = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>[a-z]+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
"""The words of RBAC."""
_READS: Final = ("get", "list", "watch")
_PART = re.compile(r"system:serviceaccount:[^:]*:devalloc-.*")
"""Users that are parts of devalloc, whose rights come with its installation."""
_MACHINES: Final = ("VirtualMachine", "VirtualMachineMigration", "VirtualMachineReplicaSet")


def role_hint(refusal: str) -> str:
    """The role that has the missing right, as the end of a sentence; "" if no role for people has it."""
    refused = _REFUSED.search(refusal)
    if refused is None or _PART.fullmatch(refused["user"]):
        return ""
    names = (refused["group"], refused["resource"])
    kind = next((each for each in API_KINDS.values() if (each.group, each.plural) == names), None)
    if kind is None:
        return ""
    if refused["verb"] in _READS:
        role = "devalloc-classes" if kind.kind == "DeviceClass" else "view"
    elif not kind.namespaced:
        role = "devalloc-fleet"
    else:
        role = "devalloc-machines" if kind.kind in _MACHINES else "edit"
    namespace = refused["namespace"]
    binding = f"RoleBinding in namespace {namespace}" if namespace else "ClusterRoleBinding"
    return f"; ask an admin for ClusterRole {role}, by a {binding}"

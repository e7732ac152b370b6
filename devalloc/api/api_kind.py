"""A kind of objects, with its names and where its model is: what a package needs to add one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devalloc.api.fields import ApiModel


@cache
def _model(path: str) -> type[ApiModel]:
    module, _, name = path.partition(":")
    model: type[ApiModel] = getattr(import_module(module), name)
    return model


@dataclass(frozen=True, slots=True)
class ApiKind:
    """A kind, with its names on the command line and in the Kubernetes API."""

    kind: str
    api_version: str
    plural: str
    singular: str
    short_names: tuple[str, ...]
    namespaced: bool
    model_path: str = "devalloc.api.device_class:ConfigObject"
    """Where its model is: MODULE:CLASS."""
    has_status: bool = False
    is_optional: bool = True
    """A cluster may have no CRD of it: one of another package, or until it is upgraded."""

    @property
    def model(self) -> type[ApiModel]:
        """Its model, which is imported when it is used first: many know kinds by their names only."""
        return _model(self.model_path)

    @property
    def group(self) -> str:
        return self.api_version.partition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.partition("/")[2]

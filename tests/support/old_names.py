"""Today's names for the modules of the previous release, so that the tests' support runs beside either version.

A release keeps its modules where they were. What a test starts in the previous release is of this version, and imports
by the names of this version; ``install`` has those imports end at the modules and names that the release has. A table,
``tests/upgrade/names-VERSION.json``, says which: ``modules`` maps a dotted name of today to those that it was made of,
and ``names`` maps, for each of these, a name of today to the one that it had. ``make previous`` removes the table.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

ENVIRONMENT = "DEVALLOC_OLD_NAMES"
"""names the file with the table, in processes of the previous release"""


class _Renamed(ModuleType):
    """A module in which a name of today stands for the one that it had, also when a test replaces it."""

    _home: Mapping[str, tuple[str, str]] = MappingProxyType({})
    """name of today: module and name of the release"""
    _origins: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name in self._home:
            module, old = self._home[name]
            return getattr(importlib.import_module(module), old)
        for origin in self._origins:
            module = sys.modules.get(origin) or importlib.import_module(origin)
            if module is not self and name in vars(module):
                return vars(module)[name]
        raise AttributeError(f"module {self.__name__!r} of the previous release has no {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        module, old = self._place(name)
        if module is self:
            super().__setattr__(old, value)
        else:
            setattr(module, old, value)

    def __delattr__(self, name: str) -> None:
        module, old = self._place(name)
        if module is self:
            super().__delattr__(old)
        else:
            delattr(module, old)
            vars(self)["_home"] = {**self._home, name: (module.__name__, old)}  # where it belongs when it comes back

    def _place(self, name: str) -> tuple[ModuleType, str]:
        """The module that has a name of today, and its name there."""
        if name in self._home:
            module, old = self._home[name]
            return (self if module == self.__name__ else importlib.import_module(module)), old
        for origin in self._origins:
            if origin != self.__name__ and name in vars(importlib.import_module(origin)):
                return importlib.import_module(origin), name
        return self, name


class _Finder(MetaPathFinder, Loader):
    """Finds modules by the names of today."""

    def __init__(self, modules: Mapping[str, Sequence[str]], names: Mapping[str, Mapping[str, str]]) -> None:
        self._modules = {name: list(origins) for name, origins in modules.items()}
        self._names = names
        for name in [*modules]:  # packages that the release does not have
            while name := name.rpartition(".")[0]:
                self._modules.setdefault(name, [])

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname not in self._modules:
            return None
        real = PathFinder.find_spec(fullname, path, target)
        if real is None or real.loader is None or not self._is_of_the_release(real):
            return ModuleSpec(fullname, self, is_package=True)
        real.loader = _InPlace(real.loader, self)
        return real

    @staticmethod
    def _is_of_the_release(spec: ModuleSpec) -> bool:
        """Whether it lies beside the own package of the release: of others, those of this version are installed."""
        own = PathFinder.find_spec("devalloc")
        folders = () if own is None else [Path(each).parent for each in own.submodule_search_locations or ()]
        return any(Path(spec.origin or "").is_relative_to(folder) for folder in folders)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Renamed(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        self.rename(module)

    def rename(self, module: ModuleType) -> None:
        """Give a module the names of today, besides those that it has."""
        origins = self._modules[module.__name__]
        home = {new: (origin, old) for origin in origins for new, old in self._names.get(origin, {}).items()}
        vars(module).update(_home=home, _origins=origins)
        vars(module).setdefault("__path__", [])


class _InPlace(Loader):
    """Loads a module that the release has by this name, and adds the names of today."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._finder.rename(module)
        module.__class__ = _Renamed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def install(table: Path) -> None:
    """Import by the names of today from now on."""
    content = json.loads(table.read_text())
    sys.meta_path.insert(0, _Finder(content["modules"], content["names"]))

"""Shared JSON content that cannot be changed: still dicts and lists for all who read, compare or encode it."""

from __future__ import annotations

from typing import Any, NoReturn

from devalloc_node.model.step import Value


def frozen(value: Value) -> Value:
    """A copy of JSON content in which every attempt to change something raises TypeError; ``copy.deepcopy`` of it can
    be changed."""
    if isinstance(value, dict):
        return _FrozenDict({name: frozen(each) for name, each in value.items()})
    if isinstance(value, list):
        return _FrozenList(frozen(each) for each in value)
    return value


def _changeable(value: Value) -> Value:
    if isinstance(value, dict):
        return {name: _changeable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_changeable(each) for each in value]
    return value


def _refuse(self: object, *arguments: object, **named: object) -> NoReturn:
    raise TypeError("this content is shared with others and cannot be changed; change a copy.deepcopy of it")


class _FrozenDict(dict[str, Any]):
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __deepcopy__(self, memo: object) -> Value:
        return _changeable(self)


class _FrozenList(list[Any]):
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __deepcopy__(self, memo: object) -> Value:
        return _changeable(self)

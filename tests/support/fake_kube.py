"""An API server in memory, asked as ``devalloc.store.kubernetes.Client`` is: what it does the store's contract holds it
to, side by side with a real one.

It keeps revisions, generations, finalizers, the status apart, preconditions, watches with bookmarks, and forgets the
history of watches when told to. Any request can be made to fail before or after it is done, or to be the last one.
"""

from __future__ import annotations

import copy
import json
import pickle
import threading
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from devalloc.store.kubernetes.api_error import ApiError

Object = dict[str, Any]
Params = Mapping[str, str] | None


class ClientKilled(BaseException):
    """The process that asked is not there any more."""


class FakeKube:
    """All objects of a cluster; safe for threads."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.revision = 100
        self.objects: dict[str, Object] = {}
        """By path."""
        self.history: list[tuple[int, str, str, Object, Object | None]] = []
        """Revision, type, path, object, and what was there before."""
        self.forgotten = 0
        self.stores: Callable[[Object], Object] = lambda status: status
        """What it makes of a status that is written: it may fill in defaults, and drop what the kind does not have."""
        self.cuts = 0
        """How often all watches were cut."""
        self.applied: dict[tuple[str, str], Object] = {}
        """What was applied last, by path and manager."""
        self.users: dict[str, Object] = {}
        """By token."""
        self.allowed: Callable[[Object], bool] = lambda spec: True
        """Whether a user may, by the spec of a SubjectAccessReview."""
        with self.changed:
            self._put("/api/v1/namespaces/kube-system", {"metadata": {"name": "kube-system"}}, "ADDED")

    def forget(self) -> None:
        """No watch and no list of the past resumes from before now; those that are there are cut."""
        with self.changed:
            self.forgotten = self.revision
            self.history.clear()
            self.cut()

    def cut(self) -> None:
        """All watches."""
        with self.changed:
            self.cuts += 1
            self.changed.notify_all()

    def create(self, path: str, body: Object) -> Object:
        with self.changed:
            obj = _sent(body)
            obj.pop("status", None)
            at = f"{path}/{obj['metadata']['name']}"
            if at in self.objects:
                raise ApiError(409, "AlreadyExists", f"{at} already exists", {"name": obj["metadata"]["name"]})
            if obj["metadata"].get("resourceVersion"):
                raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
            obj["metadata"] |= {
                "uid": str(uuid.uuid4()),
                "generation": 1,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
            return self._put(at, obj, "ADDED")

    def replace(self, path: str, body: Object) -> Object:
        with self.changed:
            is_status, at = path.endswith("/status"), path.removesuffix("/status")
            old, new = self._there(at), _sent(body)
            for name in ("uid", "resourceVersion"):
                if new["metadata"].get(name) not in (None, old["metadata"][name]):
                    raise ApiError(409, "Conflict", f"the object has been modified: {name}", {"name": at})
            if is_status:
                meant = {**old, "status": new.get("status") and self.stores(new["status"])}
            else:
                own = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "resourceVersion")
                previous = {name: old["metadata"][name] for name in own if name in old["metadata"]}
                users = {k: v for k, v in new["metadata"].items() if k not in own and v not in (None, {}, [])}
                meant = {**new, "metadata": {**users, **previous}, "status": old.get("status")}
                if _spec(meant) != _spec(old):
                    meant["metadata"]["generation"] += 1
            if not meant.get("status"):
                meant.pop("status", None)
            if meant == old:
                return _copy(old)
            if "deletionTimestamp" in meant["metadata"] and not meant["metadata"].get("finalizers"):
                return self._gone(at, meant)
            return self._put(at, meant, "MODIFIED")

    def apply(self, path: str, body: Object, manager: str, *, dry_run: bool) -> Object:
        """Server-side apply, of one manager's fields: what it applied before and does not any more is gone."""
        with self.changed:
            old = _copy(self.objects.get(path, {}))
            _take_away(old, self.applied.get((path, manager), {}), body)
            new = _merged(old, _sent(body))
            new["metadata"].setdefault("managedFields", [{"manager": manager, "operation": "Apply"}])
            if body["kind"] == "CustomResourceDefinition":
                new["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
            if dry_run:
                return new
            self.applied[path, manager] = _sent(body)
            return self._put(path, new, "MODIFIED" if path in self.objects else "ADDED")

    def review(self, body: Object) -> Object:
        """Who a token is, or what a user may."""
        if body["kind"] == "SubjectAccessReview":
            return {**body, "status": {"allowed": self.allowed(body["spec"])}}
        user, audiences = self.users.get(body["spec"]["token"]), body["spec"].get("audiences", [])
        return {**body, "status": {} if user is None else {"authenticated": True, "user": user, "audiences": audiences}}

    def delete(self, path: str, uid: str, resource_version: str) -> Object:
        with self.changed:
            old = self._there(path)
            seen = resource_version or old["metadata"]["resourceVersion"]
            if (uid, seen) != (old["metadata"]["uid"], old["metadata"]["resourceVersion"]):
                raise ApiError(409, "Conflict", "Precondition failed", {"name": path})
            if not old["metadata"].get("finalizers"):
                self._gone(path, old)
                return {"kind": "Status", "status": "Success", "metadata": {}}
            if "deletionTimestamp" in old["metadata"]:
                return _copy(old)
            marked = _copy(old)
            marked["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:01Z"}
            marked["metadata"]["generation"] += 1
            return self._put(path, marked, "MODIFIED")

    def get(self, path: str) -> Object:
        with self.changed:
            return _copy(self._there(path))

    def list(self, path: str, params: Params) -> Object:
        with self.changed:
            params = params or {}
            revision = int(params.get("resourceVersion", self.revision))
            if revision < self.forgotten:
                raise ApiError(410, "Expired", "The resourceVersion for the provided list is too old.")
            matches = {at: obj for at, obj in self.objects.items() if _is_in(at, path)}
            for when, type_, at, _, _ in reversed(self.history):
                if when > revision and _is_in(at, path):
                    assert type_ == "ADDED", "this fake remembers no former states"
                    matches.pop(at, None)
            matches = {at: obj for at, obj in matches.items() if _is_selected(obj, params)}
            items = _copy([*matches.values()])
            return {"metadata": {"resourceVersion": str(revision)}, "items": items}

    def watch(self, path: str, params: Params, revision: int, stop: threading.Event) -> Iterator[Object]:
        if revision < self.forgotten:
            raise ApiError(410, "Expired", "too old resource version")
        cuts = self.cuts
        while not stop.is_set():
            with self.changed:
                first = bisect_right(self.history, revision, key=lambda each: each[0])
                since = [each for each in self.history[first:] if _is_in(each[2], path)]
                events = [
                    (when, appears_as, obj)
                    for when, type_, _, obj, before in since
                    if (appears_as := event_type(type_, obj, before, params or {}))
                ]
                if not events:
                    if self.cuts != cuts:
                        return
                    self.changed.wait(0.01)
                    continue
            for when, type_, obj in events:
                if self.cuts != cuts or stop.is_set():
                    return
                revision = when
                yield {"type": type_, "object": _copy(obj)}

    def _there(self, at: str) -> Object:
        if at not in self.objects:
            raise ApiError(404, "NotFound", f"{at} not found", {"name": at.rpartition("/")[2]})
        return self.objects[at]

    def _put(self, at: str, obj: Object, type_: str) -> Object:
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        obj["metadata"].setdefault("uid", str(uuid.uuid4()))
        before, self.objects[at] = self.objects.get(at), obj
        self.history.append((self.revision, type_, at, _copy(obj), _copy(before)))
        self.changed.notify_all()
        return _copy(obj)

    def _gone(self, at: str, last: Object) -> Object:
        self.revision += 1
        del self.objects[at]
        last = _copy(last)
        last["metadata"]["resourceVersion"] = str(self.revision)
        self.history.append((self.revision, "DELETED", at, last, _copy(last)))
        self.changed.notify_all()
        return _copy(last)


class FakeClient:
    """One process's way to it. ``before`` is called with the number and the words of each write, and then ``after``:
    what they raise is what the process sees."""

    def __init__(self, kube: FakeKube) -> None:
        self.kube = kube
        self.before: Callable[[int, str], None] = lambda number, what: None
        self.after: Callable[[int, str], None] = lambda number, what: None
        self.patience = 10.0
        """Seconds after which it gives a request up."""
        self.writes: list[str] = []
        self._lock = threading.Lock()
        self._request_counts: Counter[tuple[str, int]] = Counter()

    def requests(self) -> dict[tuple[str, int], int]:
        with self._lock:
            return dict(self._request_counts)

    def within(self, seconds: float) -> FakeClient:
        """The same process with less patience."""
        other = copy.copy(self)
        other.patience = seconds
        return other

    def get(self, path: str, params: Params = None) -> Object:
        if _is_collection(path):
            wanted = {name: value for name, value in (params or {}).items() if name != "limit"}
            return self._counted("list", lambda: self.kube.list(path, wanted))
        return self._counted("get", lambda: self.kube.get(path))

    def list(self, path: str, params: Params = None) -> Iterator[Object]:
        yield self._counted("list", lambda: self.kube.list(path, params))

    def create(self, path: str, body: Object, params: Params = None) -> Object:
        if (params or {}).get("dryRun") == "All":
            return self._counted("create", lambda: _sent(body))
        if body["kind"] in ("TokenReview", "SubjectAccessReview"):
            return self._counted("create", lambda: self.kube.review(body))
        return self._write("create", f"{path}/{body['metadata']['name']}", lambda: self.kube.create(path, body))

    def replace(self, path: str, body: Object) -> Object:
        return self._write("update", path, lambda: self.kube.replace(path, body))

    def apply(self, path: str, body: Object, manager: str, params: Params = None) -> Object:
        if (params or {}).get("dryRun") == "All":
            return self._counted("apply", lambda: self.kube.apply(path, body, manager, dry_run=True))
        return self._write("apply", path, lambda: self.kube.apply(path, body, manager, dry_run=False))

    def delete(self, path: str, uid: str, resource_version: str = "") -> Object | None:
        try:
            return self._write("delete", path, lambda: self.kube.delete(path, uid, resource_version))
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    def watch(
        self, path: str, params: Params, resource_version: str, stop: threading.Event, begun: Callable[[], None]
    ) -> Iterator[Object]:
        self._count("watch")
        begun()
        yield from self.kube.watch(path, params, int(resource_version), stop)

    def _write(self, verb: str, path: str, do: Callable[[], Object]) -> Object:
        with self._lock:
            number = len(self.writes)
            self.writes.append(f"{verb} {path}")
        self.before(number, self.writes[number])
        done = self._counted(verb, do)
        self.after(number, self.writes[number])
        return done

    def _counted(self, verb: str, do: Callable[[], Object]) -> Object:
        self._count(verb)
        return do()

    def _count(self, verb: str) -> None:
        with self._lock:
            self._request_counts[verb, 200] += 1


def _is_in(at: str, path: str) -> bool:
    """Whether an object's path is one that a list of ``path`` is of."""
    folder, _, _ = at.rpartition("/")
    if folder == path:
        return True
    root, _, plural = path.rpartition("/")
    return (
        folder.startswith(f"{root}/namespaces/") and folder.rpartition("/")[2] == plural and "/namespaces/" not in path
    )


def _is_collection(path: str) -> bool:
    """Whether it is that of a list, and not of one object."""
    root = 3 if path.startswith("/apis/") else 2
    return (len(path.strip("/").split("/")) - root) % 2 == 1


def _take_away(obj: Object, applied: Object, wanted: Object) -> None:
    """The fields that were applied and are not wanted any more."""
    for name, value in applied.items():
        if name not in wanted:
            obj.pop(name, None)
        elif isinstance(value, dict) and isinstance(wanted[name], dict) and isinstance(obj.get(name), dict):
            _take_away(obj[name], value, wanted[name])


def _merged(obj: Object, body: Object) -> Object:
    both = {
        name: _merged(obj[name], value) if isinstance(value, dict) and isinstance(obj.get(name), dict) else value
        for name, value in body.items()
    }
    return {**obj, **both}


def _is_of(obj: Object, selector: str) -> bool:
    """``selector``: of fields, such as ``spec.nodeName=a,type=Warning``."""
    for each in filter(None, selector.split(",")):
        path, _, value = each.partition("=")
        field: Any = obj
        for part in path.removesuffix("!").split("."):
            field = field.get(part) if isinstance(field, dict) else None
        if (field == value) == path.endswith("!"):
            return False
    return True


def _is_selected(obj: Object, params: Mapping[str, str]) -> bool:
    if not _is_of(obj, params.get("fieldSelector", "")):
        return False
    name, _, values = params.get("labelSelector", "").replace(" in (", "=").rstrip(")").partition("=")
    return not name or obj["metadata"].get("labels", {}).get(name) in values.split(",")


def event_type(type_: str, obj: Object, before: Object | None, params: Mapping[str, str]) -> str:
    """What an event is to a watch of those that selectors choose; empty for none. One that is no longer chosen
    counts as deleted."""
    was = before is not None and _is_selected(before, params)
    is_ = type_ != "DELETED" and _is_selected(obj, params)
    return {(True, True): type_, (False, True): "ADDED", (True, False): "DELETED", (False, False): ""}[was, is_]


def _copy(content: Any) -> Any:
    """As `copy.deepcopy` makes it, in a tenth of the time."""
    return pickle.loads(pickle.dumps(content, pickle.HIGHEST_PROTOCOL))


def _sent(body: Object) -> Object:
    """As it arrives: by JSON, which knows no tuples."""
    arrived: Object = json.loads(json.dumps(body))
    return arrived


def _spec(obj: Object) -> Object:
    return {k: v for k, v in obj.items() if k not in ("metadata", "status")}

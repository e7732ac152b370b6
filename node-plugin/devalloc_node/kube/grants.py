"""What ResourceClaims of resource.k8s.io/v1 give this node's devices to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from devalloc.api.decode import decode
from devalloc.api.device_class import VfConfig, VfioConfig, VgpuConfig
from devalloc.api.fields import is_subdomain_name
from devalloc.api.meta import POD_CLAIM_NAME
from devalloc.store.kubernetes.api_error import ApiError, Object
from devalloc.store.kubernetes.client import Client, path_segment
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.model.grant import ClaimRef, Configs, Grant, GrantedDevice, shown

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"
READ_SECONDS = 15.0
"""How long looking up a claim may take, tries included: the kubelet waits 45 s for all of prepare."""
MAX_DEVICES = 32
"""Results of a claim, as the API limits them."""


class ResourceClaimGrants:
    """Grants of ResourceClaims, asked of the API server each time: it alone knows. Safe for threads."""

    def __init__(self, client: Client, driver: str, node: str) -> None:
        self._client = client
        self._driver = driver
        self._node = node

    def get(self, ref: ClaimRef) -> Grant:
        """See ``Grants``. Of the claim's devices only those of our driver."""
        claim = self._read(ref)
        if claim is None:
            raise Denied("ClaimNotFound", f"ResourceClaim {ref} does not exist")
        uid = _at(claim, "metadata", "uid")
        if uid != ref.uid:
            raise Denied("ClaimUidMismatch", f"ResourceClaim {ref} now has the UID {uid}, not {ref.uid}")
        allocation = _at(claim, "status", "allocation")
        if not allocation:
            raise Denied("ClaimNotAllocated", f"ResourceClaim {ref} is not allocated")
        try:
            devices = tuple(self._devices(allocation))
            nodes = _nodes(allocation)
            users = tuple(user["name"] for user in _at(claim, "status", "reservedFor") or [])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            message = f"cannot read the allocation of ResourceClaim {ref}: {type(error).__name__} {error}"
            raise Denied("ClaimInvalid", message) from None
        if not devices:
            raise Denied("ClaimElsewhere", f"ResourceClaim {ref} has no device of driver {self._driver}")
        if nodes is not None and self._node not in nodes:
            raise Denied("ClaimElsewhere", f"ResourceClaim {ref} is allocated on {', '.join(nodes)}, not {self._node}")
        annotations = _at(claim, "metadata", "annotations") or {}
        return Grant(ref, "ResourceClaim", devices, users, annotations.get(POD_CLAIM_NAME))

    def look(self, ref: ClaimRef) -> Grant:
        return self.get(ref)

    def is_gone(self, ref: ClaimRef) -> bool:
        """See ``Grants``. A path that the server does not know, a refusal and silence are no proof."""
        claim = self._read(ref)
        return claim is None or _at(claim, "metadata", "uid") != ref.uid

    def belongs_to_node(self, ref: ClaimRef, node_name: str) -> bool:
        """See ``Grants``. An allocation that names no node may be that node's."""
        claim = self._read(ref)
        if claim is None or _at(claim, "metadata", "uid") != ref.uid:
            return False
        if not (allocation := _at(claim, "status", "allocation")):
            return False
        try:
            return node_name in (_nodes(allocation) or [node_name])
        except (KeyError, TypeError, AttributeError):
            return True

    def identity(self) -> str:
        """See ``Grants``: the UID of the namespace kube-system, which identifies the cluster; if the
        plugin may not read it (a node may not), that of the node itself."""
        for what, path in (("namespace kube-system", "/api/v1/namespaces/kube-system"), ("node", self._node_path)):
            try:
                answer = self._client.get(path, until=Deadline.after(READ_SECONDS).at)
            except ApiError as error:
                if error.status != 403 or path == self._node_path:
                    raise Failed("ApiUnavailable", f"cannot identify the cluster: {what}: {error}") from None
                continue
            if (uid := _at(answer, "metadata", "uid")) is None:
                raise Failed("ApiUnavailable", f"cannot identify the cluster: {what} has no UID in the answer")
            return f"{what} {uid}"
        raise AssertionError("the node is the last resort")

    def let_go(self, ref: ClaimRef) -> None:
        """Nothing to do: a claim is released when its pods are gone, and they go after the kubelet unprepared."""

    def held(self) -> Sequence[ClaimRef]:
        """See ``Grants``: the kubelet keeps count."""
        return ()

    @property
    def _node_path(self) -> str:
        return f"/api/v1/nodes/{path_segment(self._node)}"

    def _read(self, ref: ClaimRef) -> Object | None:
        """The object of that name; None when the server says that there is none."""
        if not (is_subdomain_name(ref.namespace) and is_subdomain_name(ref.name)):
            return None  # no object has such a name
        path = CLAIMS.format(path_segment(ref.namespace), path_segment(ref.name))
        try:
            claim = self._client.get(path, until=Deadline.after(READ_SECONDS).at)
        except ApiError as error:
            if error.is_not_found and error.details.get("name") == ref.name:
                return None
            status = f" (HTTP {error.status})" if error.status else ""
            raise Failed("ApiUnavailable", f"cannot read ResourceClaim {ref}{status}: {error}") from None
        if not isinstance(_at(claim, "metadata", "uid"), str):
            raise Failed("ApiUnavailable", f"cannot read ResourceClaim {ref}: the answer has no UID")
        return claim

    def _devices(self, allocation: Mapping[str, Any]) -> Iterator[GrantedDevice]:
        content = allocation.get("devices") or {}
        results = [result for result in content.get("results") or [] if result["driver"] == self._driver]
        if len(results) > MAX_DEVICES:
            raise ValueError(f"has {len(results)} devices, more than {MAX_DEVICES}")
        configs = content.get("config") or []
        for result in results:
            request, pool, device = (_text(result, name) for name in ("request", "pool", "device"))
            share = result.get("shareID")
            yield GrantedDevice(
                requests=(request.partition("/")[0],),
                pool=pool,
                device=device,
                admin=result.get("adminAccess") is True,
                share=None if share is None else _text(result, "shareID"),
                class_configs=self._configs(configs, request, "FromClass"),
                claim_configs=self._configs(configs, request, "FromClaim"),
            )

    def _configs(self, configs: list[Any], request: str, source: str) -> Configs:
        """What of one source applies to a request; later entries weigh more."""
        matching = []
        for config in configs:
            named = config.get("requests") or []
            opaque = config.get("opaque")
            if config["source"] != source or opaque is None or opaque["driver"] != self._driver:
                continue
            if named and request not in named and request.partition("/")[0] not in named:
                continue
            if not isinstance(opaque["parameters"], dict):
                raise ValueError("has parameters that are not an object")
            matching.append(_configuration(opaque["parameters"], request))
        return tuple(reversed(matching))


def _configuration(parameters: Mapping[str, Any], request: str) -> Mapping[str, Any]:
    """Parameters for our driver as a configuration object; they need no name. Raises Denied: what is not understood
    must not be passed over, for it may be what confines the device."""
    manifest = {"metadata": {"name": "parameters"}, **parameters}
    decoded = decode(manifest)
    if not isinstance(decoded.object, VfConfig | VfioConfig | VgpuConfig):
        what = "; ".join(f"{problem.path}: {problem.message}" for problem in decoded.problems[:3])
        raise Denied(
            "ConfigInvalid",
            f"the parameters for request {shown(request)} are not a VfConfig, VfioConfig or VgpuConfig: "
            f"{what or shown(str(parameters.get('kind')))}",
        )
    return manifest


def _nodes(allocation: Mapping[str, Any]) -> list[str] | None:
    """The nodes that the allocation is tied to by name; None when it is not."""
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    names: list[str] = []
    for term in terms:
        fields = [field for field in term.get("matchFields") or [] if field["key"] == "metadata.name"]
        if not fields:
            return None
        names += (name for field in fields if field["operator"] == "In" for name in field["values"])
    return names or None


def _text(result: Mapping[str, Any], name: str) -> str:
    value = result[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"has no {name}")
    return value


def _at(content: Any, *path: str) -> Any:
    for name in path:
        content = content.get(name) if isinstance(content, dict) else None
    return content

"""ConfigObject: an object of somebody else's API, which a ``configs`` reference may point at."""

from __future__ import annotations

from pydantic import ConfigDict

from devalloc.api.fields import ApiModel, LabelName, ObjectName, PlainName


class ForeignMeta(ApiModel):
    """Metadata of which only the identity is looked at."""

    model_config = ConfigDict(extra="allow")

    name: ObjectName
    namespace: LabelName | None = None


class ConfigObject(ApiModel):
    """Identity checked, everything else kept as it came."""

    model_config = ConfigDict(extra="allow")

    api_version: PlainName
    kind: PlainName
    metadata: ForeignMeta

    @property
    def key(self) -> tuple[str, str, str, str]:
        """(apiVersion, kind, namespace, name); the namespace is empty when there is none."""
        return self.api_version, self.kind, self.metadata.namespace or "", self.metadata.name

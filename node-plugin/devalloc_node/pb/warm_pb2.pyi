from devalloc_node.pb import node_pb2 as _node_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Setup(_message.Message):
    __slots__ = ("id", "namespace_path", "tap", "mac", "folder", "cpus", "numa_nodes", "qmp_socket", "address", "gateway", "nameservers")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_PATH_FIELD_NUMBER: _ClassVar[int]
    TAP_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODES_FIELD_NUMBER: _ClassVar[int]
    QMP_SOCKET_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    NAMESERVERS_FIELD_NUMBER: _ClassVar[int]
    id: str
    namespace_path: str
    tap: str
    mac: str
    folder: str
    cpus: _containers.RepeatedScalarFieldContainer[int]
    numa_nodes: _containers.RepeatedScalarFieldContainer[int]
    qmp_socket: str
    address: str
    gateway: str
    nameservers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., namespace_path: _Optional[str] = ..., tap: _Optional[str] = ..., mac: _Optional[str] = ..., folder: _Optional[str] = ..., cpus: _Optional[_Iterable[int]] = ..., numa_nodes: _Optional[_Iterable[int]] = ..., qmp_socket: _Optional[str] = ..., address: _Optional[str] = ..., gateway: _Optional[str] = ..., nameservers: _Optional[_Iterable[str]] = ...) -> None: ...

class TakeSetupRequest(_message.Message):
    __slots__ = ("owner", "request", "vcpus", "one_numa_node")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    VCPUS_FIELD_NUMBER: _ClassVar[int]
    ONE_NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    owner: str
    request: str
    vcpus: int
    one_numa_node: bool
    def __init__(self, owner: _Optional[str] = ..., request: _Optional[str] = ..., vcpus: _Optional[int] = ..., one_numa_node: _Optional[bool] = ...) -> None: ...

class TakeSetupReply(_message.Message):
    __slots__ = ("result", "setup")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    result: _node_pb2.Result
    setup: Setup
    def __init__(self, result: _Optional[_Union[_node_pb2.Result, _Mapping]] = ..., setup: _Optional[_Union[Setup, _Mapping]] = ...) -> None: ...

class ReturnSetupRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ReturnSetupReply(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: _node_pb2.Result
    def __init__(self, result: _Optional[_Union[_node_pb2.Result, _Mapping]] = ...) -> None: ...

class GetPoolRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakenSetup(_message.Message):
    __slots__ = ("setup", "owner", "request", "taken_ms")
    SETUP_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TAKEN_MS_FIELD_NUMBER: _ClassVar[int]
    setup: Setup
    owner: str
    request: str
    taken_ms: int
    def __init__(self, setup: _Optional[_Union[Setup, _Mapping]] = ..., owner: _Optional[str] = ..., request: _Optional[str] = ..., taken_ms: _Optional[int] = ...) -> None: ...

class GetPoolReply(_message.Message):
    __slots__ = ("target", "most", "ready", "making", "removing", "taken", "made", "failures", "problem")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    MAKING_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    target: int
    most: int
    ready: int
    making: int
    removing: int
    taken: _containers.RepeatedCompositeFieldContainer[TakenSetup]
    made: int
    failures: int
    problem: str
    def __init__(self, target: _Optional[int] = ..., most: _Optional[int] = ..., ready: _Optional[int] = ..., making: _Optional[int] = ..., removing: _Optional[int] = ..., taken: _Optional[_Iterable[_Union[TakenSetup, _Mapping]]] = ..., made: _Optional[int] = ..., failures: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

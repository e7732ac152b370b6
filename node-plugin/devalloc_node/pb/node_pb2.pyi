from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Change(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_UNSPECIFIED: _ClassVar[Change]
    CHANGE_IS: _ClassVar[Change]
    CHANGE_GONE: _ClassVar[Change]
    CHANGE_SYNCED: _ClassVar[Change]
CHANGE_UNSPECIFIED: Change
CHANGE_IS: Change
CHANGE_GONE: Change
CHANGE_SYNCED: Change

class Result(_message.Message):
    __slots__ = ("outcome", "code", "message", "retryable")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[Result.Outcome]
        DONE: _ClassVar[Result.Outcome]
        DENIED: _ClassVar[Result.Outcome]
        FAILED: _ClassVar[Result.Outcome]
        UNKNOWN: _ClassVar[Result.Outcome]
    OUTCOME_UNSPECIFIED: Result.Outcome
    DONE: Result.Outcome
    DENIED: Result.Outcome
    FAILED: Result.Outcome
    UNKNOWN: Result.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    outcome: Result.Outcome
    code: str
    message: str
    retryable: bool
    def __init__(self, outcome: _Optional[_Union[Result.Outcome, str]] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ...) -> None: ...

class ClaimRef(_message.Message):
    __slots__ = ("namespace", "name", "uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ...) -> None: ...

class MachineRef(_message.Message):
    __slots__ = ("namespace", "name")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("kind", "target", "before", "after", "shared", "done", "problem")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    kind: str
    target: str
    before: str
    after: str
    shared: str
    done: bool
    problem: str
    def __init__(self, kind: _Optional[str] = ..., target: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., shared: _Optional[str] = ..., done: _Optional[bool] = ..., problem: _Optional[str] = ...) -> None: ...

class PreparedDevice(_message.Message):
    __slots__ = ("requests", "pool", "device", "binding", "functions", "mdev_uuid", "sysfsdev", "nodes", "attributes", "admin", "share", "cdi_ids")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    MDEV_UUID_FIELD_NUMBER: _ClassVar[int]
    SYSFSDEV_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    CDI_IDS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedScalarFieldContainer[str]
    pool: str
    device: str
    binding: str
    functions: _containers.RepeatedScalarFieldContainer[str]
    mdev_uuid: str
    sysfsdev: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    attributes: _containers.ScalarMap[str, str]
    admin: bool
    share: str
    cdi_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, requests: _Optional[_Iterable[str]] = ..., pool: _Optional[str] = ..., device: _Optional[str] = ..., binding: _Optional[str] = ..., functions: _Optional[_Iterable[str]] = ..., mdev_uuid: _Optional[str] = ..., sysfsdev: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., attributes: _Optional[_Mapping[str, str]] = ..., admin: _Optional[bool] = ..., share: _Optional[str] = ..., cdi_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("claim", "state", "devices", "steps", "machines", "message")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Claim.State]
        PREPARING: _ClassVar[Claim.State]
        PREPARED: _ClassVar[Claim.State]
        UNPREPARING: _ClassVar[Claim.State]
        STUCK: _ClassVar[Claim.State]
    STATE_UNSPECIFIED: Claim.State
    PREPARING: Claim.State
    PREPARED: Claim.State
    UNPREPARING: Claim.State
    STUCK: Claim.State
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    claim: ClaimRef
    state: Claim.State
    devices: _containers.RepeatedCompositeFieldContainer[PreparedDevice]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    machines: _containers.RepeatedScalarFieldContainer[str]
    message: str
    def __init__(self, claim: _Optional[_Union[ClaimRef, _Mapping]] = ..., state: _Optional[_Union[Claim.State, str]] = ..., devices: _Optional[_Iterable[_Union[PreparedDevice, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., machines: _Optional[_Iterable[str]] = ..., message: _Optional[str] = ...) -> None: ...

class GetNodeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetNodeReply(_message.Message):
    __slots__ = ("version", "node_name", "boot_id", "started_ms", "journal", "allowed_kinds")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_KINDS_FIELD_NUMBER: _ClassVar[int]
    version: str
    node_name: str
    boot_id: str
    started_ms: int
    journal: Journal
    allowed_kinds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., node_name: _Optional[str] = ..., boot_id: _Optional[str] = ..., started_ms: _Optional[int] = ..., journal: _Optional[_Union[Journal, _Mapping]] = ..., allowed_kinds: _Optional[_Iterable[str]] = ...) -> None: ...

class Journal(_message.Message):
    __slots__ = ("path", "schema", "prepared_claims", "unfinished_claims", "stuck_claims", "withheld", "quarantined", "message")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PREPARED_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    STUCK_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    path: str
    schema: int
    prepared_claims: int
    unfinished_claims: int
    stuck_claims: int
    withheld: _containers.RepeatedCompositeFieldContainer[WithheldDevice]
    quarantined: int
    message: str
    def __init__(self, path: _Optional[str] = ..., schema: _Optional[int] = ..., prepared_claims: _Optional[int] = ..., unfinished_claims: _Optional[int] = ..., stuck_claims: _Optional[int] = ..., withheld: _Optional[_Iterable[_Union[WithheldDevice, _Mapping]]] = ..., quarantined: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class WithheldDevice(_message.Message):
    __slots__ = ("device", "reason", "since")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    device: str
    reason: str
    since: str
    def __init__(self, device: _Optional[str] = ..., reason: _Optional[str] = ..., since: _Optional[str] = ...) -> None: ...

class PrepareClaimRequest(_message.Message):
    __slots__ = ("claim", "dry_run")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    claim: ClaimRef
    dry_run: bool
    def __init__(self, claim: _Optional[_Union[ClaimRef, _Mapping]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class PrepareClaimReply(_message.Message):
    __slots__ = ("result", "claim")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    result: Result
    claim: Claim
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., claim: _Optional[_Union[Claim, _Mapping]] = ...) -> None: ...

class UnprepareClaimRequest(_message.Message):
    __slots__ = ("claim", "dry_run", "force")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    claim: ClaimRef
    dry_run: bool
    force: bool
    def __init__(self, claim: _Optional[_Union[ClaimRef, _Mapping]] = ..., dry_run: _Optional[bool] = ..., force: _Optional[bool] = ...) -> None: ...

class UnprepareClaimReply(_message.Message):
    __slots__ = ("result", "steps", "ended_machines", "found")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ENDED_MACHINES_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    result: Result
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    ended_machines: _containers.RepeatedScalarFieldContainer[str]
    found: bool
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., ended_machines: _Optional[_Iterable[str]] = ..., found: _Optional[bool] = ...) -> None: ...

class ListClaimsRequest(_message.Message):
    __slots__ = ("namespace", "steps")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    steps: bool
    def __init__(self, namespace: _Optional[str] = ..., steps: _Optional[bool] = ...) -> None: ...

class ListClaimsReply(_message.Message):
    __slots__ = ("claims",)
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    claims: _containers.RepeatedCompositeFieldContainer[Claim]
    def __init__(self, claims: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ...) -> None: ...

class AttachClaimRequest(_message.Message):
    __slots__ = ("claim", "machine")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    claim: ClaimRef
    machine: MachineRef
    def __init__(self, claim: _Optional[_Union[ClaimRef, _Mapping]] = ..., machine: _Optional[_Union[MachineRef, _Mapping]] = ...) -> None: ...

class AttachClaimReply(_message.Message):
    __slots__ = ("result", "devices")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    result: Result
    devices: _containers.RepeatedCompositeFieldContainer[MachineDevice]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[MachineDevice, _Mapping]]] = ...) -> None: ...

class DetachClaimRequest(_message.Message):
    __slots__ = ("claim", "machine", "force")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    claim: ClaimRef
    machine: MachineRef
    force: bool
    def __init__(self, claim: _Optional[_Union[ClaimRef, _Mapping]] = ..., machine: _Optional[_Union[MachineRef, _Mapping]] = ..., force: _Optional[bool] = ...) -> None: ...

class DetachClaimReply(_message.Message):
    __slots__ = ("result", "ended_machine", "found")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ENDED_MACHINE_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    result: Result
    ended_machine: bool
    found: bool
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., ended_machine: _Optional[bool] = ..., found: _Optional[bool] = ...) -> None: ...

class MachineSpec(_message.Message):
    __slots__ = ("cpu", "memory", "start", "nics", "pci_slots", "restart_policy", "powerdown_seconds", "node_name", "numa_policy", "disk_bytes", "disk_io_bytes_per_second", "scaling", "runner", "reserve_max", "guest_reports")
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NICS_FIELD_NUMBER: _ClassVar[int]
    PCI_SLOTS_FIELD_NUMBER: _ClassVar[int]
    RESTART_POLICY_FIELD_NUMBER: _ClassVar[int]
    POWERDOWN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    NUMA_POLICY_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_IO_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    RESERVE_MAX_FIELD_NUMBER: _ClassVar[int]
    GUEST_REPORTS_FIELD_NUMBER: _ClassVar[int]
    cpu: CpuBounds
    memory: MemoryBounds
    start: Start
    nics: _containers.RepeatedCompositeFieldContainer[Nic]
    pci_slots: int
    restart_policy: str
    powerdown_seconds: int
    node_name: str
    numa_policy: str
    disk_bytes: int
    disk_io_bytes_per_second: int
    scaling: MachineScaling
    runner: MachineRunner
    reserve_max: bool
    guest_reports: bool
    def __init__(self, cpu: _Optional[_Union[CpuBounds, _Mapping]] = ..., memory: _Optional[_Union[MemoryBounds, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., nics: _Optional[_Iterable[_Union[Nic, _Mapping]]] = ..., pci_slots: _Optional[int] = ..., restart_policy: _Optional[str] = ..., powerdown_seconds: _Optional[int] = ..., node_name: _Optional[str] = ..., numa_policy: _Optional[str] = ..., disk_bytes: _Optional[int] = ..., disk_io_bytes_per_second: _Optional[int] = ..., scaling: _Optional[_Union[MachineScaling, _Mapping]] = ..., runner: _Optional[_Union[MachineRunner, _Mapping]] = ..., reserve_max: _Optional[bool] = ..., guest_reports: _Optional[bool] = ...) -> None: ...

class MachineScaling(_message.Message):
    __slots__ = ("address", "protocol", "monitor_port", "metrics_port", "load_average_fraction_target", "memory_usage_fraction_target", "memory_total_fraction_target", "enable_lfc_metrics", "lfc_metrics_port", "lfc_to_memory_ratio", "lfc_window_size_minutes", "lfc_min_wait_before_downscale_minutes", "lfc_use_largest_window", "cpu_stable_zone_ratio", "cpu_mixed_zone_ratio")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    MONITOR_PORT_FIELD_NUMBER: _ClassVar[int]
    METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    LOAD_AVERAGE_FRACTION_TARGET_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USAGE_FRACTION_TARGET_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FRACTION_TARGET_FIELD_NUMBER: _ClassVar[int]
    ENABLE_LFC_METRICS_FIELD_NUMBER: _ClassVar[int]
    LFC_METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    LFC_TO_MEMORY_RATIO_FIELD_NUMBER: _ClassVar[int]
    LFC_WINDOW_SIZE_MINUTES_FIELD_NUMBER: _ClassVar[int]
    LFC_MIN_WAIT_BEFORE_DOWNSCALE_MINUTES_FIELD_NUMBER: _ClassVar[int]
    LFC_USE_LARGEST_WINDOW_FIELD_NUMBER: _ClassVar[int]
    CPU_STABLE_ZONE_RATIO_FIELD_NUMBER: _ClassVar[int]
    CPU_MIXED_ZONE_RATIO_FIELD_NUMBER: _ClassVar[int]
    address: str
    protocol: str
    monitor_port: int
    metrics_port: int
    load_average_fraction_target: float
    memory_usage_fraction_target: float
    memory_total_fraction_target: float
    enable_lfc_metrics: bool
    lfc_metrics_port: int
    lfc_to_memory_ratio: float
    lfc_window_size_minutes: int
    lfc_min_wait_before_downscale_minutes: int
    lfc_use_largest_window: bool
    cpu_stable_zone_ratio: float
    cpu_mixed_zone_ratio: float
    def __init__(self, address: _Optional[str] = ..., protocol: _Optional[str] = ..., monitor_port: _Optional[int] = ..., metrics_port: _Optional[int] = ..., load_average_fraction_target: _Optional[float] = ..., memory_usage_fraction_target: _Optional[float] = ..., memory_total_fraction_target: _Optional[float] = ..., enable_lfc_metrics: _Optional[bool] = ..., lfc_metrics_port: _Optional[int] = ..., lfc_to_memory_ratio: _Optional[float] = ..., lfc_window_size_minutes: _Optional[int] = ..., lfc_min_wait_before_downscale_minutes: _Optional[int] = ..., lfc_use_largest_window: _Optional[bool] = ..., cpu_stable_zone_ratio: _Optional[float] = ..., cpu_mixed_zone_ratio: _Optional[float] = ...) -> None: ...

class MachineRunner(_message.Message):
    __slots__ = ("address", "port")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    address: str
    port: int
    def __init__(self, address: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class CpuBounds(_message.Message):
    __slots__ = ("min_milli", "use_milli", "max_milli")
    MIN_MILLI_FIELD_NUMBER: _ClassVar[int]
    USE_MILLI_FIELD_NUMBER: _ClassVar[int]
    MAX_MILLI_FIELD_NUMBER: _ClassVar[int]
    min_milli: int
    use_milli: int
    max_milli: int
    def __init__(self, min_milli: _Optional[int] = ..., use_milli: _Optional[int] = ..., max_milli: _Optional[int] = ...) -> None: ...

class MemoryBounds(_message.Message):
    __slots__ = ("min_bytes", "use_bytes", "max_bytes", "method", "slot_size_bytes", "huge_pages")
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    USE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    SLOT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HUGE_PAGES_FIELD_NUMBER: _ClassVar[int]
    min_bytes: int
    use_bytes: int
    max_bytes: int
    method: str
    slot_size_bytes: int
    huge_pages: str
    def __init__(self, min_bytes: _Optional[int] = ..., use_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., method: _Optional[str] = ..., slot_size_bytes: _Optional[int] = ..., huge_pages: _Optional[str] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("kernel", "initrd", "append", "disks", "iommu", "numa_node", "pinned", "pci_window_bytes", "firmware", "tpm", "cloud_init")
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    INITRD_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    IOMMU_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    PCI_WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRMWARE_FIELD_NUMBER: _ClassVar[int]
    TPM_FIELD_NUMBER: _ClassVar[int]
    CLOUD_INIT_FIELD_NUMBER: _ClassVar[int]
    kernel: str
    initrd: str
    append: str
    disks: _containers.RepeatedCompositeFieldContainer[Disk]
    iommu: bool
    numa_node: int
    pinned: bool
    pci_window_bytes: int
    firmware: Firmware
    tpm: bool
    cloud_init: CloudInit
    def __init__(self, kernel: _Optional[str] = ..., initrd: _Optional[str] = ..., append: _Optional[str] = ..., disks: _Optional[_Iterable[_Union[Disk, _Mapping]]] = ..., iommu: _Optional[bool] = ..., numa_node: _Optional[int] = ..., pinned: _Optional[bool] = ..., pci_window_bytes: _Optional[int] = ..., firmware: _Optional[_Union[Firmware, _Mapping]] = ..., tpm: _Optional[bool] = ..., cloud_init: _Optional[_Union[CloudInit, _Mapping]] = ...) -> None: ...

class CloudInit(_message.Message):
    __slots__ = ("user_data", "network_data")
    USER_DATA_FIELD_NUMBER: _ClassVar[int]
    NETWORK_DATA_FIELD_NUMBER: _ClassVar[int]
    user_data: str
    network_data: str
    def __init__(self, user_data: _Optional[str] = ..., network_data: _Optional[str] = ...) -> None: ...

class Firmware(_message.Message):
    __slots__ = ("type", "secure_boot")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SECURE_BOOT_FIELD_NUMBER: _ClassVar[int]
    type: str
    secure_boot: bool
    def __init__(self, type: _Optional[str] = ..., secure_boot: _Optional[bool] = ...) -> None: ...

class Disk(_message.Message):
    __slots__ = ("path", "format", "read_only", "device", "clone")
    PATH_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CLONE_FIELD_NUMBER: _ClassVar[int]
    path: str
    format: str
    read_only: bool
    device: str
    clone: str
    def __init__(self, path: _Optional[str] = ..., format: _Optional[str] = ..., read_only: _Optional[bool] = ..., device: _Optional[str] = ..., clone: _Optional[str] = ...) -> None: ...

class Nic(_message.Message):
    __slots__ = ("model", "backend", "interface", "mac", "bandwidth_bytes_per_second")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    model: str
    backend: str
    interface: str
    mac: str
    bandwidth_bytes_per_second: int
    def __init__(self, model: _Optional[str] = ..., backend: _Optional[str] = ..., interface: _Optional[str] = ..., mac: _Optional[str] = ..., bandwidth_bytes_per_second: _Optional[int] = ...) -> None: ...

class Amounts(_message.Message):
    __slots__ = ("cpu_milli", "vcpus", "memory_bytes")
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    VCPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    cpu_milli: int
    vcpus: int
    memory_bytes: int
    def __init__(self, cpu_milli: _Optional[int] = ..., vcpus: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class MachineDevice(_message.Message):
    __slots__ = ("id", "claim", "pool", "device", "host", "name", "disk", "nic")
    ID_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    NIC_FIELD_NUMBER: _ClassVar[int]
    id: str
    claim: ClaimRef
    pool: str
    device: str
    host: str
    name: str
    disk: Disk
    nic: Nic
    def __init__(self, id: _Optional[str] = ..., claim: _Optional[_Union[ClaimRef, _Mapping]] = ..., pool: _Optional[str] = ..., device: _Optional[str] = ..., host: _Optional[str] = ..., name: _Optional[str] = ..., disk: _Optional[_Union[Disk, _Mapping]] = ..., nic: _Optional[_Union[Nic, _Mapping]] = ...) -> None: ...

class Machine(_message.Message):
    __slots__ = ("machine", "phase", "wanted", "permitted", "applied", "observed", "reason", "message", "devices", "pid", "machine_id", "qmp_socket", "adopted", "taps", "spec", "scaling", "network_address", "guest_report")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PHASE_UNSPECIFIED: _ClassVar[Machine.Phase]
        PENDING: _ClassVar[Machine.Phase]
        STARTING: _ClassVar[Machine.Phase]
        RUNNING: _ClassVar[Machine.Phase]
        STOPPING: _ClassVar[Machine.Phase]
        STOPPED: _ClassVar[Machine.Phase]
        FAILED: _ClassVar[Machine.Phase]
        UNKNOWN: _ClassVar[Machine.Phase]
    PHASE_UNSPECIFIED: Machine.Phase
    PENDING: Machine.Phase
    STARTING: Machine.Phase
    RUNNING: Machine.Phase
    STOPPING: Machine.Phase
    STOPPED: Machine.Phase
    FAILED: Machine.Phase
    UNKNOWN: Machine.Phase
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    PERMITTED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MACHINE_ID_FIELD_NUMBER: _ClassVar[int]
    QMP_SOCKET_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    TAPS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    NETWORK_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GUEST_REPORT_FIELD_NUMBER: _ClassVar[int]
    machine: MachineRef
    phase: Machine.Phase
    wanted: Amounts
    permitted: Amounts
    applied: Amounts
    observed: Amounts
    reason: str
    message: str
    devices: _containers.RepeatedCompositeFieldContainer[MachineDevice]
    pid: int
    machine_id: str
    qmp_socket: str
    adopted: bool
    taps: _containers.RepeatedScalarFieldContainer[str]
    spec: MachineSpec
    scaling: Scaling
    network_address: str
    guest_report: GuestReport
    def __init__(self, machine: _Optional[_Union[MachineRef, _Mapping]] = ..., phase: _Optional[_Union[Machine.Phase, str]] = ..., wanted: _Optional[_Union[Amounts, _Mapping]] = ..., permitted: _Optional[_Union[Amounts, _Mapping]] = ..., applied: _Optional[_Union[Amounts, _Mapping]] = ..., observed: _Optional[_Union[Amounts, _Mapping]] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[MachineDevice, _Mapping]]] = ..., pid: _Optional[int] = ..., machine_id: _Optional[str] = ..., qmp_socket: _Optional[str] = ..., adopted: _Optional[bool] = ..., taps: _Optional[_Iterable[str]] = ..., spec: _Optional[_Union[MachineSpec, _Mapping]] = ..., scaling: _Optional[_Union[Scaling, _Mapping]] = ..., network_address: _Optional[str] = ..., guest_report: _Optional[_Union[GuestReport, _Mapping]] = ...) -> None: ...

class GuestReport(_message.Message):
    __slots__ = ("status", "message")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    status: str
    message: str
    def __init__(self, status: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Scaling(_message.Message):
    __slots__ = ("applied", "guest_observed", "load1", "memory_used_bytes", "reason", "message")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    GUEST_OBSERVED_FIELD_NUMBER: _ClassVar[int]
    LOAD1_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    applied: Amounts
    guest_observed: Amounts
    load1: float
    memory_used_bytes: int
    reason: str
    message: str
    def __init__(self, applied: _Optional[_Union[Amounts, _Mapping]] = ..., guest_observed: _Optional[_Union[Amounts, _Mapping]] = ..., load1: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class CreateMachineRequest(_message.Message):
    __slots__ = ("machine", "spec", "claims")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    machine: MachineRef
    spec: MachineSpec
    claims: _containers.RepeatedCompositeFieldContainer[ClaimRef]
    def __init__(self, machine: _Optional[_Union[MachineRef, _Mapping]] = ..., spec: _Optional[_Union[MachineSpec, _Mapping]] = ..., claims: _Optional[_Iterable[_Union[ClaimRef, _Mapping]]] = ...) -> None: ...

class CreateMachineReply(_message.Message):
    __slots__ = ("result", "machine")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    result: Result
    machine: Machine
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., machine: _Optional[_Union[Machine, _Mapping]] = ...) -> None: ...

class AdoptMachineRequest(_message.Message):
    __slots__ = ("machine", "qmp_socket", "cpu", "memory", "claims", "powerdown_seconds", "node_name", "disk_bytes", "disk_io_bytes_per_second", "scaling", "runner", "reserve_max")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    QMP_SOCKET_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    POWERDOWN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_IO_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    RESERVE_MAX_FIELD_NUMBER: _ClassVar[int]
    machine: MachineRef
    qmp_socket: str
    cpu: CpuBounds
    memory: MemoryBounds
    claims: _containers.RepeatedCompositeFieldContainer[ClaimRef]
    powerdown_seconds: int
    node_name: str
    disk_bytes: int
    disk_io_bytes_per_second: int
    scaling: MachineScaling
    runner: MachineRunner
    reserve_max: bool
    def __init__(self, machine: _Optional[_Union[MachineRef, _Mapping]] = ..., qmp_socket: _Optional[str] = ..., cpu: _Optional[_Union[CpuBounds, _Mapping]] = ..., memory: _Optional[_Union[MemoryBounds, _Mapping]] = ..., claims: _Optional[_Iterable[_Union[ClaimRef, _Mapping]]] = ..., powerdown_seconds: _Optional[int] = ..., node_name: _Optional[str] = ..., disk_bytes: _Optional[int] = ..., disk_io_bytes_per_second: _Optional[int] = ..., scaling: _Optional[_Union[MachineScaling, _Mapping]] = ..., runner: _Optional[_Union[MachineRunner, _Mapping]] = ..., reserve_max: _Optional[bool] = ...) -> None: ...

class AdoptMachineReply(_message.Message):
    __slots__ = ("result", "machine")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    result: Result
    machine: Machine
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., machine: _Optional[_Union[Machine, _Mapping]] = ...) -> None: ...

class StopMachineRequest(_message.Message):
    __slots__ = ("machine", "grace_ms", "force")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    machine: MachineRef
    grace_ms: int
    force: bool
    def __init__(self, machine: _Optional[_Union[MachineRef, _Mapping]] = ..., grace_ms: _Optional[int] = ..., force: _Optional[bool] = ...) -> None: ...

class StopMachineReply(_message.Message):
    __slots__ = ("result", "machine")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    result: Result
    machine: Machine
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., machine: _Optional[_Union[Machine, _Mapping]] = ...) -> None: ...

class DeleteMachineRequest(_message.Message):
    __slots__ = ("machine", "grace_ms", "force")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    machine: MachineRef
    grace_ms: int
    force: bool
    def __init__(self, machine: _Optional[_Union[MachineRef, _Mapping]] = ..., grace_ms: _Optional[int] = ..., force: _Optional[bool] = ...) -> None: ...

class DeleteMachineReply(_message.Message):
    __slots__ = ("result", "found")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    result: Result
    found: bool
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., found: _Optional[bool] = ...) -> None: ...

class ScaleMachineRequest(_message.Message):
    __slots__ = ("machine", "vcpus", "cpu_milli", "memory_bytes")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    VCPUS_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    machine: MachineRef
    vcpus: int
    cpu_milli: int
    memory_bytes: int
    def __init__(self, machine: _Optional[_Union[MachineRef, _Mapping]] = ..., vcpus: _Optional[int] = ..., cpu_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class ScaleMachineReply(_message.Message):
    __slots__ = ("result", "vcpus", "cpu", "memory", "observed")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    VCPUS_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    result: Result
    vcpus: Result
    cpu: Result
    memory: Result
    observed: Amounts
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., vcpus: _Optional[_Union[Result, _Mapping]] = ..., cpu: _Optional[_Union[Result, _Mapping]] = ..., memory: _Optional[_Union[Result, _Mapping]] = ..., observed: _Optional[_Union[Amounts, _Mapping]] = ...) -> None: ...

class PlugDeviceRequest(_message.Message):
    __slots__ = ("machine", "name", "disk", "nic")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    NIC_FIELD_NUMBER: _ClassVar[int]
    machine: MachineRef
    name: str
    disk: Disk
    nic: Nic
    def __init__(self, machine: _Optional[_Union[MachineRef, _Mapping]] = ..., name: _Optional[str] = ..., disk: _Optional[_Union[Disk, _Mapping]] = ..., nic: _Optional[_Union[Nic, _Mapping]] = ...) -> None: ...

class PlugDeviceReply(_message.Message):
    __slots__ = ("result", "device")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    result: Result
    device: MachineDevice
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., device: _Optional[_Union[MachineDevice, _Mapping]] = ...) -> None: ...

class UnplugDeviceRequest(_message.Message):
    __slots__ = ("machine", "name")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    machine: MachineRef
    name: str
    def __init__(self, machine: _Optional[_Union[MachineRef, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class UnplugDeviceReply(_message.Message):
    __slots__ = ("result", "found")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    result: Result
    found: bool
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., found: _Optional[bool] = ...) -> None: ...

class GetMachineRequest(_message.Message):
    __slots__ = ("machine",)
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    machine: MachineRef
    def __init__(self, machine: _Optional[_Union[MachineRef, _Mapping]] = ...) -> None: ...

class ListMachinesRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class ListMachinesReply(_message.Message):
    __slots__ = ("machines",)
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    machines: _containers.RepeatedCompositeFieldContainer[Machine]
    def __init__(self, machines: _Optional[_Iterable[_Union[Machine, _Mapping]]] = ...) -> None: ...

class WatchMachinesRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class MachineEvent(_message.Message):
    __slots__ = ("change", "machine")
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    change: Change
    machine: Machine
    def __init__(self, change: _Optional[_Union[Change, str]] = ..., machine: _Optional[_Union[Machine, _Mapping]] = ...) -> None: ...

class ConsoleInput(_message.Message):
    __slots__ = ("machine", "data")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    machine: MachineRef
    data: bytes
    def __init__(self, machine: _Optional[_Union[MachineRef, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ConsoleOutput(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("machine", "log", "lines", "follow")
    class Log(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LOG_CONSOLE: _ClassVar[ReadLogRequest.Log]
        LOG_QEMU: _ClassVar[ReadLogRequest.Log]
        LOG_QEMU_PREVIOUS: _ClassVar[ReadLogRequest.Log]
    LOG_CONSOLE: ReadLogRequest.Log
    LOG_QEMU: ReadLogRequest.Log
    LOG_QEMU_PREVIOUS: ReadLogRequest.Log
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    machine: MachineRef
    log: ReadLogRequest.Log
    lines: int
    follow: bool
    def __init__(self, machine: _Optional[_Union[MachineRef, _Mapping]] = ..., log: _Optional[_Union[ReadLogRequest.Log, str]] = ..., lines: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("pool", "device", "kind", "function", "address", "driver", "state", "unavailable", "health", "health_message", "claims", "machines")
    class Health(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        HEALTH_UNSPECIFIED: _ClassVar[Device.Health]
        HEALTHY: _ClassVar[Device.Health]
        UNHEALTHY: _ClassVar[Device.Health]
        UNKNOWN: _ClassVar[Device.Health]
    HEALTH_UNSPECIFIED: Device.Health
    HEALTHY: Device.Health
    UNHEALTHY: Device.Health
    UNKNOWN: Device.Health
    POOL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    pool: str
    device: str
    kind: str
    function: str
    address: str
    driver: str
    state: str
    unavailable: str
    health: Device.Health
    health_message: str
    claims: _containers.RepeatedCompositeFieldContainer[ClaimRef]
    machines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pool: _Optional[str] = ..., device: _Optional[str] = ..., kind: _Optional[str] = ..., function: _Optional[str] = ..., address: _Optional[str] = ..., driver: _Optional[str] = ..., state: _Optional[str] = ..., unavailable: _Optional[str] = ..., health: _Optional[_Union[Device.Health, str]] = ..., health_message: _Optional[str] = ..., claims: _Optional[_Iterable[_Union[ClaimRef, _Mapping]]] = ..., machines: _Optional[_Iterable[str]] = ...) -> None: ...

class ListDevicesRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class ListDevicesReply(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    def __init__(self, devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ...) -> None: ...

class WatchDevicesRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class DeviceEvent(_message.Message):
    __slots__ = ("change", "device")
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    change: Change
    device: Device
    def __init__(self, change: _Optional[_Union[Change, str]] = ..., device: _Optional[_Union[Device, _Mapping]] = ...) -> None: ...

class RescanRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RescanReply(_message.Message):
    __slots__ = ("result", "pools", "devices")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    result: Result
    pools: int
    devices: int
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., pools: _Optional[int] = ..., devices: _Optional[int] = ...) -> None: ...

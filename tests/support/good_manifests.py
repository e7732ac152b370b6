"""Manifests that are good, one or more of each kind, together using every field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devalloc.api.manifests import load, load_text

EXAMPLES = Path(__file__).parents[2] / "examples"

TEXT = """
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DevicePool
metadata: {name: node-a-0000-08-00, labels: {rack: r1}}
spec:
  nodeName: node-a
  driver: gpu.devalloc.io
  attributes:
  - {name: vendor, stringValue: nvidia}
  - {name: numa, intValue: 0}
  - {name: framebuffer, quantityValue: 16Gi}
  - {name: driverVersion, semVerValue: 1.8.2-rc.1+build.5}
  resources:
  - {name: memory, capacity: 40Gi, blockSize: 1Gi}
  - {name: slices, capacity: 7}
  devices:
  - name: whole
    attributes: [{name: function, stringValue: whole}]
    requests: {memory: 40Gi, slices: "7"}
  - name: slice-0
    requests: {memory: 5Gi, slices: 1}
    resources: [{name: bandwidth, capacity: 10G, blockSize: 100M}]
status: {availableDevices: 2}
---
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DevicePool
metadata: {name: network}
spec: {nodeName: "", driver: storage.example.com}
---
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DeviceClass
metadata: {name: gpu}
spec:
  driver: gpu.devalloc.io
  deviceType: gpu
  constraints: device.vendor == 'nvidia' && device.framebuffer >= '8Gi'
  adminAccess: false
  configs: [{apiVersion: devalloc.io/v1alpha1, kind: VfioConfig, namespace: system, name: plain}]
---
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DeviceClass
metadata: {name: anything}
---
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DeviceClaim
metadata:
  namespace: team-a
  name: train
  annotations: {devalloc.io/priority: "-5", devalloc.io/group: vm-1, devalloc.io/node: node-a}
spec:
  matchAttributes: [numa]
  claims:
  - deviceClass: gpu
    constraints: device.model == 'A100'
    requests: {count: 2, memory: 10Gi}
    limits: {count: "4", memory: 20Gi}
    matchAttributes: [pcieRoot]
    configs: [{apiVersion: devalloc.io/v1alpha1, kind: VfConfig, name: fast}]
  - oneOf:
    - deviceType: gpu
    - deviceClass: nic
      requests: {bandwidth: 500M}
---
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DeviceClaim
metadata:
  namespace: team-a
  name: held
  annotations: {devalloc.io/allocated-node: node-a, devalloc.io/allocation-details: '["0"]'}
spec: {claims: [{deviceClass: gpu, requests: {memory: 5Gi}}]}
status:
  allocations:
  - devicePoolName: node-a-0000-08-00
    deviceName: slice-0
    allocations: [{name: memory, allocation: 5Gi}]
  classConfigs: [{apiVersion: devalloc.io/v1alpha1, kind: VfioConfig, metadata: {name: plain}, spec: {}}]
  claimConfigs: [{anything: [1, null, {deep: true}]}]
  deviceStatuses:
  - devicePoolName: node-a-0000-08-00
    deviceName: slice-0
    conditions:
    - {type: Ready, status: "True", reason: Configured, message: ok, lastTransitionTime: "2026-01-31T12:00:00Z"}
    deviceIP: 10.0.0.1
    deviceIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]
    deviceInfo: [{mac: "02:00:00:00:00:01"}]
    allocations: [{name: memory, allocation: 5Gi}]
  podNames: [train-0]
---
apiVersion: devalloc.io/v1alpha1
kind: VfioConfig
metadata: {namespace: system, name: plain}
---
apiVersion: devalloc.io/v1alpha1
kind: VfConfig
metadata: {namespace: team-a, name: fast}
spec:
  mac: "02:00:00:12:34:56"
  vlan: 4094
  vlanQos: 7
  minTxRate: 100
  maxTxRate: 1000
  trust: false
  spoofCheck: true
  linkState: auto
---
apiVersion: devalloc.io/v1alpha1
kind: VgpuConfig
metadata: {namespace: team-a, name: quarter}
spec: {profile: NVIDIA A2-4Q}
---
apiVersion: devalloc.io/v1alpha1
kind: VirtualMachine
metadata: {namespace: team-a, name: trainer}
spec:
  nodeName: node-a
  numaPolicy: single-numa-node
  cpu: {min: 500m, max: 4, use: "1.5"}
  memory: {min: 512Mi, max: 2Gi, use: 1Gi, method: dimm, slotSize: 512Mi}
  reserveMax: true
  disk: 20Gi
  runner: {address: 10.3.0.7, port: 25184}
  diskIO: 100M
  start:
    kernel: /var/lib/machines/vmlinuz
    initrd: /var/lib/machines/initrd.img
    append: console=ttyS0 root=/dev/vda
    firmware: {type: uefi, secureBoot: false}
    tpm: true
    iommu: true
    numaNode: 1
    disks:
    - {path: /var/lib/machines/trainer.qcow2, format: qcow2, clone: overlay}
    - {path: /var/lib/machines/data.raw, format: raw, readOnly: true, device: nvme}
    pinned: true
  nics:
  - {model: e1000e, backend: tap, interface: tap0, mac: "02:00:00:12:34:57", bandwidth: 125M}
  - {model: virtio, backend: user}
  - {backend: warm, mac: "02:00:00:12:34:58"}
  claims: [train, held]
  pciSlots: 6
  running: true
  restartPolicy: Never
  powerdownSeconds: 60
status:
  phase: Running
  nodeName: node-a
  numaNode: 1
  numaNodes:
  - {hostNode: 1, cpus: "3", memory: 1Gi}
  - {hostNode: 0, cpus: 500m, memory: 1Gi}
  allocations:
  - devicePoolName: node-a-host
    deviceName: numa1
    allocations: [{name: cpu, allocation: "4"}, {name: memory, allocation: 2Gi}]
  migrationState:
    migrationName: trainer-moves
    migrationUID: 0c0b6a2e-5a52-4a7c-9b3c-0b2f5f4f9f11
    sourceNode: node-a
    targetNode: node-b
    numaNode: 0
    allocations:
    - devicePoolName: node-b-host
      deviceName: numa0
      allocations: [{name: cpu, allocation: "4"}, {name: memory, allocation: 2Gi}]
    claims:
    - name: held
      uid: 7d1f0a51-0f7c-4c61-b9a2-7b6b4b7f8a11
      allocations:
      - devicePoolName: node-b-0000-08-00
        deviceName: slice-1
        allocations: [{name: memory, allocation: 3Gi}]
  movedClaims:
  - name: train
    uid: 8d1f0a51-0f7c-4c61-b9a2-7b6b4b7f8a12
    allocations:
    - {devicePoolName: node-a-0000-08-00, deviceName: gpu-1}
  wanted: {cpus: "1.5", memory: 1Gi}
  permitted: {cpus: "1.5", memory: 1Gi}
  applied: {cpus: "1.5", memory: 1Gi}
  observed: {cpus: 2, memory: 512Mi}
  guestObserved: {cpus: 2, memory: 512Mi}
  reason: MemoryDenied
  message: the guest does not take the memory
  pid: 4711
  machineID: 6d3f0a51-0f7c-4c61-b9a2-7b6b4b7f8a10
  devices:
  - {claim: held, pool: node-a-0000-08-00, device: slice-0, id: held-0, address: "0000:01:00.0"}
  conditions:
  - {type: Ready, status: "False", reason: MemoryDenied, message: "", lastTransitionTime: "2026-01-31T12:00:00Z"}
---
apiVersion: devalloc.io/v1alpha1
kind: VirtualMachineReplicaSet
metadata: {name: resize, namespace: team-a}
spec:
  replicas: 3
  template:
    metadata:
      labels: {faas_function: resize}
      annotations: {example.com/owner: team}
    spec:
      cpu: {min: 1, max: 2}
      memory: {min: 256Mi, max: 512Mi}
      disk: 4Gi
      start:
        kernel: /var/lib/machines/vmlinuz
        disks:
        - {path: /var/lib/machines/resize.raw, format: raw, clone: overlay}
      nics:
      - {backend: warm}
      restartPolicy: Never
status:
  replicas: 3
  readyReplicas: 2
  selector: devalloc.io/replica-set=resize
  observedGeneration: 1
  conditions:
  - {type: ReplicaFailure, status: "True", lastTransitionTime: "2026-01-31T12:00:00Z", reason: FailedCreate}
---
apiVersion: devalloc.io/v1alpha1
kind: VirtualMachine
metadata: {namespace: team-a, name: scaled}
spec:
  nodeName: node-a
  cpu: {min: 1, max: 4}
  memory: {min: 1Gi, max: 8Gi}
  start: {kernel: /var/lib/machines/vmlinuz}
  scaling:
    address: 10.0.0.5
    protocol: informant
    monitorPort: 10302
    metricsPort: 9101
    loadAverageFractionTarget: "1.5"
    memoryUsageFractionTarget: 500m
    memoryTotalFractionTarget: 800m
    enableLFCMetrics: true
    lfcMetricsPort: 9500
    lfcToMemoryRatio: 500m
    lfcWindowSizeMinutes: 2
    lfcMinWaitBeforeDownscaleMinutes: 3
    lfcUseLargestWindow: true
    cpuStableZoneRatio: 100m
    cpuMixedZoneRatio: "0"
  guestReports: true
status:
  phase: Running
  conditions:
  - {type: Ready, status: "True", reason: GuestReady, message: up, lastTransitionTime: "2026-01-31T12:00:00Z"}
---
apiVersion: devalloc.io/v1alpha1
kind: VirtualMachineMigration
metadata: {namespace: team-a, name: trainer-moves}
spec: {vmName: trainer, targetNode: node-b}
status:
  phase: Running
  reason: MigrationSlow
  message: 12Mi of 2048Mi are left
  sourceNode: node-a
  targetNode: node-b
  startTime: "2026-01-31T12:00:00Z"
  completionTime: "2026-01-31T12:00:09Z"
  offer:
    run: 6d3f0a51-0f7c-4c61-b9a2-7b6b4b7f8a10
    accel: kvm
    platform:
      machineType: pc-q35-7.2
      rootPorts: [{prefetchable: 34359738368, memory: 2097152}, {}]
      queues: [{nic: 1, count: 4}]
      cells: [{cpuMilli: 3000, memory: 1073741824}, {cpuMilli: 500, memory: 1073741824}]
      distances: [10, 20, 20, 10]
      addressBits: 46
      cpuFlags: [avx2, sse4_2]
      firmware: {codeDigest: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08, variablesSize: 540672}
    amounts: {cpuMilli: 1500, vcpus: 2, memoryBytes: 1073741824}
    certificate: "-----BEGIN CERTIFICATE-----"
  destination: {address: 10.3.0.8, port: 49152, certificate: "-----BEGIN CERTIFICATE-----", firmwareStored: true}
  progress: {transferred: 2147483648, remaining: 12582912, total: 2147483648, downtimeSeconds: "0.12"}
---
apiVersion: devalloc.io/v1alpha1
kind: VirtualMachine
metadata: {namespace: team-a, name: adopted}
spec:
  nodeName: node-a
  cpu: {min: 1, max: 1}
  memory: {min: 512Mi, max: 512Mi}
  adopt: {qmpSocket: /run/machines/adopted.qmp}
"""


def good_manifests() -> list[dict[str, Any]]:
    """The manifests above."""
    return [document.content for document in load_text(TEXT).documents]


def examples() -> Iterator[tuple[str, dict[str, Any]]]:
    """(source, content) of everything below examples/ that is of our API; snapshots and other data are left out."""
    if EXAMPLES.is_dir() and any(EXAMPLES.iterdir()):
        for document in load(path for path in sorted(EXAMPLES.iterdir()) if path.name not in ("dra", "pods")).documents:
            yield document.source, document.content


def good(kind: str) -> dict[str, Any]:
    """The first of a kind, free to be changed."""
    return next(content for content in good_manifests() if content["kind"] == kind)

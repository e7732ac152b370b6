"""DevicePools, DeviceClasses and DeviceClaims."""

"""The back end of the Fleet for DeviceClaims."""

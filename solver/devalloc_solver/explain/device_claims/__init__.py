"""Why a DeviceClaim is not satisfied."""

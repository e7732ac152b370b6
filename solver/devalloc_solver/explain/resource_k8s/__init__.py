"""Why a ResourceClaim is not satisfied."""

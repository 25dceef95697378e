"""Which waiting inputs run next, and together: pure policy, no device, no event loop, no clock."""

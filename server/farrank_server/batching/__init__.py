"""Decides which waiting inputs run next and together: pure policy, no device, event loop or clock."""

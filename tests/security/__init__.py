"""Attacks that an earlier version did not withstand."""

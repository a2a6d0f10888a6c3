"""Coordinator and party as processes: configuration, id matching, training, release, status."""

"""Coordinator and party as services: configuration, matching, training, release, monitoring."""

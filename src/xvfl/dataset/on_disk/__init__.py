"""Datasets larger than memory: prepared once, piece by piece, into files that training reads."""

"""Datasets larger than memory: prepared once, chunk by chunk, into files that training reads."""

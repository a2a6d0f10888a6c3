"""Shares of uploads and labels for three nodes, which train the head on them with SPU."""

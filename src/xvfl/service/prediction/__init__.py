"""Prediction by the federation, after training."""

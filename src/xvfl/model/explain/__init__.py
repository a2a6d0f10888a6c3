"""Explain a model: what parties and features are worth, and what completion changed."""

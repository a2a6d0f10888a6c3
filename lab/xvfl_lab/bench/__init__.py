"""Benchmarks of training steps: `xvfl-lab bench`. Torch and numpy alone."""

"""The `xvfl-lab` command, one module for each group of commands."""

"""Processes of one upload: the party's encoder and endpoint, the coordinator's store and run."""

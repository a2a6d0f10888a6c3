"""Uploads in processes: the party's encoder and endpoint, the coordinator's store and run."""

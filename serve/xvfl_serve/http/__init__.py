"""The HTTP server of a bundle."""

import os

# gRPC would write a line for every failed TLS handshake to stderr, as often as a peer likes.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

"""The version of this package."""

VERSION = "0.3.1"

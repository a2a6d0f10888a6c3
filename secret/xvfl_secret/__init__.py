"""Heads on secret shares: trained and evaluated by three nodes with SPU, of which none sees a row.

This package has no cryptography of its own: shares, protocol and fixed-point arithmetic are SPU's.
"""

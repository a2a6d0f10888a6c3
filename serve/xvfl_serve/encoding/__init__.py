"""Cells of a request → inputs of the nets, one row at a time and without pandas.

The twin of `xvfl.data.encoder`, which encodes whole pandas columns; tests compare the two. A row of
a request takes about a microsecond per cell this way, and some hundred through pandas.
"""

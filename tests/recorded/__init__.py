"""What xvfl 0.4 sends over the wire, recorded; later versions must understand it.

`python -m tests.recorded.record` recorded it, and records it again while 0.4 is not released.
"""

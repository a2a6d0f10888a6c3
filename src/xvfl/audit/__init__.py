"""Privacy audit: measure what the participants of a federation can learn.

upload_audit, sweep, dials     a party's upload: recovery of columns against accuracy of heads
upload_attacks, inference, …   attacks on stored embeddings; need torch and numpy only
interactive_audit, simulation  interactive training with gradients, simulated and attacked
"""

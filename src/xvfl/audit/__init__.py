"""Privacy audit: simulate a federation and measure what its participants can learn."""

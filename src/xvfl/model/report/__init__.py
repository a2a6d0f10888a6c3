"""HTML pages and charts: one template, one style, one way to draw."""

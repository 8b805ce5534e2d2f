"""Small functions for text and numbers."""

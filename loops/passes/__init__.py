"""Rewrites of loops that are applied when they are lowered."""

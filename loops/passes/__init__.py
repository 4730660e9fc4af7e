"""Rewrites of loops: of bodies that are differentiated, and of loops that are lowered."""

"""Interpreters that JAX does not count among its transformations, and roads between our loops and
JAX's.

Importing this package registers the rules, those of optional modules when these are loaded.
"""

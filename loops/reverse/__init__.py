"""Loops run backwards with few stored carries: schedules, and the machine that follows them."""

"""Reports about loops; nothing here yet."""

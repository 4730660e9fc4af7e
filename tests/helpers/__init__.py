"""What several tests share; nothing here is collected as a test."""

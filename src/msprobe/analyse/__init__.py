"""Where two recordings part: pure functions on values, no files and no framework."""

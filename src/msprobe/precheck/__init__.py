"""Story 3: calls made again and judged against a more precise reference, without a second run."""

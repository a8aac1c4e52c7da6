"""Story 1, at training time: calls become records. Never imports a framework."""

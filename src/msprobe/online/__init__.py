"""Online pre-check: calls go to a checking process while training runs, and are judged there."""

"""Whether two recorded values differ by rounding or by a fault, and which call made the difference."""

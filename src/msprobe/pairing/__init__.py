"""Which call of one run is which of the other: by name, by a mapping, or by what the calls do."""

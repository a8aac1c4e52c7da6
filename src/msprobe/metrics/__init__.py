"""Numbers that say how two tensors differ."""

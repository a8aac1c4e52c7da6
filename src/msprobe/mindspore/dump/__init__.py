"""Where the documentation says that the editable list of recorded functions stands (hook_cell)."""

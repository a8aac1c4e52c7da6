"""The command line: `msprobe [-f FRAMEWORK] COMMAND ...`, one module per command."""

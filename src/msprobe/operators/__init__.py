"""What each operator does: the one table of operators that every judgement reads.

A row is a concept, not a name of one framework: `torch.add`, `Tensor.__iadd__`, `mindspore.ops.Add` and
`aten.add_` are one row. `row.py` explains the columns, `table.py` holds the rows, `names.py` finds the
concept of a recorded name. An operator that the table does not know gets a conservative row of its own.
"""

from __future__ import annotations

from msprobe.operators.names import concept, is_reversed, operator_named, operator_of
from msprobe.operators.row import Kind, Operator, Whole

__all__ = ["Kind", "Operator", "Whole", "concept", "is_reversed", "operator_named", "operator_of"]

"""compare() and compare_distributed(): the command as functions, with the names of the specification."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msprobe.verdict.comparison import Outcome


def compare(
    input_param: Mapping[str, Any],
    output_path: str | os.PathLike[str] = "./output",
    *,
    stack_mode: bool = False,
    auto_analyze: bool = True,
    fuzzy_match: bool = False,
    align: bool | None = None,
) -> list[Outcome]:
    """Compare what `input_param` names with the keys of compare.json; the reports go to `output_path`.

    `auto_analyze=False` writes only the table. Its rows pair calls by their numbers. Our verdict pairs calls
    by what they do where the numbers cannot be trusted; with `align=True` always, with `align=False` never.
    Returns one outcome for each step and rank.
    """
    from msprobe.compare_request import requested
    from msprobe.errors import UsageError

    request = requested(input_param, "input_param", with_stack=stack_mode)
    if request.kernels is not None:
        raise UsageError(
            "input_param has rank_id or step_id, which ask for kernels of MindSpore graphs; compare these "
            "with `msprobe -f mindspore compare -i compare.json`, or leave both keys out."
        )
    return _compared(
        request.target,
        request.golden,
        output_path,
        stack=request.stack,
        with_stack=stack_mode,
        only_table=not auto_analyze,
        fuzzy=fuzzy_match,
        align=align,
    )


def compare_distributed(
    npu_dump_dir: str | os.PathLike[str],
    bench_dump_dir: str | os.PathLike[str],
    output_path: str | os.PathLike[str] = "./output",
    *,
    stack_mode: bool = False,
    auto_analyze: bool = True,
    fuzzy_match: bool = False,
    align: bool | None = None,
) -> list[Outcome]:
    """Compare every rank that two step folders, or two runs, have in common; one table sums them up."""
    return _compared(
        os.fspath(npu_dump_dir),
        os.fspath(bench_dump_dir),
        output_path,
        with_stack=stack_mode,
        only_table=not auto_analyze,
        fuzzy=fuzzy_match,
        align=align,
    )


def _compared(
    target: str,
    golden: str,
    output_path: str | os.PathLike[str],
    *,
    stack: str | None = None,
    with_stack: bool,
    only_table: bool,
    fuzzy: bool,
    align: bool | None,
) -> list[Outcome]:
    from msprobe.compare_runs import Options, compare_runs
    from msprobe.pairing.mapping import Mappings
    from msprobe.report.files import wanted_in

    wanted = wanted_in(output_path, with_stack=with_stack, only_table=only_table)
    options = Options(fuzzy, Mappings(align=align), stack=stack, as_specified=True)
    compared = compare_runs(target, golden, wanted, options)
    for line in compared.told():
        print(line)
    return compared.outcomes

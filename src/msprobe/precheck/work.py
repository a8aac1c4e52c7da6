"""What a worker does with one recorded call: judges it against the same call in higher precision.

The checked side is the call made on the checked device in the recorded dtypes, or, where the recording holds
the contents of inputs and outputs, what was recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from msprobe.analyse.accuracy import real_dtype, values_of
from msprobe.analyse.standards import ERROR, SKIP
from msprobe.metrics.rounding import PRECISIONS
from msprobe.metrics.summands import summands
from msprobe.name import BACKWARD, slot_name
from msprobe.operators import operator_of
from msprobe.precheck import dropouts
from msprobe.precheck.arguments import Arguments, Input, Rebuilder, content_of, rebuild, shaken, tensor_of
from msprobe.precheck.calls import Call, Skip, Skipped, reason_for
from msprobe.precheck.judging import Answer, How, Rounds, judge_call, summed_up
from msprobe.precheck.run import HOST, Ran, checked_side, reference_side, run
from msprobe.record import Leaf, Recording, leaves
from msprobe.report.precheck_csv import Result, Summed
from msprobe.store.dtypes import TensorData, as_float
from msprobe.store.tensor_file import encode_pt
from msprobe.store.tensor_folder import Folder, file_name

AUTO, RECORDED, REPLAYED = "auto", "recorded", "replayed"
SENT = "sent"  # recorded, or not judged: what this machine computes says nothing of the one that trained


class Setup(NamedTuple):
    """What holds for all calls."""

    recording: Recording
    device: str
    outputs: str = AUTO
    error_folder: Path | None = None  # inputs and outputs of what failed go there


def check(call: Call, setup: Setup, replay: Rebuilder) -> Answer:
    """Judge one call."""
    try:
        return _checked(call, setup, replay)
    except Exception as error:  # noqa: BLE001 - one call must not cost the others
        return skipped(call, reason_for(error))


def skipped(call: Call, reason: str) -> Answer:
    """The answer for a call of which nothing was judged."""
    backward = SKIP if call.backward is not None else ""
    place = slot_name(call.text, "forward.output.0")
    summed = Summed(call.text, SKIP, backward, reason, SKIP, backward)
    return Answer(summed, (Result(place, SKIP, reason),))


def backward_side(answer: Answer) -> Answer:
    """What was found out about the gradients of a call."""
    call, message = answer.summed.call, answer.summed.message
    name = slot_name(call, BACKWARD)
    found = [each for each in answer.results if each.place.startswith(f"{name}.")]
    return summed_up(call, (), found or [Result(slot_name(name, "output.0"), SKIP, message)])


def reference_of(call: Call, setup: Setup, replay: Rebuilder) -> Ran:
    """The call in higher precision, and nothing beside it."""
    arguments = arguments_of(call, setup)
    return run(replay, call, arguments, reference_side(call, arguments), given_of(call, setup))


def _checked(call: Call, setup: Setup, replay: Rebuilder) -> Answer:
    arguments = arguments_of(call, setup)
    given = given_of(call, setup)
    before = replay.randomness()
    recorded = _recorded(call, setup, arguments, given)
    ours = recorded
    if ours is None or (call.has_backward and not ours.gradients):
        if setup.outputs == SENT:
            raise Skipped(Skip.NOT_SENT)
        ran = run(replay, call, arguments, checked_side(setup.device), given)
        ours = ran if ours is None else ran._replace(outputs=ours.outputs)
        replay.restore_randomness(before)
    side = reference_side(call, arguments)
    repeats = repeats_in(arguments.inputs, recorded.gradients) if recorded and recorded.gradients else {}
    reference = merged(run(replay, call, arguments, side, given), repeats)
    drops = replay.drew(before)
    if drops and operator_of(call.name).drops not in dropouts.JUDGED:
        raise Skipped(Skip.RANDOM)
    if not reference.outputs:
        raise Skipped(Skip.NO_NUMBERS)
    how = how_of(call, arguments, given, drops=drops)
    answer = judge_call(call, ours, reference, how)
    if drops:
        answer = _dropout(call, answer, arguments, given, ours, how)
    elif answer.is_off:
        sampled = _sample(replay, call, arguments, given, setup, recorded)
        last_bits = run(replay, call, nudged(arguments), side, None if given is None else shaken(given))
        rounds = Rounds(merged(last_bits, repeats), merged(sampled, repeats))
        answer = judge_call(call, ours, reference, how, rounds)
    if setup.error_folder is not None and ERROR in answer.summed:
        _save(setup.error_folder, call, arguments, ours, reference)
    return answer


def how_of(
    call: Call, arguments: Arguments, given: Sequence[Input | None] | None, *, drops: bool = False
) -> How:
    """What of a call its results are judged by."""
    computed = next((tensor.cast for tensor in arguments.inputs if tensor.cast), "")
    leaves_in = leaves([call.forward.fields.get("input_args"), call.forward.fields.get("input_kwargs")])
    dtypes = {tensor.computed for tensor in (*arguments.inputs, *filter(None, given or ()))}
    units = [PRECISIONS[dtype].unit for dtype in map(real_dtype, dtypes) if dtype in PRECISIONS]
    return How(drops, computed, summands(leaves_in, is_gradient=True), max(units, default=0.0))


def nudged(arguments: Arguments) -> Arguments:
    """The arguments with every number changed in its last bit."""
    return arguments._replace(inputs=tuple(filter(None, shaken(arguments.inputs))))


def _sample(
    replay: Rebuilder,
    call: Call,
    arguments: Arguments,
    given: Sequence[Input | None] | None,
    setup: Setup,
    recorded: Ran | None,
) -> Ran:
    """The call with the CPU's kernels, to see how it rounds; not where these kernels are what is checked."""
    checks_host = setup.device == HOST
    if checks_host and recorded is None:
        return Ran(())
    try:
        ran = run(replay, call, arguments, checked_side(HOST), given)
    except Skipped:
        return Ran(())
    return ran._replace(gradients=()) if checks_host and recorded and not recorded.gradients else ran


def _dropout(
    call: Call,
    answer: Answer,
    arguments: Arguments,
    given: Sequence[Input | None] | None,
    ours: Ran,
    how: How,
) -> Answer:
    """The answer with a verdict on what a dropout kept, and on how much of it."""
    exact = dropouts.expected(arguments, given, ours)
    share = (
        dropouts.judge_share(operator_of(call.name), arguments, ours)
        if exact is not None
        else dropouts.NOT_JUDGED
    )
    by_place = {}
    if exact is not None:
        kept = judge_call(call, ours, exact, how)
        by_place = {each.place: each.judged for each in kept.results}
    name = slot_name(call.text, "forward")
    results = []
    for each in answer.results:
        judged = by_place.get(each.place) or dropouts.NOT_JUDGED
        if share is not None and each.place.startswith(f"{name}.") and judged.verdict != ERROR:
            judged = share
        results.append(each._replace(judged=judged))
    forward = [each for each in results if each.place.startswith(f"{name}.")]
    return summed_up(call.text, forward, results[len(forward) :])


# ---- what was recorded ----


def arguments_of(call: Call, setup: Setup) -> Arguments:
    """The arguments of a call; if gradients were recorded and no input wants one, all inputs do.

    In the first run of a checkpoint no input wants a gradient.
    """
    arguments = rebuild(setup.recording, call.name, call.forward.fields)
    if call.backward is None or any(tensor.requires_grad for tensor in arguments.inputs):
        return arguments
    wanting = (tensor._replace(requires_grad=tensor.is_float) for tensor in arguments.inputs)
    return arguments._replace(inputs=tuple(wanting))


def given_of(call: Call, setup: Setup) -> list[Input | None] | None:
    """The gradients of the outputs; None if the recording has none of this call."""
    if call.backward is None:
        return None
    found = [
        tensor_of(setup.recording, leaf, slot_name(str(call.backward.name), f"input.{index}"))
        if isinstance(leaf, Leaf) and leaf.is_tensor
        else None
        for index, leaf in enumerate(call.backward.fields.get("input") or [])
    ]
    return found if any(found) else None


def _recorded(
    call: Call, setup: Setup, arguments: Arguments, given: Sequence[Input | None] | None
) -> Ran | None:
    """What was recorded of the outputs, and of the gradients of the inputs, each if all of it was."""
    if setup.outputs == REPLAYED or (setup.outputs == AUTO and setup.device != HOST):
        return None
    tensors = [leaf for leaf in leaves(call.forward.fields.get("output")) if leaf.is_tensor]
    outputs = [content_of(setup.recording, leaf) for leaf in tensors]
    found = tuple(output for output in outputs if output is not None)
    if not (arguments.recorded and found and len(found) == len(outputs)):
        return None
    if given is None or not all(tensor is None or tensor.recorded for tensor in given):
        return Ran(found)
    return Ran(found, recorded_gradients(call, setup, arguments))


def recorded_gradients(call: Call, setup: Setup, arguments: Arguments) -> tuple[TensorData | None, ...]:
    """One for each tensor among the inputs; none at all if they are not of these tensors.

    Older releases recorded the gradients of a call's last node, which may have other inputs.
    """
    trees = call.backward.fields.get("output") or [] if call.backward is not None else []
    inputs = arguments.inputs
    if not 0 < len(trees) <= len(inputs):
        return ()
    found: list[TensorData | None] = []
    for tensor, tree in zip(inputs, [*trees, *[None] * (len(inputs) - len(trees))], strict=True):
        data = content_of(setup.recording, tree) if isinstance(tree, Leaf) else None
        if isinstance(tree, Leaf) and (data is None or data.shape != tensor.data.shape):
            return ()
        found.append(data)
    return tuple(found)


def merged(ran: Ran, repeats: Mapping[int, int]) -> Ran:
    """The run with gradients of a tensor that was given twice added up, as they are in a recording."""
    gradients = list(ran.gradients)
    for later, first in repeats.items():
        one, other = gradients[first], gradients[later]
        if one is not None and other is not None and one.shape == other.shape:
            total = sum(as_float(*values_of(each)).astype(np.float64) for each in (one, other))
            gradients[first] = TensorData(np.asarray(total).tobytes(), "float64", one.shape)
        gradients[later] = None
    return ran._replace(gradients=tuple(gradients))


def repeats_in(inputs: Sequence[Input], recorded: Sequence[TensorData | None]) -> dict[int, int]:
    """Which inputs are an earlier one again: the same contents, and the recorded gradient is at that one."""
    found = {}
    for later, tensor in enumerate(inputs):
        if recorded[later] is not None or not tensor.requires_grad:
            continue
        for first in range(later):
            same = inputs[first].requires_grad and inputs[first].data == tensor.data
            if same and recorded[first] is not None:
                found[later] = first
                break
    return found


def _save(folder: Path, call: Call, arguments: Arguments, ours: Ran, reference: Ran) -> None:
    """Inputs and outputs of a call that failed, as tensor files."""
    tensors: dict[str, TensorData | None] = {tensor.slot: tensor.data for tensor in arguments.inputs}
    for side, ran in (("device", ours), ("bench", reference)):
        for direction, found in (("forward", ran.outputs), ("backward", ran.gradients)):
            for index, data in enumerate(found):
                tensors[slot_name(call.text, f"{direction}.output.{index}.{side}")] = data
    files = Folder(folder)
    for name, data in tensors.items():
        if data is not None:
            files.write(file_name(name, ".pt"), encode_pt(data))
    files.close()

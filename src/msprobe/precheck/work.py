"""What a worker does with one recorded call: judges it against the same call in higher precision.

The checked side is the call made on the checked device in the recorded dtypes, or, where the recording holds
the contents of inputs and outputs, what was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from msprobe.analyse.accuracy import Values, measure, real_dtype, undetermined, values_of, zero_share
from msprobe.analyse.distance import summands
from msprobe.analyse.standard_table import COARSE, DROPOUTS, LIMITS
from msprobe.analyse.standards import ERROR, PASS, SKIP, WARNING, Verdict, judge, judge_zeros, worst
from msprobe.name import BACKWARD, slot_name
from msprobe.plural import counted
from msprobe.precheck.arguments import Arguments, Input, Rebuilder, content_of, rebuild, shaken, tensor_of
from msprobe.precheck.calls import Call, Skip, Skipped, reason_for
from msprobe.precheck.run import HOST, Ran, checked_side, reference_side, run
from msprobe.record import Leaf, Recording, leaves
from msprobe.report.precheck_csv import Result, Summed
from msprobe.store.dtypes import TensorData
from msprobe.store.tensor_file import encode_pt
from msprobe.store.tensor_folder import Folder, file_name

AUTO, RECORDED, REPLAYED = "auto", "recorded", "replayed"
SENT = "sent"  # recorded, or not judged: what this machine computes says nothing of the one that trained

_LONGEST_MESSAGE = 2000
_ROUNDING = "A change of the inputs in their last bit changes it as much, so that rounding decides it."


class Setup(NamedTuple):
    """What holds for all calls."""

    recording: Recording
    device: str
    outputs: str = AUTO
    error_folder: Path | None = None  # inputs and outputs of what failed go there


class Answer(NamedTuple):
    """What was found out about one call."""

    summed: Summed
    results: tuple[Result, ...] = ()


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
    return Answer(Summed(call.text, SKIP, backward, reason), (Result(place, SKIP, reason),))


def backward_side(answer: Answer) -> Answer:
    """What was found out about the gradients of a call."""
    call, message = answer.summed.call, answer.summed.message
    name = slot_name(call, BACKWARD)
    found = [each for each in answer.results if each.place.startswith(f"{name}.")]
    return _summed_up(call, (), found or [Result(slot_name(name, "output.0"), SKIP, message)])


def reference_of(call: Call, setup: Setup, replay: Rebuilder) -> Ran:
    """The call in higher precision, and nothing beside it."""
    arguments = _arguments(call, setup)
    return run(replay, call, arguments, reference_side(call, arguments), _given(call, setup))


def _checked(call: Call, setup: Setup, replay: Rebuilder) -> Answer:
    arguments = _arguments(call, setup)
    given = _given(call, setup)
    before = replay.randomness()
    ours = _recorded(call, setup, arguments, given)
    if ours is None or (call.has_backward and not ours.gradients):
        if setup.outputs == SENT:
            raise Skipped(Skip.NOT_SENT)
        ran = run(replay, call, arguments, checked_side(setup.device), given)
        ours = ran if ours is None else ran._replace(outputs=ours.outputs)
        replay.restore_randomness(before)
    side = reference_side(call, arguments)
    reference = run(replay, call, arguments, side, given)
    drops = replay.drew(before)
    if drops and call.name.api not in DROPOUTS:
        raise Skipped(Skip.RANDOM)
    if not reference.outputs:
        raise Skipped(Skip.NO_NUMBERS)
    computed = next((tensor.cast for tensor in arguments.inputs if tensor.cast), "")
    how = _How(drops, computed, _summands(call))
    answer = _answer(call, ours, reference, how)
    if not drops and any(each.status == ERROR and each.accuracy is not None for each in answer.results):
        nudged = arguments._replace(inputs=tuple(filter(None, shaken(arguments.inputs))))
        other = run(replay, call, nudged, side, None if given is None else shaken(given))
        answer = _answer(call, ours, reference, how, other)
    if setup.error_folder is not None and ERROR in (answer.summed.forward, answer.summed.backward):
        _save(setup.error_folder, call, arguments, ours, reference)
    return answer


# ---- what was recorded ----


def _arguments(call: Call, setup: Setup) -> Arguments:
    """Gradients were recorded though no input wanted one: in the first run of a checkpoint none does."""
    arguments = rebuild(setup.recording, call.name, call.forward.fields)
    if call.backward is None or any(tensor.requires_grad for tensor in arguments.inputs):
        return arguments
    wanting = (tensor._replace(requires_grad=tensor.is_float) for tensor in arguments.inputs)
    return arguments._replace(inputs=tuple(wanting))


def _given(call: Call, setup: Setup) -> list[Input | None] | None:
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
    return Ran(found, _recorded_gradients(call, setup, arguments))


def _recorded_gradients(call: Call, setup: Setup, arguments: Arguments) -> tuple[TensorData | None, ...]:
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


# ---- judging ----

_JudgePlace = Callable[[str, TensorData, TensorData, "TensorData | None"], Result]


class _How(NamedTuple):
    """What of a call its results are judged by."""

    drops: bool  # elements at random
    computed: str  # the dtype of mixed precision, or nothing
    added: int  # how many numbers may have been added up for one of a result


def _answer(call: Call, ours: Ran, reference: Ran, how: _How, other: Ran | None = None) -> Answer:
    """`other`: the reference after a change of the inputs in their last bit, which excuses some errors."""
    judge_place = partial(_result, how)
    name = slot_name(call.text, "forward")
    forward = _judged(name, judge_place, ours.outputs, reference.outputs, other.outputs if other else ())
    backward = _backward(call, judge_place, ours, reference, other) if call.has_backward else []
    return _summed_up(call.text, forward, backward)


def _summed_up(call: str, forward: Sequence[Result], backward: Sequence[Result]) -> Answer:
    results = (*forward, *backward)
    told = [f"{each.place}: {each.message}" for each in results if each.status in (ERROR, WARNING)]
    skips = dict.fromkeys(each.message for each in results if each.status == SKIP)
    message = " ".join([*told, *skips])[:_LONGEST_MESSAGE]
    ahead, back = (worst(each.status for each in side) for side in (forward, backward))
    return Answer(Summed(call, ahead, back, message), results)


def _summands(call: Call) -> int:
    inputs = leaves([call.forward.fields.get("input_args"), call.forward.fields.get("input_kwargs")])
    return summands(inputs, is_gradient=True)


def _backward(
    call: Call, judge_place: _JudgePlace, ours: Ran, reference: Ran, other: Ran | None
) -> list[Result]:
    name = slot_name(call.text, "backward")
    failed = ours.failed_back or reference.failed_back
    changed = other.gradients if other else ()
    found = [] if failed else _judged(name, judge_place, ours.gradients, reference.gradients, changed)
    if found or (call.backward is None and not failed):
        return found
    return [Result(slot_name(name, "output.0"), SKIP, failed or Skip.NO_GRAPH.of())]


def _judged(
    name: str,
    judge_place: _JudgePlace,
    ours: Sequence[TensorData | None],
    reference: Sequence[TensorData | None],
    other: Sequence[TensorData | None],
) -> list[Result]:
    if len(ours) != len(reference):
        message = f"It gave {counted(len(ours), 'output')}, and the reference {len(reference)}."
        return [Result(slot_name(name, "output.0"), ERROR, message)]
    return [
        judge_place(slot_name(name, f"output.{index}"), checked, exact, changed)
        for index, (checked, exact, changed) in enumerate(zip_longest(ours, reference, other))
        if checked is not None and exact is not None
    ]


def _result(
    how: _How, place: str, checked: TensorData, exact: TensorData, changed: TensorData | None
) -> Result:
    about = Result(place, ERROR, "", exact.dtype, checked.dtype, checked.shape)
    if checked.shape != exact.shape:
        return about._replace(message=f"The shape is {checked.shape}, but {exact.shape} of the reference.")
    ours, theirs = values_of(checked), values_of(exact)
    if ours.is_float != theirs.is_float:
        return about._replace(message=f"The dtype is {ours.dtype}, but {theirs.dtype} of the reference.")
    kind = real_dtype(ours.dtype)
    if ours.is_float and how.computed in COARSE and kind not in COARSE:
        kind = how.computed
    if ours.is_float and kind not in LIMITS:
        return about._replace(status=SKIP, message=Skip.NO_STANDARD.of(ours.dtype))
    accuracy = measure(ours, theirs, kind)
    verdict = _dropped(ours, theirs) if how.drops else judge(accuracy, kind)
    if verdict.status == ERROR and ours.is_float and changed is not None and changed.shape == exact.shape:
        excused = undetermined(ours, theirs, values_of(changed), how.added)
        verdict = Verdict(PASS, _ROUNDING) if excused else verdict
    return about._replace(status=verdict.status, message=verdict.message, accuracy=accuracy)


def _dropped(ours: Values, theirs: Values) -> Verdict:
    return judge_zeros(zero_share(ours), zero_share(theirs), ours.array.size)


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

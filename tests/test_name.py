"""The grammar of record names: every form is read back as it was written, anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.errors import RecordingError
from msprobe.name import (
    BACKWARD,
    DEBUG,
    FORWARD,
    PARAMETERS_GRAD,
    CallName,
    call_owner,
    module_owner,
    slot_name,
)

NAMES = [
    ("Functional.linear.0.forward", CallName("Functional.linear", FORWARD, 0)),
    ("Torch.linalg.norm.12.backward", CallName("Torch.linalg.norm", BACKWARD, 12)),
    ("mymod.forward.3.forward", CallName("mymod.forward", FORWARD, 3)),
    ("Module.head.Linear.forward.0", CallName("Module.head.Linear", FORWARD, 0)),
    ("Module.blocks.0.ln.LayerNorm.backward.7", CallName("Module.blocks.0.ln.LayerNorm", BACKWARD, 7)),
    ("Module.1.forward.forward.0", CallName("Module.1.forward", FORWARD, 0)),
    ("Cell.conv1.Conv2d.forward.2", CallName("Cell.conv1.Conv2d", FORWARD, 2)),
    ("Module.head.Linear.parameters_grad", CallName("Module.head.Linear", PARAMETERS_GRAD, None)),
    ("Module.head.Linear.parameters_grad.1", CallName("Module.head.Linear", PARAMETERS_GRAD, 1)),
    ("loss.0.debug", CallName("loss", DEBUG, 0)),
    ("Module.0.debug", CallName("Module", DEBUG, 0)),
    ("a.forward.0.debug", CallName("a.forward", DEBUG, 0)),
    ("x y\n=1.5.debug", CallName("x y\n=1", DEBUG, 5)),
]


@pytest.mark.parametrize(("text", "name"), NAMES, ids=[text for text, _ in NAMES])
def test_a_name_is_read_back_as_it_was_written(text: str, name: CallName) -> None:
    assert (CallName.parse(text), str(name)) == (name, text)


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "optimizer", "forward", "forward.0", "0.forward", "parameters_grad", ".parameters_grad"),
        *("Torch.add.forward", "Torch.add.forward.0", "Torch.add.0.sideways", "Module.fc.Linear.0.forward"),
        *(f"Torch.add.{count}.forward" for count in ("00", "-1", "٣", "1 ", "9" * 5000)),
    ],
    ids=lambda text: text[:30],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(RecordingError, match="is not a record name"):
        CallName.parse(text)


PARTS = ["Module", "Torch", "forward", "backward", "parameters_grad", "debug", "0", "7", "x", ""]


@given(st.lists(st.sampled_from(PARTS)).map(".".join))
def test_whatever_is_read_is_written_the_same(text: str) -> None:
    try:
        name = CallName.parse(text)
    except RecordingError:
        return
    assert str(name) == text


@given(
    owner=st.text(min_size=1).filter(lambda owner: not owner.startswith(("Module.", "Cell."))),
    direction=st.sampled_from([FORWARD, BACKWARD, DEBUG]),
    count=st.integers(0, 10**9),
)
def test_whatever_is_written_is_read_the_same(owner: str, direction: str, count: int) -> None:
    name = CallName(owner, direction, count)  # type: ignore[arg-type]
    assert CallName.parse(str(name)) == name


@pytest.mark.parametrize(
    ("text", "prefix", "api", "is_module"),
    [
        ("Functional.linear.0.forward", "Functional", "linear", False),
        ("Torch.linalg.norm.0.backward", "Torch", "linalg.norm", False),
        ("Module.blocks.0.ln.LayerNorm.forward.0", "Module", "blocks.0.ln.LayerNorm", True),
        ("Cell.fc.Dense.parameters_grad", "Cell", "fc.Dense", True),
        ("Module.0.debug", "Module", "", False),
    ],
)
def test_parts_of_a_name(text: str, prefix: str, api: str, is_module: bool) -> None:
    name = CallName.parse(text)
    assert (name.prefix, name.api, name.is_module) == (prefix, api, is_module)


@pytest.mark.parametrize(
    ("text", "direction", "seen"),
    [
        ("Torch.add.2.forward", BACKWARD, "Torch.add.2.backward"),
        ("Module.fc.Linear.forward.2", BACKWARD, "Module.fc.Linear.backward.2"),
        ("Module.fc.Linear.forward.2", PARAMETERS_GRAD, "Module.fc.Linear.parameters_grad"),
    ],
)
def test_the_same_call_from_another_side(text: str, direction: str, seen: str) -> None:
    assert str(CallName.parse(text).facing(direction)) == seen  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("loss.0.debug", CallName("loss", DEBUG, 0)),
        ("loss.1", CallName("loss", DEBUG, 1)),
        ("a.b.2", CallName("a.b", DEBUG, 2)),
    ],
)
def test_variables_of_each_release(text: str, name: CallName) -> None:
    assert CallName.parse_variable(text) == name


@pytest.mark.parametrize("text", ["loss", "loss.debug", ".0", "loss.x.debug", ""])
def test_what_is_no_variable_is_refused(text: str) -> None:
    with pytest.raises(RecordingError, match="is not the name of a saved variable"):
        CallName.parse_variable(text)


def test_names_are_joined_here() -> None:
    assert [
        call_owner("Torch", "linalg.norm"),
        module_owner("blocks.0.ln", "LayerNorm"),
        module_owner("", "Linear"),
        module_owner("fc", "Linear", index=1),
        module_owner("fc", "Dense", prefix="Cell"),
        slot_name("Torch.add.0.forward", "input.0"),
        slot_name("loss.0.debug", ""),
    ] == [
        "Torch.linalg.norm",
        "Module.blocks.0.ln.LayerNorm",
        "Module.Linear",
        "Module.1.fc.Linear",
        "Cell.fc.Dense",
        "Torch.add.0.forward.input.0",
        "loss.0.debug",
    ]

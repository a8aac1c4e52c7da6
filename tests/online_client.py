"""A process that sends calls of torch.abs as training would, without a framework: `online_client.py JSON`.

It notes how many calls were acknowledged, with an atomic write for each note, so that whoever kills it knows
which results must be there. Call number n has the name Torch.abs.n; each WRONG-th has a wrong output. With
"gradients" each call is followed by its gradient, and each WRONG-th of these is wrong, later by one.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from msprobe.name import CallName
from msprobe.online import tls
from msprobe.online.client import Network
from msprobe.online.folder import FolderWay
from msprobe.online.outbox import Outbox
from msprobe.online.sender import Sender
from msprobe.record import Leaf, Record
from msprobe.store.dtypes import TensorData

WRONG = 50


def expected(count: int, gradients: bool = False) -> list[tuple[str, str, str]]:
    """The first cells of each row: the name of a call, and how its outputs or its gradients were judged."""
    rows = []
    for number in range(count):
        rows.append((f"Torch.abs.{number}", "error" if number % WRONG == WRONG - 1 else "pass", " "))
        if gradients:
            rows.append((f"Torch.abs.{number}", " ", "error" if number % WRONG == 0 else "pass"))
    return rows


def call(number: int, size: int = 64, differentiable: bool = False) -> tuple[Record, dict[str, TensorData]]:
    numbers = _inputs(number, size)
    results = np.abs(numbers)
    if number % WRONG == WRONG - 1:
        results = results * np.float32(1.01)
    leaf = _leaf(size, differentiable)
    fields: dict[str, Any] = {
        "input_args": [leaf._replace(data_name="0")],
        "input_kwargs": {},
        "output": [leaf._replace(data_name="1")],
    }
    return Record(CallName("Torch.abs", "forward", number), fields), _tensors(numbers, results)


def gradient(number: int, size: int = 64) -> tuple[Record, dict[str, TensorData]]:
    """Of the call of the same number."""
    given = np.linspace(1, 2, size, dtype=np.float32)
    results = np.sign(_inputs(number, size)) * given
    if number % WRONG == 0:
        results = results * np.float32(1.01)
    leaf = _leaf(size, False)
    fields = {"input": [leaf._replace(data_name="0")], "output": [leaf._replace(data_name="1")]}
    return Record(CallName("Torch.abs", "backward", number), fields), _tensors(given, results)


def _inputs(number: int, size: int) -> Any:
    return np.linspace(-1, 1, size, dtype=np.float32) * np.float32(1 + number % 7)


def _leaf(size: int, differentiable: bool) -> Leaf:
    return Leaf("torch.Tensor", dtype="torch.float32", shape=(size,), requires_grad=differentiable)


def _tensors(*arrays: Any) -> dict[str, TensorData]:
    return {
        str(place): TensorData(array.astype(np.float32).tobytes(), "float32", array.shape)
        for place, array in enumerate(arrays)
    }


def main() -> None:
    told = json.loads(sys.argv[1])
    if told.get("nfs_path"):
        way: Any = FolderWay(told["nfs_path"])
    else:
        context = tls.training_side(told.get("tls_path", ""), "127.0.0.1")
        way = Network("127.0.0.1", told["port"], context)
    outbox = Outbox(patience=told.get("patience", 600.0), most=told.get("most", 256))
    sender = Sender(way, told["rank"], still=told.get("still", 120.0), outbox=outbox)
    notes = Path(told["notes"])
    ended = threading.Event()
    noting = threading.Thread(target=note_all_along, args=(notes, sender, ended))
    noting.start()
    gradients = told.get("gradients", False)
    for number in range(told["count"]):
        sender.put(number // 1000, *call(number, told.get("size", 64), gradients))
        if gradients:
            sender.put(number // 1000, *gradient(number, told.get("size", 64)))
        time.sleep(told.get("pause", 0.0))
    sender.close()
    ended.set()
    noting.join()
    note(notes, sender, ended=True)


def note_all_along(notes: Path, sender: Sender, ended: threading.Event) -> None:
    while not ended.wait(0.02):
        note(notes, sender)


def note(notes: Path, sender: Sender, *, ended: bool = False) -> None:
    outbox = sender.outbox
    told = {"settled": outbox.settled, "dropped": outbox.dropped, "refused": outbox.refused, "ended": ended}
    beside = notes.with_suffix(".part")
    beside.write_text(json.dumps(told))
    os.replace(beside, notes)


if __name__ == "__main__":
    main()

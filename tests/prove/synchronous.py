"""Importing this makes thread pools do their work at once.

An existing release computes checksums in a pool, of memory that training goes on changing; done at once they
are those of the tensors it recorded.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


def _submit(_pool: ThreadPoolExecutor, function: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
    done: Future[Any] = Future()
    done.set_result(function(*args, **kwargs))
    return done


ThreadPoolExecutor.submit = _submit  # type: ignore[assignment, method-assign]

"""Run a program many times in forks of one process: `python forks.py PRELOAD TARGET < ARGUMENTS`.

PRELOAD is a list of modules, separated by commas, that are imported once. TARGET is a script, or
`module:function`. Each line of the input is a JSON object {"argv": [...], "log": path}; each line of the
output is the exit code. It needs nothing but the standard library, because other environments run it too.
"""

import importlib
import json
import os
import runpy
import sys
import traceback


def run(target: str, argv: list[str]) -> None:
    sys.argv = [target, *argv]
    module, separator, function = target.partition(":")
    if separator:
        sys.exit(getattr(importlib.import_module(module), function)())
    sys.path.insert(0, os.path.dirname(os.path.abspath(target)))
    runpy.run_path(target, run_name="__main__")


def forked(target: str, argv: list[str], log: str) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = 1
    try:
        run(target, argv)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    try:
        import atexit

        atexit._run_exitfuncs()  # what a recorder does at the end of a process
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def main() -> None:
    preload, target = sys.argv[1:3]
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some modules talk while they are imported
    for name in filter(None, preload.split(",")):
        importlib.import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # a fork has none of the threads of its parent
    for line in sys.stdin:
        order = json.loads(line)
        print(forked(target, order["argv"], order["log"]), file=results, flush=True)


if __name__ == "__main__":
    main()

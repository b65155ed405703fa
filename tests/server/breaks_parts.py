"""SGLang's launcher with parts of the cache that raise. Run as a script.

`TEST_BREAKS` lists them as ``module:name=calls``, where calls are the numbers of those that
raise, 1 for the first; ``9-`` for the ninth and all that follow.
"""

import functools
import importlib
import operator
import os

import launcher


def _broken(original, name, calls):
    first, is_for_ever = int(calls.rstrip("-").split(".")[0]), calls.endswith("-")
    listed = {int(call) for call in calls.rstrip("-").split(".")}
    count = 0

    @functools.wraps(original)
    def function(*args, **kwargs):
        nonlocal count
        count += 1
        if count in listed or (is_for_ever and count >= first):
            raise RuntimeError(f"broken for a test: {name}")
        return original(*args, **kwargs)

    return function


def _break(entry):
    target, calls = entry.split("=")
    module, name = target.split(":")
    owner = importlib.import_module(module)
    *path, attribute = name.split(".")
    for part in path:
        owner = operator.attrgetter(part)(owner)
    setattr(owner, attribute, _broken(getattr(owner, attribute), name, calls))


if "TEST_BREAKS" in os.environ:
    # In the schedulers, which import this script again, as in the launcher.
    for each in os.environ["TEST_BREAKS"].split():
        _break(each)

if __name__ == "__main__":
    launcher.main()

# SPDX-License-Identifier: Apache-2.0
"""What is built in, and small helpers."""
import contextlib
import functools
import importlib.util
import os
from typing import Any, Iterator, List, Mapping, Sequence

from gradus._world import (ccl_built, cuda_built, ddl_built, gloo_built, mpi_built, nccl_built,
                           rocm_built)

_cache = functools.lru_cache(maxsize=None)


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the interface for a framework ("torch", "tensorflow") can be used."""
    return ext_base_name in ("torch", "tensorflow") \
        and importlib.util.find_spec(ext_base_name) is not None


@contextlib.contextmanager
def env(**values: Any) -> Iterator[None]:
    """Other values of variables of the environment, for a while; None takes one away."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = str(value)


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is 1, 2, 4, ..."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(values: Sequence[Any], parts: int) -> List[Sequence[Any]]:
    """So many parts of a list whose lengths differ by one at most; the longer ones come first."""
    least, longer = divmod(len(values), parts)
    starts = [part * least + min(part, longer) for part in range(parts + 1)]
    return [values[start:end] for start, end in zip(starts, starts[1:])]


__all__ = ["ccl_built", "cuda_built", "ddl_built", "env", "extension_available", "gloo_built",
           "mpi_built", "nccl_built", "num_rank_is_power_2", "rocm_built", "split_list"]

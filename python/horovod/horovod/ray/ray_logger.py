# SPDX-License-Identifier: Apache-2.0
"""horovod.ray.ray_logger: what workers of ElasticRayExecutor tell its callbacks."""
from typing import Any, Mapping, Optional

from gradus import _process


def log(info: Optional[Mapping[str, Any]] = None, **more: Any) -> None:
    """The values, which JSON can carry, go to the callbacks of ElasticRayExecutor.run()."""
    _process.report(log={**(info or {}), **more})


__all__ = ["log"]

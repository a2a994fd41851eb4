# SPDX-License-Identifier: Apache-2.0
"""horovod.ray.elastic: ElasticRayExecutor."""
from . import ElasticRayExecutor

__all__ = ["ElasticRayExecutor"]

# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow.elastic, which gradus.tensorflow.elastic has."""
from gradus.tensorflow.elastic import *  # noqa: F401,F403
from gradus.tensorflow.elastic import __getattr__  # noqa: F401

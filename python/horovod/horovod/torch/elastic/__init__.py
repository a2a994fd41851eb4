# SPDX-License-Identifier: Apache-2.0
"""horovod.torch.elastic, which gradus.torch.elastic has."""
from gradus.torch.elastic import *  # noqa: F401,F403

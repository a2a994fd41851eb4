# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow.sync_batch_norm, which gradus.keras has."""
from gradus.keras import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]

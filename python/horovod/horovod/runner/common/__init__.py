# SPDX-License-Identifier: Apache-2.0
"""What programs import of horovod.runner.common."""

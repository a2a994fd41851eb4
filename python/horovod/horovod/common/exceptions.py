# SPDX-License-Identifier: Apache-2.0
"""What goes wrong."""
from gradus._engine import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]

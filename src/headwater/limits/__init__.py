"""Every limit of the system. The last word of a name is its unit.

`Limits` holds those that a deployment can set. Each module has the constants of one area; all names are here.
"""

from __future__ import annotations

from headwater.limits.client import *
from headwater.limits.protocols import *
from headwater.limits.server import *
from headwater.limits.settable import *
from headwater.limits.spark import *
from headwater.limits.store import *

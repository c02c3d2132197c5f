"""Names for the types of arrays that the layers hand to each other.

Belongs here: type aliases. Not here: anything that computes. Used by kernels, models
and the model executor.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[np.integer]
Flags: TypeAlias = NDArray[np.bool_]

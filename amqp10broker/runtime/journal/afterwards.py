"""Changes of a node's folder after its broker has stopped: the node has left its cluster, or joins one.

They come after the stop, since a folder in use cannot be emptied. A crash in between leaves the folder as it
was: a node that was to join continues alone, one that has left is refused at its next start.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from amqp10broker.dataclass import dataclass
from amqp10broker.runtime.journal.data import Data
from amqp10broker.storage.disk import OsDisk

if TYPE_CHECKING:
    from amqp10broker.cluster.bootstrap import ClusterIdentity


@dataclass(frozen=True, slots=True)
class Afterwards:
    """The change to make after the stop. `membership`: of the cluster that has let the node in, whose broker
    goes on as its member; None: the node is blank, and ends.
    """

    membership: ClusterIdentity | None

    def carry_out(self, path: str) -> None:
        """Empty the folder, and note in it of which cluster the node is. Waits for the disk. Raises
        `StorageError` or `RefusedError` if it cannot be written.
        """
        data = Data(OsDisk(), os.path.abspath(path))
        try:
            data.discard("the node has left its cluster" if self.membership is None else "the node joins one")
            if self.membership is not None:
                data.belong(self.membership)
        finally:
            data.close()

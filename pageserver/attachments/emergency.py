"""Chooses the suffix of an attachment in a start without the generation service. Pure.

The suffix is greater than every suffix in the store. It is claimed by create as usual: if two
processes choose the same suffix, only one starts. The attachment deletes nothing and releases no
WAL, because nothing validates it. This ends when the service answers, has recorded the suffix
(advance), and has validated the attachment.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.objects.page_keys import PageName, QueueName, TombstoneName


def emergency_suffix(names: Iterable[PageName | QueueName], node_id: int) -> Suffix:
    """Returns a suffix greater than all in `names`: the listed names of all timelines to claim.
    Raises GenerationError if the numbers are used up."""
    seen = [name.suffix for name in names if not isinstance(name, TombstoneName)]
    attachment_generation = max((each.attachment_generation for each in seen), default=0)
    of_node = (each.node_generation for each in seen if each.node_id == node_id)
    return Suffix.pack(attachment_generation + 1, node_id, max(of_node, default=0) + 1)

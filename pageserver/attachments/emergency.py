"""The suffix of an attachment that no service has given out: for a start without one. Pure.

It is above everything that the store has seen, and is claimed by create as any other: of two that
choose the same one only one starts. It deletes nothing and lets nobody trim, as nothing validates
it, until the service is back, has been told of it (advance), and has answered.
"""

from __future__ import annotations

from collections.abc import Iterable

from generations.suffix import Suffix
from pageserver.objects.page_keys import PageName, QueueName, TombstoneName


def emergency_suffix(names: Iterable[PageName | QueueName], node_id: int) -> Suffix:
    """Above those in `names`, all that is listed of what is to be claimed. Raises GenerationError
    when the numbers are used up."""
    seen = [name.suffix for name in names if not isinstance(name, TombstoneName)]
    attachment_generation = max((each.attachment_generation for each in seen), default=0)
    of_node = (each.node_generation for each in seen if each.node_id == node_id)
    return Suffix.pack(attachment_generation + 1, node_id, max(of_node, default=0) + 1)

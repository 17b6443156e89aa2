"""Table of the function that decides each command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.transaction import (
    batching,
    beginning,
    cataloging,
    checking,
    copying,
    expiring,
    holding,
    losing,
    obeying,
    settling,
)
from escrowmq.transaction.commands import (
    Abandon,
    Append,
    Begin,
    Carry,
    CarryAlone,
    CheckSent,
    DecideBatch,
    Decision,
    End,
    MarkCatalog,
    MoveTime,
    Park,
    Prepare,
    PutGroup,
    PutSetting,
    PutTopic,
    Release,
    RemoveGroup,
    RemoveSetting,
    RemoveTopic,
    Resume,
    Verdict,
    Verdicts,
)
from escrowmq.transaction.expiry_commands import (
    ExpireGroups,
    ExpireOrigins,
    ExpireQueries,
    ExpireTopic,
    NoteUses,
)
from escrowmq.transaction.pause_command import PauseGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.transaction.core import Transactions


# ``Any``, because each function takes only the type of command that is its key.
DECIDERS: dict[type, Callable[[Transactions, Any, int], Decision]] = {
    Prepare: holding.prepare,
    Append: holding.append,
    Release: copying.release,
    End: settling.end,
    Carry: copying.carry,
    CarryAlone: copying.carry_alone,
    CheckSent: checking.check_sent,
    Park: checking.park,
    Resume: checking.resume,
    Verdict: checking.obey,
    Verdicts: obeying.obey_many,
    DecideBatch: batching.decide_batch,
    Abandon: losing.abandon,
    Begin: beginning.begin,
    PutTopic: cataloging.put_topic,
    RemoveTopic: cataloging.remove_topic,
    PutGroup: cataloging.put_group,
    RemoveGroup: cataloging.remove_group,
    PauseGroup: cataloging.pause_group,
    PutSetting: cataloging.put_setting,
    RemoveSetting: cataloging.remove_setting,
    MarkCatalog: cataloging.mark_catalog,
    MoveTime: beginning.move_time,
    ExpireOrigins: expiring.expire_origins,
    ExpireQueries: expiring.expire_queries,
    NoteUses: expiring.note_uses,
    ExpireGroups: expiring.expire_groups,
    ExpireTopic: expiring.expire_topic,
}

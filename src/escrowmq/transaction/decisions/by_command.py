"""Table of the function that decides each command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.transaction import commands, expiry_commands, pop_commands, user_commands
from escrowmq.transaction.decisions import (
    batching,
    beginning,
    bulk_verdicts,
    carrying,
    cataloging,
    checking,
    deciding,
    expiring,
    holding,
    losing,
    popping,
    recalling,
    users,
)
from escrowmq.transaction.pause_command import PauseGroup
from escrowmq.transaction.recall_commands import Recall

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.transaction.commands import Decision
    from escrowmq.transaction.core import Transactions


# ``Any``, because each function takes only the type of command that is its key.
DECIDERS: dict[type, Callable[[Transactions, Any, int], Decision]] = {
    commands.Prepare: holding.prepare,
    commands.Append: holding.append,
    commands.Release: carrying.release,
    commands.End: deciding.end,
    commands.Carry: carrying.carry,
    commands.CarryAlone: carrying.carry_alone,
    commands.CheckSent: checking.check_sent,
    commands.Park: checking.park,
    commands.Resume: checking.resume,
    commands.Verdict: checking.obey,
    commands.Verdicts: bulk_verdicts.obey_many,
    commands.DecideBatch: batching.decide_batch,
    commands.Abandon: losing.abandon,
    commands.Begin: beginning.begin,
    commands.PutTopic: cataloging.put_topic,
    commands.RemoveTopic: cataloging.remove_topic,
    commands.PutGroup: cataloging.put_group,
    commands.RemoveGroup: cataloging.remove_group,
    PauseGroup: cataloging.pause_group,
    commands.PutSetting: cataloging.put_setting,
    commands.RemoveSetting: cataloging.remove_setting,
    commands.MarkCatalog: cataloging.mark_catalog,
    commands.MoveTime: beginning.move_time,
    expiry_commands.ExpireOrigins: expiring.expire_origins,
    expiry_commands.ExpireQueries: expiring.expire_queries,
    expiry_commands.NoteUses: expiring.note_uses,
    expiry_commands.ExpireGroups: expiring.expire_groups,
    expiry_commands.ExpireTopic: expiring.expire_topic,
    pop_commands.PlacePops: popping.place_pops,
    pop_commands.Acknowledge: popping.acknowledge,
    pop_commands.BuryMessages: popping.bury,
    Recall: recalling.recall,
    user_commands.PutUser: users.put_user,
    user_commands.RemoveUser: users.remove_user,
    user_commands.MarkAccess: users.mark_access,
}

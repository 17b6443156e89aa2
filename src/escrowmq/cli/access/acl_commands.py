"""``escrowmq acl``: grant, revoke, list and explain policies of users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from escrowmq.access.parsing import (
    parse_actions,
    parse_policy,
    parse_roles,
    policy_texts,
    resource_text,
)
from escrowmq.cli.access.user_commands import RoleOption, show_changed
from escrowmq.cli.access.users import (
    Changed,
    DataOption,
    UserArgument,
    UsersChoice,
    actions_of,
    actions_text,
    as_it_is,
    policies_of,
    split,
    users_at,
)
from escrowmq.cli.options import (
    DEFAULT_BROKER,
    BrokerOption,
    DryRunOption,
    FileOption,
    Output,
    OutputOption,
    bad_option,
)
from escrowmq.cli.output import as_table, print_item, print_table
from escrowmq.cli.shapes.access_shapes import (
    ConsideredPolicyShape,
    ExplainedShape,
    UserPolicyShape,
)
from escrowmq.model.errors import RequestRefused
from escrowmq.model.users import Action, Effect, Policy
from escrowmq.protocol.native.user_headers import AclExplainHeader, PolicyRow, UserRow

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer()

ActionsArgument = Annotated[
    str, typer.Argument(metavar="ACTIONS", help="Such as Pub,Sub, or All; not needed with --role.")
]
ResourceArgument = Annotated[
    str, typer.Argument(metavar="RESOURCE", help="Such as Topic:order-*, Cluster, or * for all.")
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--source", metavar="NETWORK", help="Only for clients from there; may be repeated."
    ),
]
DenyOption = Annotated[
    bool, typer.Option("--deny", help="A policy that denies, which wins over all that allow.")
]
COLUMNS = (
    *("user", "role", "effect"),
    ("actions", lambda policy: actions_text(policy.actions)),
    "resource",
    ("sources", lambda policy: ",".join(policy.sources)),
)
Roles = tuple[str, ...]


@app.command()
def grant(
    user: UserArgument,
    actions: ActionsArgument = "",
    resource: ResourceArgument = "",
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    role: RoleOption = None,
    source: SourceOption = None,
    deny: DenyOption = False,
    data: DataOption = None,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
    file: FileOption = None,
) -> None:
    """Give a user a policy or a role: it counts from its next request on."""
    given = _given(actions, resource, source, role, deny=deny)

    def changed(policies: list[Policy], roles: Roles) -> tuple[list[Policy], Roles]:
        if given is None:
            return policies, (*roles, *(role or ()))
        return granted(policies, given), roles

    _change(user, UsersChoice(broker, data, file), output, changed, "granted it", dry_run=dry_run)


@app.command()
def revoke(
    user: UserArgument,
    actions: ActionsArgument = "",
    resource: ResourceArgument = "",
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    role: RoleOption = None,
    deny: DenyOption = False,
    data: DataOption = None,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
    file: FileOption = None,
) -> None:
    """Take actions out of a user's policies about this resource, or take a role away."""
    given = _given(actions, resource, None, role, deny=deny)

    def changed(policies: list[Policy], roles: Roles) -> tuple[list[Policy], Roles]:
        if given is None:
            gone = parse_roles(",".join(role or ()))
            return policies, tuple(one for one in roles if one not in gone)
        left = revoked(policies, given)
        if left == policies:
            raise RequestRefused(
                "policy_unknown",
                "the user has no such policy; `escrowmq acl list` shows all",
                user=user,
                resource=resource_text(given.resource),
                effect=given.effect.value,
            )
        return left, roles

    _change(user, UsersChoice(broker, data, file), output, changed, "without it", dry_run=dry_run)


def _given(
    actions: str, resource: str, source: list[str] | None, role: list[str] | None, *, deny: bool
) -> Policy | None:
    """Return the policy of the arguments; None if they name a role."""
    if bool(role) == bool(actions or resource):
        raise bad_option("ACTIONS", "give actions and a resource, or --role", actions)
    if role:
        return None
    effect = Effect.DENY if deny else Effect.ALLOW
    return parse_policy(resource, actions, ",".join(source or ()), effect)


def granted(policies: list[Policy], given: Policy) -> list[Policy]:
    """Return the policies with one more; one that differs in its actions alone gets them."""
    for at, known in enumerate(policies):
        merged = {*known.actions, *given.actions}
        union = msgspec.structs.replace(
            known, actions=tuple(action for action in Action if action in merged)
        )
        if union == msgspec.structs.replace(given, actions=union.actions):
            return [*policies[:at], union, *policies[at + 1 :]]
    return [*policies, given]


def revoked(policies: list[Policy], given: Policy) -> list[Policy]:
    """Return the policies without these actions on this resource, wherever clients come from."""
    left = []
    for known in policies:
        if (known.resource, known.effect) == (given.resource, given.effect):
            kept = tuple(action for action in known.actions if action not in given.actions)
            if kept:
                left.append(msgspec.structs.replace(known, actions=kept))
        else:
            left.append(known)
    return left


def _change(
    user: str,
    choice: UsersChoice,
    output: Output,
    changed: Callable[[list[Policy], Roles], tuple[list[Policy], Roles]],
    word: str,
    *,
    dry_run: bool,
) -> None:
    with users_at(choice) as place:
        row = place.user(user)
        policies = [
            parse_policy(one.resource, one.actions, one.sources, one.effect)
            for one in policies_of(row)
        ]
        roles = tuple(split(row.roles))
        new, named = changed(policies, roles)
        new_roles = parse_roles(",".join(named))
        header = msgspec.structs.replace(as_it_is(row), roles=",".join(new_roles))
        is_other = new != policies or new_roles != roles
        done = Changed(is_other, "")
        if not dry_run:
            done = place.put(header, [_row(policy) for policy in new])
    show_changed(user, row.access_key, done, output, word, dry_run=dry_run)


def _row(policy: Policy) -> PolicyRow:
    resource, actions, sources, effect = policy_texts(policy)
    return PolicyRow(resource=resource, actions=actions, sources=sources, effect=effect)


@app.command(name="list")
def list_(
    user: Annotated[str, typer.Argument(metavar="[USER]", help="Only this user's.")] = "",
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    data: DataOption = None,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
) -> None:
    """Print the policies of all users, or of one, with those of their roles."""
    with users_at(UsersChoice(broker, data, file)) as place:
        rows = [place.user(user)] if user else place.users()
    policies = [policy for row in rows for policy in _policies(row)]
    print_table(UserPolicyShape, policies, output, COLUMNS, "no policies")


def _policies(row: UserRow) -> list[UserPolicyShape]:
    from escrowmq.access.roles import POLICIES_OF

    of_roles = [
        (role, _row(policy)) for role in parse_roles(row.roles) for policy in POLICIES_OF[role]
    ]
    return [
        UserPolicyShape(
            user=row.user,
            role=role,
            resource=policy.resource,
            actions=actions_of(policy.actions),
            sources=split(policy.sources),
            effect=policy.effect,
        )
        for role, policy in [*((None, one) for one in policies_of(row)), *of_roles]
    ]


@app.command()
def explain(
    user: UserArgument,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="One action, such as Pub.")],
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="Such as Topic:orders, or Topic:* for all.")
    ],
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    address: Annotated[
        str, typer.Option(metavar="IP", help="UsersChoice the client is; unknown without it.")
    ] = "",
    data: DataOption = None,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
) -> None:
    """Print whether a user may do something, which policy decides, and why."""
    # Refused here, so that a slip is the same error at a broker and in a directory.
    parse_actions(action)
    asked = AclExplainHeader(user=user, action=action, resource=resource, address=address)
    with users_at(UsersChoice(broker, data, file)) as place:
        told = place.explain(asked)
    shape = ExplainedShape(
        user=user,
        action=action,
        resource=resource,
        address=address or None,
        is_allowed=told.is_allowed,
        why=told.why,
        advice=told.advice,
        policies=[
            ConsideredPolicyShape(
                role=row.role or None,
                resource=row.resource,
                actions=actions_of(row.actions),
                sources=split(row.sources),
                effect=row.effect,
                bearing=row.bearing,
                is_deciding=row.is_deciding,
            )
            for row in told.rows
        ],
    )
    print_item(shape, output, lambda: _explained_text(shape))


def _explained_text(shape: ExplainedShape) -> str:
    may = "may" if shape.is_allowed else "may NOT"
    place = f" from {shape.address}" if shape.address else ""
    rows = [
        (
            "decides" if one.is_deciding else "",
            one.bearing.replace("_", " "),
            one.effect,
            actions_text(one.actions),
            one.resource,
            ",".join(one.sources),
            one.role,
        )
        for one in shape.policies
    ]
    columns = ("", "this policy", "effect", "actions", "resource", "sources", "role")
    return "\n".join(
        [
            f"{shape.user} {may} {shape.action} on {shape.resource}{place}: {shape.advice}",
            "",
            as_table(columns, rows, "no policies"),
        ]
    )

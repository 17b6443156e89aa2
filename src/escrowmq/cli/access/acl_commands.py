"""``escrowmq acl``: grant, revoke, list and explain policies of users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from escrowmq.access.parsing import (
    parse_actions,
    parse_policy,
    parse_roles,
    policy_texts,
    resource_text,
)
from escrowmq.cli.access.user_commands import show_changed
from escrowmq.cli.access.user_options import ChangeOptions, RoleOption, UserArgument, UsersOptions
from escrowmq.cli.access.users import (
    Changed,
    actions_of,
    actions_text,
    as_it_is,
    policies_of,
    split,
    users_at,
)
from escrowmq.cli.options import bad_option, grouped
from escrowmq.cli.output import as_table, print_item, print_table
from escrowmq.cli.shapes.access_shapes import (
    ConsideredPolicyShape,
    ExplainedShape,
    UserPolicyShape,
)
from escrowmq.model.errors import RequestRefused
from escrowmq.model.users import Action, Effect, Policy
from escrowmq.protocol.native.user_headers import AclExplainHeader, PolicyRow, UserRow

app = typer.Typer()

COLUMNS = (
    *("user", "role", "effect"),
    ("actions", lambda policy: actions_text(policy.actions)),
    "resource",
    ("sources", lambda policy: ",".join(policy.sources)),
)
Roles = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions(ChangeOptions):
    """Options that name a policy or a role of a user."""

    user: UserArgument
    actions: Annotated[
        str,
        typer.Argument(metavar="ACTIONS", help="Such as Pub,Sub, or All; not needed with --role."),
    ] = ""
    resource: Annotated[
        str,
        typer.Argument(metavar="RESOURCE", help="Such as Topic:order-*, Cluster, or * for all."),
    ] = ""
    role: RoleOption = None
    deny: Annotated[
        bool, typer.Option("--deny", help="A policy that denies, which wins over all that allow.")
    ] = False

    def policy(self, sources: Sequence[str] = ()) -> Policy | None:
        """Return the policy of the arguments; None if they name a role."""
        if bool(self.role) == bool(self.actions or self.resource):
            raise bad_option("ACTIONS", "give actions and a resource, or --role", self.actions)
        if self.role:
            return None
        effect = Effect.DENY if self.deny else Effect.ALLOW
        return parse_policy(self.resource, self.actions, ",".join(sources), effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantOptions(PolicyOptions):
    """Options of ``acl grant``."""

    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source", metavar="NETWORK", help="Only for clients from there; may be repeated."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions(UsersOptions):
    """Options of ``acl list``."""

    user: Annotated[str, typer.Argument(metavar="[USER]", help="Only this user's.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions(UsersOptions):
    """Options of ``acl explain``."""

    user: UserArgument
    action: Annotated[str, typer.Argument(metavar="ACTION", help="One action, such as Pub.")]
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="Such as Topic:orders, or Topic:* for all.")
    ]
    address: Annotated[
        str, typer.Option(metavar="IP", help="Where the client is; unknown without it.")
    ] = ""


@app.command()
@grouped
def grant(given: GrantOptions) -> None:
    """Give a user a policy or a role: it counts from its next request on."""
    policy = given.policy(given.source or ())

    def changed(policies: list[Policy], roles: Roles) -> tuple[list[Policy], Roles]:
        if policy is None:
            return policies, (*roles, *(given.role or ()))
        return granted(policies, policy), roles

    _change(given, changed, "granted it")


@app.command()
@grouped
def revoke(given: PolicyOptions) -> None:
    """Take actions out of a user's policies about this resource, or take a role away."""
    policy = given.policy()

    def changed(policies: list[Policy], roles: Roles) -> tuple[list[Policy], Roles]:
        if policy is None:
            gone = parse_roles(",".join(given.role or ()))
            return policies, tuple(one for one in roles if one not in gone)
        left = revoked(policies, policy)
        if left == policies:
            raise RequestRefused(
                "policy_unknown",
                "the user has no such policy; `escrowmq acl list` shows all",
                user=given.user,
                resource=resource_text(policy.resource),
                effect=policy.effect.value,
            )
        return left, roles

    _change(given, changed, "without it")


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
    given: PolicyOptions,
    changed: Callable[[list[Policy], Roles], tuple[list[Policy], Roles]],
    word: str,
) -> None:
    with users_at(given) as place:
        row = place.user(given.user)
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
        if not given.dry_run:
            done = place.put(header, [_row(policy) for policy in new])
    show_changed(given.user, done, given, word, access_key=row.access_key)


def _row(policy: Policy) -> PolicyRow:
    resource, actions, sources, effect = policy_texts(policy)
    return PolicyRow(resource=resource, actions=actions, sources=sources, effect=effect)


@app.command(name="list")
@grouped
def list_(given: ListOptions) -> None:
    """Print the policies of all users, or of one, with those of their roles."""
    with users_at(given) as place:
        rows = [place.user(given.user)] if given.user else place.users()
    policies = [policy for row in rows for policy in _policies(row)]
    print_table(UserPolicyShape, policies, given.output, COLUMNS, "no policies")


def _policies(row: UserRow) -> list[UserPolicyShape]:
    from escrowmq.access.roles import POLICIES_OF

    of_roles = [
        (role, _row(policy)) for role in parse_roles(row.roles) for policy in POLICIES_OF[role]
    ]
    return [
        UserPolicyShape.of(
            policy,
            user=row.user,
            role=role,
            actions=actions_of(policy.actions),
            sources=split(policy.sources),
        )
        for role, policy in [*((None, one) for one in policies_of(row)), *of_roles]
    ]


@app.command()
@grouped
def explain(given: ExplainOptions) -> None:
    """Print whether a user may do something, which policy decides, and why."""
    # Refused here, so that a slip is the same error at a broker and in a directory.
    parse_actions(given.action)
    user, action, resource, address = given.user, given.action, given.resource, given.address
    asked = AclExplainHeader(user=user, action=action, resource=resource, address=address)
    with users_at(given) as place:
        told = place.explain(asked)
    policies = [
        ConsideredPolicyShape.of(
            row,
            role=row.role or None,
            actions=actions_of(row.actions),
            sources=split(row.sources),
        )
        for row in told.rows
    ]
    shape = ExplainedShape.of(
        told,
        user=user,
        action=action,
        resource=resource,
        address=address or None,
        policies=policies,
    )
    print_item(shape, given.output, lambda: _explained_text(shape))


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

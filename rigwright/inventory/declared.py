"""What the files of an inventory declare together: groups, their hosts and children, variables; and in which order they count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rigwright.errors import InputError
from rigwright.figures import number

Given = dict[str, tuple[Any, str]]
"""Variables with where each was given (FILE:LINE)."""

PRIORITY = "ansible_group_priority"


@dataclass
class Group:
    """A group: its own hosts and child groups, each with where it was named. Of two groups of one depth the higher priority wins."""

    name: str
    variables: Given = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    children: dict[str, str] = field(default_factory=dict)
    parents: list[str] = field(default_factory=list)
    priority: int = 1


@dataclass
class Declared:
    """Groups and hosts in the order in which they were first named."""

    groups: dict[str, Group] = field(default_factory=lambda: {name: Group(name) for name in ("all", "ungrouped")})
    hosts: dict[str, Given] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.child("all", "ungrouped", "")

    def group(self, name: str) -> Group:
        """The group of a name, declared by this if need be."""
        return self.groups.setdefault(name, Group(name))

    def host(self, name: str, group: str, where: str, port: int | None, variables: Given) -> None:
        """The host is in the group and has the variables; a port counts where the host is named for the first time."""
        if name not in self.hosts:
            self.hosts[name] = {} if port is None else {"ansible_port": (port, where)}
            self.where[name] = where
        self.hosts[name].update(variables)
        self.group(group).hosts.setdefault(name, where)

    def variables(self, group: str, variables: Given) -> None:
        """The group has the variables. Raises InputError for a priority that is no whole number."""
        for name, (value, where) in variables.items():
            if name != PRIORITY:
                self.group(group).variables[name] = (value, where)
            elif (priority := number(value)) is None:
                raise InputError(where, f"{PRIORITY} is {value!r}", "a whole number")
            else:
                self.group(group).priority = priority

    def child(self, parent: str, child: str, where: str) -> None:
        """One group holds another. Raises InputError where that closes a circle."""
        above, below = self.group(parent), self.group(child)
        way = self._way(child, parent)
        if way:
            circle = " > ".join((parent, *way))
            raise InputError(where, f"the groups {circle} hold each other", "groups without a circle")
        above.children.setdefault(child, where)
        if parent not in below.parents:
            below.parents.append(parent)

    def _way(self, start: str, end: str) -> list[str]:
        """The groups from one down to another, both among them; [] when there is no way."""
        if start == end:
            return [end]
        ways = (self._way(child, end) for child in self.groups[start].children)
        return next(([start, *way] for way in ways if way), [])

    def settle(self) -> None:
        """Every group is below `all`; `ungrouped` holds the hosts of no other group. Raises InputError for a group that holds `all`."""
        if parents := self.groups["all"].parents:
            where = self.groups[parents[0]].children["all"]
            found = f"the group {parents[0]} holds `all`, which holds every group"
            raise InputError(where, found, "groups without a circle")
        for name, group in self.groups.items():
            if name != "all" and not group.parents:
                self.child("all", name, "")
        rest = self.groups["ungrouped"].hosts
        for name in self.hosts:
            direct = [group.name for group in self.groups.values() if name in group.hosts and group.name != "all"]
            if not direct:
                rest[name] = self.where[name]
            elif direct != ["ungrouped"]:
                rest.pop(name, None)

    def groups_of(self, host: str) -> list[str]:
        """The groups that a host is in, the weakest first: by depth below `all`, then priority, then name, as Ansible has it."""
        found = {"all"}
        waiting = [group.name for group in self.groups.values() if host in group.hosts]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self.groups[name].parents
        return sorted(found, key=lambda name: (self._depth(name), self.groups[name].priority, name))

    def _depth(self, name: str) -> int:
        return 0 if name == "all" else 1 + max(self._depth(parent) for parent in self.groups[name].parents)

    def members(self, group: str) -> tuple[str, ...]:
        """The hosts of a group: its own in their order, then those of its children, then of theirs, level by level as in Ansible."""
        found: dict[str, None] = {}
        level = [group]
        while level:
            found.update(dict.fromkeys(host for name in level for host in self.groups[name].hosts))
            level = list(dict.fromkeys(child for name in level for child in self.groups[name].children))
        return tuple(found)

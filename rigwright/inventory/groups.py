"""The groups, hosts, child groups and variables that all files of an inventory declare, and their precedence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rigwright.core.errors import InputError
from rigwright.core.numbers import number

Given = dict[str, tuple[Any, str]]
"""Variables by name, each with its value and the place where it was set (FILE:LINE)."""

PRIORITY = "ansible_group_priority"


@dataclass
class Group:
    """A group. `hosts` and `children` map its own hosts and child groups to the place where each was named (FILE:LINE).

    Of two groups of the same depth, the group with the higher `priority` has precedence.
    """

    name: str
    variables: Given = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    children: dict[str, str] = field(default_factory=dict)
    parents: list[str] = field(default_factory=list)
    priority: int = 1


@dataclass
class Declared:
    """All groups and hosts, in the order in which they were first named."""

    groups: dict[str, Group] = field(default_factory=lambda: {name: Group(name) for name in ("all", "ungrouped")})
    hosts: dict[str, Given] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.child("all", "ungrouped", "")

    def group(self, name: str) -> Group:
        """The group of that name; creates it if it does not exist."""
        return self.groups.setdefault(name, Group(name))

    def host(self, name: str, group: str, where: str, port: int | None, variables: Given) -> None:
        """Adds a host to a group and sets its variables. The port is used only when the host is first named."""
        if name not in self.hosts:
            self.hosts[name] = {} if port is None else {"ansible_port": (port, where)}
            self.where[name] = where
        self.hosts[name].update(variables)
        self.group(group).hosts.setdefault(name, where)

    def variables(self, group: str, variables: Given) -> None:
        """Sets variables of a group. Raises InputError for a priority that is not a whole number."""
        for name, (value, where) in variables.items():
            if name != PRIORITY:
                self.group(group).variables[name] = (value, where)
            elif (priority := number(value)) is None:
                raise InputError(where, f"{PRIORITY} is {value!r}", "a whole number")
            else:
                self.group(group).priority = priority

    def child(self, parent: str, child: str, where: str) -> None:
        """Makes a group the child of another. Raises InputError for a cycle."""
        above, below = self.group(parent), self.group(child)
        way = self._way(child, parent)
        if way:
            cycle = " > ".join((parent, *way))
            raise InputError(where, f"the groups {cycle} hold each other", "groups without a cycle")
        above.children.setdefault(child, where)
        if parent not in below.parents:
            below.parents.append(parent)

    def _way(self, start: str, end: str) -> list[str]:
        """The path from a group down to another group, including both; [] if there is no path."""
        if start == end:
            return [end]
        ways = (self._way(child, end) for child in self.groups[start].children)
        return next(([start, *way] for way in ways if way), [])

    def settle(self) -> None:
        """Puts all groups below `all`, other hosts into `ungrouped`. Raises InputError when a group contains `all`."""
        if parents := self.groups["all"].parents:
            where = self.groups[parents[0]].children["all"]
            problem = f"the group {parents[0]} holds `all`, which holds every group"
            raise InputError(where, problem, "groups without a cycle")
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
        """The groups of a host, lowest precedence first: by depth below `all`, priority and name, like Ansible."""
        groups = {"all"}
        waiting = [group.name for group in self.groups.values() if host in group.hosts]
        while waiting:
            name = waiting.pop()
            if name not in groups:
                groups.add(name)
                waiting += self.groups[name].parents
        return sorted(groups, key=lambda name: (self._depth(name), self.groups[name].priority, name))

    def _depth(self, name: str) -> int:
        return 0 if name == "all" else 1 + max(self._depth(parent) for parent in self.groups[name].parents)

    def members(self, group: str) -> tuple[str, ...]:
        """The hosts of a group in Ansible's order: its own hosts, then those of its child groups, level by level."""
        hosts: dict[str, None] = {}
        level = [group]
        while level:
            hosts.update(dict.fromkeys(host for name in level for host in self.groups[name].hosts))
            level = list(dict.fromkeys(child for name in level for child in self.groups[name].children))
        return tuple(hosts)

"""The groups, hosts, child groups and variables that all files of an inventory declare, and their precedence."""

from __future__ import annotations

import graphlib
from typing import Any

from msgspec import Struct, field

from rigwright.core.errors import InputError
from rigwright.core.numbers import number

Given = dict[str, tuple[Any, str]]
"""Variables by name, each with its value and the place where it was set (FILE:LINE)."""

DEEPEST = 100
"""The most groups inside each other."""
PRIORITY = "ansible_group_priority"


class Group(Struct):
    """A group. `hosts` and `children` map its own hosts and child groups to the place where each was named (FILE:LINE).

    Of two groups of the same depth, the group with the higher `priority` has precedence.
    """

    name: str
    variables: Given = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    children: dict[str, str] = field(default_factory=dict)
    parents: list[str] = field(default_factory=list)
    priority: int = 1


class Declared(Struct):
    """All groups and hosts, in the order in which they were first named."""

    groups: dict[str, Group] = field(default_factory=lambda: {name: Group(name) for name in ("all", "ungrouped")})
    hosts: dict[str, Given] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    _lines: list[tuple[str, str]] = field(default_factory=list)
    """Each group that was put into another, as (parent, child), in the order of the files."""
    _depths: dict[str, int] = field(default_factory=dict)
    _direct: dict[str, list[str]] = field(default_factory=dict)
    """The groups that name each host."""

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
        """Makes a group the child of another."""
        above, below = self.group(parent), self.group(child)
        above.children.setdefault(child, where)
        if parent not in below.parents:
            below.parents.append(parent)
            self._lines.append((parent, child))

    def settle(self) -> None:
        """Puts all groups below `all`, other hosts into `ungrouped`. Raises InputError for groups in a cycle."""
        if parents := self.groups["all"].parents:
            where = self.groups[parents[0]].children["all"]
            problem = f"the group {parents[0]} holds `all`, which holds every group"
            raise InputError(where, problem, "groups without a cycle")
        for name, group in self.groups.items():
            if name != "all" and not group.parents:
                self.child("all", name, "")
        rest = self.groups["ungrouped"].hosts
        own = (group.hosts for group in self.groups.values() if group.name not in ("all", "ungrouped"))
        in_group = {host for hosts in own for host in hosts}
        for name in self.hosts:
            if name in in_group:
                rest.pop(name, None)
            else:
                rest.setdefault(name, self.where[name])
        self._depths = self._settled_depths()
        for group in self.groups.values():
            for host in group.hosts:
                self._direct.setdefault(host, []).append(group.name)

    def _report_cycle(self, names: list[str]) -> None:
        """Raises InputError for a cycle. `names`: its groups, each of which holds the next, and the last the first."""
        pairs = list(zip(names, [*names[1:], names[0]], strict=True))
        last = max(range(len(pairs)), key=lambda at: self._lines.index(pairs[at]))
        parent, child = pairs[last]
        shown = [*names[last:], *names[:last], parent]
        cycle = " > ".join(shown if len(shown) <= 10 else [*shown[:5], "...", *shown[-4:]])
        raise InputError(
            self.groups[parent].children[child], f"the groups {cycle} hold each other", "groups without a cycle"
        )

    def _settled_depths(self) -> dict[str, int]:
        """The length of the longest path from `all` to each group. Raises InputError for a cycle, and above DEEPEST."""
        depths: dict[str, int] = {}
        try:
            for name in graphlib.TopologicalSorter(
                {name: group.parents for name, group in self.groups.items()}
            ).static_order():
                parent = max(self.groups[name].parents, key=depths.__getitem__, default="")
                depths[name] = depths[parent] + 1 if parent else 0
                if depths[name] > DEEPEST:
                    problem = f"more than {DEEPEST} groups inside each other"
                    raise InputError(self.groups[parent].children[name], problem, "groups that are nested less deep")
        except graphlib.CycleError as error:
            self._report_cycle(error.args[1][:-1])
        return depths

    def groups_of(self, host: str) -> list[str]:
        """The groups of a host, lowest precedence first: by depth below `all`, priority and name, like Ansible.

        Call it after `settle`.
        """
        groups = {"all"}
        waiting = list(self._direct.get(host, ()))
        while waiting:
            name = waiting.pop()
            if name not in groups:
                groups.add(name)
                waiting += self.groups[name].parents
        return sorted(groups, key=lambda name: (self._depths[name], self.groups[name].priority, name))

    def members(self, group: str) -> tuple[str, ...]:
        """The hosts of a group in Ansible's order: its own hosts, then those of its child groups, level by level."""
        hosts: dict[str, None] = {}
        reached = {group: None}
        level = [group]
        while level:
            hosts.update(dict.fromkeys(host for name in level for host in self.groups[name].hosts))
            below = dict.fromkeys(child for name in level for child in self.groups[name].children)
            level = [name for name in below if name not in reached]
            reached.update(dict.fromkeys(level))
        return tuple(hosts)

"""The inventory follows the rules of Ansible's YAML format; mistakes in it give clear errors."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rigwright.cli import runner
from rigwright.core.errors import InputError, UsageError
from rigwright.inventory import Inventory, model as hosts, read
from rigwright.report.tables import inventory as report

FLEET = """\
all:
  vars: {who: all}
  children:
    gpu:
      vars: {who: gpu, kind: accelerated}
      children:
        v100:
          vars: {who: v100}
          hosts:
            servbadge: {ansible_host: 192.0.2.10, who: itself}
            v100-[02:03]:
        rtx:
          hosts:
            rig-3090:
        empty:
    old:
      hosts:
        v100-03:
  hosts:
    console: {}
"""


def written(folder: Path, **files: str) -> Path:
    """Writes an inventory directory and returns it; `hosts` is hosts.yml, `group_vars__all` is group_vars/all.yml."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def fleet(tmp_path: Path) -> Inventory:
    """Returns an inventory of four GPU machines and one without."""
    return read(written(tmp_path, hosts=FLEET))


def refused(folder: Path) -> InputError:
    """Returns the error of an inventory."""
    with pytest.raises(InputError) as caught:
        read(folder)
    return caught.value


# --- groups and hosts


def test_hosts_in_the_order_of_the_file(fleet: Inventory) -> None:
    assert list(fleet.hosts) == ["servbadge", "v100-02", "v100-03", "rig-3090", "console"]


def test_groups_of_a_host(fleet: Inventory) -> None:
    assert fleet.hosts["servbadge"].groups == ("all", "gpu", "v100")
    assert fleet.hosts["console"].groups == ("all", "ungrouped")
    assert fleet.hosts["v100-03"].groups == ("all", "gpu", "old", "v100")
    assert fleet.hosts["v100-03"].variables["group_names"] == ["gpu", "old", "v100"]
    assert fleet.groups["gpu"] == ("servbadge", "v100-02", "v100-03", "rig-3090")
    assert fleet.groups["empty"] == ()


def test_addresses_and_places(fleet: Inventory, tmp_path: Path) -> None:
    assert fleet.hosts["servbadge"].address == "192.0.2.10"
    assert fleet.hosts["v100-02"].address == "v100-02"
    assert fleet.hosts["v100-02"].where == f"{tmp_path}/hosts.yml:11"
    assert fleet.hosts["v100-02"].variables["inventory_hostname"] == "v100-02"


HOSTS = "gpu: {hosts: {x: }}\n"


@pytest.mark.parametrize(
    ("files", "variables"),
    [
        ({"hosts": "a:\n  hosts: {x: {one: 1}}\nb:\n  children: {a: {hosts: {y: }, vars: {two: 2}}}\n"},
         {"one": 1, "two": 2}),
        ({"a": HOSTS, "b": "gpu: {hosts: {y: }, vars: {z: 1}}\n"}, {"z": 1}),
        ({"hosts": "b: {hosts: {x: }, vars: {who: b}}\na: {hosts: {x: }, vars: {who: a}}\n"}, {"who": "b"}),
        ({"hosts": "z: {hosts: {x: }, vars: {who: z}}\nb: {children: {a: {hosts: {x: }, vars: {who: a}}}}\n"},
         {"who": "a"}),
        ({"hosts": "all: {hosts: {x: }}\n", "group_vars__ungrouped": "who: ungrouped\n"}, {"who": "ungrouped"}),
        ({"hosts": HOSTS, "host_vars__x": "# later\n"}, {}),
        ({"hosts": HOSTS, "rigs__mine": "title: Mine\n"}, {}),
    ],
    ids=[
        "a group written twice is one", "several files are one inventory",
        "of two groups beside each other the later name wins",
        "a deeper group wins over a later name", "hosts without a group", "an empty file", "own rigs are no inventory",
    ],
)  # fmt: skip
def test_variables_of_a_host(tmp_path: Path, files: dict[str, str], variables: dict[str, object]) -> None:
    found = read(written(tmp_path, **files))
    kept = {"inventory_hostname", "inventory_hostname_short", "group_names"}
    assert {name: value for name, value in found.hosts["x"].variables.items() if name not in kept} == variables
    assert next(iter(found.groups["all"])) == "x"


def test_one_file_as_the_inventory(tmp_path: Path) -> None:
    written(tmp_path, hosts="gpu: {hosts: {x: }}\n", host_vars__x="rig: servbadge\n")
    assert read(tmp_path / "hosts.yml").hosts["x"].variables["rig"] == "servbadge"


def test_an_empty_file(tmp_path: Path) -> None:
    assert list(read(written(tmp_path, hosts="# nothing yet\n")).hosts) == []


# --- variables


def test_nearer_wins(tmp_path: Path) -> None:
    """Later ones win: all, parent, child in the file; group_vars in the same order; the host in the file; host_vars."""
    hosts = (
        "all:\n  vars: {who: all}\n  children:\n    gpu:\n      vars: {who: gpu}\n      children:\n        v100:\n"
        "          vars: {who: v100}\n          hosts: {x: HOST}\n"
    )
    seen = []
    written(tmp_path, hosts="all: {vars: {who: all}, hosts: {x: }}\n")
    seen.append(read(tmp_path).hosts["x"].variables["who"])
    written(tmp_path, hosts=hosts.replace("vars: {who: v100}", "vars: {}").replace("HOST", ""))
    seen.append(read(tmp_path).hosts["x"].variables["who"])
    written(tmp_path, hosts=hosts.replace("HOST", ""))
    seen.append(read(tmp_path).hosts["x"].variables["who"])
    for name in ("all", "gpu", "v100"):
        written(tmp_path, **{f"group_vars__{name}": f"who: group_vars/{name}\n"})
        seen.append(read(tmp_path).hosts["x"].variables["who"])
    written(tmp_path, hosts=hosts.replace("HOST", "{who: host}"))
    seen.append(read(tmp_path).hosts["x"].variables["who"])
    written(tmp_path, host_vars__x="who: host_vars\n")
    seen.append(read(tmp_path).hosts["x"].variables["who"])
    assert seen == ["all", "gpu", "v100", "group_vars/all", "group_vars/gpu", "group_vars/v100", "host", "host_vars"]


def test_group_vars_as_a_directory(tmp_path: Path) -> None:
    """Its files are read in the order of their names, with any extension, as Ansible does."""
    written(tmp_path, hosts="gpu: {hosts: {x: }}\n", group_vars__gpu__10="a: 1\nb: 1\n", group_vars__gpu__20="b: 2\n")
    variables = read(tmp_path).hosts["x"].variables
    assert (variables["a"], variables["b"]) == (1, 2)
    (tmp_path / "group_vars" / "gpu" / "30").write_text("c: 3\n")
    written(tmp_path, group_vars__gpu__deeper__40="d: 4\n")
    variables = read(tmp_path).hosts["x"].variables
    assert variables["c"] == 3
    assert variables["d"] == 4


def test_group_vars_without_an_ending(tmp_path: Path) -> None:
    written(tmp_path, hosts="gpu: {hosts: {x: }}\n", group_vars__other="")
    (tmp_path / "group_vars" / "gpu").write_text("a: 1\n")
    assert read(tmp_path).hosts["x"].variables["a"] == 1


def test_a_template_in_a_variable_of_another_host(tmp_path: Path) -> None:
    """Other tools may fill in templates of a shared inventory; only a template of a selected host is an error."""
    hosts = "gpu:\n  hosts:\n    x: {site: here}\n    y: {password: '{{ vault_password }}'}\n"
    assert [host.name for host in read(written(tmp_path, hosts=hosts)).select("x")] == ["x"]


# --- patterns


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("servbadge", "servbadge"),
        ("gpu", "servbadge v100-02 v100-03 rig-3090"),
        ("all", "console v100-03 servbadge v100-02 rig-3090"),
        ("*", "console v100-03 servbadge v100-02 rig-3090"),
        ("ungrouped", "console"),
        ("v100*", "servbadge v100-02 v100-03"),
        ("v100-0?", "v100-02 v100-03"),
        ("v100-0[3-9]", "v100-03"),
        ("gpu:!old", "servbadge v100-02 rig-3090"),
        ("!old:gpu", "servbadge v100-02 rig-3090"),
        ("!gpu", "console"),
        ("gpu:&old", "v100-03"),
        ("gpu:&v100:!servbadge", "v100-02 v100-03"),
        ("rig-3090,servbadge", "rig-3090 servbadge"),
        ("rig-3090:servbadge", "rig-3090 servbadge"),
        (" rig-3090 , servbadge ", "rig-3090 servbadge"),
        ("servbadge,gpu,servbadge", "servbadge v100-02 v100-03 rig-3090"),
        ("~(serv|rig).*", "servbadge rig-3090"),
        ("~v100-0[23]", "v100-02 v100-03"),
        ("gpu:!~v100.*", "rig-3090"),
    ],
)
def test_patterns(fleet: Inventory, pattern: str, names: str) -> None:
    assert [host.name for host in fleet.select(pattern)] == names.split()


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("servbagde", "no host or group 'servbagde'; did you mean 'servbadge'?"),
        ("gpu:!odl", "no host or group 'odl'; did you mean 'old'?"),
        ("gpu:&rtxx", "no host or group 'rtxx'; did you mean 'rtx'?"),
        ("zzz*", "no host or group 'zzz*'"),
        ("empty", "matches no host"),
        ("rtx:&old", "matches no host"),
        ("all:!all", "matches no host"),
        ("all:!gpu:!console,servbadge", "matches no host"),
        ("~zzz", "matches no host"),
        ("", "matches no host"),
        (":", "matches no host"),
        ("!", "no host or group ''"),
        ("~(", "'(' is not a valid regular expression"),
    ],
)
def test_patterns_that_name_nothing(fleet: Inventory, pattern: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        fleet.select(pattern)
    assert message in caught.value.found
    assert caught.value.where == f"--host {pattern}"
    assert caught.value.exit_code == 1


def test_an_unknown_host_is_told_which_there_are(fleet: Inventory, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        fleet.select("x")
    assert caught.value.fix == (
        f"{tmp_path} has: servbadge, v100-02, v100-03, rig-3090, console; `all` means every one"
    )


def test_the_only_host(fleet: Inventory, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        fleet.only()
    assert "has 5 hosts" in caught.value.found
    one = read(written(tmp_path / "one", hosts="gpu: {hosts: {x: }}\n"))
    assert one.only().name == "x"
    none = read(written(tmp_path / "none", hosts="gpu:\n"))
    with pytest.raises(UsageError):
        none.only()


# --- mistakes


def test_nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        error = refused(path)
        assert (error.where, error.found) == (str(path), "no inventory there")
        assert "--inventory" in error.fix
    monkeypatch.chdir(tmp_path)
    error = refused(Path("absent"))
    assert (error.where, error.found) == ("absent", f"no inventory there: {tmp_path}/absent")
    assert error.fix.startswith("cd to the folder with your inventory")


def test_an_inventory_without_hosts(tmp_path: Path) -> None:
    none = read(written(tmp_path, hosts=""))
    with pytest.raises(UsageError) as caught:
        none.select("box")
    assert caught.value.fix == f"{none.path} declares no host; invoke init adds one"


@pytest.mark.parametrize(
    ("text", "line", "found", "wanted"),
    [
        ("- gpu\n", 0, "no mapping of groups", "GROUP: {hosts: {NAME: {...}}}"),
        (
            "gpu:\n  host: {x: }\n",
            2,
            "unknown key of a group 'host'; did you mean 'hosts'?",
            "one of children, hosts, vars",
        ),
        ("gpu:\n  servbadge:\n", 2, "unknown key of a group 'servbadge'", "one of children, hosts, vars"),
        ("gpu:\n  hosts: [x, y]\n", 2, "'hosts' is no mapping", "hosts: with one NAME: per line"),
        ("gpu:\n  hosts: x\n", 2, "'hosts' is no mapping", "hosts: with one NAME: per line"),
        ("gpu:\n  vars: [a]\n", 2, "'vars' is no mapping", "vars: with one NAME: per line"),
        ("gpu:\n  children: v100\n", 2, "'children' is no mapping", "children: with one NAME: per line"),
        ("gpu: x\n", 1, "group 'gpu' holds", "hosts, vars or children"),
        ("gpu:\n  hosts:\n    x: 192.0.2.1\n", 3, "host 'x' holds", "variables, one per line"),
        ("gpu:\n  hosts:\n    x: {a b: 1}\n", 3, "'a b' is no name of a variable", "letters, digits and _"),
        (
            "gpu:\n  vars:\n    kernel-cmdline: []\n",
            3,
            "'kernel-cmdline' is no name of a variable",
            "letters, digits and _",
        ),
        ("gpu:\n  hosts:\n    x:\n    y:\n    x:\n", 5, "the key 'x' a second time (first in line 3)", "each key once"),
        ("gpu:\n  hosts:\n    10: {}\n", 3, "the key 10, which YAML reads as no text", "'10' in quotes"),
        ("gpu:\n\thosts:\n", 2, "a tab", "spaces: YAML knows no tabs in indentation"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, line: int, found: str, wanted: str) -> None:
    error = refused(written(tmp_path, hosts=text))
    assert error.where == f"{tmp_path}/hosts.yml{f':{line}' if line else ''}"
    assert error.found.startswith(found)
    assert error.expected == wanted


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("limts", "limits"),
        ("limit", "limits"),
        ("drver", "driver"),
        ("dirver", "driver"),
        ("kernel_cmdlin", "kernel_cmdline"),
        ("cuda_repositry", "cuda_repository"),
    ],
)
def test_a_variable_that_is_nearly_one_of_ours(tmp_path: Path, wrong: str, right: str) -> None:
    """Without the error, the variable would be ignored silently."""
    error = refused(written(tmp_path, hosts="gpu: {hosts: {x: }}\n", host_vars__x=f"rig: servbadge\n{wrong}: 1\n"))
    assert error.where == f"{tmp_path}/host_vars/x.yml:2"
    assert f"'{wrong}'; did you mean '{right}'?" in error.found


@pytest.mark.parametrize("name", ["ansible_user", "driver_version", "my_limits", "curl", "power", "dir", "site", "_x"])
def test_a_variable_of_your_own(tmp_path: Path, name: str) -> None:
    found = read(written(tmp_path, hosts="gpu: {hosts: {x: }}\n", group_vars__all=f"{name}: 1\n"))
    assert found.hosts["x"].variables[name] == 1


@pytest.mark.parametrize("pattern", ["n[aa:ac]", "n[1:3:0]", "n[3:1]", "n[1:c]", "n[c:1]", "n[b:a]"])
def test_a_range_that_is_none(tmp_path: Path, pattern: str) -> None:
    """The range gives an error, not a crash or an empty list of hosts."""
    error = refused(written(tmp_path, hosts=f"gpu:\n  hosts:\n    '{pattern}':\n"))
    assert error.where == f"{tmp_path}/hosts.yml:3"
    assert pattern in error.found


def test_variables_that_are_no_mapping(tmp_path: Path) -> None:
    error = refused(written(tmp_path, hosts="gpu: {hosts: {x: }}\n", group_vars__gpu="- a\n"))
    assert error.where == f"{tmp_path}/group_vars/gpu.yml"
    assert error.found == "no mapping of variables"


# --- INI, and other kinds of files


@pytest.mark.parametrize(
    ("text", "line", "found", "wanted"),
    [
        ("[gpu:children]\nv100\n[v10]\nx\n", 2, "no group 'v100' is declared; did you mean 'v10'?", "a section [v100]"),
        ("[gpu]\nx\n[gpus:vars]\na=1\n", 3, "no group 'gpus' is declared; did you mean 'gpu'?", "a section [gpus]"),
        ("[gpu:childs]\n", 1, "'childs' is no kind of section; did you mean 'children'?", "[GROUP]"),
        ("[gpu :vars]\n", 1, "'[gpu :vars]' is no section", "[GROUP]"),
        ("[gpu]\nx\ny\nx ansible_host=1\n", 4, "the host 'x' a second time in [gpu] (first in line 2)",
         "each host once"),
        ("[gpu]\nx y=1\n[old]\nx\n[gpu]\nx\n", 6, "the host 'x' a second time in [gpu] (first in line 2)",
         "each host once"),
        ("[gpu]\nx 192.0.2.1\n", 2, "'192.0.2.1' behind the host 'x'", "NAME=VALUE"),
        ("[gpu]\nx note='one\n", 2, "no closing quotation", "quotes in pairs"),
        ("[gpu]\nx limts=1\n", 2, "unknown variable 'limts'; did you mean 'limits'?", "one of"),
        ("[gpu]\nx\n[gpu:vars]\ndrver = {'branch': '535'}\n", 4, "unknown variable 'drver'; did you mean 'driver'?",
         ""),
        ("[gpu:vars]\nkernel-cmdline=1\n[gpu]\n", 2, "'kernel-cmdline' is no name of a variable",
         "letters, digits and _"),
        ("[gpu:vars]\nabc\n[gpu]\n", 2, "'abc' in a section of variables", "NAME = VALUE"),
        ("[gpu:children]\na b\n", 2, "'a b' in a section of children", "the name of a group"),
        ("[gpu]\nnode[3:1]\n", 2, "the range [3:1] of 'node[3:1]' names no host", "a range"),
        ("[gpu]\nnode[01:100]\n", 2, "the range [01:100] of 'node[01:100]' names no host", "a range"),
        ("[gpu]\nnode[1]\n", 2, "'node[1]' has brackets without a range", "a range"),
        ("[gpu]\nnode[1:999999999]\n", 2, "the range [1:999999999]", "a range"),
        ("[gpu]\nx:99999\n", 2, "'x:99999': the port 99999", "a number from 1 to 65535"),
        ("[gpu]\nx,y\n", 2, "'x,y' is no name of a host", "letters"),
        ("[a:children]\nb\n[b:children]\na\n", 4, "the groups b > a > b hold each other", "without a cycle"),
        ("[a:children]\na\n", 2, "the groups a > a hold each other", "without a cycle"),
        ("[a:children]\nall\n[a]\nx\n", 2, "the group a holds `all`", "without a cycle"),
        ("[a]\nx\n[a:vars]\nansible_group_priority=high\n", 4, "ansible_group_priority is 'high'", "a whole number"),
        ("[a]\nx\n[a:vars]\nansible_group_priority=--5\n", 4, "ansible_group_priority is '--5'", "a whole number"),
        ("[a]\nx\n[a:vars]\nansible_group_priority=²\n", 4, "ansible_group_priority is '²'", "a whole number"),
        ("---\n", 1, "'---', which begins YAML", "an INI inventory"),
    ],
)  # fmt: skip
def test_mistakes_in_ini_are_named(tmp_path: Path, text: str, line: int, found: str, wanted: str) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text(text)
    error = refused(path)
    assert error.where == f"{path}:{line}"
    assert error.found.startswith(found)
    assert wanted in error.expected


def test_ini_variables_know_their_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text("[gpu]\nx rig=servbadge\n[gpu:vars]\ndriver={'branch': '535'}\n")
    host = read(path).hosts["x"]
    assert (host.where, host.origin("rig"), host.origin("driver")) == (f"{path}:2", f"{path}:2", f"{path}:4")
    assert host.variables["driver"] == {"branch": "535"}


@pytest.mark.parametrize(
    "value", ["[" * 5000, "{[]: 1}", "1e999", "b'x'", "{1, 2}", "1 +", "'", "\\", "1" * 5000, "-" * 5000]
)
def test_ini_values_that_python_chokes_on_are_texts(tmp_path: Path, value: str) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text(f"[gpu]\nx\n[gpu:vars]\na={value}\n")
    assert read(path).hosts["x"].variables["a"] in (value, float("inf"))


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("hosts", "#!/usr/bin/python3\nprint('{}')\n", "a program that makes an inventory"),
        ("hosts.yml", "plugin: aws_ec2\nregions: [x]\n", "the configuration of the inventory plugin aws_ec2"),
        ("hosts.toml", "[gpu]\n", "an inventory in TOML"),
        ("hosts", "gpu:\n  hostz: {x: }\n", "unknown key of a group 'hostz'; did you mean 'hosts'?"),
        ("hosts", "\N{BYTE ORDER MARK}[gpu]\nx\n[gpu:varz]\n", "'varz' is no kind of section"),
    ],
)
def test_files_of_other_kinds(tmp_path: Path, name: str, text: str, found: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    error = refused(path)
    assert error.where.startswith(str(path))
    assert error.found.startswith(found)


def test_a_directory_with_only_an_ini_file_says_how_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "hosts.ini").write_text("[gpu]\nx\n")
    assert f"--inventory {tmp_path}/hosts.ini" in refused(tmp_path).fix
    assert list(read(tmp_path / "hosts.ini").hosts) == ["x"]


def test_a_circle_of_groups_without_hosts(tmp_path: Path) -> None:
    error = refused(written(tmp_path, hosts="a: {children: {b: }}\nb:\n  children:\n    a:\n"))
    assert error.where == f"{tmp_path}/hosts.yml:4"
    assert error.found == "the groups b > a > b hold each other"


def test_the_other_names_of_connection_variables(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("")
    given = (
        f"{{ansible_ssh_host: 192.0.2.9, ansible_ssh_port: 2222, ansible_ssh_user: u, ansible_private_key_file: {key}}}"
    )
    (host,) = read(written(tmp_path, hosts=f"gpu: {{hosts: {{x: {given}}}}}\n")).select("x")
    assert host.address == "192.0.2.9"
    wanted = {"ansible_port": 2222, "ansible_user": "u", "ansible_ssh_private_key_file": str(key)}
    assert {name: host.connection(name) for name in wanted} == wanted
    assert host.login == "u@192.0.2.9"


def test_a_gateway_in_options_of_ssh_is_a_line_of_ssh_config(tmp_path: Path) -> None:
    given = "{ansible_host: 192.0.2.9, ansible_ssh_common_args: '-o ProxyJump=bob@gate:2222'}"
    with pytest.raises(InputError) as caught:
        read(written(tmp_path, hosts=f"gpu: {{hosts: {{x: {given}}}}}\n")).select("x")
    assert caught.value.fix == (
        "printf 'Host %s\\n  ProxyJump %s\\n' 192.0.2.9 bob@gate:2222 >> ~/.ssh/config; "
        "then take ansible_ssh_common_args out"
    )


def test_of_two_names_the_one_counts_that_counts_in_ansible(tmp_path: Path) -> None:
    """ansible-core's plugins use the last of the names that their documentation lists."""
    plugins = Path(str(importlib.util.find_spec("ansible").submodule_search_locations[0])) / "plugins"  # type: ignore[union-attr,index]
    said = (plugins / "connection" / "ssh.py").read_text(encoding="utf-8")
    for names in hosts._NAMES.values():
        assert said.index(f"name: {names[0]}\n") > said.index(f"name: {names[1]}\n")
        (host,) = read(
            written(tmp_path, hosts=f"gpu: {{hosts: {{x: {{{names[0]}: 1, {names[1]}: 2}}}}}}\n")
        ).hosts.values()
        assert str(host.connection(next(key for key, value in hosts._NAMES.items() if value == names))) == "1"


def test_a_host_is_found_by_the_other_names_too(tmp_path: Path) -> None:
    given = "{ansible_ssh_host: 192.0.2.9, ansible_ssh_user: u}"
    path = written(tmp_path, hosts=f"gpu: {{hosts: {{x: {given}}}}}\n")
    assert runner._name_of_address("u@192.0.2.9", str(path)) == "x"


def test_a_wrong_port_by_its_other_name_is_named_where_it_stands(tmp_path: Path) -> None:
    text = "gpu:\n  vars:\n    ansible_ssh_port: 99999\n  hosts:\n    x:\n"
    with pytest.raises(InputError) as caught:
        read(written(tmp_path, hosts=text)).select("x")
    assert (caught.value.where, caught.value.found) == (f"{tmp_path}/hosts.yml:3", "ansible_ssh_port is 99999")


def test_a_subscript_past_the_end(fleet: Inventory) -> None:
    with pytest.raises(UsageError) as caught:
        fleet.select("v100[3]")
    assert caught.value.found == "v100 has 3 hosts, so no [3]"


def test_a_listing_without_passwords(tmp_path: Path) -> None:
    given = "{ansible_become_password: hunter2, vault_token: hunter3, passage: open}"
    made = report.listing(read(written(tmp_path, hosts=f"gpu: {{hosts: {{x: {given}}}}}\n")), ["x"])
    variables = made["_meta"]["hostvars"]["x"]
    assert variables == {"ansible_become_password": "(secret)", "vault_token": "(secret)", "passage": "open"}


def test_a_host_that_only_host_vars_describes_is_told_how_to_add_it(tmp_path: Path) -> None:
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "host_vars" / "frame.yml").write_text("rig: rig-3090\n", encoding="utf-8")
    (tmp_path / "hosts.yml").write_text("gpu:\n  hosts:\n    badge:\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read(tmp_path).names("frame")
    assert (
        f"{tmp_path / 'host_vars' / 'frame.yml'} describes one, and no file of {tmp_path} has it" in caught.value.found
    )
    assert caught.value.fix.startswith("invoke init --host frame --address USER@HOST adds it; ")

"""The packages of the wheel; everything else about it stands in pyproject.toml."""

from setuptools import find_packages, setup

BESIDE = ("onhost", "playbooks", "templates")
"""Folders beside the package that the wheel has inside it, where rigwright/core/files/shipped_files.py finds them."""

setup(
    packages=[*find_packages(include=["rigwright", "rigwright.*"]), *(f"rigwright.{name}" for name in BESIDE)],
    package_dir={"rigwright": "rigwright", **{f"rigwright.{name}": name for name in BESIDE}},
)

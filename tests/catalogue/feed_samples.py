"""Release files in the form of NVIDIA's, with invented hashes and sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CUDA_PARTS = {"cuda_nvcc": "Cuda Nvcc", "libcublas": "CUDA cuBLAS"}


def part(name: str, title: str, version: str, *platforms: str) -> dict[str, Any]:
    """A component of a redistrib file."""
    archives = {
        platform: {
            "relative_path": f"{name}/{platform}/{name}-{platform}-{version}-archive.tar.xz",
            "sha256": "5a" * 32,
            "md5": "5a" * 16,
            "size": "1024",
        }
        for platform in platforms
    }
    about = {"name": title, "license": "NVIDIA", "license_path": f"{name}/LICENSE.txt", "version": version}
    return {**about, **archives}


def redistrib(
    label: str, date: str, product: str = "", driver: str = "", platform: str = "linux-x86_64"
) -> dict[str, Any]:
    """A redistrib file of the driver, or of CUDA with a `driver` ("": without one)."""
    top: dict[str, Any] = {"release_date": date, "release_label": label}
    if product:
        top["release_product"] = product
    if product == "cuda":
        top |= {name: part(name, title, label, "linux-x86_64", "windows-x86_64") for name, title in CUDA_PARTS.items()}
    else:
        top["fabricmanager"] = part("fabricmanager", "NVIDIA Fabric Manager", label, platform)
        driver = driver or label
    if driver:
        top["nvidia_driver"] = part("nvidia_driver", "NVIDIA Linux Driver", driver, platform)
    return top


def releases_json(
    *rows: tuple[str, str, str], kind: str = "lts branch", architectures: Any = ("x86_64", "sbsa")
) -> dict[str, Any]:
    """A releases.json: rows of branch, release and date."""
    document: dict[str, Any] = {}
    for branch, release, date in rows:
        entry = document.setdefault(branch, {"type": kind, "driver_info": []})
        entry["driver_info"].append(
            {
                "release_version": release,
                "release_date": date,
                "release_notes": f"https://docs.example.org/{release}.html",
                "architectures": architectures,
                "runfile_url": {"x86_64": f"https://downloads.example.org/{release}.run"},
            }
        )
    return document


def text(document: Any) -> str:
    """The JSON text as NVIDIA indents it."""
    return json.dumps(document, indent=4)


def folder(path: Path) -> Path:
    """A folder with two drivers, two CUDA releases, releases.json, and files that are to be ignored."""
    path.mkdir(parents=True, exist_ok=True)
    files = {
        "redistrib_580.178.04.json": redistrib("580.178.04", "2026-08-04", "nvidia-driver"),
        "redistrib_625.10.02.json": redistrib("625.10.02", "2026-12-01", "nvidia-driver"),
        "redistrib_13.1.1.json": redistrib("13.1.1", "2026-01-12", "cuda", "590.48.01"),
        "redistrib_13.6.0.json": redistrib("13.6.0", "2026-12-01", "cuda"),
        "releases.json": releases_json(("580", "580.178.04", "2026-08-03"), ("580", "580.180.01", "")),
    }
    for name, document in files.items():
        (path / name).write_text(text(document), encoding="utf-8")
    for name in ("redistrib_v2_13.6.0.json", "redistrib_13.6.0.json.asc", "LICENSE.txt"):
        (path / name).write_text("not for us", encoding="utf-8")
    return path

"""The catalogue: what is known of GPUs, driver branches, CUDA, rigs and failures, as data with a source for every number."""

from __future__ import annotations

from rigwright.catalogue.devices import devices, disagreements, unlisted
from rigwright.catalogue.devices import version as devices_version
from rigwright.catalogue.drivers import (
    Branch,
    CudaRepository,
    Toolkit,
    branches,
    cuda_repository,
    toolkits,
)
from rigwright.catalogue.failures import Symptom, Xid, nearest, symptoms, symptoms_in, xids, xids_in
from rigwright.catalogue.gpus import Model, model, model_of, models
from rigwright.catalogue.gpus import keys as gpu_keys
from rigwright.catalogue.reading import FOLDER, source_of
from rigwright.catalogue.rigs import Rig, rig, rigs

__all__ = [
    "FOLDER",
    "Branch",
    "CudaRepository",
    "Model",
    "Rig",
    "Symptom",
    "Toolkit",
    "Xid",
    "branches",
    "cuda_repository",
    "devices",
    "devices_version",
    "disagreements",
    "gpu_keys",
    "model",
    "model_of",
    "models",
    "nearest",
    "rig",
    "rigs",
    "source_of",
    "symptoms",
    "symptoms_in",
    "toolkits",
    "unlisted",
    "xids",
    "xids_in",
]

"""The catalogue: data on GPUs, driver branches, CUDA, rigs, error messages and Xids, with a source for every number."""

from __future__ import annotations

from rigwright.catalogue.devices import devices, disagreements, unlisted
from rigwright.catalogue.devices import version as devices_version
from rigwright.catalogue.distributions import Distribution, distribution_source, distributions
from rigwright.catalogue.drivers import (
    Branch,
    CudaRepository,
    Toolkit,
    application_clocks_until,
    branch_source,
    branches,
    cuda_repository,
    dropped_source,
    family_minimum,
    open_module_from,
    toolkit_source,
    toolkits,
)
from rigwright.catalogue.gpus import Model, model, model_of, models
from rigwright.catalogue.gpus import keys as gpu_keys
from rigwright.catalogue.loader import FOLDER
from rigwright.catalogue.rigs import Rig, rig, rigs
from rigwright.catalogue.symptoms import Symptom, Xid, nearest, symptoms, symptoms_in, xid_source, xids, xids_in
from rigwright.catalogue.torch import Wheel, wheels
from rigwright.catalogue.torch import as_of as wheels_as_of

__all__ = [
    "FOLDER",
    "Branch",
    "CudaRepository",
    "Distribution",
    "Model",
    "Rig",
    "Symptom",
    "Toolkit",
    "Wheel",
    "Xid",
    "application_clocks_until",
    "branch_source",
    "branches",
    "cuda_repository",
    "devices",
    "devices_version",
    "disagreements",
    "distribution_source",
    "distributions",
    "dropped_source",
    "family_minimum",
    "gpu_keys",
    "model",
    "model_of",
    "models",
    "nearest",
    "open_module_from",
    "rig",
    "rigs",
    "symptoms",
    "symptoms_in",
    "toolkit_source",
    "toolkits",
    "unlisted",
    "wheels",
    "wheels_as_of",
    "xid_source",
    "xids",
    "xids_in",
]

"""The catalogue: data on GPUs, driver branches, CUDA, rigs, error messages and Xids, with a source for every number."""

from __future__ import annotations

from rigwright.catalogue.advisories import shortfall
from rigwright.catalogue.cards import model, model_of
from rigwright.catalogue.devices import all_devices, disagreements, unlisted, version as devices_version
from rigwright.catalogue.distributions import all_distributions, distribution_table, supported_releases
from rigwright.catalogue.drivers import branches, cuda_table, driver_table, family_minimum, toolkits
from rigwright.catalogue.gpus import Model, keys as gpu_keys, models
from rigwright.catalogue.init_failures import init_failure_source, init_failures_in
from rigwright.catalogue.loader import FOLDER
from rigwright.catalogue.recovery_actions import RecoveryAction, all_recovery_actions
from rigwright.catalogue.releases import published_drivers, published_toolkits, release_table, stale
from rigwright.catalogue.rigs import Rig, all_rigs, rig
from rigwright.catalogue.symptoms import (
    Symptom,
    Xid,
    all_symptoms,
    check_symptoms,
    nearest,
    symptoms_in,
    xid_source,
    xids,
    xids_in,
)
from rigwright.catalogue.torch import torch_wheels

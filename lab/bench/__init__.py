"""Measurements: the lab, rigwright compared with ssh, Ansible and pyinfra, and a run before and after."""

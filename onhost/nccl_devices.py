"""CUDA's numbers of the GPUs of a measurement, by the place of each GPU on the bus."""

import nccl_steps


class Devices(dict):
    """CUDA's number of each GPU in this process. A process does not count a GPU that was lost before, so the numbers of
    those after it are others than in the process that listed them."""

    def __init__(self, work, bus_ids):
        super().__init__()
        self.work, self.bus_ids = work, bus_ids

    def __missing__(self, gpu):
        self[gpu] = self.work.cudart.number("cudaDeviceGetByPCIBusId", self.bus_ids[gpu].encode())
        return self[gpu]


class PlacedWork(nccl_steps.Work):
    """Steps whose job names the GPUs by bus id."""

    def __init__(self, job, report_fd):
        super().__init__(dict(job, devices=None), report_fd)
        self.job["devices"] = Devices(self, job["devices"])

"""CUDA, cuBLAS and NCCL through ctypes. Loads them by name or from a folder; every error code raises an exception."""

import ctypes
import os

NAMES = {  # in order of preference
    "cuda": ("libcuda.so.1",),
    "cudart": ("libcudart.so.12", "libcudart.so.13", "libcudart.so.11.0"),
    "nccl": ("libnccl.so.2",),
    "cublas": ("libcublas.so.12", "libcublas.so.13", "libcublas.so.11"),
}
MEANINGS = {
    2: "not enough memory on the GPU",
    35: "the driver is older than this CUDA runtime, or not installed",
    46: "another process uses the GPU (compute mode exclusive), or the compute mode is prohibited",
    100: "no GPU that CUDA can use: the driver is not loaded, or finds no GPU",
    101: "the GPU does not exist",
    209: "the library has no machine code for this GPU's architecture",
    217: "no peer access between these two GPUs",
    700: "the GPU accessed an invalid address",
    719: "the GPU stopped: lost or reset; the kernel log has an Xid",
    802: "the system is not ready: GPUs with NVSwitches need nvidia-fabricmanager to run",
    803: "libcuda and the kernel module have different driver versions: reboot, or reload the modules",
    804: "this libcuda belongs to a newer driver, which this GPU does not support (forward compatibility)",
    999: "unknown error of the driver: a GPU is lost, or nvidia-uvm is not loaded; see the kernel log",
}


class UniqueId(ctypes.Structure):
    """NCCL's id of a communicator over several processes; NCCL takes it by value."""

    _fields_ = (("bytes", ctypes.c_byte * 128),)


POINTER, SIZE, NUMBER, TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
OUT = ctypes.POINTER(ctypes.c_int)
TO_DEVICE, FROM_DEVICE = 1, 2
CHAR, UINT32, UINT64, FLOAT, SUM = 0, 3, 5, 7, 0  # NCCL's types, and a reduction
SIGNATURES = {
    "cuda": {
        "cuInit": [ctypes.c_uint],
        "cuDriverGetVersion": [OUT],
        "cuDeviceGet": [OUT, NUMBER],
        "cuDeviceGetName": [TEXT, NUMBER, NUMBER],
        "cuDeviceGetUuid": [TEXT, NUMBER],
    },
    "cudart": {
        "cudaRuntimeGetVersion": [OUT],
        "cudaGetDeviceCount": [OUT],
        "cudaSetDevice": [NUMBER],
        "cudaDeviceSynchronize": [],
        "cudaDeviceGetPCIBusId": [TEXT, NUMBER, NUMBER],
        "cudaDeviceGetByPCIBusId": [OUT, TEXT],
        "cudaDeviceGetAttribute": [OUT, NUMBER, NUMBER],
        "cudaDeviceCanAccessPeer": [OUT, NUMBER, NUMBER],
        "cudaDeviceEnablePeerAccess": [NUMBER, ctypes.c_uint],
        "cudaDeviceDisablePeerAccess": [NUMBER],
        "cudaMalloc": [POINTER, SIZE],
        "cudaFree": [POINTER],
        "cudaHostAlloc": [POINTER, SIZE, ctypes.c_uint],
        "cudaFreeHost": [POINTER],
        "cudaMemGetInfo": [POINTER, POINTER],
        "cudaMemcpy": [POINTER, POINTER, SIZE, NUMBER],
        "cudaMemset": [POINTER, NUMBER, SIZE],
        "cudaMemcpyPeerAsync": [POINTER, NUMBER, POINTER, NUMBER, SIZE, POINTER],
        "cudaStreamCreateWithFlags": [POINTER, ctypes.c_uint],
        "cudaStreamSynchronize": [POINTER],
        "cudaStreamQuery": [POINTER],
        "cudaEventCreate": [POINTER],
        "cudaEventDestroy": [POINTER],
        "cudaEventRecord": [POINTER, POINTER],
        "cudaEventSynchronize": [POINTER],
        "cudaEventElapsedTime": [POINTER, POINTER, POINTER],
        "cudaEventQuery": [POINTER],
        "cudaMemcpyAsync": [POINTER, POINTER, SIZE, NUMBER, POINTER],
    },
    "nccl": {
        "ncclGetVersion": [OUT],
        "ncclGetUniqueId": [POINTER],
        "ncclCommInitRank": [POINTER, NUMBER, UniqueId, NUMBER],
        "ncclCommInitAll": [POINTER, NUMBER, OUT],
        "ncclCommDestroy": [POINTER],
        "ncclGroupStart": [],
        "ncclGroupEnd": [],
        "ncclSend": [POINTER, SIZE, NUMBER, NUMBER, POINTER, POINTER],
        "ncclRecv": [POINTER, SIZE, NUMBER, NUMBER, POINTER, POINTER],
        "ncclAllReduce": [POINTER, POINTER, SIZE, NUMBER, NUMBER, POINTER, POINTER],
    },
    "cublas": {
        "cublasCreate_v2": [POINTER],
        "cublasDestroy_v2": [POINTER],
        "cublasSetStream_v2": [POINTER, POINTER],
        "cublasSgemm_v2": [POINTER, *[NUMBER] * 5, POINTER, *[POINTER, NUMBER] * 2, POINTER, POINTER, NUMBER],
        "cublasSetPointerMode_v2": [POINTER, NUMBER],
        "cublasGemmEx": [
            POINTER, *[NUMBER] * 5, POINTER, *[POINTER, NUMBER, NUMBER] * 2, POINTER, POINTER, *[NUMBER] * 4
        ],
    },
}  # fmt: skip
for _letter in "SD":
    SIGNATURES["cublas"]["cublas%scopy_v2" % _letter] = [POINTER, NUMBER, *[POINTER, NUMBER] * 2]
    SIGNATURES["cublas"]["cublas%saxpy_v2" % _letter] = [POINTER, NUMBER, POINTER, *[POINTER, NUMBER] * 2]
    SIGNATURES["cublas"]["cublas%sasum_v2" % _letter] = [POINTER, NUMBER, POINTER, NUMBER, POINTER]


class Missing(Exception):
    """A library, or a function of a library, was not found."""


class Refused(Exception):
    """A call returned an error code; the text has the function and the meaning of the code."""

    def __init__(self, library, function, code, said=""):
        meaning = MEANINGS.get(code) if library in ("cuda", "cudart") else None
        text = "%s: error %d (%s)" % (function, code, said) if said else "%s: error %d" % (function, code)
        super().__init__("%s: %s" % (text, meaning) if meaning else text)
        self.code = code


NOT_READY = 600  # cudaErrorNotReady: no failure


class Library:
    """One of the four libraries. Its functions are attributes; they return None and raise Refused for an error code."""

    def __init__(self, kind, folder=None):
        self.kind = kind
        self.name, self.path, self._library = load(kind, None if kind == "cuda" else folder)

    def __getattr__(self, function):
        checked = self._checked(function)
        setattr(self, function, checked)
        return checked

    def has(self, function):
        return hasattr(self._library, function)

    def _checked(self, function):
        try:
            call = getattr(self._library, function)
        except AttributeError:
            raise Missing("%s has no %s" % (self.name, function)) from None
        call.argtypes, call.restype = SIGNATURES[self.kind][function], ctypes.c_int

        def checked(*arguments):
            code = call(*arguments)
            if code:
                raise Refused(self.kind, function, code, self._says(code))

        return checked

    def _says(self, code):
        """The library's text for an error code."""
        name = {"cudart": "cudaGetErrorString", "nccl": "ncclGetErrorString", "cublas": "cublasGetStatusString"}
        if not self.has(name.get(self.kind, "none")):
            return ""
        function = getattr(self._library, name[self.kind])
        function.argtypes, function.restype = [ctypes.c_int], ctypes.c_char_p
        return (function(code) or b"").decode(errors="replace")

    def is_done(self, query, handle):
        """Whether all work before it has ended, by cudaStreamQuery or cudaEventQuery. Raises Refused if it failed."""
        try:
            getattr(self, query)(handle)
        except Refused as error:
            if error.code != NOT_READY:
                raise
            return False
        return True

    def number(self, function, *arguments):
        """Calls a function and returns the integer that it stores at its first argument."""
        out = ctypes.c_int()
        getattr(self, function)(ctypes.byref(out), *arguments)
        return out.value

    def made(self, function, *arguments):
        """Calls a function and returns the handle or pointer that it stores at its first argument."""
        out = POINTER()
        getattr(self, function)(ctypes.byref(out), *arguments)
        return out


def load(kind, folder):
    """Name, path and handle of the first library of that kind. Raises Missing with the names that were tried."""
    reasons = []
    for name in NAMES[kind]:
        path = found_below(folder, name) if folder else name
        if path is None:
            continue
        try:
            if folder and kind == "cublas":
                beside = os.path.join(os.path.dirname(path), name.replace("libcublas", "libcublasLt"))
                if os.path.exists(beside):
                    ctypes.CDLL(beside, ctypes.RTLD_GLOBAL)
            return name, path, ctypes.CDLL(path)
        except OSError as error:
            reasons.append(str(error))
    where = "below %s" % folder if folder else "for the loader (LD_LIBRARY_PATH, ld.so.conf)"
    real = [reason for reason in reasons if "No such file" not in reason]
    raise Missing("%s was not found %s%s" % (NAMES[kind][0], where, ": " + "; ".join(real) if real else ""))


def found_below(folder, name):
    """The path of a file in a folder or below, as in unpacked wheels; None if it does not exist."""
    for place, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        if name in files:
            return os.path.join(place, name)
    return None


def dotted(code, cuda=False):
    """Formats a version number: CUDA's 12020 is 12.2; NCCL's 22105 is 2.21.5, and up to 2.8 2804 is 2.8.4."""
    if cuda:
        return "%d.%d" % (code // 1000, code % 1000 // 10)
    if code < 10000:
        return "%d.%d.%d" % (code // 1000, code // 100 % 10, code % 100)
    return "%d.%d.%d" % (code // 10000, code // 100 % 100, code % 100)

"""What nvcc and ptxas make of the kernels of HBM: no spills, no local memory, few registers, wide loads."""

import glob
import os
import re
import shutil
import subprocess
import sys

import pytest
from paths import ROOT

NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")

# Registers a thread: 64 leave room for half the threads of an SM, 32 for all.
MOST, LIMITS = 64, dict.fromkeys(("FindKernel", "PlaceKernel", "ChainKernel", "ReclaimKernel"), 32)
# How many loads and stores of a width each kernel has at least: digests and whole rows by 16 bytes, keys and pointers by 8.
WIDTHS = {
    "FindKernel": {"LDG.E.128": 1, "LDG.E.64": 1, "STG.E.64": 1},
    "ExchangeKernel": {"LDG.E.128": 2, "STG.E.128": 2},
    "TakeOutKernel": {"LDG.E.128": 1, "STG.E.128": 1},
    "PlaceKernel": {"LDG.E.64": 1, "STG.E.64": 1},
    "ChainKernel": {"LDG.E.64": 1},
    "GatherKernel": {"LDG.E.64": 1},
    "SumKernel": {"LDG.E.64": 1},
}
# How many loads of 16 bytes a kernel has. The search for a victim: 32 lanes read the last uses of a bucket, 512 bytes, and, in
# code of its own, those and the ranks, 1,536; with the digests, 4 bytes a lane, that is all of the bucket that they read:
# KernelsTest.ASearchForAVictimReadsNoSlot.
WIDE_LOADS = {"PlaceKernel": 1 + 3}
# A lane of these reads several digests with one load, never a byte.
NO_BYTES = ("FindKernel", "PlaceKernel")

pytestmark = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")

# The build with CUDA, by `configure.py test`. cuobjdump, and nvdisasm, which it runs: requirements_cuda.txt puts them into .venv.
LIBRARIES = os.environ.get("TF_MULTITIER_CUDA_LIBRARIES")
TOOLS = os.pathsep.join(
    [bin_ for folder in sys.path for bin_ in glob.glob(os.path.join(folder, "nvidia/cu*/bin"))]
    + ["/usr/local/cuda/bin", os.environ["PATH"]]
)
CUOBJDUMP = shutil.which("cuobjdump", path=TOOLS)
of_the_library = pytest.mark.skipif(
    LIBRARIES is None or CUOBJDUMP is None, reason="no build with CUDA, or no cuobjdump"
)
ARCHITECTURES = ["sm_80", "sm_90"]


def dumped(what):
    """What cuobjdump says of the engine's library."""
    command = [CUOBJDUMP, what, os.path.join(LIBRARIES, "_engine.so")]
    environment = dict(os.environ, PATH=TOOLS)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


def functions_of(report):
    """(architecture, kernel, lines) of each of our kernels that cuobjdump reports. Those of CUB are left out."""
    for part in re.split(r"^arch = ", report, flags=re.M)[1:]:
        for name, lines in re.findall(r"Function :? ?(\S+)(.*?)(?=Function|\Z)", part, re.S):
            if name.startswith("_ZN9multitier"):
                yield part.split()[0], re.search(r"\d([A-Z][A-Za-z]*?Kernel)", name)[1], lines


def kernels_in(report):
    """[(kernel, architecture, registers, stack bytes, local bytes)] of what `cuobjdump -res-usage` printed."""
    found = []
    for arch, kernel, lines in functions_of(report):
        [used] = re.findall(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", lines)
        found.append((kernel, arch, *map(int, used)))
    return found


def sass(report):
    """[(kernel, architecture, its instructions)] of what `cuobjdump -sass` printed."""
    return [
        (kernel, arch, re.findall(r"/\*[0-9a-f]{4,}\*/\s+([^;]+);", lines))
        for arch, kernel, lines in functions_of(report)
    ]


@pytest.fixture(scope="module")
def written():
    """The names of the kernels in the sources."""
    names = set()
    for source in glob.glob(os.path.join(ROOT, "cc/device/kernels/*.cu.cc")):
        with open(source, encoding="utf-8") as file:
            names |= set(re.findall(r"(\w+Kernel)\(", file.read()))
    return names - {"EnqueueKernel"}


def all_of(written):
    return {(kernel, arch) for kernel in written for arch in ARCHITECTURES}


@of_the_library
def test_kernels_use_few_registers_and_no_local_memory(written):
    kernels = kernels_in(dumped("-res-usage"))
    assert {kernel[:2] for kernel in kernels} == all_of(written)
    for name, arch, registers, stack, local in kernels:
        assert (stack, local) == (0, 0), f"{name} for {arch}"
        assert registers <= LIMITS.get(name, MOST), f"{name} for {arch}"


def test_a_stack_and_a_register_too_many_are_found():
    report = """
arch = sm_90
Resource usage:
 Function _ZN9multitier6device43_GLOBAL__N__c6_8eaf10FindKernelENS0_8FindArgsE:
  REG:33 STACK:8 SHARED:0 LOCAL:4 CONSTANT[0]:400 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
    assert kernels_in(report) == [("FindKernel", "sm_90", 33, 8, 4)]


@of_the_library
def test_instructions_have_wide_loads_and_no_local_memory(written):
    kernels = sass(dumped("-sass"))
    assert {kernel[:2] for kernel in kernels} == all_of(written)
    for kernel, arch, instructions in kernels:
        names = [re.sub(r"^@!?\w+ +", "", text).split()[0] for text in instructions]
        assert len(names) > 10
        assert not [n for n in names if n.split(".")[0] in ("LDL", "STL")], (kernel, arch)
        # CCTL: a load that empties the cache of its SM
        assert not [n for n in names if n.startswith("CCTL")], (kernel, arch)
        for width, least in WIDTHS.get(kernel, {}).items():
            assert len([n for n in names if n.startswith(width)]) >= least, (kernel, arch, width)
        wide = [n for n in names if re.match(r"LDG?\.E\.128", n)]
        assert len(wide) == WIDE_LOADS.get(kernel, len(wide)), (kernel, arch)
        if kernel in NO_BYTES:
            assert not [n for n in names if n.startswith("LD") and re.search(r"[US]8$", n)], arch


def test_kernels_with_widths_are_kernels(written):
    assert {*WIDTHS, *WIDE_LOADS, *NO_BYTES, *LIMITS} <= written


# CUDA's runtime of a machine with several GPUs, without one: it prints which GPU is current at each launch.
RUNTIME = r"""
#include <cstddef>
#include <cstdio>
struct Dim3 { unsigned x, y, z; };
int current = 0;
extern "C" {
int cudaGetDevice(int* gpu) { return *gpu = current, 0; }
int cudaSetDevice(int gpu) { return current = gpu, 0; }
int cudaLaunchKernel(const void*, Dim3, Dim3, void**, size_t, void*) { return std::printf("launch on %d\n", current), 0; }
int __cudaLaunchKernel(void*, Dim3, Dim3, void**, size_t, void*) { return std::printf("launch on %d\n", current), 0; }
int __cudaGetKernel(void**, const void*) { return 0; }
unsigned __cudaPushCallConfiguration(Dim3, Dim3, size_t, void*) { return 0; }
int __cudaPopCallConfiguration(Dim3*, Dim3*, size_t*, void*) { return 0; }
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
char __cudaInitModule(void**) { return 0; }
}
"""
LAUNCHES = r"""
#include "cc/device/device_code.h"
extern int current;
namespace multitier::device {
Status LaunchStatus(const char*) { return OkStatus(); }
}  // namespace multitier::device
__global__ void Kernel(int) {}
int main() {
  for (const int before : {0, 1}) {
    for (const int gpu : {0, 1}) {
      current = before;
      multitier::device::Stream stream;
      stream.gpu = gpu;
      if (!MT_LAUNCH(stream, 1, 1, Kernel, 0).ok() || current != before) return 1;
    }
  }
}
"""


def test_a_launch_goes_to_the_gpu_of_its_stream_and_the_thread_keeps_its_own(tmp_path):
    (tmp_path / "runtime.cc").write_text(RUNTIME)
    (tmp_path / "launches.cu").write_text(LAUNCHES)
    target = tmp_path / "launches"
    sources = [tmp_path / "runtime.cc", os.path.join(ROOT, "cc/base/status.cc")]
    for command in (
        [
            NVCC,
            "-std=c++17",
            "-I.",
            "-x",
            "cu",
            "-c",
            tmp_path / "launches.cu",
            "-o",
            f"{target}.o",
        ],
        ["g++", "-std=c++17", "-I.", *sources, f"{target}.o", "-o", target],
    ):
        subprocess.run(command, cwd=ROOT, check=True)
    done = subprocess.run([target], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "launch on 0\nlaunch on 1\n" * 2), done.stderr

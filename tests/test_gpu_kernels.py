"""What nvcc and ptxas make of the kernels of HBM: no spills, no local memory, few registers, wide loads."""

import glob
import os
import re
import shutil
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KERNELS = sorted(glob.glob("cc/device/kernels/*.cu.cc", root_dir=ROOT))
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
# A lane of these reads several digests with one load, never a byte.
NO_BYTES = ("FindKernel", "PlaceKernel")

pytestmark = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")


def compile_(source, target, *flags):
    command = [NVCC, "-std=c++17", "-O3", "--fmad=false", "-I.", *flags, "-x", "cu", source, "-o"]
    done = subprocess.run(
        [*command, str(target)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def kernels_in(report):
    """[(kernel, architecture, registers, stack bytes, spilled bytes)] of what ptxas -v printed."""
    found = re.findall(
        r"entry function '(\S+)' for '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
        r".*?Used (\d+) registers",
        report,
        re.DOTALL,
    )
    return [
        (
            re.search(r"\d([A-Z]\w*?Kernel)", name).group(1),
            arch,
            int(used),
            int(stack),
            int(out) + int(back),
        )
        for name, arch, stack, out, back, used in found
    ]


@pytest.fixture(scope="module", params=KERNELS)
def compiled(request, tmp_path_factory):
    """(source, object file for both architectures, what ptxas said of it)."""
    target = tmp_path_factory.mktemp("kernel") / "kernel.o"
    archs = [f for n in (80, 90) for f in ("-gencode", f"arch=compute_{n},code=sm_{n}")]
    return request.param, target, compile_(request.param, target, "-Xptxas", "-v", "-c", *archs)


def test_kernels_use_few_registers_and_no_local_memory(compiled):
    source, _, report = compiled
    with open(os.path.join(ROOT, source), encoding="utf-8") as file:
        written = set(re.findall(r"(\w+Kernel)\(", file.read())) - {"EnqueueKernel"}
    kernels = kernels_in(report)
    assert {name for name, *_ in kernels} >= written
    assert {arch for _, arch, *_ in kernels} <= {"sm_80", "sm_90"}
    for name, arch, registers, stack, spilled in kernels:
        assert (stack, spilled) == (0, 0), f"{name} for {arch}"
        assert registers <= LIMITS.get(name, MOST), f"{name} for {arch}"


def test_a_spill_and_a_register_too_many_are_found():
    report = """ptxas info : Compiling entry function '_ZN9multitier6device43_GLOBAL__N__c6_8eaf10FindKernelENS0_8FindArgsE' for 'sm_90'
ptxas info : Function properties for _ZN8GLOBAL__N_10FindKernelE
    8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads
ptxas info : Used 33 registers, used 0 barriers"""
    assert kernels_in(report) == [("FindKernel", "sm_90", 33, 8, 16)]


# Where cuobjdump is, and nvdisasm, which it runs: requirements_cuda.txt puts them into .venv.
TOOLS = os.pathsep.join(
    [bin_ for folder in sys.path for bin_ in glob.glob(os.path.join(folder, "nvidia/cu*/bin"))]
    + ["/usr/local/cuda/bin", os.environ["PATH"]]
)
CUOBJDUMP = shutil.which("cuobjdump", path=TOOLS)


def sass(target):
    """[(kernel, architecture, its instructions)] of an object file."""
    command = [CUOBJDUMP, "--dump-sass", str(target)]
    environment = dict(os.environ, PATH=TOOLS)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    arch, kernels = None, []
    for line in done.stdout.splitlines():
        if found := re.match(r"arch = (\w+)", line.strip()):
            arch = found.group(1)
        elif found := re.search(r"Function : \S*?\d([A-Z][A-Za-z]*?Kernel)", line):
            kernels.append((found.group(1), arch, []))
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+([^;]+);", line):
            kernels[-1][2].append(found.group(1))
    return kernels


@pytest.mark.skipif(CUOBJDUMP is None, reason="cuobjdump is not installed")
def test_instructions_have_wide_loads_and_no_local_memory(compiled):
    _, target, report = compiled
    kernels = sass(target)
    assert {(kernel, arch) for kernel, arch, _ in kernels} == {k[:2] for k in kernels_in(report)}
    for kernel, arch, instructions in kernels:
        names = [re.sub(r"^@!?\w+ +", "", text).split()[0] for text in instructions]
        assert len(names) > 10
        assert not [n for n in names if n.split(".")[0] in ("LDL", "STL")], (kernel, arch)
        # CCTL: a load that empties the cache of its SM
        assert not [n for n in names if n.startswith("CCTL")], (kernel, arch)
        for width, least in WIDTHS.get(kernel, {}).items():
            assert len([n for n in names if n.startswith(width)]) >= least, (kernel, arch, width)
        if kernel in NO_BYTES:
            assert not [n for n in names if n.startswith("LD") and re.search(r"[US]8$", n)], arch


def test_kernels_with_widths_are_kernels():
    written = set()
    for source in KERNELS:
        with open(os.path.join(ROOT, source), encoding="utf-8") as file:
            written |= set(re.findall(r"(\w+Kernel)\(", file.read()))
    assert {*WIDTHS, *NO_BYTES, *LIMITS} <= written


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
    compile_(tmp_path / "launches.cu", f"{target}.o", "-c")
    sources = [tmp_path / "runtime.cc", os.path.join(ROOT, "cc/base/status.cc")]
    subprocess.run(
        ["g++", "-std=c++17", "-I.", *sources, f"{target}.o", "-o", target], cwd=ROOT, check=True
    )
    done = subprocess.run([target], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "launch on 0\nlaunch on 1\n" * 2), done.stderr

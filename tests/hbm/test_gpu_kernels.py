"""What nvcc and ptxas make of the kernels of HBM: no spills, no local memory, few registers, wide loads."""

import functools
import glob
import itertools
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
    "PlaceKernel": {"LDG.E.64": 1, "STG.E.64": 1},
    "ChainKernel": {"LDG.E.64": 1},
    "GatherKernel": {"LDG.E.64": 1},
    "SumKernel": {"LDG.E.64": 1},
}
# How many loads of 16 bytes a kernel has. The search for a victim: 32 lanes read the last uses of a bucket, 512 bytes, and, in
# code of its own, those and the ranks, 1,536; with the digests, 4 bytes a lane, that is all of the bucket that they read:
# BucketKernelsTest.ASearchForAVictimReadsNoSlot.
WIDE_LOADS = {"PlaceKernel": 1 + 3}
# Kernels that move or compute rows read four parts of 16 bytes, or more, before they write the first one.
ROWS = ("GatherKernel", "ValuesKernel", "ExchangeKernel", "TakeOutKernel", "TakeListedKernel")
ROWS += ("MoveRowsKernel", "UpdateKernel", "UpdateMembersKernel")
# Instances of these for values of 16 bits read and write four elements of a value, 8 bytes, at one time.
OF_HALVES = ("GatherKernel", "ValuesKernel", "UpdateKernel", "UpdateMembersKernel")
WIDE_LOAD, WIDE_STORE = re.compile(r"LDG?\.E\.128"), re.compile(r"STG?\.E\.128")
# Slots of the size of the value that each rule has.
SLOTS = {
    "SgdKernel": 0,
    "RowwiseAdagradStep": 0,
    "MomentumKernel": 1,
    "AdagradKernel": 1,
    "AdagradEpsilonKernel": 1,
    "AdamKernel": 2,
    "AdamWKernel": 2,
    "SparseRmsPropKernel": 2,
    "RmsPropKernel": 2,
    "FtrlKernel": 2,
    "CenteredRmsPropKernel": 3,
}
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


@functools.lru_cache(None)
def dumped(what):
    """What cuobjdump says of the engine's library."""
    command = [CUOBJDUMP, what, os.path.join(LIBRARIES, "_engine.so")]
    environment = dict(os.environ, PATH=TOOLS)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


def functions_of(report):
    """(architecture, kernel, lines) of each of our kernels that cuobjdump reports. Those of CUB are left out."""
    for arch, kernel, lines, _, _ in instances_of(report):
        yield arch, kernel, lines


def instances_of(report):
    """As functions_of, with the rule of an update, "AdamKernel", and whether values have 16 bits."""
    for part in re.split(r"^arch = ", report, flags=re.M)[1:]:
        for name, lines in re.findall(r"Function :? ?(\S+)(.*?)(?=Function|\Z)", part, re.S):
            if name.startswith("_ZN9multitier"):
                found = re.search(r"\d([A-Z][A-Za-z]*?Kernel)(?:I+NS_(\d+)(\w+))?", name)
                rule = found[3][: int(found[2])] if found[2] else None
                halves = found[1] in OF_HALVES and "Lb1EEEv" in name
                yield part.split()[0], found[1], lines, rule, halves


def kernels_in(report):
    """[(kernel, architecture, registers, stack bytes, local bytes)] of what `cuobjdump -res-usage` printed."""
    found = []
    for arch, kernel, lines in functions_of(report):
        [used] = re.findall(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", lines)
        found.append((kernel, arch, *map(int, used)))
    return found


def instructions_in(lines):
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+([^;]+);", lines)


def names_of(instructions):
    return [re.sub(r"^@!?\w+ +", "", text).split()[0] for text in instructions]


def sass(report):
    """[(kernel, architecture, its instructions)] of what `cuobjdump -sass` printed."""
    return [(kernel, arch, instructions_in(lines)) for arch, kernel, lines in functions_of(report)]


def wide_moves(instructions):
    """L for each load of 16 bytes, S for each store, in the order of the code: "LLLLSSSS"."""
    moves = [(WIDE_LOAD.match(name), WIDE_STORE.match(name)) for name in names_of(instructions)]
    return "".join("L" if load else "S" for load, store in moves if load or store)


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
        names = names_of(instructions)
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


@of_the_library
def test_four_loads_of_16_bytes_come_before_the_first_store():
    found = set()
    for arch, kernel, lines, _, halves in instances_of(dumped("-sass")):
        if kernel not in ROWS or halves:
            continue
        moves = wide_moves(instructions_in(lines))
        assert "S" in moves and moves.index("S") >= 4, (kernel, arch, moves)
        # Of each run of loads, what they read is written.
        assert moves.count("L") >= moves.count("S"), (kernel, arch, moves)
        found.add((kernel, arch))
    assert found == all_of(ROWS)


@of_the_library
def test_an_update_loads_and_stores_each_array_once():
    found = set()
    for arch, kernel, lines, rule, halves in instances_of(dumped("-sass")):
        if rule is None:
            continue
        moves, slots = wide_moves(instructions_in(lines)), SLOTS[rule]
        rows, values = 1 if slots >= 2 else 2, 0 if halves else 1  # values of 16 bits: 8 bytes
        expected = "L" * (rows * (slots + 1 + values)) + "S" * (rows * (slots + values))
        assert moves == expected, (kernel, rule, arch)
        found.add((kernel, rule, arch, halves))
    updates, halves = ("UpdateKernel", "UpdateMembersKernel"), (False, True)
    assert found == set(itertools.product(updates, SLOTS, ARCHITECTURES, halves))


@of_the_library
def test_values_of_16_bits_are_read_by_8_bytes_and_written_by_16():
    found = set()
    for arch, kernel, lines, rule, halves in instances_of(dumped("-sass")):
        if not halves or rule is not None:
            continue
        names = names_of(instructions_in(lines))
        before = names[: [bool(WIDE_STORE.match(name)) for name in names].index(True)]
        assert len([n for n in before if re.match(r"LDG?\.E\.64", n)]) >= 8, (kernel, arch)
        assert "L" not in wide_moves(instructions_in(lines)), (kernel, arch)
        found.add((kernel, arch))
    assert found == all_of(("GatherKernel", "ValuesKernel"))


def test_an_array_that_is_loaded_twice_is_found():
    report = """
arch = sm_90
 Function : _ZN9multitier6device43_GLOBAL__N__c6_8eaf12UpdateKernelINS_10AdamKernelELb0EEEvNS0_10UpdateArgsE
        /*0440*/                   LDG.E.128 R12, desc[UR8][R4.64] ;
        /*0450*/              @!P0 LD.E.128 R16, desc[UR8][R4.64] ;
        /*0460*/                   LD.E R0, desc[UR8][R4.64] ;
        /*0470*/              @!P3 STG.E.128 desc[UR8][R4.64], R12 ;
"""
    [(arch, kernel, lines, rule, halves)] = instances_of(report)
    assert (arch, kernel, rule, halves) == ("sm_90", "UpdateKernel", "AdamKernel", False)
    assert wide_moves(instructions_in(lines)) == "LLS"


def test_kernels_with_widths_are_kernels(written):
    assert {*WIDTHS, *WIDE_LOADS, *NO_BYTES, *LIMITS} <= written
    assert {*WIDTHS, *NO_BYTES, *LIMITS, *ROWS} <= written


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

#!/usr/bin/env bash
# Builds and runs the check of a GPU (gpu_check.cc). Needs nvcc (CUDA 12.5 or newer) and a C++17 compiler; no Bazel, no GoogleTest.
#
#   cc/hbm/check/gpu_check.sh [BUILD_DIRECTORY]
#   cc/hbm/check/gpu_check.sh --sources    prints the files that each compiler compiles, and builds nothing
#
# Writes BUILD_DIRECTORY/gpu_check.json: what gpu_check.cc prints, and the result of each of compute-sanitizer's four tools at
# small sizes: "clean", "errors: see FILE", or "not run: REASON". Without a GPU it says so and exits with 0. Exits with 1 where
# a bit differs, the timings fail, or a tool finds an error.
set -euo pipefail
cd "$(dirname "$0")/../../.."

nvcc_flags=(-std=c++17 -O3 --fmad=false -I. -gencode arch=compute_80,code=sm_80
            -gencode "arch=compute_90,code=[sm_90,compute_90]" -Xcompiler -fPIC)
gcc_flags=(-std=c++17 -O2 -I. -fno-builtin -fno-tree-loop-distribute-patterns -ffp-contract=off)
cuda_sources=(cc/device/kernels/*.cu.cc cc/device/cuda_device.cu.cc)
cpu_sources=(cc/device/kernels/*.cu.cc cc/device/device.cc cc/device/emulated_device.cc cc/device/simt/simt.cc cc/base/status.cc
             cc/base/ieee.cc cc/hbm/device_table.cc cc/hbm/check/pair_check.cc cc/hbm/check/kernel_times.cc cc/hbm/check/gpu_check.cc)
if [ "${1:-}" = --sources ]; then
  printf 'nvcc %s\n' "${cuda_sources[@]}"
  printf 'g++ %s\n' "${cpu_sources[@]}"
  exit 0
fi
out=${1:-$(mktemp -d)}
mkdir -p "$out"

objects=()
commands=()
for source in "${cuda_sources[@]}"; do
  object=$out/cuda_$(basename "$source").o
  objects+=("$object")
  commands+=("nvcc ${nvcc_flags[*]@Q} -x cu -c $source -o ${object@Q}")
done
for source in "${cpu_sources[@]}"; do
  object=$out/cpu_$(basename "$source").o
  objects+=("$object")
  commands+=("${CXX:-g++} ${gcc_flags[*]@Q} -x c++ -c $source -o ${object@Q}")
done
printf '%s\0' "${commands[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c '{}'
nvcc -cudart static "${objects[@]}" -o "$out/gpu_check"

failed=0
found=$("$out/gpu_check") || failed=1
sanitizers=
tool() {  # NAME RESULT
  sanitizers+="${sanitizers:+, }\"$1\": \"$2\""
  echo "compute-sanitizer --tool $1: $2" >&2
}
sanitizer=$(command -v compute-sanitizer || true)
for name in memcheck racecheck synccheck initcheck; do
  if [[ $found == *'"gpu": null'* ]]; then
    tool $name "not run: no GPU"
  elif [ -z "$sanitizer" ]; then
    tool $name "not run: compute-sanitizer is not installed"
  elif "$sanitizer" --tool $name --error-exitcode 1 "$out/gpu_check" --small > "$out/$name.log"; then
    tool $name clean
  else
    tool $name "errors: see $name.log"
    failed=1
  fi
done
echo "${found%\}}, \"sanitizers\": {$sanitizers}}" | tee "$out/gpu_check.json"
exit $failed

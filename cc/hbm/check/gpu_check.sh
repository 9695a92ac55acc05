#!/usr/bin/env bash
# Runs the check of a GPU (gpu_check.cc).
#
#   cc/hbm/check/gpu_check.sh [--build] FOLDER [--part=NAME | --emulated]
#
# --build makes FOLDER/gpu_check first; that needs Bazel, and nvcc (CUDA 12.5 or newer) for a GPU. To check a machine that has
# neither, carry FOLDER/gpu_check and this file there.
#
# Writes FOLDER/gpu_check.json: what gpu_check prints, and the result of each of compute-sanitizer's four tools at small sizes:
# "clean", "errors: see FILE", or "not run: REASON". --part= is a part of gpu_check or one of the tools, and takes less than
# three minutes. Without a GPU it says so and exits with 0. Exits with 1 where a bit differs, a part fails, or a tool finds an
# error.
set -euo pipefail
if [ "${1:-}" = --build ]; then
  shift
  build=yes
fi
folder=${1:?expected a folder}
part=${2:-}
mkdir -p "$folder"
if [ -n "${build:-}" ]; then
  python3 - "$(realpath "$folder")" "$(dirname "$0")/../../.." <<'PYTHON'
import sys

sys.path.insert(0, sys.argv[2])
from build_tools import bazel

bazel.build_gpu_check(sys.argv[1])
PYTHON
fi
check=$folder/gpu_check
[ -x "$check" ] || { echo "expected the program $check, found none: make it with --build" >&2; exit 1; }

failed=0
found='{}'
tools=(memcheck racecheck synccheck initcheck)
case $part in
  --part=memcheck | --part=racecheck | --part=synccheck | --part=initcheck) tools=("${part#--part=}") ;;
  --part=*) tools=() ;;
esac
if [ ${#tools[@]} -ne 1 ]; then
  found=$("$check" $part) || failed=1
  [ -n "$found" ] || { found='{"error": "gpu_check ended without a result"}'; failed=1; }
fi
sanitizers=
tool() {  # NAME RESULT
  sanitizers+="${sanitizers:+, }\"$1\": \"$2\""
  echo "compute-sanitizer --tool $1: $2" >&2
}
sanitizer=$(command -v compute-sanitizer || true)
for name in ${tools[@]+"${tools[@]}"}; do
  if [[ $part == --emulated || $found == *'"gpu": null'* ]]; then
    tool "$name" "not run: no GPU"
  elif [ -z "$sanitizer" ]; then
    tool "$name" "not run: compute-sanitizer is not installed"
  elif "$sanitizer" --tool "$name" --error-exitcode 1 "$check" --small > "$folder/$name.log"; then
    tool "$name" clean
  else
    tool "$name" "errors: see $name.log"
    failed=1
  fi
done
found=${found%\}}
[ "$found" = '{' ] || found+=", "
echo "$found\"sanitizers\": {$sanitizers}}" | tee "$folder/gpu_check.json"
exit $failed

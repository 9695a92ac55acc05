#!/bin/sh
# build.sh OUTPUT: builds serve.cc with the headers and libraries of the installed TensorFlow (of $PYTHON, or python3) and $CXX, or g++.
set -eu
here=$(dirname "$0")
tensorflow=$("${PYTHON:-python3}" -c 'import os, tensorflow; print(os.path.dirname(tensorflow.__file__))' 2>/dev/null)
exec "${CXX:-g++}" -std=c++17 -O2 -Wall -Wextra "$here/serve.cc" -o "$1" -I"$tensorflow/include" -L"$tensorflow" \
  -Wl,-rpath,"$tensorflow" -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2

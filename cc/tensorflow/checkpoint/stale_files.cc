#include "cc/tensorflow/checkpoint/stale_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cc/checkpoint_files/part_file.h"
#include "cc/checkpoint_files/table_part.h"
#include "cc/env/env.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/path.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace multitier {
namespace {

// The last change of a file or of its names, since some time; 0 if it is not there.
int64_t ChangedAt(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return 0;
  return int64_t{info.st_ctim.tv_sec} * 1'000'000'000 + info.st_ctim.tv_nsec;
}

bool IsOurs(const std::string& rest) {
  static const std::regex* const kName = new std::regex("data-[a-z]{5}-of-[a-z]{5}");
  return std::regex_match(rest, *kName);
}

// The part file of a save and its linked files have these first letters in common (part_writer.cc).
std::string SaveOf(const std::string& file) { return file.substr(0, file.size() - 5); }

bool IsPartFile(const std::string& path) {
  const Result<std::unique_ptr<RandomAccessFile>> file = Env::Posix()->NewRandomAccessFile(path);
  char head[kPartFileMagic.size()];
  return file.ok() && (*file)->Read(0, sizeof(head), head).ok() && std::string_view(head, sizeof(head)) == kPartFileMagic;
}

// The files that the manifests of an index name. False if they cannot be read.
bool ReadNamed(tensorflow::Env* env, const std::string& prefix, std::set<std::string>* named) {
  tensorflow::BundleReader reader(env, prefix);
  if (!reader.status().ok()) return false;
  std::vector<std::string> keys;
  for (reader.Seek(""); reader.Valid(); reader.Next()) keys.emplace_back(reader.key());
  for (const std::string& key : keys) {
    if (!absl::EndsWith(key, "/manifest") && !absl::EndsWith(key, "/delta")) continue;
    tensorflow::DataType dtype;
    tensorflow::TensorShape shape;
    if (!reader.LookupDtypeAndShape(key, &dtype, &shape).ok()) return false;
    if (dtype != tensorflow::DT_STRING || shape.dims() != 0) continue;
    tensorflow::Tensor text(dtype, shape);
    if (!reader.Lookup(key, &text).ok()) return false;
    const Result<Manifest> manifest = Manifest::Parse(std::string(text.scalar<tensorflow::tstring>()()));
    if (!manifest.ok()) return false;
    named->insert(manifest->file);
    for (const Manifest::Linked& linked : manifest->linked) named->insert(linked.file);
  }
  return true;
}

}  // namespace

void RemoveUnnamedFiles(tensorflow::Env* env, const std::string& prefix, const std::vector<std::string>& files) {
  const std::string index = prefix + ".index";
  std::set<std::string> named;
  const bool is_there = env->FileExists(index).ok() && !env->IsDirectory(index).ok();
  if (is_there && !ReadNamed(env, prefix, &named)) return;
  for (const std::string& file : files) {
    if (named.count(file) == 0) env->DeleteFile(absl::StrCat(prefix, ".", file)).IgnoreError();
  }
}

void RemoveStaleFiles(tensorflow::Env* env, const std::string& prefix) {
  const int64_t index = ChangedAt(prefix + ".index");
  if (index == 0 || absl::StrContains(prefix, "://")) return;
  const std::string directory(tensorflow::io::Dirname(prefix)), stem = absl::StrCat(tensorflow::io::Basename(prefix), ".");
  std::vector<std::string> names, found;
  if (!env->GetChildren(directory.empty() ? "." : directory, &names).ok()) return;
  for (const std::string& name : names) {
    if (absl::StartsWith(name, stem) && IsOurs(name.substr(stem.size()))) found.push_back(name.substr(stem.size()));
  }
  std::set<std::string> named;
  if (found.empty() || !ReadNamed(env, prefix, &named)) return;
  const auto path_of = [&prefix](const std::string& file) { return absl::StrCat(prefix, ".", file); };
  std::map<std::string, int64_t> saved_at;  // by what the names of one save begin with
  std::set<std::string> parts;
  for (const std::string& file : found) {
    if (!IsPartFile(path_of(file))) continue;
    parts.insert(file);
    int64_t& newest = saved_at[SaveOf(file)];
    newest = std::max(newest, ChangedAt(path_of(file)));
  }
  // Part files last: where this is cut short, the next save still knows the age of the others.
  for (const bool are_parts : {false, true}) {
    for (const std::string& file : found) {
      if (named.count(file) > 0 || (parts.count(file) > 0) != are_parts) continue;
      const auto save = saved_at.find(SaveOf(file));
      const int64_t changed = save == saved_at.end() ? ChangedAt(path_of(file)) : save->second;
      if (changed < index) env->DeleteFile(path_of(file)).IgnoreError();
    }
  }
}

}  // namespace multitier

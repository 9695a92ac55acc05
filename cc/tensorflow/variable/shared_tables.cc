#include "cc/tensorflow/variable/shared_tables.h"

#include <utility>
#include <vector>

namespace multitier {

SharedTables& SharedTables::Global() {
  static auto* const tables = new SharedTables;
  return *tables;
}

absl::Status SharedTables::FindOrMake(const std::string& key, const std::string& checkpoint, const Make& make,
                                      std::shared_ptr<VariableState>* state) {
  std::shared_ptr<Entry> entry;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {  // nothing holds it, and no thread makes it
      const bool unused = it->second.use_count() == 1 && it->second->state.expired();
      it = unused && it->first != key ? entries_.erase(it) : std::next(it);
    }
    std::shared_ptr<Entry>& found = entries_[key];
    if (found == nullptr) found = std::make_shared<Entry>();
    entry = found;
  }
  absl::MutexLock making(&entry->making);
  {
    absl::MutexLock lock(&mutex_);
    *state = entry->state.lock();
  }
  if (*state != nullptr) return absl::OkStatus();
  TF_RETURN_IF_ERROR(make(state));
  absl::MutexLock lock(&mutex_);
  entry->checkpoint = checkpoint;
  entry->state = *state;
  return absl::OkStatus();
}

Json SharedTables::List() {
  struct Held {
    std::shared_ptr<VariableState> state;
    std::string checkpoint;
  };
  std::vector<Held> held;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, entry] : entries_) {
      if (std::shared_ptr<VariableState> state = entry->state.lock()) held.push_back({std::move(state), entry->checkpoint});
    }
  }
  Json list = Json::Array();
  for (const Held& one : held) {
    Json json = Json::Object();
    json.Set("variable", Json::String(one.state->table->options().name));
    json.Set("checkpoint", Json::String(one.checkpoint));
    json.Set("rows", Json::Int(one.state->table->TotalCount()));
    json.Set("users", Json::Int(one.state.use_count() - 1));
    list.Append(std::move(json));
  }
  return list;
}

}  // namespace multitier

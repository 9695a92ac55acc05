// Reads the rows that a lookup, an update or another operation did not find in memory: see the header.

#include "cc/table/tiering/tier_reader.h"

#include <algorithm>

namespace multitier {
namespace {

constexpr size_t kRun = 1024;        // keys of a shard under one hold of its lock
constexpr size_t kBucketsAhead = 8;  // buckets on their way
constexpr size_t kGroup = 128;       // records that are answered while others are read

}  // namespace

// One call.
class TierReader::Run {
 public:
  Run(TierReader* reader, TierKeys* keys, RecordVisitor* visitor)
      : base_(reader->base_),
        demoter_(reader->demoter_),
        keys_(*keys),
        visitor_(*visitor),
        needs_row_(visitor->NeedsRow()),
        row_bytes_(reader->base_.layout()->row_bytes()) {}

  Status All() {
    if (needs_row_ && !keys_.TakeMemory(row_bytes_)) {
      return ResourceExhaustedError("table '", base_.options.name, "': no memory for ", keys_.size(), " rows of ", row_bytes_,
                                    " bytes that are below the first tier");
    }
    std::vector<size_t> left(keys_.size());
    for (size_t i = 0; i < left.size(); ++i) left[i] = i;
    while (status_.ok() && !left.empty()) {
      mine_.clear();
      theirs_.clear();
      Mark(left);
      left_.clear();
      const Status marked = status_;
      for (int level = 0; level < base_.tiers.count(); ++level) ReadLevel(level, marked);
      if (status_.ok()) AwaitOthers();
      left.swap(left_);
    }
    return status_.ok() ? key_error_ : status_;
  }

 private:
  // Calls visit(lock, from, to) for runs which[from, to) of keys of one shard.
  template <typename Visit>
  void ForEachRun(const std::vector<size_t>& which, Visit visit) {
    for (size_t from = 0, to = 0; from < which.size(); from = to) {
      const int shard = keys_[which[from]].shard;
      while (to < which.size() && to - from < kRun && keys_[which[to]].shard == shard) ++to;
      Shard::Locked lock(base_.shards[static_cast<size_t>(shard)]);
      visit(lock, from, to);
    }
  }

  void Mark(const std::vector<size_t>& left) {
    ForEachRun(left, [&](Shard::Locked& lock, size_t from, size_t to) {
      for (size_t i = from; i < to && status_.ok(); ++i) {
        if (i + kBucketsAhead < to) lock->Prefetch(keys_[left[i + kBucketsAhead]].hash);
        MarkOne(lock, left[i]);
      }
    });
  }

  void MarkOne(Shard::Locked& lock, size_t i) {
    TierKey& key = keys_[i];
    const ReadProbe probe = lock->records().BeginRead(key.key, key.hash, key.excluded);
    switch (probe.where) {
      case ReadProbe::kBegun:
        key.level = probe.level;
        key.location = probe.location;
        key.id = probe.id;
        mine_.push_back(i);
        break;
      case ReadProbe::kReadByOthers:
        key.seen_resolutions = lock.resolutions();
        theirs_.push_back(i);
        break;
      default:
        key.answered = true;
        status_ = visitor_.OnMemory(lock, &key, probe.found);
    }
  }

  void ReadLevel(int level, const Status& marked) {
    records_.clear();
    std::vector<size_t> read;
    records_.reserve(mine_.size());
    read.reserve(mine_.size());
    for (const size_t i : mine_) {
      TierKey& key = keys_[i];
      if (key.level != level) continue;
      if (needs_row_) keys_.MakeRow(&key, row_bytes_);
      ReadRecord& record = records_.emplace_back();
      record.key = record.header.key = key.key;
      record.location = key.location;
      record.row_data = key.row.data();
      key.record = static_cast<uint32_t>(read.size());
      read.push_back(i);
    }
    if (read.empty()) return;
    Status batch = marked;
    std::vector<bool> answered(read.size());
    std::vector<size_t> group;
    const auto answer = [&](size_t i) {
      answered[i] = true;
      group.push_back(read[i]);
      if (group.size() < kGroup) return;
      AnswerGroup(&group, batch);
    };
    if (marked.ok()) batch = base_.tiers.ReadAndTell(level, records_, answer);
    for (size_t i = 0; i < read.size(); ++i) {
      if (!answered[i]) group.push_back(read[i]);
    }
    AnswerGroup(&group, batch);
  }

  void AnswerGroup(std::vector<size_t>* group, const Status& batch) {
    std::sort(group->begin(), group->end());
    ForEachRun(*group, [&](Shard::Locked& lock, size_t from, size_t to) {
      for (size_t i = from; i < to; ++i) {
        if (i + kBucketsAhead < to) lock->Prefetch(keys_[(*group)[i + kBucketsAhead]].hash);
        TierKey& key = keys_[(*group)[i]];
        const ReadRecord& record = records_[key.record];
        const Status answered = AnswerOne(lock, &key, record, batch.ok() ? record.status : batch);
        Status* const first = visitor_.removed() != nullptr && batch.ok() ? &key_error_ : &status_;
        if (!answered.ok() && first->ok()) *first = answered;
        if (answered.ok() && !key.answered) left_.push_back((*group)[i]);
      }
      base_.tiers.Free(&freed_);
    });
    group->clear();
  }

  Status AnswerOne(Shard::Locked& lock, TierKey* key, const ReadRecord& record, const Status& read) {
    RecordHeader header = record.header;
    ++lock->counters().lower[key->level].reads;
    const KeyWord word = lock->records().EndRead(key->hash, key->id);
    const bool damaged = read.code() == StatusCode::kDataLoss;
    if (!read.ok() && !damaged) return base_.tiers.Error(StrCat("reading key ", key->key), key->level, read);
    if (header.key != key->key) {
      ++lock->counters().false_matches;
      key->excluded.push_back(PlaceOf(key->level, key->location));
      return OkStatus();
    }
    if (damaged) {
      ++lock->counters().corrupt;
      const RecordVisitor::Damage damage = visitor_.OnDamage();
      if (damage == RecordVisitor::Damage::kErase) {
        key->answered = true;
        (void)visitor_.OnRecord(lock, key, header);
        lock->records().EraseRecord(word, key->level, key->location, header, /*row_data=*/nullptr, visitor_.removed());
        return OkStatus();
      }
      if (base_.options.on_corruption == OnCorruption::kDrop) {
        demoter_.records().DropCorrupt(lock, word, key->key, key->level, key->location, header);
        return OkStatus();  // and the key is looked for further on
      }
      if (base_.options.on_corruption == OnCorruption::kError || damage == RecordVisitor::Damage::kError) {
        return base_.tiers.Error(StrCat("reading key ", key->key), key->level, read);
      }
      Reinit(*lock->layout(), key, &header);
    }
    if (!key->row.empty()) lock->layout()->FillSlots(key->row.data(), header.num_columns);
    key->answered = true;
    switch (visitor_.OnRecord(lock, key, header)) {
      case RecordVisitor::Answer::kInstall:
        return Install(lock, word, key, header, damaged);
      case RecordVisitor::Answer::kErase:
        lock->records().EraseRecord(word, key->level, key->location, header, key->row.data(), visitor_.removed());
        return OkStatus();
      default:
        return OkStatus();
    }
  }

  Status Install(Shard::Locked& lock, KeyWord word, TierKey* key, const RecordHeader& header, bool damaged) {
    const Status reserved = lock->ReserveRows(1);
    if (!reserved.ok()) return visitor_.MustInstall() ? base_.OfThisTable(reserved) : OkStatus();
    RowHeader* row = lock->Install(word, key->level, key->location, header, key->row.data(), key->touched,
                                   IdleOf(key->level, header), &freed_);
    if (damaged) lock->DetachCopy(word, &freed_);  // no record below has what it is now
    visitor_.OnInstalled(lock, key, row);
    return OkStatus();
  }

  // The row of a key that starts anew.
  void Reinit(const RowLayout& layout, TierKey* key, RecordHeader* header) {
    header->version = -1;
    header->frequency = 0;
    header->num_columns = static_cast<uint32_t>(layout.columns().size());
    if (key->row.empty()) return;
    std::fill(key->row.begin(), key->row.end(), uint8_t{0});
    uint8_t* const data = key->row.data();
    base_.absent.initial().FillRows(&key->key, nullptr, 1, &data);
    layout.FillSlots(key->row.data(), 1);
  }

  // Accesses since the last use of a record's row, as far as known.
  uint64_t IdleOf(int level, const RecordHeader& header) const {
    const uint64_t clock = base_.common.accesses.load();
    if (base_.common.levels.middle[level]) return static_cast<uint32_t>(static_cast<uint32_t>(clock) - header.recency);
    // A tier that does not keep the recency has the step of the last update, unless the version is no step.
    if (base_.options.score == Score::kTime || base_.options.score == Score::kCustom) return 0;
    const int64_t steps = base_.newest_step.load() - header.version;
    const int64_t applies = base_.applies.load();
    if (steps <= 0 || header.version < 0 || applies <= 0) return 0;
    return clock / static_cast<uint64_t>(applies) * static_cast<uint64_t>(std::min(steps, applies));
  }

  void AwaitOthers() {
    for (const size_t i : theirs_) {
      const TierKey& key = keys_[i];
      Shard::Locked(base_.shards[static_cast<size_t>(key.shard)]).WaitForResolution(key.seen_resolutions);
      left_.push_back(i);
    }
  }

  TableBase& base_;
  Demoter& demoter_;
  TierKeys& keys_;
  RecordVisitor& visitor_;
  const bool needs_row_;
  const size_t row_bytes_;
  std::vector<size_t> mine_, theirs_;  // keys whose record this call, or another operation, reads
  std::vector<size_t> left_;           // keys to go on with
  std::vector<ReadRecord> records_;
  FreedRecords freed_;
  Status status_;     // ends the call
  Status key_error_;  // the first of one key, where the visitor goes on
};

Status TierReader::Read(TierKeys* keys, RecordVisitor* visitor) {
  if (keys->empty()) return OkStatus();
  return Run(this, keys, visitor).All();
}

}  // namespace multitier

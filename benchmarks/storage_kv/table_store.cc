// Our table, DRAM over SSDHASH: a read-modify-write is what a training step does, Lookup and then Apply of gradients.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "benchmarks/storage_kv/kv_store.h"
#include "cc/table/api/embedding_table.h"
#include "cc/tier/ssdhash/ssdhash_tier.h"

namespace multitier {
namespace {

// A pool of threads that sleep between calls.
class Threads : public Executor {
 public:
  explicit Threads(int helpers) {
    for (int i = 0; i < helpers; ++i) threads_.emplace_back([this] { Serve(); });
  }
  ~Threads() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    begun_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void ParallelFor(int n, const std::function<void(int)>& task) override {
    std::unique_lock<std::mutex> lock(mutex_);
    task_ = &task;
    n_ = n;
    next_ = 0;
    begun_.notify_all();
    Work(&lock);
    left_.wait(lock, [this] { return working_ == 0; });
  }

 private:
  // Takes tasks until none is left. REQUIRES: mutex_ held by *lock
  void Work(std::unique_lock<std::mutex>* lock) {
    ++working_;
    while (next_ < n_) {
      const int i = next_++;
      lock->unlock();
      (*task_)(i);
      lock->lock();
    }
    if (--working_ == 0) left_.notify_all();
  }
  void Serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      begun_.wait(lock, [this] { return ends_ || next_ < n_; });
      if (ends_) return;
      Work(&lock);
    }
  }

  std::mutex mutex_;  // guards all below
  std::condition_variable begun_, left_;
  const std::function<void(int)>* task_ = nullptr;
  int n_ = 0, next_ = 0, working_ = 0;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

class TableStore : public KvStore {
 public:
  TableStore(std::unique_ptr<EmbeddingTable> table, int threads)
      : table_(std::move(table)), rule_(*FindUpdateRule("sgd")), threads_(threads > 1 ? new Threads(threads - 1) : nullptr) {}

  Status Load(Span<const int64_t> keys) override { return Apply(keys, 0.0f); }

  Status ReadModifyWrite(Span<const int64_t> drawn, Span<const int64_t>) override {
    out_.resize(drawn.size() * static_cast<size_t>(table_->dim()));
    MT_RETURN_IF_ERROR(table_->Lookup(drawn, out_.data(), threads_.get()));
    return Apply(drawn, -1.0f);
  }

  Status Get(int64_t key, float* value) override {
    std::vector<float> row(static_cast<size_t>(table_->dim()));
    MT_RETURN_IF_ERROR(table_->Lookup(Span<const int64_t>(&key, 1), row.data()));
    *value = row[0];
    return OkStatus();
  }

  int64_t missed_rows() const override { return table_->Stats().tiers[1].reads; }
  int64_t device_reads() const override { return table_->Stats().tiers[1].device.device_reads; }

  double HitNanoseconds(const std::vector<std::vector<int64_t>>& batches) override {
    size_t keys = 0;
    const auto read = [&] {
      for (const auto& batch : batches) {
        out_.resize(batch.size() * static_cast<size_t>(table_->dim()));
        if (!table_->Lookup(batch, out_.data()).ok()) std::abort();
      }
    };
    for (const auto& batch : batches) keys += batch.size();
    read();
    if (!table_->Drain().ok()) std::abort();
    const int64_t missed = missed_rows();
    double ns[5];
    for (double& one : ns) {
      const auto start = std::chrono::steady_clock::now();
      read();
      one = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    }
    std::nth_element(ns, ns + 2, ns + 5);
    return missed_rows() == missed ? ns[2] / static_cast<double>(keys) : -1;
  }

  std::string Details() const override {
    const TableStats stats = table_->Stats();
    const TierStats& device = stats.tiers[1].device;
    const auto ratio = [](int64_t a, int64_t b) { return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b); };
    return StrCat(
        "\"index_bytes_per_key\":", ratio(stats.index_bytes, stats.rows), ",\"dram_rows\":", stats.tiers[0].rows,
        ",\"dram_resident_bytes\":", stats.tiers[0].resident_bytes, ",\"tier_resident_bytes\":", stats.tiers[1].resident_bytes,
        ",\"demotions\":", stats.tiers[1].demotions,
        ",\"write_amplification\":", ratio(device.device_written_bytes, device.appended_bytes),
        ",\"space_amplification\":", ratio(device.stored_bytes, device.rows * static_cast<int64_t>(stats.row_bytes + 32)),
        ",\"false_matches\":", stats.false_matches);
  }

 private:
  Status Apply(Span<const int64_t> keys, float gradient) {
    const size_t n = keys.size() * static_cast<size_t>(table_->dim());
    if (grads_.size() < n || grads_[0] != gradient) grads_.assign(n, gradient);
    ApplyRequest request;
    request.keys = keys;
    request.grads = grads_.data();
    request.rule = rule_;
    request.hyper = {1.0f};
    return table_->Apply(request, threads_.get());
  }

  const std::unique_ptr<EmbeddingTable> table_;
  const UpdateRule* const rule_;
  const std::unique_ptr<Threads> threads_;
  std::vector<float> out_, grads_;
};

}  // namespace

Result<std::unique_ptr<KvStore>> NewTableStore(const KvOptions& options) {
  SsdHashOptions ssd;
  ssd.directory = options.directory;
  const char* const async_compaction = std::getenv("TF_SSDHASH_ASYNC_COMPACTION");
  ssd.async_compaction = async_compaction != nullptr && *async_compaction == '1';
  MT_ASSIGN_OR_RETURN(std::unique_ptr<SsdHashTier> tier, SsdHashTier::Open(ssd));
  TableOptions table;
  table.dim = static_cast<int>(options.row_bytes / sizeof(float));
  table.initializer.kind = InitializerKind::kConstant;
  table.dram_budget_bytes = options.cache_bytes;
  table.lower_tiers.push_back(LowerTierOptions{std::move(tier), 0});
  MT_ASSIGN_OR_RETURN(std::unique_ptr<EmbeddingTable> made, EmbeddingTable::Create(std::move(table)));
  return std::unique_ptr<KvStore>(new TableStore(std::move(made), options.threads));
}

}  // namespace multitier

// Compares a table that does not fit into memory with key-value stores. Rows are loaded. Then batches of rows, drawn by a Zipf
// distribution, are read, changed and written back. One store per process; benchmarks/storage_kv.py runs them in turns.
//
//   storage_kv tf_multitier|leveldb|rocksdb DIRECTORY [name=value ...]
//     rows=10000000 row_bytes=128 cache_mb=256 alpha=1.05 batch=53248 warm=40 batches=60 seconds=0 probe=1 hits=0 threads=1
//
// seconds: no measured batch begins after this time; 0: no limit. For a store that would not end in a day.
// threads: that each call of our table may use, with the calling one, as with TensorFlow's pool; the other stores use none.
// Prints one line of JSON:
//   unique_rows_s      rows of a batch without repeats, by the time of the batches: what stores are compared by
//   miss_rate          rows read from the tier below, of them; reads_per_miss: reads of the device for one
//   cpu_us_per_row     of the whole process. What a missed row costs follows from a second run with cache_mb for all rows,
//                      which tells what one that is in memory does (storage_kv.py --miss_cost)
//   batch_ms           median and 99th percentile of the time of a batch; demotion and compaction run meanwhile
//   disk_iops          what DiskProbe gets, in turns with the batches
//   roofline_rows_s    min(1 / (t_hit + miss_rate * c_io), disk_iops / (miss_rate * reads_per_miss)), t_hit = 30 ns, c_io as
//                      the probe measures it, for one calling thread; `of_roofline`: what of it was reached
//   hit_ns             with hits=1, of stores that tell: reading a key that is in memory, over 16 batches of random keys, once
//                      what demotion had to do for them is done
//   *_mb               resident set; `peak` since the process began, `base` before there was a store

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <unordered_map>

#include "benchmarks/storage_kv/disk_probe.h"
#include "benchmarks/storage_kv/kv_store.h"
#include "cc/base/hash.h"

namespace multitier {
namespace {

constexpr double kHitSeconds = 30e-9;
constexpr size_t kLoadBatch = 10000;
constexpr double kProbeSeconds = 0.15;
constexpr int kBatchesPerProbe = 5;
constexpr uint64_t kMaxProbeBytes = uint64_t{4} << 30;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double ProcessCpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double ResidentMegabytes() {
  long pages = 0, resident = 0;
  FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld %ld", &pages, &resident) != 2) std::abort();
  std::fclose(file);
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

int64_t KeyOfRank(uint64_t rank) { return static_cast<int64_t>(HashKey(static_cast<int64_t>(rank))); }

struct Work {
  uint64_t rows = 10000000, row_bytes = 128, cache_mb = 256, batch = 53248, warm = 40, batches = 60, probe = 1, hits = 0;
  uint64_t threads = 1, seconds = 0;
  double alpha = 1.05;

  bool Set(const std::string& flag) {
    const size_t at = flag.find('=');
    if (at == std::string::npos) return false;
    const std::string name = flag.substr(0, at);
    const char* const value = flag.c_str() + at + 1;
    if (name == "alpha") {
      alpha = std::atof(value);
      return true;
    }
    const std::unordered_map<std::string, uint64_t*> numbers = {
        {"rows", &rows},       {"row_bytes", &row_bytes}, {"cache_mb", &cache_mb}, {"batch", &batch},
        {"warm", &warm},       {"batches", &batches},     {"probe", &probe},       {"hits", &hits},
        {"threads", &threads}, {"seconds", &seconds}};
    const auto found = numbers.find(name);
    if (found == numbers.end()) return false;
    *found->second = static_cast<uint64_t>(std::atoll(value));
    return true;
  }
};

// Ranks by a bounded Zipf distribution, by inversion of the continuous one.
class ZipfRanks {
 public:
  ZipfRanks(uint64_t rows, double alpha) : rows_(rows), power_(1 - alpha) {}
  uint64_t Next() {
    if (power_ == 1) return random_() % rows_;
    const double u = uniform_(random_), n = static_cast<double>(rows_);
    const double rank =
        std::abs(power_) < 1e-9 ? std::exp(u * std::log(n + 1)) : std::pow((std::pow(n + 1, power_) - 1) * u + 1, 1 / power_);
    return std::min(rows_ - 1, static_cast<uint64_t>(rank) - 1);
  }

 private:
  const uint64_t rows_;
  const double power_;
  std::mt19937_64 random_{1};
  std::uniform_real_distribution<double> uniform_{0, 1};
};

// A batch, its keys once each, and how often each of some sampled keys was ever drawn.
struct Batch {
  std::vector<int64_t> drawn, unique;
};

struct Totals {
  double wall = 0, cpu = 0, unique = 0, missed = 0, reads = 0;
};

Status Measure(const std::string& name, KvStore* store, DiskProbe* probe, const Work& work, double base_mb) {
  const double load_start = Now();
  std::vector<int64_t> keys;
  for (uint64_t rank = 0; rank < work.rows;) {
    keys.clear();
    for (; keys.size() < kLoadBatch && rank < work.rows; ++rank) keys.push_back(KeyOfRank(rank));
    MT_RETURN_IF_ERROR(store->Load(keys));
  }
  const double load = Now() - load_start;
  if (work.batches == 0) return InvalidArgumentError("expected batches > 0");

  ZipfRanks ranks(work.rows, work.alpha);
  Batch batch;
  Totals sum;
  double first_half = 0;
  std::vector<double> took;
  const double limit = work.seconds == 0 ? std::numeric_limits<double>::infinity() : static_cast<double>(work.seconds);
  for (uint64_t b = 0; b < work.warm + work.batches && sum.wall < limit; ++b) {
    batch.drawn.clear();
    for (uint64_t i = 0; i < work.batch; ++i) batch.drawn.push_back(KeyOfRank(ranks.Next()));
    batch.unique = batch.drawn;
    std::sort(batch.unique.begin(), batch.unique.end());
    batch.unique.erase(std::unique(batch.unique.begin(), batch.unique.end()), batch.unique.end());
    const bool measured = b >= work.warm;
    const bool probes = probe != nullptr && measured && (b - work.warm) % kBatchesPerProbe == 0;
    if (probes) MT_RETURN_IF_ERROR(probe->Run(kProbeSeconds));
    const int64_t missed = store->missed_rows(), reads = store->device_reads();
    const double start = Now(), cpu = ProcessCpuSeconds();
    MT_RETURN_IF_ERROR(store->ReadModifyWrite(batch.drawn, batch.unique));
    if (!measured) continue;
    took.push_back(Now() - start);
    sum.wall += took.back();
    sum.cpu += ProcessCpuSeconds() - cpu;
    sum.unique += static_cast<double>(batch.unique.size());
    sum.missed += static_cast<double>(store->missed_rows() - missed);
    sum.reads += static_cast<double>(store->device_reads() - reads);
    if (b + 1 == work.warm + work.batches / 2) first_half = sum.unique / sum.wall;
  }
  // What was read was what had been written: the rows of the last batch have been drawn at least once.
  for (size_t i = 0; i < batch.unique.size(); i += batch.unique.size() / 100 + 1) {
    float value = 0;
    MT_RETURN_IF_ERROR(store->Get(batch.unique[i], &value));
    if (!(value >= 1)) return DataLossError("a row that was written back reads as ", value);
  }

  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const double rate = sum.unique / sum.wall;
  std::sort(took.begin(), took.end());
  std::printf(
      "{\"store\":\"%s\",\"rows\":%llu,\"row_bytes\":%llu,\"cache_mb\":%llu,\"alpha\":%g,\"batch\":%llu,"
      "\"batches\":%llu,",
      name.c_str(), static_cast<unsigned long long>(work.rows), static_cast<unsigned long long>(work.row_bytes),
      static_cast<unsigned long long>(work.cache_mb), work.alpha, static_cast<unsigned long long>(work.batch),
      static_cast<unsigned long long>(took.size()));
  std::printf(
      "\"load_rows_s\":%.0f,\"unique_per_batch\":%.0f,\"unique_rows_s\":%.0f,\"first_half_rows_s\":%.0f,"
      "\"batch_ms\":[%.1f,%.1f],",
      static_cast<double>(work.rows) / load, sum.unique / static_cast<double>(took.size()), rate, first_half,
      took[took.size() / 2] * 1e3, took[took.size() * 99 / 100] * 1e3);
  std::printf("\"cpu_us_per_row\":%.3f,\"resident_mb\":%.0f,\"peak_mb\":%.0f,\"base_mb\":%.0f", sum.cpu * 1e6 / sum.unique,
              ResidentMegabytes(), static_cast<double>(usage.ru_maxrss) / 1024, base_mb);
  if (store->missed_rows() >= 0 && sum.missed > 0) {
    const double miss_rate = sum.missed / sum.unique;
    std::printf(",\"miss_rate\":%.4f,\"reads_per_miss\":%.3f,\"miss_reads_s\":%.0f", miss_rate, sum.reads / sum.missed,
                sum.reads / sum.wall);
    if (probe != nullptr) {
      const double by_cpu = 1 / (kHitSeconds + miss_rate * probe->cpu_us_per_read() * 1e-6);
      const double by_disk = probe->reads_per_second() / (sum.reads / sum.unique);
      std::printf(",\"roofline_rows_s\":%.0f,\"of_roofline\":%.3f", std::min(by_cpu, by_disk),
                  rate / std::min(by_cpu, by_disk));
    }
  }
  if (probe != nullptr) {
    std::printf(",\"disk_iops\":%.0f,\"disk_cpu_us\":%.2f", probe->reads_per_second(), probe->cpu_us_per_read());
  }
  if (work.hits != 0) {
    std::mt19937_64 random(5);
    std::vector<std::vector<int64_t>> some(16, std::vector<int64_t>(65536));
    for (auto& keys_of : some) {
      for (int64_t& key : keys_of) key = KeyOfRank(random() % work.rows);
    }
    std::printf(",\"hit_ns\":%.1f", store->HitNanoseconds(some));
  }
  const std::string details = store->Details();
  std::printf("%s%s}\n", details.empty() ? "" : ",", details.c_str());
  return OkStatus();
}

Status Run(int argc, char** argv) {
  if (argc < 3) return InvalidArgumentError("usage: storage_kv tf_multitier|leveldb|rocksdb DIRECTORY [name=value ...]");
  const std::string name = argv[1];
  Work work;
  for (int i = 3; i < argc; ++i) {
    if (!work.Set(argv[i])) return InvalidArgumentError("expected name=value with a known name, found '", argv[i], "'");
  }
  const std::unordered_map<std::string, std::function<Result<std::unique_ptr<KvStore>>(const KvOptions&)>> stores = {
      {"tf_multitier", NewTableStore}, {"leveldb", NewLevelDbStore}, {"rocksdb", NewRocksDbStore}};
  const auto found = stores.find(name);
  if (found == stores.end()) return InvalidArgumentError("expected a store, found '", name, "'");
  const std::string directory = StrCat(argv[2], "/storage_kv_", static_cast<int64_t>(getpid()));
  if (mkdir(directory.c_str(), 0700) != 0) return UnavailableError("mkdir of '", directory, "': ", std::strerror(errno));
  KvOptions options;
  options.directory = directory + "/store";
  options.row_bytes = work.row_bytes;
  options.cache_bytes = work.cache_mb << 20;
  options.threads = static_cast<int>(std::max<uint64_t>(work.threads, 1));
  mkdir(options.directory.c_str(), 0700);
  std::unique_ptr<DiskProbe> probe;
  Status status;
  if (work.probe != 0) {
    const uint64_t bytes = std::min(kMaxProbeBytes, work.rows * (work.row_bytes + 32));
    Result<std::unique_ptr<DiskProbe>> made = DiskProbe::Create(directory, bytes);
    if (made.ok()) probe = *std::move(made);
    if (probe == nullptr) std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
  }
  {
    const double base_mb = ResidentMegabytes();
    Result<std::unique_ptr<KvStore>> store = found->second(options);
    status = store.ok() ? Measure(name, store->get(), probe.get(), work, base_mb) : store.status();
  }
  probe.reset();
  const std::string remove = "rm -rf '" + directory + "'";
  if (std::system(remove.c_str()) != 0) std::fprintf(stderr, "could not remove '%s'\n", directory.c_str());
  return status;
}

}  // namespace
}  // namespace multitier

int main(int argc, char** argv) {
  const multitier::Status status = multitier::Run(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

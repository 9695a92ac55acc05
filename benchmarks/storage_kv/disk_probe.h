// DiskProbe: what the disk itself gives to one thread: random reads of 4 KiB over io_uring, 128 at a time, O_DIRECT, of a file
// that holds nothing of any store. Used in turns with a store's work, it is the disk's share of that run's limit.

#ifndef BENCHMARKS_STORAGE_KV_DISK_PROBE_H_
#define BENCHMARKS_STORAGE_KV_DISK_PROBE_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "cc/base/status.h"

namespace multitier {

class DiskProbe {
 public:
  // Makes a file of `bytes` in the directory, written, not merely allocated. Unavailable where the kernel refuses io_uring.
  static Result<std::unique_ptr<DiskProbe>> Create(const std::string& directory, uint64_t bytes);
  ~DiskProbe();
  DiskProbe(const DiskProbe&) = delete;
  DiskProbe& operator=(const DiskProbe&) = delete;

  // Reads for this time.
  Status Run(double seconds);
  // Over all runs.
  double reads_per_second() const { return seconds_ == 0 ? 0 : reads_ / seconds_; }
  double cpu_us_per_read() const { return reads_ == 0 ? 0 : cpu_seconds_ * 1e6 / reads_; }

 private:
  struct Ring;
  DiskProbe();

  std::string path_;
  int file_ = -1;
  uint64_t blocks_ = 0;
  std::unique_ptr<Ring> ring_;
  std::mt19937_64 random_{7};
  double reads_ = 0, seconds_ = 0, cpu_seconds_ = 0;
};

}  // namespace multitier

#endif  // BENCHMARKS_STORAGE_KV_DISK_PROBE_H_

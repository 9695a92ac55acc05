// EarlyWriteback: makes the kernel write a long file to the disk while the program still appends to it.
//
// Without it, the kernel keeps what was written in memory until much has gathered or the file is synced, and the disk idles
// meanwhile. It is a hint: it promises nothing about what is on the disk, and has no errors. The file must be synced as ever.
//
// Not thread-safe.

#ifndef CC_ENV_EARLY_WRITEBACK_H_
#define CC_ENV_EARLY_WRITEBACK_H_

#include <cstdint>
#include <string>

namespace multitier {

class EarlyWriteback {
 public:
  static constexpr uint64_t kBytesAtOnce = uint64_t{8} << 20;

  // Of a file that exists. Does nothing if it cannot be opened.
  explicit EarlyWriteback(const std::string& path);
  ~EarlyWriteback();
  EarlyWriteback(const EarlyWriteback&) = delete;
  EarlyWriteback& operator=(const EarlyWriteback&) = delete;

  // The file has this many bytes now.
  void Grew(uint64_t bytes);

 private:
  const int fd_;
  uint64_t begun_ = 0;  // bytes whose writing was asked for
};

}  // namespace multitier

#endif  // CC_ENV_EARLY_WRITEBACK_H_

// The files of a LevelDbEnv. Each owns its descriptor; the environment outlives them.

#ifndef CC_TIER_LEVELDB_LEVELDB_FILE_H_
#define CC_TIER_LEVELDB_LEVELDB_FILE_H_

#include <cstdint>
#include <string>

#include "cc/tier/leveldb/leveldb_env.h"
#include "leveldb/env.h"

namespace multitier {

// A table file that is read with pread. Thread-safe.
class LevelDbRandomAccessFile : public leveldb::RandomAccessFile {
 public:
  LevelDbRandomAccessFile(LevelDbEnv* env, std::string path, int fd);
  ~LevelDbRandomAccessFile() override;
  leveldb::Status Read(uint64_t offset, size_t bytes, leveldb::Slice* result, char* scratch) const override;

 private:
  LevelDbEnv* const env_;
  const std::string path_;
  const int fd_;
};

// A log or a manifest that is read from its beginning.
class LevelDbSequentialFile : public leveldb::SequentialFile {
 public:
  LevelDbSequentialFile(LevelDbEnv* env, std::string path, int fd);
  ~LevelDbSequentialFile() override;
  leveldb::Status Read(size_t bytes, leveldb::Slice* result, char* scratch) override;
  leveldb::Status Skip(uint64_t bytes) override;

 private:
  LevelDbEnv* const env_;
  const std::string path_;
  const int fd_;
};

// A file that is written once, through a buffer.
class LevelDbWritableFile : public leveldb::WritableFile {
 public:
  // `has_bytes`: the current length of the file.
  LevelDbWritableFile(LevelDbEnv* env, std::string path, int fd, int64_t has_bytes);
  ~LevelDbWritableFile() override;
  leveldb::Status Append(const leveldb::Slice& data) override;
  leveldb::Status Flush() override;
  // Also fails if the file has no name any more: its data is lost when it is closed.
  leveldb::Status Sync() override;
  leveldb::Status Close() override;

 private:
  leveldb::Status Write(const char* data, size_t bytes);

  LevelDbEnv* const env_;
  const std::string path_;
  const bool checked_;  // a log or a manifest that it writes from the beginning
  int fd_;
  LevelDbDisk::Written written_;
  std::string buffer_;
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LEVELDB_FILE_H_

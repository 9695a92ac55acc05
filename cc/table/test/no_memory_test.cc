// Under a limit of address space, in a forked child, which alone is limited.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "cc/table/api/key_batch.h"
#include "cc/table/test/table_test_util.h"

namespace multitier::no_memory_test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

void LimitTo(rlim_t bytes) {
  const rlimit limit{bytes, RLIM_INFINITY};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) std::abort();
}

void LimitToMore(size_t more) {
  size_t pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%zu", &pages) != 1) std::abort();
  std::fclose(file);
  LimitTo(pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + more);
}

class NoMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "sanitizers need address space without a limit";
#endif
  }
  // How a child ends that runs `body`.
  static int InChild(void (*body)()) {
    const pid_t child = ::fork();
    if (child == 0) {
      body();
      ::_exit(HasFailure() ? 1 : 0);
    }
    int status = 1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }
};

void ExpectRefusal(const Status& status, const std::string& bytes) {
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_NE(status.message().find("no memory for " + bytes), std::string::npos) << status.ToString();
}

TEST_F(NoMemoryTest, OperationsOnManyRowsAreRefusedAndNoRowChanges) {
  EXPECT_EQ(InChild([] {
              constexpr int kDim = 16;
              const auto table = MakeTable(BasicOptions(kDim));
              const std::vector<int64_t> many = Range(0, 1000000), rows = Range(0, 200000);
              MT_ASSERT_OK(Sgd(rows, 1.0f, kDim).Run(table.get()));
              const Training update = Sgd(many, 1.0f, kDim);
              const std::vector<float> before = LookupAll(table.get(), rows);
              std::vector<float> values(many.size() * kDim);
              UpsertRequest upsert;
              upsert.keys = many;
              upsert.columns = {{"value", kDim, values.data()}};
              ScanRequest scan{0, INT64_MAX, {"value"}};

              LimitToMore(32 * kMiB);
              ExpectRefusal(table->Lookup(many, values.data()), "512000000 bytes");
              ExpectRefusal(update.Run(table.get()), "512000000 bytes");
              ExpectRefusal(table->Upsert(upsert).status(), "512000000 bytes");
              ExpectRefusal(table->Remove(many, nullptr), "512000000 bytes");
              ExpectRefusal(table->Scan(scan, &scan.cursor).status(), "");
              ExpectRefusal(table->Export(/*all_columns=*/true).status(), "");

              LimitTo(RLIM_INFINITY);
              EXPECT_EQ(table->TotalCount(), 200000);
              EXPECT_EQ(LookupAll(table.get(), rows), before);
            }),
            0);
}

TEST_F(NoMemoryTest, AnUncheckedAllocationThatFailsEndsTheProcess) {
  const int status = InChild([] {
    const std::vector<int64_t> keys = Range(0, 20000000);  // more than earlier tests have freed
    LimitToMore(kMiB);
    try {
      KeyBatch().SortByShard(keys, 0);
    } catch (const std::bad_alloc&) {  // which would leave locks behind
      ::_exit(1);
    }
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
}

}  // namespace
}  // namespace multitier::no_memory_test

#include "cc/group_lookup/fill_empty_rows.h"

#include <limits>

#include "cc/group_lookup/pooling.h"

namespace multitier {

Result<int64_t> FilledSize(Span<const int64_t> indices, int64_t batch) {
  SparseBatch checked;
  checked.indices = indices;
  checked.batch = batch;
  checked.dim = 1;
  const Status valid = ValidateSparseBatch(checked);
  if (!valid.ok()) return valid;
  int64_t repeats = 0;  // entries that are not the first of their row
  for (size_t i = 1; i < indices.size(); ++i) repeats += indices[i] == indices[i - 1];
  if (batch > std::numeric_limits<int64_t>::max() - repeats) {
    return InvalidArgumentError("sparse batch: expected at most ", std::numeric_limits<int64_t>::max() - repeats,
                                " rows, found ", batch);
  }
  return batch + repeats;
}

void FillEmptyRows(Span<const int64_t> indices, int64_t batch, int64_t* rows, int64_t* entries) {
  const size_t n = indices.size();
  size_t entry = 0;
  for (int64_t row = 0; row < batch; ++row) {
    if (entry == n || indices[entry] != row) {
      *rows++ = row;
      *entries++ = static_cast<int64_t>(n);
    }
    for (; entry < n && indices[entry] == row; ++entry) {
      *rows++ = row;
      *entries++ = static_cast<int64_t>(entry);
    }
  }
}

}  // namespace multitier

#include "cc/python/salvage.h"

#include <utility>

#include "cc/env/env.h"
#include "cc/python/arrays.h"
#include "cc/python/exceptions.h"
#include "cc/row/value_column.h"
#include "cc/tier/ssdhash/salvage.h"

namespace multitier {
namespace {

// Returns records as rows with all columns; columns that a record was written without have their initial value.
void AppendSalvaged(const Salvage& found, Rows* rows) {
  for (size_t i = 0; i < found.headers.size(); ++i) {
    const RecordHeader& header = found.headers[i];
    rows->keys.push_back(header.key);
    rows->frequencies.push_back(header.frequency);
    rows->versions.push_back(header.version);
    const uint8_t* data = found.row_data.data() + i * found.row_bytes;
    for (size_t c = 0; c < found.columns.size(); ++c) {
      const auto dim = static_cast<size_t>(found.columns[c].dim);
      const DType dtype = found.columns[c].dtype;
      const size_t at = rows->data.size();
      rows->data.resize(at + dim, found.columns[c].initial_value);
      if (c < header.num_columns) ReadColumn(dtype, data, dim, rows->data.data() + at);
      data += (dim * DTypeSize(dtype) + 15) / 16 * 16;
    }
  }
}

}  // namespace

py::dict SalvageDirectory(const std::string& directory) {
  Salvage found;
  Status status;
  Rows rows;
  {
    py::gil_scoped_release release;
    status = [&]() -> Status {
      MT_ASSIGN_OR_RETURN(found, SalvageSegments(Env::Posix(), directory));
      rows.columns = found.columns;
      AppendSalvaged(found, &rows);
      return OkStatus();
    }();
  }
  ThrowIfError(status);
  py::dict out;
  out["rows"] = ToDict(std::move(rows));
  out["stale_keys"] = Own(std::move(found.stale_keys));
  out["lost_keys"] = Own(std::move(found.lost_keys));
  out["segments"] = found.segments;
  out["records"] = found.records;
  out["damaged_records"] = found.damaged_records;
  out["missing_segments"] = found.missing_segments;
  out["damage"] = found.damage;
  return out;
}

}  // namespace multitier

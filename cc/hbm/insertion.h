// What all insertions of rows have in common: memory, what they take over from find, and their launches.

#ifndef CC_HBM_INSERTION_H_
#define CC_HBM_INSERTION_H_

#include <cstddef>
#include <cstdint>

#include "cc/device/kernels/kernels.h"
#include "cc/hbm/scratch.h"

namespace multitier::hbm {

// Takes memory for the misses of `tables` tables, but none for the scan. Look at the scratch's status() before use.
inline device::InsertArgs TakeInsertion(size_t tables, uint32_t misses, Scratch* scratch) {
  device::InsertArgs insert{};
  insert.num_tables = static_cast<uint32_t>(tables);
  insert.max_missed = misses;
  for (uint32_t** one : {&insert.begins, &insert.ends, &insert.bases}) *one = scratch->OnDevice<uint32_t>(tables);
  for (uint32_t** each : {&insert.next, &insert.offered, &insert.consumed, &insert.returned, &insert.outbox}) {
    *each = scratch->OnDevice<uint32_t>(misses);
  }
  insert.victims = scratch->OnDevice<device::Victim>(misses);
  return insert;
}

// list: positions of the keys that get rows, among those of `find`.
inline void InsertKeysOf(const device::FindArgs& find, const uint32_t* list, const uint32_t* length,
                         device::InsertArgs* insert) {
  insert->tables = find.tables;
  insert->keys = find.keys;
  insert->key_tables = find.key_tables;
  insert->operation = find.operation;
  insert->rows = find.rows;
  insert->missed = list;
  insert->num_missed = length;
}

// insist: makes a call after which nothing can be undone.
template <typename Insist>
void EnqueueInsertion(const device::DeviceKernels& kernels, device::Stream stream, const device::InsertArgs& insert,
                      Insist insist) {
  insist([&] { return kernels.chain(stream, insert); });
  insist([&] { return kernels.place(stream, insert); });
  insist([&] { return kernels.reclaim(stream, insert); });
}

}  // namespace multitier::hbm

#endif  // CC_HBM_INSERTION_H_

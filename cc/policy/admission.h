// Admission: which keys may have a row. A key that is not admitted reads as `default_value_no_permission` and keeps only
// a count; the apply in which its count reaches the threshold creates its row.
//
//   none           every key trained on has a row
//   counter        exact: 24 bytes a key counted but not admitted, outside storage_size, reported and saved
//   bloom          bounded: a counting Bloom filter shared by the table; may admit early with the given probability
//   probabilistic  each occurrence admits with probability p. Nothing is kept
//
// Every batch adds all its counts before any of its keys is tested.
//
// Thread-safe: pure functions.

#ifndef CC_POLICY_ADMISSION_H_
#define CC_POLICY_ADMISSION_H_

#include <cstdint>

#include "cc/base/status.h"

namespace multitier {

enum class AdmissionKind : int { kNone = 0, kCounter = 1, kBloom = 2, kProbabilistic = 3 };

struct AdmissionSpec {
  AdmissionKind kind = AdmissionKind::kNone;
  uint32_t filter_freq = 0;                  // occurrences that admit; 0 and 1 admit at once
  int64_t max_element_size = 0;              // bloom: keys expected, > 0
  double false_positive_probability = 0.01;  // bloom: in (0, 1)
  int counter_bits = 32;                     // bloom: 8, 16, 32 or 64; counters saturate
  double probability = 1.0;                  // probabilistic: in (0, 1]
  uint64_t seed = 0;                         // probabilistic

  bool admits_all() const {
    return kind == AdmissionKind::kNone || (kind != AdmissionKind::kProbabilistic && filter_freq <= 1);
  }
};

// InvalidArgument naming the field, what was expected and what was found.
Status ValidateAdmission(const AdmissionSpec& spec);

// Whether `count` occurrences of a key admit it, each with probability p: true with probability 1 - (1 - p)^count, decided
// by a hash of (seed, key, nonce), so the same arguments always give the same answer. Callers give each batch another
// nonce (the table: its count of applies), or a key refused once would be refused for ever. Growing count or p never turns
// true into false. p <= 0 and count <= 0 never admit, p >= 1 always does.
bool AdmitProbabilistic(uint64_t seed, int64_t key, uint64_t nonce, int64_t count, double p);

}  // namespace multitier

#endif  // CC_POLICY_ADMISSION_H_

// Admission: which keys may have a row. A key that is not admitted has only a count, and reads as AbsentValues says.
// The apply in which its count reaches the threshold creates its row.
//
//   none           every key that is trained has a row
//   counter        exact. Each key that is counted and not admitted takes 24 bytes, which storage_size does not count. The
//                  statistics report them, and checkpoints save them
//   bloom          fixed memory: one counting Bloom filter per table. It may admit a key too early, with the given probability
//   probabilistic  each occurrence admits the key with probability p. It needs no memory
//
// A batch adds all its counts before any of its keys is tested.
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
  uint32_t filter_freq = 0;                  // number of occurrences that admit; 0 and 1 admit at the first training step
  int64_t max_keys = 0;                      // counter: most keys that are counted, 0: no bound. When there are
                                             // more, the least counted leave, until an eighth of it is free
  int64_t max_element_size = 0;              // bloom: expected number of keys, > 0
  double false_positive_probability = 0.01;  // bloom: in (0, 1)
  int counter_bits = 32;                     // bloom: 8, 16, 32 or 64; counters saturate
  double probability = 1.0;                  // probabilistic: in (0, 1]
  uint64_t seed = 0;                         // probabilistic

  bool admits_all() const {
    return kind == AdmissionKind::kNone || (kind != AdmissionKind::kProbabilistic && filter_freq <= 1);
  }
};

// InvalidArgument, with the field, what was expected and what was found.
Status ValidateAdmission(const AdmissionSpec& spec);

// Whether `count` occurrences of a key admit it, each with probability p. The result is true with probability 1 - (1 -
// p)^count. A hash of (seed, key, nonce) decides, so the same arguments always give the same result. Callers must pass another
// nonce for each batch (the table passes its count of applies); otherwise a key that was refused once would be refused forever.
// A larger count or p never turns true into false. p <= 0 and count <= 0 never admit; p >= 1 always admits.
bool AdmitProbabilistic(uint64_t seed, int64_t key, uint64_t nonce, int64_t count, double p);

}  // namespace multitier

#endif  // CC_POLICY_ADMISSION_H_

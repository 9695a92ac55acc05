// Request: what an asker of an exchange (exchange.h) sends to a home, in 64-bit words.
//
//   word 0     format and version
//   word 1     words in all (low half), number of parts (high half)
//   a part     3 words each: mode, combiner and flags with dim; keys and entries; rows
//   then each part's arrays, each from a word on:
//     keys     [keys] distinct
//     counts   [keys] 32 bits: occurrences. Absent where all are 1, and of a part that is pooled at home
//     tables   [keys] 16 bits: the initializer of each. Absent where the part has one
//     index    [entries] 32 bits, if pooled at home: the key of each entry
//     ends     [rows] 32 bits, if pooled at home: the end of each row's entries
//
// 12 bytes for a key, 2 more with tables, and 44 for a part and the request, or fewer. Words after the last are padding. A
// request is of another process: ParseRequest checks every number against the words that there are before it reads.

#ifndef CC_GROUP_LOOKUP_EXCHANGE_REQUEST_H_
#define CC_GROUP_LOOKUP_EXCHANGE_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/group_lookup/pooling.h"

namespace multitier {

// Numbers of fewer bits, several in a word, the first in its lowest bits.
template <typename Word, typename Number>
class InWords {
 public:
  InWords() = default;
  InWords(Word* words, int64_t size) : words_(words), size_(size) {}
  static int64_t Words(int64_t size) { return (size + kInWord - 1) / kInWord; }

  int64_t size() const { return size_; }
  Number operator[](int64_t i) const {
    return static_cast<Number>(static_cast<uint64_t>(words_[i / kInWord]) >> (i % kInWord * kBits));
  }
  // REQUIRES: the words are zeros where nothing was put
  void Put(int64_t i, int64_t value) const {
    const uint64_t bits = static_cast<uint64_t>(static_cast<std::make_unsigned_t<Number>>(value)) << (i % kInWord * kBits);
    words_[i / kInWord] = static_cast<Word>(static_cast<uint64_t>(words_[i / kInWord]) | bits);
  }

 private:
  static constexpr int64_t kBits = 8 * sizeof(Number), kInWord = 64 / kBits;

  Word* words_ = nullptr;
  int64_t size_ = 0;
};
template <typename Word>
using HalfWords = InWords<Word, int32_t>;
template <typename Word>
using QuarterWords = InWords<Word, uint16_t>;

// The numbers of a part.
struct RequestShape {
  bool pooled = false;   // at home: a row of the answer is pooled; else it is a key's
  bool counted = false;  // has counts
  bool tabled = false;   // has tables
  Combiner combiner = Combiner::kSum;
  int64_t dim = 0, keys = 0, entries = 0, pooled_rows = 0;

  int64_t rows() const { return pooled ? pooled_rows : keys; }  // of the answer
  int64_t elements() const { return rows() * dim; }
  int64_t words() const;  // of its arrays
};

template <typename Word>
struct RequestPart : RequestShape {
  Word* key_words = nullptr;  // [keys]
  HalfWords<Word> counts, index, ends;
  QuarterWords<Word> tables;
};
using ReadPart = RequestPart<const int64_t>;

struct Request {
  std::vector<ReadPart> parts;

  // Of the answer. REQUIRES: CheckRequests is OK
  int64_t elements() const {
    int64_t total = 0;
    for (const ReadPart& part : parts) total += part.elements();
    return total;
  }
};

// The words of a request with these parts.
int64_t RequestWords(Span<const RequestShape> parts);

// Writes the numbers and gives the arrays, which are then to be filled. words: [RequestWords] that are made zeros
std::vector<RequestPart<int64_t>> BeginRequest(Span<const RequestShape> parts, int64_t* words);

// REQUIRES: the words outlive the request
Result<Request> ParseRequest(Span<const int64_t> words);

// InvalidArgument: the requests are not for parts of these dims, or differ in a part's combiner.
Status CheckRequests(Span<const Request> requests, Span<const int> dims);

// "request of an exchange: expected ..., found ...: do all processes run the same version of the package?"
template <typename... Found>
Status RefuseRequest(const char* expected, const Found&... found) {
  return InvalidArgumentError("request of an exchange: expected ", expected, ", found ", found...,
                              ": do all processes run the same version of the package?");
}

}  // namespace multitier

#endif  // CC_GROUP_LOOKUP_EXCHANGE_REQUEST_H_

#include "cc/group_lookup/exchange_request.h"

#include <algorithm>
#include <limits>
#include <string>

namespace multitier {
namespace {

constexpr int64_t kFormat = 0x4d54786368670001;  // "MTxchg", version 1
constexpr int64_t kHeaderWords = 2, kPartWords = 3;
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
constexpr int64_t kPooled = 1, kCounted = 2, kTabled = 4;  // flags

int64_t Join(int64_t low, int64_t high) {
  return static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | static_cast<uint64_t>(low));
}
int64_t Low(int64_t word) { return static_cast<int64_t>(static_cast<uint64_t>(word) & 0xffffffffu); }
int64_t High(int64_t word) { return static_cast<int64_t>(static_cast<uint64_t>(word) >> 32); }

// Points to the arrays of a part; gives the word after them.
template <typename Word>
Word* Point(RequestPart<Word>* part, Word* words) {
  using Halves = HalfWords<Word>;
  part->key_words = words;
  words += part->keys;
  if (part->counted) {
    part->counts = Halves(words, part->keys);
    words += Halves::Words(part->keys);
  }
  if (part->tabled) {
    part->tables = QuarterWords<Word>(words, part->keys);
    words += QuarterWords<Word>::Words(part->keys);
  }
  if (!part->pooled) return words;
  part->index = Halves(words, part->entries);
  words += Halves::Words(part->entries);
  part->ends = Halves(words, part->pooled_rows);
  return words + Halves::Words(part->pooled_rows);
}

// Of numbers below 2^32, so that no sum or product of a few of them leaves int64.
Status ParseShape(const int64_t* words, RequestShape* shape) {
  const int64_t flags = Low(words[0]) & 0xffff, combiner = Low(words[0]) >> 16;
  if (flags > (kCounted | kTabled) || flags == (kPooled | kCounted)) return RefuseRequest("flags 0, 1, 2, 4, 5 or 6", flags);
  if (combiner > static_cast<int64_t>(Combiner::kSqrtN)) return RefuseRequest("combiner 0, 1 or 2", combiner);
  shape->pooled = (flags & kPooled) != 0;
  shape->counted = (flags & kCounted) != 0;
  shape->tabled = (flags & kTabled) != 0;
  shape->combiner = static_cast<Combiner>(combiner);
  shape->dim = High(words[0]);
  shape->keys = Low(words[1]);
  shape->entries = High(words[1]);
  shape->pooled_rows = words[2];
  for (const int64_t n : {shape->dim, shape->keys, shape->entries, shape->pooled_rows}) {
    if (n < 0 || n > kMost) return RefuseRequest("sizes of at least 0 and below 2^31", n);
  }
  if (shape->dim == 0) return RefuseRequest("dims of at least 1", 0);
  if (shape->pooled || (shape->entries == 0 && shape->pooled_rows == 0)) return OkStatus();
  return RefuseRequest("no entries and rows where rows of keys are asked for", shape->entries, " and ", shape->pooled_rows);
}

Status CheckArrays(const ReadPart& part) {
  for (int64_t i = 0; i < part.counts.size(); ++i) {
    if (part.counts[i] < 1) return RefuseRequest("counts of at least 1", part.counts[i]);
  }
  for (int64_t i = 0; i < part.index.size(); ++i) {
    if (part.index[i] < 0 || part.index[i] >= part.keys) return RefuseRequest("keys of entries in range", part.index[i]);
  }
  int32_t end = 0;
  for (int64_t i = 0; i < part.ends.size(); ++i) {
    if (part.ends[i] < end) return RefuseRequest("ends of rows in order", part.ends[i], " after ", end);
    end = part.ends[i];
  }
  if (end == part.entries) return OkStatus();
  return RefuseRequest("rows that end with the entries", end, " of ", part.entries);
}

}  // namespace

int64_t RequestShape::words() const {
  int64_t total = keys;
  if (counted) total += HalfWords<int64_t>::Words(keys);
  if (tabled) total += QuarterWords<int64_t>::Words(keys);
  if (pooled) total += HalfWords<int64_t>::Words(entries) + HalfWords<int64_t>::Words(pooled_rows);
  return total;
}

int64_t RequestWords(Span<const RequestShape> parts) {
  int64_t words = kHeaderWords + kPartWords * static_cast<int64_t>(parts.size());
  for (const RequestShape& part : parts) words += part.words();
  return words;
}

std::vector<RequestPart<int64_t>> BeginRequest(Span<const RequestShape> parts, int64_t* words) {
  const int64_t total = RequestWords(parts);
  std::fill_n(words, total, 0);
  words[0] = kFormat;
  words[1] = Join(total, static_cast<int64_t>(parts.size()));
  int64_t* at = words + kHeaderWords;
  int64_t* arrays = at + kPartWords * static_cast<int64_t>(parts.size());
  std::vector<RequestPart<int64_t>> written;
  written.reserve(parts.size());
  for (const RequestShape& shape : parts) {
    const int64_t flags = (shape.pooled ? kPooled : 0) | (shape.counted ? kCounted : 0) | (shape.tabled ? kTabled : 0);
    at[0] = Join(flags | static_cast<int64_t>(shape.combiner) << 16, shape.dim);
    at[1] = Join(shape.keys, shape.entries);
    at[2] = shape.pooled_rows;
    at += kPartWords;
    written.emplace_back();
    static_cast<RequestShape&>(written.back()) = shape;
    arrays = Point(&written.back(), arrays);
  }
  return written;
}

Result<Request> ParseRequest(Span<const int64_t> words) {
  const int64_t found = static_cast<int64_t>(words.size());
  if (found < kHeaderWords) return RefuseRequest("a header", found, " words");
  if (words[0] != kFormat) return RefuseRequest("format 1", "another");
  const int64_t total = Low(words[1]), parts = High(words[1]);
  if (total > found) return RefuseRequest("all of its words", found, " of ", total);
  if (total < kHeaderWords || (total - kHeaderWords) / kPartWords < parts) {
    return RefuseRequest("a size for each part", parts, " parts in ", total, " words");
  }
  Request request;
  request.parts.resize(static_cast<size_t>(parts));
  const int64_t* at = words.data() + kHeaderWords;
  const int64_t* arrays = at + kPartWords * parts;
  int64_t left = total - kHeaderWords - kPartWords * parts;
  for (ReadPart& part : request.parts) {
    MT_RETURN_IF_ERROR(ParseShape(at, &part));
    at += kPartWords;
    left -= part.words();
    if (left < 0) return RefuseRequest("sizes that fit in its words", part.words(), " words of a part");
    arrays = Point(&part, arrays);
    MT_RETURN_IF_ERROR(CheckArrays(part));
  }
  if (left > 0) return RefuseRequest("as many words as the parts have", left, " more");
  return request;
}

Status CheckRequests(Span<const Request> requests, Span<const int> dims) {
  for (const Request& request : requests) {
    if (request.parts.size() != dims.size()) {
      const std::string expected = StrCat(dims.size(), " parts");
      return RefuseRequest(expected.c_str(), request.parts.size());
    }
    for (size_t u = 0; u < dims.size(); ++u) {
      if (request.parts[u].dim == dims[u]) continue;
      const std::string expected = StrCat("dim ", dims[u], " of part ", u);
      return RefuseRequest(expected.c_str(), request.parts[u].dim);
    }
  }
  for (size_t u = 0; u < dims.size(); ++u) {
    const ReadPart* first = nullptr;
    for (const Request& request : requests) {
      const ReadPart& part = request.parts[u];
      if (!part.pooled) continue;
      if (first == nullptr) first = &part;
      if (part.combiner == first->combiner) continue;
      return RefuseRequest("one combiner of a part", static_cast<int>(first->combiner), " and ",
                           static_cast<int>(part.combiner));
    }
  }
  return OkStatus();
}

}  // namespace multitier

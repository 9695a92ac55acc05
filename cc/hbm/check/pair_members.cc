// The steps of a group: dedup and find for all members, then one launch a step.

#include <algorithm>

#include "cc/device/kernels/member_items.h"
#include "cc/hbm/check/pair_side.h"

namespace multitier::hbm {

using device::OutputMember;
using device::PoolCombiner;
using device::RankBy;

namespace {

constexpr MemberForm kForms[] = {
    // name, pooled, columns, splits, steps, weighted, combiner, max_norm, int32, ranks of its table, absent, out of order, its
    // values
    {"dense", false, 0, false, 0, false, PoolCombiner::kSum, -1.0f, false, RankBy::kNothing, false, false, DType::kFloat32},
    {"dense, clipped", true, 0, false, 0, false, PoolCombiner::kSum, 2.5f, true, RankBy::kFrequency, false, false,
     DType::kBFloat16},
    {"rows, sums", true, 1, false, 0, false, PoolCombiner::kSum, -1.0f, false, RankBy::kVersion, false, false, DType::kFloat16},
    {"rows, weighted means", true, 1, false, 0, true, PoolCombiner::kMean, -1.0f, true, RankBy::kNothing, false, false,
     DType::kFloat32},
    {"sparse, means, clipped", true, 2, false, 0, false, PoolCombiner::kMean, 2.5f, false, RankBy::kFrequency, false, false,
     DType::kBFloat16},
    {"sparse, weighted, clipped", true, 2, false, 0, true, PoolCombiner::kSqrtN, 1.5f, false, RankBy::kVersion, false, false,
     DType::kFloat16},
    {"sequence", true, 2, false, 5, false, PoolCombiner::kSum, -1.0f, true, RankBy::kNothing, false, false, DType::kBFloat16},
    {"ragged, by root", true, 1, true, 0, false, PoolCombiner::kSqrtN, -1.0f, false, RankBy::kFrequency, false, false,
     DType::kFloat16},
    {"ragged sequence, weighted", true, 1, true, 6, true, PoolCombiner::kSum, 2.5f, false, RankBy::kVersion, false, false,
     DType::kFloat32},
    {"keys without rows", true, 1, false, 0, false, PoolCombiner::kSum, -1.0f, false, RankBy::kNothing, true, false,
     DType::kFloat32},
    {"out of order", true, 1, false, 0, false, PoolCombiner::kSum, -1.0f, true, RankBy::kFrequency, false, true,
     DType::kFloat32},
};

}  // namespace

const Span<const MemberForm> kMemberForms(kForms, std::size(kForms));

template <typename Args, typename M>
Args PairSide::LaunchOf(const std::vector<M>& members, uint64_t (*items)(const M&)) {
  std::vector<uint32_t> ends;
  uint32_t end = 0;
  for (const M& member : members) ends.push_back(end += static_cast<uint32_t>(items(member)));
  return Args{memory().Up(members), memory().Up(ends), static_cast<uint32_t>(ends.size()), end};
}

// The given values go last.
device::OutputArgs PairSide::OutputsOf(uint64_t (*items)(const OutputMember&)) {
  std::vector<OutputMember> outputs;
  for (const Member& member : work_->members) outputs.push_back(member.output);
  outputs.push_back(work_->given.output);
  return LaunchOf<device::OutputArgs>(outputs, items);
}

device::GradientArgs PairSide::GradientsOf(uint64_t (*items)(const device::GradientMember&), bool given) {
  std::vector<device::GradientMember> gradients;
  for (const Member& member : work_->members) {
    if (member.has_values) gradients.push_back(member.gradient);
  }
  if (given) gradients = {work_->given.gradient};
  auto args = LaunchOf<device::GradientArgs>(gradients, items);
  args.given_values = given;
  for (const device::GradientMember& gradient : gradients) args.most_dim = std::max(args.most_dim, gradient.output.dim);
  return args;
}

// Dedup and find once more, as a group does, of which some keys have no rows.
Status PairSide::Localize() {
  const uint32_t n = batch_->n();
  device::TestMemory& m = memory();
  std::vector<device::KeySource> sources;
  for (size_t i = 0; i < batch_->members.size(); ++i) {
    std::vector<int64_t> keys = batch_->members[i].keys;
    for (int64_t& key : keys) key += kMemberForms[i].absent ? 1000000 : 0;
    const bool narrow = kMemberForms[i].int32_keys;
    const void* data = nullptr;
    if (narrow) data = m.Up(std::vector<int32_t>(keys.begin(), keys.end()));
    if (!narrow) data = m.Up(keys);
    sources.push_back(device::KeySource{data, narrow});
  }
  device::DedupArgs& d = work_->group_dedup;
  d = work_->dedup;
  d.keys = d.copied = m.New<int64_t>(n);
  d.sources = m.Up(sources);
  d.set = m.Filled<uint32_t>(d.set_size, 0xff);
  d.places = m.New<uint32_t>(n);
  d.numbers = m.New<uint32_t>(n);
  d.scan.words = Scan(n);
  d.distinct = m.New<int64_t>(n);
  d.distinct_tables = m.New<uint32_t>(n);
  d.num_distinct = m.New<uint32_t>(1);
  d.inverse = nullptr;
  d.counts = nullptr;
  d.entries = nullptr;
  MT_RETURN_IF_ERROR(kernels_.dedup(stream_, d));
  uint32_t distinct;
  MT_RETURN_IF_ERROR(ReadCount("distinct keys of the group", d.num_distinct, n, &distinct));
  Read("copied keys", d.copied, n);
  device::FindArgs& find = work_->group_find;
  find = work_->find;
  find.keys = d.distinct;
  find.key_tables = d.distinct_tables;
  find.num_keys = d.num_distinct;
  find.rows = m.New<uint8_t*>(n);
  find.missed = m.New<uint32_t>(n);
  MT_RETURN_IF_ERROR(kernels_.find(stream_, find));
  Read("missed by the group", find.missed, distinct);
  const size_t members = batch_->members.size();
  device::MemberCounts none{};
  none.first_bad = device::kNone;
  device::LocalizeArgs localize{};
  auto* const counts = localize.members = m.Up(std::vector<device::MemberCounts>(members, none));
  d.inverse = m.New<uint32_t>(n);
  d.counts = m.Filled<uint32_t>(n, 0);
  d.entries = m.New<uint64_t>(n);
  localize.dedup = d;
  localize.rows = find.rows;
  localize.missed = find.missed;
  localize.scan.words = Scan(n);
  localize.listed_keys = m.New<int64_t>(n);
  localize.list = m.New<uint32_t>(n);
  localize.ranks = m.Filled<uint32_t>(n, 0);
  MT_RETURN_IF_ERROR(kernels_.localize(stream_, localize));
  const auto found = Read("counts of members", counts, members);
  Read("inverse of members", d.inverse, n);
  Read("entries of members", d.entries, n);
  Read("counts of the keys of members", d.counts, n);
  uint32_t sum = 0, misses = 0;
  for (size_t i = 0; i < members; ++i) {
    Member& member = work_->members[i];
    member.counts = found[i];
    member.first_entry = i == 0 ? 0 : batch_->ends[i - 1];
    sum += found[i].distinct;
    misses += found[i].misses;
    // On the device, as the kernels of the output read them.
    member.output.first = &counts[i].first;
    member.output.num_keys = &counts[i].distinct;
    member.output.misses = &counts[i].misses;
  }
  if (sum != distinct || misses > distinct) {
    return DataLossError("keys of all members: expected ", distinct, ", found ", sum, " and ", misses, " misses");
  }
  Read("list of the group's misses", localize.list, misses);
  Read("keys of the group's misses", localize.listed_keys, misses);
  Read("ranks of the group's misses", localize.ranks, n);
  return OkStatus();
}

void PairSide::Describe(size_t i) {
  device::TestMemory& m = memory();
  const MemberForm& form = kMemberForms[i];
  const PairBatch::Member& from = batch_->members[i];
  OutputMember& o = work_->members[i].output;
  const auto entries = static_cast<uint32_t>(from.keys.size());
  o.rows = work_->group_find.rows;
  o.value_dtype = form.value_dtype;
  o.max_keys = o.entries = entries;
  o.inverse = work_->group_dedup.inverse + work_->members[i].first_entry;
  o.pooled = form.pooled;
  o.indices = from.indices.empty() ? nullptr : m.Up(from.indices);
  o.splits_given = form.splits && entries > 0;
  o.columns = form.columns;
  o.batch = from.batch;
  o.steps = form.steps;
  o.first_bad = work_->first_bad + i;
  o.weights = from.weights.empty() ? nullptr : m.Up(from.weights);
  o.combiner = form.combiner;
  o.max_norm = form.max_norm;
  o.num_rows = from.num_rows;
  o.dim = from.dim;
  o.stride = from.stride;
  o.entry_rows = m.New<int64_t>(entries);
  o.splits = m.New<uint32_t>(size_t{from.num_rows} + 1);
  o.divisors = m.New<float>(from.num_rows);
  o.factors = m.New<float>(from.num_rows);
  if (form.max_norm >= 0) o.norms = m.New<float>(entries);
  if (form.max_norm >= 0 || form.weighted) o.unclipped = m.New<float>(size_t{entries} * from.dim);
  o.out = m.Filled<float>(size_t{from.num_rows} * from.stride, 0x7f);
}

// The values of the first member's gradients, weighted and clipped.
void PairSide::DescribeGiven() {
  device::TestMemory& m = memory();
  const PairBatch::Member& from = batch_->members[0];
  OutputMember& o = work_->given.output;
  const auto n = static_cast<uint32_t>(from.keys.size());
  std::vector<int64_t> rows;
  std::vector<float> weights;
  for (uint32_t i = 0; i < n; ++i) {
    rows.push_back(i / 3);
    weights.push_back(static_cast<float>(i % 5) - 1.0f);
  }
  o.values = m.Up(from.grads);
  o.max_keys = o.entries = n;
  o.pooled = true;
  o.indices = m.Up(rows);
  o.columns = 1;
  o.batch = o.num_rows = (n + 2) / 3;
  o.first_bad = work_->first_bad + batch_->members.size();
  o.weights = m.Up(weights);
  o.combiner = batch_->number % 2 == 0 ? PoolCombiner::kMean : PoolCombiner::kSqrtN;
  o.max_norm = 1.0f;
  o.dim = o.stride = from.dim;
  o.entry_rows = m.New<int64_t>(n);
  o.splits = m.New<uint32_t>(size_t{o.num_rows} + 1);
  o.divisors = m.New<float>(o.num_rows);
  o.factors = m.New<float>(o.num_rows);
  o.norms = m.New<float>(n);
  o.out = m.New<float>(size_t{o.num_rows} * o.stride);
  work_->given.has_values = true;
}

Status PairSide::EntryRows() {
  const size_t members = batch_->members.size();
  work_->first_bad = memory().Filled<uint32_t>(members + 1, 0xff);
  for (size_t i = 0; i < members; ++i) Describe(i);
  DescribeGiven();
  MT_RETURN_IF_ERROR(kernels_.entry_rows(stream_, OutputsOf(device::EntryItems)));
  const std::vector<uint32_t> bad = Read("first entries out of order", work_->first_bad, members + 1);
  for (size_t i = 0; i <= members; ++i) {
    Member& member = i < members ? work_->members[i] : work_->given;
    if (i < members) member.has_values = member.counts.misses == 0 && bad[i] == device::kNone && member.output.entries > 0;
    if (!member.output.pooled) continue;
    Read("rows of entries", member.output.entry_rows, member.output.entries);
    if (bad[i] == device::kNone) Read("splits", member.output.splits, size_t{member.output.num_rows} + 1);
  }
  return OkStatus();
}

Status PairSide::Scales() {
  MT_RETURN_IF_ERROR(kernels_.scales(stream_, OutputsOf(device::ScaleItems)));
  const auto read = [this](const Member& member, uint32_t distinct) {
    const OutputMember& o = member.output;
    if (!member.has_values || !o.pooled) return;
    Read("divisors", o.divisors, o.num_rows);
    Read("factors", o.factors, o.num_rows);
    if (o.norms != nullptr) Read("norms", o.norms, distinct);
  };
  for (const Member& member : work_->members) read(member, member.counts.distinct);
  read(work_->given, work_->given.output.entries);
  return OkStatus();
}

Status PairSide::Values() {
  MT_RETURN_IF_ERROR(kernels_.values(stream_, OutputsOf(device::ValueItems)));
  device::OutputArgs halves = OutputsOf(device::HalfValueItems);
  halves.halves = true;
  MT_RETURN_IF_ERROR(kernels_.values(stream_, halves));
  for (const Member& member : work_->members) {
    const OutputMember& o = member.output;
    Read("values of a member", o.out, size_t{o.num_rows} * o.stride);  // where it gets none, what was there before
    if (member.has_values && o.unclipped != nullptr)
      Read("unclipped values", o.unclipped, size_t{member.counts.distinct} * o.dim);
  }
  const OutputMember& given = work_->given.output;
  Read("values of given ones", given.out, size_t{given.num_rows} * given.stride);
  return OkStatus();
}

Status PairSide::Begins() {
  const uint32_t n = batch_->n();
  MT_ASSIGN_OR_RETURN(const uint64_t* const sorted, Sorted(work_->group_dedup));
  uint32_t distinct = 0;
  for (const Member& member : work_->members) distinct += member.counts.distinct;
  work_->begins = memory().New<uint32_t>(distinct);
  MT_RETURN_IF_ERROR(kernels_.begins(stream_, device::BeginsArgs{sorted, n, work_->begins}));
  Read("begins", work_->begins, distinct);
  for (size_t i = 0; i < work_->members.size(); ++i) {
    work_->members[i].gradient.entries = sorted;
    DescribeGradient(i);
  }
  return OkStatus();
}

void PairSide::DescribeGradient(size_t i) {
  device::TestMemory& m = memory();
  Member& member = work_->members[i];
  const uint32_t distinct = member.counts.distinct;
  device::GradientMember& g = member.gradient;
  g.output = member.output;
  g.first_entry = member.first_entry;
  g.begins = work_->begins + member.counts.first;
  g.counts = work_->group_dedup.counts + member.counts.first;
  g.keys = work_->group_dedup.distinct + member.counts.first;
  g.num_keys = distinct;
  g.grads = m.Up(batch_->members[i].grads);
  g.stride = g.output.stride;
  g.sums = m.New<float>(size_t{distinct} * g.output.dim);
  g.pieces = m.New<float>(size_t{device::LaterPieces(g.output.entries)} * g.output.dim);
  g.keys_out = m.New<int64_t>(distinct);
  g.counts_out = m.New<int64_t>(distinct);
  if (g.output.weights != nullptr) g.weight_grads = m.New<float>(g.output.entries);
}

void PairSide::ReadGradients() {
  const auto read = [this](const device::GradientMember& g) {
    Read("sums of gradients", g.sums, size_t{g.num_keys} * g.output.dim);
    if (g.keys_out != nullptr) Read("keys of gradients", g.keys_out, g.num_keys);
    if (g.counts_out != nullptr) Read("counts of gradients", g.counts_out, g.num_keys);
    if (g.weight_grads != nullptr) Read("gradients of weights", g.weight_grads, g.output.entries);
  };
  for (const Member& member : work_->members) {
    if (member.has_values) read(member.gradient);
  }
  read(work_->given.gradient);
}

Status PairSide::Gradients() {
  device::TestMemory& m = memory();
  device::GradientMember& g = work_->given.gradient;
  g.output = work_->given.output;
  g.num_keys = g.output.entries;
  g.grads = m.Up(batch_->members[0].grads);  // has a row for each entry, which are more
  g.stride = g.output.dim;
  g.sums = m.New<float>(size_t{g.num_keys} * g.output.dim);
  g.weight_grads = m.New<float>(g.num_keys);
  MT_RETURN_IF_ERROR(kernels_.gradients(stream_, GradientsOf(device::GradientItems, /*given=*/false)));
  MT_RETURN_IF_ERROR(kernels_.gradients(stream_, GradientsOf(device::GradientItems, /*given=*/true)));
  ReadGradients();
  return OkStatus();
}

Status PairSide::Corrections() {
  MT_RETURN_IF_ERROR(kernels_.corrections(stream_, GradientsOf(device::CorrectionItems, /*given=*/false)));
  MT_RETURN_IF_ERROR(kernels_.corrections(stream_, GradientsOf(device::CorrectionItems, /*given=*/true)));
  ReadGradients();
  return OkStatus();
}

Status PairSide::UpdateMembers() {
  std::vector<device::UpdateArgs> updates[2];  // of values of 32 bits, and of 16
  for (size_t i = 0; i < work_->members.size(); ++i) {
    const Member& member = work_->members[i];
    if (!member.has_values) continue;
    device::UpdateArgs update = UpdateOf(i, member.output.dim, member.counts.distinct);
    update.rows = work_->group_find.rows + member.counts.first;
    update.sums = member.gradient.sums;
    update.counts = member.gradient.counts;
    update.keys = work_->group_dedup.distinct + member.counts.first;
    updates[update.value_dtype != DType::kFloat32].push_back(update);
  }
  const auto items = [](const device::UpdateArgs& update) -> uint64_t { return update.max_keys; };
  for (const bool halves : {false, true}) {
    if (updates[halves].empty()) continue;
    auto args = LaunchOf<device::UpdateMembersArgs, device::UpdateArgs>(updates[halves], items);
    args.halves = halves;
    MT_RETURN_IF_ERROR(kernels_.update_members(stream_, batch_->rule, args));
    for (const device::UpdateArgs& update : updates[halves]) Read("rows created by a member", update.created, 1);
  }
  ReadTables();
  return OkStatus();
}

}  // namespace multitier::hbm

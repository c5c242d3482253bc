// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/choice.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "oriel/device/rounding.hpp"

#include "base/alignment.hpp"
#include "base/try.hpp"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels {
namespace {

bool is_float(DataType type) {
  return type == DataType::f16 || type == DataType::bf16 || type == DataType::f32 ||
         type == DataType::f64 || type == DataType::e4m3 || type == DataType::e5m2;
}

// Returns the payload bytes of a line. On a GPU, floats fill the whole line (SentinelLine). Other
// types, and all types on a CPU, share the line with flags half and half (FlaggedLine).
std::uint64_t line_payload(Backend backend, DataType type) {
  if (backend == Backend::host) return kLineBytes / 2;
  return is_float(type) ? kLineBytes : kLineBytes / 2;
}

// Returns whether a call that copies in lines takes escaped ones. They halve the lines of a
// message, but take longer to check. Measured on 2 and 4 H200 (docs/notes/streams.md).
bool escapes_lines(Backend backend, Collective collective, int ranks, std::uint64_t bytes) {
  if (backend == Backend::host) return false;
  if (collective == Collective::broadcast) return bytes >= 256 << 10;
  return bytes >= (ranks == 2 ? 64 << 10 : 16 << 10);
}

// Returns the payload bytes of a line of a call that copies.
std::uint64_t copy_payload(const Plan& plan) {
  return plan.escaped_lines ? kLineBytes : kLineBytes / 2;
}
// Returns the bytes of slots that such a line takes. An escaped line has a slot for its note too.
std::uint64_t copy_slots(const Plan& plan) {
  return plan.escaped_lines ? 2 * kLineBytes : kLineBytes;
}

std::uint64_t ceil_divide(std::uint64_t a, std::uint64_t b) {
  return b == 1 ? a : divide_up(a, b);  // a division takes 5 ns, and a CPU rank divides by one
}

// Rounds up to multiples of 128 bytes, so that chunks start aligned to a cache line relative to the
// buffer.
std::uint64_t round_to_lines(std::uint64_t elements, DataType type) {
  const std::uint64_t quantum = 128 / size_of(type);
  return ceil_divide(elements, quantum) * quantum;
}

// Fits a stream, whose numbers are within their limits, into the rings: by smaller chunks. If even
// the smallest chunks are too large, reduces the depth. Fewer CTAs would not help, because each CTA
// has its own rings. Returns false if the smallest chunks do not fit.
bool fit_stream(Plan& plan, const ScratchLayout& layout) {
  std::uint64_t chunk_bytes_most = max_chunk_bytes(layout, plan.depth);
  while (chunk_bytes_most < kMinChunkBytes && plan.depth > kMinDepth) {
    chunk_bytes_most = max_chunk_bytes(layout, --plan.depth);
  }
  plan.lead = std::min(plan.lead, plan.depth - 1);
  plan.chunk_bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(plan.chunk_bytes, chunk_bytes_most));
  return chunk_bytes_most >= kMinChunkBytes;
}

// Reduces the number of CTAs to `most`. On a GPU, keeps about as many threads in all.
void cut_ctas(Plan& plan, Backend backend, int most) {
  const int times = backend == Backend::cuda ? device::divide_up(plan.ctas, most) : 1;
  plan.threads = std::min(plan.threads * times, kMaxThreads);
  plan.ctas = most;
}

// Returns the number of CTAs or sub-CTAs that stream.
std::uint64_t ops_of(const Plan& plan) {
  return static_cast<std::uint64_t>(plan.ctas) * static_cast<std::uint64_t>(plan.sub_ctas);
}

// Returns the bytes of a GPU CTA's part of a share.
std::uint64_t bytes_of_cta(const Plan& plan, int owners, std::uint64_t message) {
  const auto sharers = static_cast<unsigned>(owners * plan.ctas);
  return round_up(std::max<std::uint64_t>(ceil_divide(message, sharers), 1), kMinChunkBytes);
}

// Divides a GPU's CTAs into sub-CTAs if each CTA has at least kLeastBytes to move and enough
// threads.
void divide_ctas(Plan& plan, const ScratchLayout& layout, std::uint64_t bytes) {
  constexpr std::uint64_t kLeastBytes = 48 << 10;
  const bool is_long = bytes >= kLeastBytes && plan.threads >= kMaxThreads / 2;
  plan.sub_ctas = is_long ? layout.sub_ctas : 1;
  const int quantum = plan.sub_ctas * kMinThreads;  // barriers count whole warps
  plan.threads = plan.threads / quantum * quantum;
}

// Moves a short part in one chunk if the rings have room: in several steps it would wait for
// several fences.
void prefer_one_chunk(Plan& plan, const ScratchLayout& layout, std::uint64_t bytes) {
  constexpr std::uint64_t kMostBytes = 32 << 10;
  if (bytes > kMostBytes || bytes > max_chunk_bytes(layout, kMinDepth)) return;
  if (bytes <= plan.chunk_bytes && bytes <= max_chunk_bytes(layout, plan.depth)) return;
  plan.chunk_bytes = static_cast<std::uint32_t>(bytes);
  plan.depth = kMinDepth;
}

// Lets a GPU's reduce-scatter receive in both rings, since it sends no results. So its chunks are
// up to twice as long, unless the user has set their length.
void take_whole_rings(Plan& plan, const Overrides& overrides, const ScratchLayout& layout) {
  plan.whole_rings = true;
  if (overrides.chunk_bytes > 0) return;
  const std::uint64_t most = 2 * max_chunk_bytes(layout, plan.depth) / 128 * 128;
  plan.chunk_bytes = static_cast<std::uint32_t>(
      std::min<std::uint64_t>({2 * std::uint64_t{plan.chunk_bytes}, most, kMaxChunkBytes}));
}

// Returns the turns in which all CTAs together move `lines` lines. In a turn each thread takes one.
std::uint64_t turns_of(const Plan& plan, std::uint64_t lines) {
  return ceil_divide(
      lines, static_cast<std::uint64_t>(plan.threads) * static_cast<std::uint64_t>(plan.ctas));
}

// Sets the fewest threads, in whole warps, that move `lines` lines (at least one) in no more turns.
// The last CTAs may get no lines.
void spread_lines(Plan& plan, std::uint64_t lines) {
  const auto ctas = static_cast<std::uint64_t>(plan.ctas);
  const std::uint64_t threads = ceil_divide(lines, ctas * turns_of(plan, lines));
  plan.threads =
      static_cast<int>(device::round_up(threads, static_cast<std::uint64_t>(kMinThreads)));
}

Error rings_too_small(const ScratchLayout& layout, std::uint32_t depth) {
  return Error(ErrorCode::invalid_usage,
               fmt::format("the scratch memory has {} bytes for the rings of each CTA, too little "
                           "for {} chunks of {} bytes to and from each of {} other ranks",
                           layout.ring_bytes, depth, kMinChunkBytes, layout.ranks - 1))
      .with_hint("set a larger ORIEL_SCRATCH_SIZE, or smaller maxCTAs");
}

}  // namespace

Result<Algorithm> find_algorithm(const std::string& name, Backend backend) {
  const bool on_gpus = backend == Backend::cuda;
  const char* const hint =
      on_gpus ? "use one_shot, two_shot or stream" : "use one_shot, two_shot, stream or eager";
  for (int i = 0; i < kAlgorithmCount; ++i) {
    if (name != name_of(static_cast<Algorithm>(i))) continue;
    if (!on_gpus || i < kGpuAlgorithmCount) return static_cast<Algorithm>(i);
    return Error(ErrorCode::invalid_usage,
                 fmt::format("the algorithm \"{}\" is for CPU ranks, not for GPUs", name))
        .with_hint(hint);
  }
  return Error(ErrorCode::invalid_usage, fmt::format("there is no algorithm \"{}\"", name))
      .with_hint(hint);
}

bool fits(const Plan& plan, Backend backend, const ScratchLayout& layout, DataType type,
          std::uint64_t count, int trips_of_two_shot) {
  if (plan.ctas < 1 || plan.ctas > layout.max_ctas) return false;
  if (plan.threads < 1 || plan.threads > kMaxThreads) return false;
  if (plan.algorithm == Algorithm::stream) {
    if (plan.depth < kMinDepth || plan.depth > kMaxDepth) return false;
    if (plan.lead < 1 || plan.lead >= plan.depth) return false;
    return plan.chunk_bytes >= kMinChunkBytes && plan.chunk_bytes % kMinChunkBytes == 0 &&
           plan.chunk_bytes <= max_chunk_bytes(layout, plan.depth) * (plan.whole_rings ? 2 : 1);
  }
  if (layout.ranks < 2) return false;
  if (plan.algorithm == Algorithm::eager) {
    if (backend != Backend::host) return false;
    const std::uint64_t lines = ceil_divide(count * size_of(type), kEagerPayloadBytes);
    return lines * kEagerLineBytes <= layout.eager_source_bytes;
  }
  const bool shared = plan.algorithm == Algorithm::two_shot;
  std::uint64_t lines = ceil_divide(count * size_of(type), line_payload(backend, type));
  if (shared) lines = ceil_divide(lines, static_cast<std::uint64_t>(layout.ranks));
  // Threads of a CTA take one line each per turn. The CTA owns all slots of its turns.
  const auto threads = static_cast<std::uint64_t>(plan.threads);
  const int trips = shared ? trips_of_two_shot : 1;
  return turns_of(plan, lines) * threads * kLineBytes <= layout.source_bytes[trips - 1];
}

// Smallest long reduce. Below this size a reduce with all ranks as owners takes fewer steps
// (docs/notes/streams.md).
constexpr std::uint64_t kLeastSparingRoot = 32 << 20;

// Smallest block of an all-gather or all-to-all that some CTAs copy while the others send. Shorter
// ones take as long without (docs/notes/exchanges.md).
constexpr std::uint64_t kLeastOwnBlock = 8 << 20;

// Returns how many CTAs copy only the own block, of `block` bytes. With few CTAs all do both. Each
// CTA has a part of the block, also if not all outputs are written in place.
int own_ctas_of(const Plan& plan, const ScratchLayout& layout, std::uint64_t block) {
  constexpr std::uint64_t kLeastPart = 32 << 10;
  const bool has_parts = block >= static_cast<unsigned>(plan.ctas) * kLeastPart;
  const bool has_senders = plan.ctas - layout.own_ctas >= kLeastSendingCtas;
  return block >= kLeastOwnBlock && has_parts && has_senders ? layout.own_ctas : 0;
}

Owners owners_of(const Plan& plan, Backend backend, Collective collective, int root, int ranks,
                 std::uint64_t bytes) {
  const bool is_long_reduce = collective == Collective::reduce && backend == Backend::cuda &&
                              plan.algorithm == Algorithm::stream && ranks > 2 &&
                              bytes >= kLeastSparingRoot;
  const bool spares_root = is_long_reduce || (collective == Collective::broadcast && ranks > 1);
  return spares_root ? Owners{(root + 1) % ranks, ranks - 1} : Owners{0, ranks};
}

bool reads_inputs(Backend backend, const ScratchLayout& layout, const CollectiveCall& call,
                  bool on_one_gpu) {
  // Measured on 2 and 4 H200 (docs/notes/streams.md). Loads fill the links less than stores, but
  // need no fence for each chunk. Many CTAs overlap their fences, so that stores win. Inside one
  // GPU there is no link, and a sent input is read and written once more.
  constexpr std::uint64_t kMostBytes = 8 << 20;
  constexpr std::uint64_t kMostOfManyCtas = 32 << 20;
  constexpr int kManyCtas = 64;
  const auto ranks = static_cast<unsigned>(layout.ranks);
  const bool divides =
      call.op == ReduceOp::avg && !(is_float(call.type) && std::has_single_bit(ranks));
  const std::uint64_t bytes = call.count * size_of(call.type);
  if (backend != Backend::cuda || divides || call.op == ReduceOp::premul_sum) return false;
  const bool has_many_ctas = layout.max_ctas > kManyCtas;
  switch (call.collective) {
    case Collective::reduce_scatter:  // blocks may begin at any address
      return bytes % 16 == 0 && (on_one_gpu || !has_many_ctas || bytes * ranks <= kMostOfManyCtas);
    case Collective::reduce:
      return on_one_gpu ||
             (!has_many_ctas && (bytes <= kMostBytes || (ranks > 2 && bytes >= kLeastSparingRoot)));
    case Collective::all_reduce:
      return on_one_gpu || (!has_many_ctas && bytes <= kMostBytes);
    default:
      return false;
  }
}

Split split_work(const Plan& plan, Backend backend, int owners, DataType type,
                 std::uint64_t count) {
  const auto sharers = static_cast<std::uint64_t>(owners);
  Split split;
  if (plan.algorithm == Algorithm::stream) {
    split.share = round_to_lines(ceil_divide(count, sharers), type);
    split.part = round_to_lines(ceil_divide(split.share, ops_of(plan)), type);
  } else if (plan.algorithm == Algorithm::two_shot) {
    split.share =
        ceil_divide(ceil_divide(count * size_of(type), line_payload(backend, type)), sharers);
  }
  return split;
}

Split split_blocks(const Plan& plan, Backend backend, DataType type, std::uint64_t block) {
  Split split;
  split.share = block;
  if (plan.algorithm == Algorithm::stream) {
    split.part = round_to_lines(ceil_divide(block, ops_of(plan)), type);
  } else if (plan.algorithm == Algorithm::two_shot) {
    split.share = ceil_divide(block * size_of(type), line_payload(backend, type));
  }
  return split;
}

std::uint64_t part_of_sender(const Plan& plan, DataType type, std::uint64_t block) {
  const int senders = (plan.ctas - plan.own_ctas) * plan.sub_ctas;
  return round_to_lines(ceil_divide(block, static_cast<unsigned>(senders)), type);
}

std::uint32_t chunk_of(const Plan& plan, Backend backend, const Split& split, DataType type) {
  const std::uint64_t part = split.part * size_of(type);
  if (backend == Backend::host || part <= plan.chunk_bytes) return plan.chunk_bytes;
  const std::uint64_t chunks = ceil_divide(part, plan.chunk_bytes);
  return static_cast<std::uint32_t>(round_up(ceil_divide(part, chunks), kMinChunkBytes));
}

Status check_choice(const ChoiceTable& table, Backend backend, const ScratchLayout& layout) {
  if (table.find(backend, layout.ranks, layout.max_ctas, 0) == nullptr) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("the table of algorithms has no line for the backend {}",
                             backend == Backend::cuda ? "cuda" : "host"))
        .with_hint("set ORIEL_TABLE to a table with lines for this backend, or unset it");
  }
  if (max_chunk_bytes(layout, kMinDepth) < kMinChunkBytes) {
    return rings_too_small(layout, kMinDepth);
  }
  return {};
}

namespace {

/// Returns the table's entry for `bytes` bytes. On GPUs, sizes in the table are of full lines, so
/// types whose lines are half flags count double.
Result<const TableEntry*> find_entry(const ChoiceTable& table, Backend backend,
                                     const ScratchLayout& layout, DataType type,
                                     std::uint64_t bytes) {
  const std::uint64_t weight =
      backend == Backend::cuda ? kLineBytes / line_payload(backend, type) : 1;
  const TableEntry* entry = table.find(backend, layout.ranks, layout.max_ctas, bytes * weight);
  if (entry != nullptr) return entry;
  return Error(
             ErrorCode::invalid_usage,
             fmt::format("the table has no line for {} bytes among {} ranks", bytes, layout.ranks))
      .with_hint("set ORIEL_TABLE to a table with lines for this backend, or unset it");
}

/// Applies the user's number of CTAs, and the limits of the device.
void limit_grid(Plan& plan, const Overrides& overrides, Backend backend,
                const ScratchLayout& layout) {
  if (overrides.ctas > 0) plan.ctas = overrides.ctas;
  // A CTA has at least a warp, because each lane of a warp exchanges signatures with one rank
  // (signatures.cuh).
  if (backend == Backend::cuda) plan.threads = std::max(plan.threads, kMinThreads);
  if (plan.ctas > layout.max_ctas) cut_ctas(plan, backend, layout.max_ctas);
}

/// Returns the plan of `entry` with the user's overrides, made to fit. `owners` ranks have shares.
/// `trips`: see fits().
Result<Plan> fit_plan(const TableEntry& entry, const Overrides& overrides, Backend backend,
                      const ScratchLayout& layout, int owners, DataType type, std::uint64_t count,
                      int trips = 2) {
  Plan plan = entry.plan;
  if (!overrides.algorithm.empty()) {
    ORIEL_TRY(plan.algorithm, find_algorithm(overrides.algorithm, backend));
  }
  limit_grid(plan, overrides, backend, layout);
  if (plan.algorithm != Algorithm::stream) {
    if (fits(plan, backend, layout, type, count, trips)) return plan;
    const bool in_packets = plan.algorithm != Algorithm::eager;
    plan.algorithm = Algorithm::two_shot;
    if (in_packets && fits(plan, backend, layout, type, count, trips)) return plan;
    plan.algorithm = Algorithm::stream;
  }
  if (plan.depth == 0) {
    plan.chunk_bytes = backend == Backend::cuda ? 16384 : 65536;
    plan.depth = 4;
    plan.lead = 2;
  }
  if (backend == Backend::cuda) {
    const std::uint64_t bytes = bytes_of_cta(plan, owners, count * size_of(type));
    divide_ctas(plan, layout, bytes);
    if (overrides.chunk_bytes == 0) prefer_one_chunk(plan, layout, bytes);
  }
  if (overrides.chunk_bytes > 0) {
    plan.chunk_bytes = std::clamp(overrides.chunk_bytes / kMinChunkBytes * kMinChunkBytes,
                                  kMinChunkBytes, kMaxChunkBytes);
  }
  if (!fit_stream(plan, layout)) return rings_too_small(layout, kMinDepth);
  return plan;
}

}  // namespace

Result<Plan> choose_plan(const ChoiceTable& table, const Overrides& overrides, Backend backend,
                         const ScratchLayout& layout, DataType type, std::uint64_t count) {
  ORIEL_TRY(const TableEntry* entry,
            find_entry(table, backend, layout, type, count * size_of(type)));
  return fit_plan(*entry, overrides, backend, layout, layout.ranks, type, count);
}

Result<Plan> choose_scatter_plan(const ChoiceTable& table, const Overrides& overrides,
                                 Backend backend, const ScratchLayout& layout, DataType type,
                                 std::uint64_t count) {
  // On a GPU the single trip of a reduce-scatter takes as long as the two trips of an all-reduce of
  // half the bytes.
  const std::uint64_t bytes = count * size_of(type) / (backend == Backend::cuda ? 2 : 1);
  ORIEL_TRY(const TableEntry* entry, find_entry(table, backend, layout, type, bytes));
  ORIEL_TRY(Plan plan, fit_plan(*entry, overrides, backend, layout, layout.ranks, type, count, 1));
  // Between two ranks chunks are long enough (docs/notes/streams.md).
  if (plan.algorithm == Algorithm::stream && backend == Backend::cuda && layout.ranks > 2) {
    take_whole_rings(plan, overrides, layout);
  }
  if (plan.algorithm == Algorithm::two_shot || plan.algorithm == Algorithm::stream) return plan;
  Overrides in_shares = overrides;
  in_shares.algorithm = name_of(Algorithm::two_shot);
  return fit_plan(*entry, in_shares, backend, layout, layout.ranks, type, count, 1);
}

Result<Plan> choose_copy_plan(Collective collective, const ChoiceTable& table,
                              const Overrides& overrides, Backend backend,
                              const ScratchLayout& layout, DataType type, std::uint64_t count) {
  ORIEL_TRY(const TableEntry* entry,
            find_entry(table, backend, layout, DataType::f32, count * size_of(type)));
  // Looks up the size of f32, which has full lines, since a stream has no flags among its data.
  Overrides as_stream = overrides;
  as_stream.algorithm = name_of(Algorithm::stream);
  const bool spares_root = collective == Collective::broadcast && layout.ranks > 1;
  const int owners = spares_root ? layout.ranks - 1 : layout.ranks;
  ORIEL_TRY(Plan plan, fit_plan(*entry, as_stream, backend, layout, owners, type, count));
  const std::uint64_t block = count * size_of(type) / static_cast<unsigned>(layout.ranks);
  if (collective != Collective::broadcast) plan.own_ctas = own_ctas_of(plan, layout, block);
  return plan;
}

std::optional<Plan> choose_eager_plan(const ChoiceTable& table, const Overrides& overrides,
                                      const ScratchLayout& layout, std::uint64_t bytes) {
  const bool is_forced = overrides.algorithm == name_of(Algorithm::eager);
  if (!is_forced && !overrides.algorithm.empty()) return std::nullopt;
  const auto entry = find_entry(table, Backend::host, layout, DataType::u8, bytes);
  if (!entry.ok()) return std::nullopt;
  Plan plan = entry.value()->plan;
  const bool is_short = plan.algorithm == Algorithm::eager || plan.algorithm == Algorithm::one_shot;
  if (!is_forced && !is_short) return std::nullopt;
  plan.algorithm = Algorithm::eager;
  limit_grid(plan, overrides, Backend::host, layout);
  if (!fits(plan, Backend::host, layout, DataType::u8, bytes)) return std::nullopt;
  return plan;
}

std::uint64_t share_of_broadcast(const Plan& plan, int ranks, std::uint64_t bytes) {
  const std::uint64_t lines = ceil_divide(bytes, copy_payload(plan));
  return ceil_divide(lines, static_cast<std::uint64_t>(ranks) - 1);
}

std::optional<Plan> choose_lines_plan(Collective collective, const ChoiceTable& table,
                                      const Overrides& overrides, Backend backend,
                                      const ScratchLayout& layout, std::uint64_t bytes) {
  if (layout.ranks < 2 || bytes == 0) return std::nullopt;
  // Each rank needs slots for each line of each other rank, as in a one-shot all-reduce.
  const bool on_gpus = backend == Backend::cuda;
  const bool has_shares = collective == Collective::broadcast;
  Plan lines;
  lines.escaped_lines = escapes_lines(backend, collective, layout.ranks, bytes);
  const std::uint64_t count = has_shares ? share_of_broadcast(lines, layout.ranks, bytes)
                                         : ceil_divide(bytes, copy_payload(lines));
  // The table's sizes are of full lines. The two trips of a broadcast take as many CTAs as one trip
  // of flagged lines.
  const bool is_full = lines.escaped_lines && !has_shares;
  const std::uint64_t table_bytes = count * (is_full ? kLineBytes : copy_payload(lines));
  const auto type = is_full ? DataType::f32 : DataType::u8;
  const auto entry = find_entry(table, backend, layout, type, table_bytes);
  if (!entry.ok()) return std::nullopt;
  for (const bool widest : {false, true}) {
    Plan plan = entry.value()->plan;
    plan.escaped_lines = lines.escaped_lines;
    if (widest) {
      plan.ctas = layout.max_ctas;
      plan.threads = on_gpus ? kMaxThreads : 1;
    } else if (plan.algorithm != Algorithm::one_shot) {
      continue;  // the table's CTAs are for two trips or a stream
    }
    limit_grid(plan, overrides, backend, layout);
    if (on_gpus && (widest || (has_shares && plan.escaped_lines))) spread_lines(plan, count);
    const std::uint64_t slots = turns_of(plan, count) * static_cast<std::uint64_t>(plan.threads);
    if (slots * copy_slots(plan) > layout.source_bytes[0]) continue;
    plan.algorithm = has_shares ? Algorithm::two_shot : Algorithm::one_shot;
    return plan;
  }
  return std::nullopt;
}

}  // namespace oriel::kernels

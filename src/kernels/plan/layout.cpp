// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/layout.hpp"

#include <algorithm>

#include "base/alignment.hpp"
#include "kernels/loops/reduce_loops.hpp"
#include "kernels/plan/kernel_set.hpp"
#include "kernels/plan/most_ranks.hpp"

namespace oriel::kernels {

static_assert(most_ranks(Backend::host) <= host::kMaxLoopArrays);

ScratchLayout make_scratch_layout(Backend backend, int ranks, int max_ctas,
                                  std::uint64_t budget_bytes) {
  ScratchLayout layout;
  layout.ranks = ranks;
  layout.max_ctas = max_ctas;
  const auto ctas = static_cast<std::uint64_t>(max_ctas);
  const auto sources = static_cast<std::uint64_t>(ranks);
  // Two sub-CTAs overlap: while one waits for a fence, the other moves data. Among many CTAs, other
  // CTAs do so anyway.
  constexpr int kMostDividedCtas = 64;
  const bool divides = backend == Backend::cuda && max_ctas <= kMostDividedCtas;
  layout.sub_ctas = divides ? kMostSubCtas : 1;
  const std::uint64_t indices = ctas * static_cast<unsigned>(layout.sub_ctas);

  constexpr std::uint64_t kPage = 4096;
  const auto round_to_page = [](std::uint64_t bytes) { return round_up(bytes, kPage); };
  const auto narrow = [](std::uint64_t bytes) { return static_cast<std::uint32_t>(bytes); };
  const std::uint64_t begin = backend == Backend::host ? layout.reading_probe : layout.doorbell;
  layout.epochs = narrow(begin + kSectorBytes);
  layout.signatures = layout.epochs + indices * sizeof(CtaCounters);
  const std::uint64_t signatures =
      backend == Backend::cuda ? kParities * sources * kSectorBytes : 0;
  layout.flags = round_to_page(layout.signatures + signatures);
  layout.handshakes = round_to_page(layout.flags + indices * sources * kSectorBytes);
  std::uint64_t lines =
      round_to_page(layout.handshakes + indices * kParities * sources * kHelloBytes);
  const std::uint64_t others = sources > 1 ? sources - 1 : 1;
  if (backend == Backend::host) {
    layout.eager = narrow(lines);
    layout.eager_source_bytes = narrow(round_down(kEagerBytes / others, kEagerLineBytes));
    lines += kParities * kEagerBytes;
  }
  layout.lines = narrow(lines);

  const std::uint64_t left = budget_bytes > lines ? budget_bytes - lines : 0;
  // With 64 MiB and 128 CTAs, a fifth lets two_shot take 4.25 MiB of floats among 4 ranks. There
  // streaming overtakes it at about 4 MiB (docs/notes/all-reduce.md).
  layout.line_bytes = narrow(left / 5 / kParities / ctas / 128 * 128);
  layout.parity_bytes = narrow(ctas * layout.line_bytes);
  layout.source_bytes[0] = narrow(layout.line_bytes / others / kSectorBytes * kSectorBytes);
  layout.source_bytes[1] = narrow(layout.line_bytes / others / 2 / kSectorBytes * kSectorBytes);
  layout.rings = round_to_page(lines + kParities * ctas * layout.line_bytes);
  layout.ring_bytes =
      (budget_bytes > layout.rings ? budget_bytes - layout.rings : 0) / indices / 128 * 128;
  // Takes the whole budget. The used part depends on the number of ranks, but teams of different
  // sizes register windows of one size.
  layout.total_bytes = std::max(budget_bytes, layout.rings);
  return layout;
}

}  // namespace oriel::kernels

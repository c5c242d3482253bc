// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/choice.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/plan/call_record.hpp"
#include "kernels/plan/plan_values.hpp"

namespace {

using namespace oriel;
using namespace oriel::kernels;

ChoiceTable table_of(const std::string& text) {
  auto table = ChoiceTable::parse(text);
  REQUIRE(table.ok());
  return std::move(table).value();
}

Algorithm forced(const std::string& name, Backend backend, int ranks, std::uint64_t bytes) {
  Overrides overrides;
  overrides.algorithm = name;
  const auto layout = make_scratch_layout(backend, ranks, 1, 16 * kMiB);
  const auto plan =
      choose_plan(ChoiceTable::built_in(), overrides, backend, layout, DataType::u8, bytes);
  REQUIRE(plan.ok());
  return plan.value().algorithm;
}

/// One area of a layout; areas_of returns them in the order of their addresses.
struct Area {
  std::string name;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

std::vector<Area> areas_of(const ScratchLayout& layout) {
  const auto ctas = static_cast<std::uint64_t>(layout.max_ctas);
  const auto indices = ctas * static_cast<std::uint64_t>(layout.sub_ctas);
  const auto ranks = static_cast<std::uint64_t>(layout.ranks);
  return {
      {"doorbell", layout.doorbell, kSectorBytes},
      {"call record", layout.call_record, layout.eager > 0 ? sizeof(CallRecord) : 0},
      {"epochs", layout.epochs, indices * sizeof(CtaCounters)},
      {"signatures", layout.signatures, layout.eager > 0 ? 0 : kParities * ranks * kSectorBytes},
      {"flags", layout.flags, indices * ranks * kSectorBytes},
      {"handshakes", layout.handshakes, indices * kParities * ranks * kHelloBytes},
      {"eager", layout.eager, layout.eager_source_bytes > 0 ? kParities * kEagerBytes : 0},
      {"lines", layout.lines, kParities * layout.parity_bytes},
      {"rings", layout.rings, indices * layout.ring_bytes}};
}

}  // namespace

TEST_CASE("every algorithm can be forced on CPU ranks", "[req:1.30]") {
  for (const int ranks : {2, 8, 64}) {
    INFO(ranks << " ranks");
    for (int i = 0; i < kAlgorithmCount; ++i) {
      const auto algorithm = static_cast<Algorithm>(i);
      CHECK(forced(name_of(algorithm), Backend::host, ranks, 256) == algorithm);
    }
    CHECK(forced("eager", Backend::host, ranks, 100'000) == Algorithm::stream);
  }
  CHECK(forced("eager", Backend::host, 2, 8192) == Algorithm::eager);
  CHECK(forced("one_shot", Backend::host, 8, 200'000) == Algorithm::two_shot);
}

TEST_CASE("a CTA of a GPU's plan has at least one warp, whose lanes exchange signatures",
          "[req:1.38]") {
  const ChoiceTable table =
      table_of("cuda 2 max one_shot 1 7 0 0 0\nhost 2 max one_shot 1 7 0 0 0\n");
  for (const Backend backend : {Backend::cuda, Backend::host}) {
    const auto layout = make_scratch_layout(backend, 2, 1, 64 * kMiB);
    const auto plan = choose_plan(table, {}, backend, layout, DataType::f32, 2);
    REQUIRE(plan.ok());
    CHECK(plan->threads == (backend == Backend::cuda ? 32 : 7));
  }
}

TEST_CASE("a plan with more CTAs than the communicator may use keeps its threads, up to 512",
          "[req:5.5]") {
  for (const int most : {1, 16, 32}) {
    const auto layout = make_scratch_layout(Backend::cuda, 4, most, 64 * kMiB);
    for (const std::uint64_t bytes : {std::uint64_t{196608}, std::uint64_t{1} << 20}) {
      const auto& whole = ChoiceTable::built_in().find(Backend::cuda, 4, 132, bytes)->plan;
      const auto plan =
          choose_plan(ChoiceTable::built_in(), {}, Backend::cuda, layout, DataType::u8, bytes / 2);
      REQUIRE(plan.ok());
      CHECK(plan->ctas == most);
      CHECK(plan->threads == std::min(512, whole.threads * whole.ctas / most));
      CHECK(fits(*plan, Backend::cuda, layout, DataType::u8, bytes / 2));
    }
  }
}

TEST_CASE("eager is refused on GPUs", "[req:1.30]") {
  Overrides overrides;
  overrides.algorithm = "eager";
  const auto layout = make_scratch_layout(Backend::cuda, 2, 132, 64 * kMiB);
  const auto plan =
      choose_plan(ChoiceTable::built_in(), overrides, Backend::cuda, layout, DataType::f32, 2);
  REQUIRE_FALSE(plan.ok());
  CHECK(plan.error().code() == ErrorCode::invalid_usage);
  CHECK(plan.error().message() == "the algorithm \"eager\" is for CPU ranks, not for GPUs");
  CHECK_FALSE(fits({Algorithm::eager, 1, 1, 0, 0, 0}, Backend::cuda, layout, DataType::f32, 2));

  const auto table = ChoiceTable::parse("host 2 1024 eager 1 1 0 0 0\ncuda 2 64 eager 1 1 0 0 0\n");
  REQUIRE_FALSE(table.ok());
  CHECK(table.error().message() ==
        "line 2 of the table: the algorithm \"eager\" is for CPU ranks, not for GPUs");

  overrides.algorithm = "ring";
  const auto unknown =
      choose_plan(ChoiceTable::built_in(), overrides, Backend::cuda, layout, DataType::f32, 2);
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().message() == "there is no algorithm \"ring\"");
}

TEST_CASE("a table says which algorithm CPU ranks use", "[req:1.30]") {
  const ChoiceTable table = table_of(
      "host 2 64 one_shot 1 1 0 0 0\nhost 2 256 two_shot 1 1 0 0 0\n"
      "host 2 1024 eager 1 1 0 0 0\nhost 2 max stream 1 1 1024 3 2\n");
  CHECK(table_of(table.to_text()).hash() == table.hash());
  CHECK(table.find(Backend::host, 2, 1, 64)->plan.algorithm == Algorithm::one_shot);
  CHECK(table.find(Backend::host, 2, 1, 65)->plan.algorithm == Algorithm::two_shot);
  CHECK(table.find(Backend::host, 2, 1, 257)->plan.algorithm == Algorithm::eager);
  CHECK(table.find(Backend::host, 2, 1, 1025)->plan.algorithm == Algorithm::stream);
}

TEST_CASE("small messages between CPU ranks are eager unless forced", "[req:1.43]") {
  CHECK(forced("", Backend::host, 2, 32) == Algorithm::one_shot);
  for (const auto& [ranks, most] : {std::pair{2, 1024}, {4, 512}, {16, 128}, {64, 128}}) {
    const auto bytes = static_cast<std::uint64_t>(most);
    CHECK(forced("", Backend::host, ranks, ranks == 2 ? 33 : 1) == Algorithm::eager);
    CHECK(forced("", Backend::host, ranks, bytes) == Algorithm::eager);
    CHECK(forced("", Backend::host, ranks, bytes + 1) == Algorithm::stream);
  }
}

TEST_CASE("short blocks between CPU ranks are eager, as an all-reduce of as many bytes would be",
          "[req:5.22]") {
  const auto layout_of = [](int ranks) {
    return make_scratch_layout(Backend::host, ranks, 1, 4 * kMiB);
  };
  const auto plan_of = [&](const char* algorithm, int ranks, std::uint64_t bytes) {
    Overrides overrides;
    overrides.algorithm = algorithm;
    return choose_eager_plan(ChoiceTable::built_in(), overrides, layout_of(ranks), bytes);
  };
  for (const std::uint64_t bytes : {1u, 32u, 1024u}) {
    REQUIRE(plan_of("", 2, bytes));
    CHECK(plan_of("", 2, bytes)->algorithm == Algorithm::eager);
  }
  CHECK_FALSE(plan_of("", 2, 1025));
  CHECK(plan_of("eager", 2, 8192));
  CHECK_FALSE(plan_of("eager", 64, 8192));  // does not fit
  CHECK_FALSE(plan_of("stream", 2, 8));
  const auto table = table_of("host 2 1024 eager 4 1 0 0 0\nhost 2 max stream 1 1 1024 3 2\n");
  CHECK(choose_eager_plan(table, {}, layout_of(2), 8)->ctas == 1);
}

TEST_CASE("the areas of the scratch memory are disjoint") {
  for (const Backend backend : {Backend::host, Backend::cuda}) {
    for (const int ranks : {1, 2, 7, 8, 64}) {
      for (const int ctas : {1, 32, 64, 132}) {
        if (backend == Backend::host && ctas > 1) continue;
        if (backend == Backend::cuda && ranks > 8) continue;
        const std::uint64_t budget = ctas > 1 ? 64 * kMiB : kMiB;
        const auto layout = make_scratch_layout(backend, ranks, ctas, budget);
        INFO(ranks << " ranks, " << ctas << " CTAs");
        std::uint64_t end = 0;
        for (const Area& area : areas_of(layout)) {
          INFO(area.name);
          if (area.bytes == 0) continue;
          CHECK(area.begin >= end);
          CHECK(area.begin % kSectorBytes == 0);
          end = area.begin + area.bytes;
        }
        CHECK(end <= layout.total_bytes);
        CHECK(layout.total_bytes <= budget);
        const auto others = static_cast<std::uint64_t>(ranks > 1 ? ranks - 1 : 1);
        CHECK(others * layout.eager_source_bytes <= kEagerBytes);
        CHECK(others * layout.source_bytes[0] <= layout.line_bytes);
        CHECK(others * 2 * layout.source_bytes[1] <= layout.line_bytes);
      }
    }
  }
}

TEST_CASE("GPUs have no eager area, and their layout is what it was without") {
  struct Expected {
    int ranks;
    std::uint64_t epochs, flags, handshakes, lines, line_bytes, one_shot_bytes, two_shot_bytes,
        rings, ring_bytes;
  };
  const Expected expected[] = {
      {2, 64, 12288, 32768, 69632, 50688, 50688, 25344, 13451264, 406400},
      {4, 64, 12288, 49152, 118784, 50688, 16896, 8448, 13500416, 406016},
      {8, 64, 12288, 81920, 217088, 50560, 7168, 3584, 13565952, 405504},
  };
  for (const Expected& e : expected) {
    const auto layout = make_scratch_layout(Backend::cuda, e.ranks, 132, 64 * kMiB);
    INFO(e.ranks << " ranks");
    CHECK(layout.eager == 0);
    CHECK(layout.eager_source_bytes == 0);
    CHECK(layout.doorbell == 0);
    CHECK(layout.epochs == e.epochs);
    CHECK(layout.flags == e.flags);
    CHECK(layout.handshakes == e.handshakes);
    CHECK(layout.lines == e.lines);
    CHECK(layout.line_bytes == e.line_bytes);
    CHECK(layout.parity_bytes == 132 * e.line_bytes);
    CHECK(layout.source_bytes[0] == e.one_shot_bytes);
    CHECK(layout.source_bytes[1] == e.two_shot_bytes);
    CHECK(layout.rings == e.rings);
    CHECK(layout.ring_bytes == e.ring_bytes);
  }
}

TEST_CASE("the size of the scratch memory does not depend on the number of ranks", "[req:1.14]") {
  for (const std::uint64_t budget : {kMiB, 4 * kMiB + 4096, 64 * kMiB}) {
    for (const int ctas : {1, 7, 32, 64, 114, 132, 144}) {
      for (int ranks = 1; ranks <= 8; ++ranks) {
        INFO(ranks << " GPU ranks, " << ctas << " CTAs");
        CHECK(make_scratch_layout(Backend::cuda, ranks, ctas, budget).total_bytes == budget);
      }
    }
    for (int ranks = 1; ranks <= 64; ++ranks) {
      INFO(ranks << " CPU ranks");
      CHECK(make_scratch_layout(Backend::host, ranks, 1, budget).total_bytes == budget);
    }
  }
}

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/host/all_reduce_ranks.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

namespace oriel::kernels {
namespace {

TEST_CASE("streamed copies in a row bring every element to every rank, in place and into windows",
          "[req:5.9]") {
  const int count = GENERATE(2, 3, 7);
  const auto collective =
      GENERATE(Collective::broadcast, Collective::all_gather, Collective::all_to_all);
  const bool gathers = collective != Collective::broadcast;
  const Ranks ranks(count);
  for (const std::uint64_t elements : {1u, 63u, 130u, 1001u, 9001u}) {
    for (const int form : {0, 1, 2, 3}) {
      const bool registered = form >= 2;
      const bool in_place = form % 2 != 0 && collective != Collective::all_to_all;
      const std::uint64_t all = gathers ? elements * static_cast<unsigned>(count) : elements;
      Shape shape{Algorithm::stream, all, elements % 5, in_place, 50us};
      shape.collective = collective;
      if (gathers) shape.block = elements;
      if (!gathers) shape.root = static_cast<int>(elements) % count;
      INFO(name_of(collective) << " among " << count << " ranks, registered " << registered
                               << ", in place " << in_place << ", " << elements << " elements");
      REQUIRE(ranks.wrong_copies(shape, test::repeats(40, 8), registered) == 0);
    }
  }
}

TEST_CASE("a broadcast in lines reaches every rank from any root, at any alignment, in place",
          "[req:5.9]") {
  const int count = GENERATE(2, 3, 7);
  const Ranks ranks(count);
  for (const std::uint64_t elements : {1u, 2u, 3u, 4u, 63u, 130u, 1001u, 9001u}) {
    for (const bool in_place : {false, true}) {
      Shape shape{Algorithm::two_shot, elements, elements % 5, in_place, 50us};
      shape.collective = Collective::broadcast;
      shape.root = static_cast<int>(elements) % count;
      INFO(count << " ranks, in place " << in_place << ", " << elements << " elements");
      REQUIRE(ranks.wrong_copies(shape, test::repeats(40, 8), false) == 0);
      Shape sums{Algorithm::one_shot, std::min<std::uint64_t>(elements, 2000), elements % 5};
      REQUIRE(ranks.wrong_after<std::int32_t>(DataType::i32, sums, 5) == 0);  // shares the slots
    }
  }
}

TEST_CASE("calls that read all inputs in place give the sums, also between calls that cannot",
          "[req:5.9]") {
  const int count = GENERATE(2, 3, 7);
  const Ranks ranks(count);
  const auto collective =
      GENERATE(Collective::all_reduce, Collective::reduce_scatter, Collective::reduce);
  const bool scatters = collective == Collective::reduce_scatter;
  std::mt19937 rng(test::test_seed());
  std::vector<Ranks::Unlike> calls;
  for (int i = test::repeats(40, 12); i > 0; --i) {
    calls.push_back(rng() % 2 == 0 ? Ranks::Unlike::none : Ranks::Unlike(rng() % 4));
  }
  for (const std::uint64_t elements : {4u, 132u, 1004u, 9000u}) {
    for (const bool in_place : {false, true}) {
      const std::uint64_t all = scatters ? elements * static_cast<unsigned>(count) : elements;
      Shape shape{Algorithm::stream, all, 0, in_place, 50us};
      shape.collective = collective;
      if (scatters) shape.block = elements;
      if (collective == Collective::reduce) shape.root = static_cast<int>(elements) % count;
      INFO(name_of(collective) << " among " << count << " ranks, in place " << in_place << ", "
                               << elements << " elements");
      REQUIRE(ranks.wrong_reads(shape, calls) == 0);
    }
  }
}

TEST_CASE("blocks in lines reach every rank, in place, at any alignment and after reductions",
          "[req:5.9][req:5.22]") {
  const int count = GENERATE(2, 3, 7);
  const auto collective = GENERATE(Collective::all_gather, Collective::all_to_all);
  const auto algorithm = GENERATE(Algorithm::one_shot, Algorithm::eager);
  const Ranks ranks(count);
  for (const std::uint64_t elements :
       {1u, 2u, 3u, 4u, 27u, 28u, 29u, 57u, 63u, 130u, 513u, 1001u, 3001u, 9001u}) {
    const Plan plan{algorithm, 1, 1, 1024, 3, 2};
    if (!fits(plan, Backend::host, ranks.layout(), DataType::f16, elements)) continue;
    for (const bool in_place : {false, true}) {
      Shape shape{algorithm, elements * static_cast<unsigned>(count), elements % 5, in_place, 50us};
      shape.collective = collective;
      shape.block = elements;
      INFO(name_of(collective) << " by " << name_of(algorithm) << " among " << count
                               << " ranks, in place " << in_place << ", " << elements
                               << " elements");
      REQUIRE(ranks.wrong_copies(shape, test::repeats(40, 8), false) == 0);
      Shape sums{algorithm, std::min<std::uint64_t>(elements, 2000), elements % 5};
      REQUIRE(ranks.wrong_after<std::int32_t>(DataType::i32, sums, 5) == 0);  // shares the slots
    }
  }
}

}  // namespace
}  // namespace oriel::kernels

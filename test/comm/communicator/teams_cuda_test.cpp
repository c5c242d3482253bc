// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <catch2/catch.hpp>

#include "comm/support/in_teams.hpp"
#include "comm/support/model_gpu.hpp"

// GPU ranks in teams of different sizes, on the model of the CUDA driver.
namespace oriel::test {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

/// Gives rank r device r of its own driver model, with the options options_of(r).
template <class OptionsOf, class Then>
void start_on_model(const TwoNodes& nodes, const OptionsOf& options_of, const Then& then) {
  const Environment environment(Variables{{"ORIEL_BACKEND", "cuda"}});
  check_all_ok(run_ranks(LaunchMode::processes, nodes.ranks, [&](TestRanks& test_ranks) {
    const int rank = test_ranks.first();
    const Environment own(nodes.variables_of(rank));
    FakeCuda::Options options = options_of(rank);
    options.devices = nodes.ranks;
    const FakeCuda& model = model_with_current_device(options, rank);
    then(rank, start_in_team(test_ranks, nodes));
    for (const std::string& violation : model.violations()) require(false, violation);
  }));
}

}  // namespace

TEST_CASE("GPU ranks in teams of one and three start, and of seven and eight", "[req:1.14]") {
  for (const int multiprocessors : {16, 132, 144}) {
    INFO(multiprocessors << " multiprocessors");
    const auto options_of = [&](int) {
      return FakeCuda::Options{.multiprocessors = multiprocessors};
    };
    const auto then = [](int, std::size_t slot_bytes) { require(slot_bytes == 8 * kGiB, "slot"); };
    start_on_model({4, 1}, options_of, then);
    start_on_model({15, 7}, options_of, then);
  }
}

TEST_CASE("GPUs with different numbers of multiprocessors start together", "[req:5.5]") {
  const auto options_of = [](int rank) {
    return FakeCuda::Options{.multiprocessors = 16 + 4 * rank};
  };
  start_on_model({4, 2}, options_of, [](int, std::size_t) {});
}

TEST_CASE("the slots of a team hold the memory of its largest GPU", "[req:1.15]") {
  // Ranks 0 and 1 have 5 and 11 GiB; ranks 2 and 3 have 20 GiB.
  const auto options_of = [](int rank) {
    constexpr std::size_t kMemory[] = {5 * kGiB, 11 * kGiB, 20 * kGiB, 20 * kGiB};
    return FakeCuda::Options{.memory_bytes = kMemory[rank]};
  };
  start_on_model({4, 2}, options_of, [](int rank, std::size_t slot_bytes) {
    require(slot_bytes == (rank < 2 ? 12 : 20) * kGiB, std::to_string(slot_bytes));
  });
}

TEST_CASE("more than eight GPU ranks of one node are refused when they start", "[req:1.28]") {
  const Environment environment(Variables{{"ORIEL_BACKEND", "cuda"}});
  check_all_ok(run_ranks(LaunchMode::processes, 9, [](TestRanks& test_ranks) {
    model_with_current_device(FakeCuda::Options{.devices = 9}, test_ranks.first());
    must_fail(try_to_join(test_ranks), ErrorCode::invalid_usage,
              {"rank 8: ", "9 GPU ranks", "at most 8", "ORIEL_HOSTID"});
  }));
}

}  // namespace oriel::test

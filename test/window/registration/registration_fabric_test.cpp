// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "window/memory/memory_cuda.hpp"
#include "window/registration/window_ranks.hpp"

// Tests windows of teams in which not all processes can exchange descriptors, on a model of the
// CUDA driver with and without fabric handles.
namespace oriel::window {
namespace {

struct Case {
  std::vector<int> layout;   // number of ranks in each process
  std::vector<int> domains;  // descriptor domain of each rank
};

/// Opens the rank's own device; ranks of one process share the model.
Result<Memory*> memory_on_model(int rank, bool fabric) {
  static auto* const model =
      new test::FakeCuda(test::FakeCuda::Options{.devices = 8, .fabric = fabric});
  static_cast<void>(model);
  return cuda_memory(rank);
}

RankOptions options_for(const Case& one, bool fabric) {
  RankOptions options;
  options.descriptor_domains = one.domains;
  options.memory = [fabric](int rank) { return memory_on_model(rank, fabric); };
  options.always_fork = true;
  return options;
}

const Case kCases[] = {
    {{1, 1}, {0, 1}},
    {{1, 1, 1, 1}, {0, 0, 1, 1}},
    {{1, 1, 1, 1}, {0, 1, 0, 1}},
    {{1, 1, 1}, {0, 1, 2}},
    {{2, 2}, {0, 0, 1, 1}},
    {{2, 1, 1}, {0, 0, 1, 0}},
    {{1, 2, 2}, {4, 2, 2, 4, 4}},
};

}  // namespace

TEST_CASE("windows of a team that descriptors do not connect are seen by all of it", "[req:2.3]") {
  for (const Case& one : kCases) {
    INFO(one.layout.size() << " processes");
    check_all_ok(run_ranks(one.layout, options_for(one, true), [](WindowRank& self) -> Status {
      constexpr std::size_t kBytes = std::size_t{2} << 20;
      for (int round = 0; round < 3; ++round) {
        ORIEL_TRY(void* const memory, self.memory().allocate(kBytes));
        const auto value_of = [&](int rank) { return 16 * round + rank + 1; };
        std::memset(memory, value_of(self.rank()), kBytes);
        ORIEL_TRY(const auto window, self.register_one(memory, kBytes));
        ORIEL_CHECK(self.barrier());
        for (int rank = 0; rank < self.size(); ++rank) {
          ORIEL_EXPECT(self.peer(window, rank)[0] == static_cast<std::byte>(value_of(rank)));
          ORIEL_EXPECT(self.peer(window, rank)[kBytes - 1] ==
                       static_cast<std::byte>(value_of(rank)));
        }
        ORIEL_CHECK(self.barrier());
        ORIEL_CHECK(self.manager().deregister(window.handle));
        ORIEL_CHECK(self.memory().free(memory));
        ORIEL_CHECK(self.barrier());
      }
      return {};
    }));
  }
}

TEST_CASE("without fabric handles such a team is refused on all ranks alike", "[req:2.3]") {
  for (const Case& one : kCases) {
    INFO(one.layout.size() << " processes");
    check_all_ok(run_ranks(one.layout, options_for(one, false), [](WindowRank& self) -> Status {
      constexpr std::size_t kBytes = std::size_t{2} << 20;
      ORIEL_TRY(void* const memory, self.memory().allocate(kBytes));
      const auto refused = self.register_one(memory, kBytes);
      ORIEL_EXPECT(!refused.ok());
      ORIEL_EXPECT(refused.error().message().find("has no fabric handle") != std::string::npos);
      ORIEL_EXPECT(refused.error().origin_rank() == 0);
      ORIEL_CHECK(self.same_everywhere(refused.error().to_string()));
      ORIEL_CHECK(self.check_nothing_held());
      return self.memory().free(memory);
    }));
  }
}

}  // namespace oriel::window

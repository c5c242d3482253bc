// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/exchange_planner.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "window/registration/registration.hpp"
#include "window/registration/window_ranks.hpp"

/// Selection of collectives for copy engines, and their plans. GPU ranks are planned with windows
/// in host memory.
namespace oriel::test {
namespace {

using comm::CollectiveRequest;
using comm::ExchangePlanner;
using kernels::Collective;
using kernels::kNoOffset;

constexpr std::size_t kBlock = 4 << 20;  // the smallest block that copy engines carry

/// Planner of one of two ranks. Any memory of the window's team serves as scratch memory.
class PlannedRank {
 public:
  PlannedRank(window::WindowRank& rank, std::byte* scratch, bool uses_copy_engines,
              bool on_one_gpu = false)
      : planner_(kernels::Backend::cuda, {{0, 1}}, rank.rank()) {
    planner_.lay_out(32, 4096, 64 << 20);
    kernels::ExchangeMemory memory;
    memory.scratch = scratch;
    memory.flat_base = rank.space().base();
    memory.stride_4g = static_cast<std::uint32_t>(window::kSlotUnitBytes >> 32);
    memory.signatures = 64;
    memory.signature_calls = 128;
    planner_.begin(memory, rank.manager(), uses_copy_engines, on_one_gpu);
  }

  std::uint64_t offset_of(Collective collective, const std::byte* input, std::byte* output,
                          std::size_t count) const {
    return planner_.copy_engine_offset(request(collective, input, output, count));
  }
  comm::ExchangeCall& copies_of(Collective collective, const std::byte* input, std::byte* output,
                                std::size_t count) {
    const CollectiveRequest wanted = request(collective, input, output, count);
    return planner_.copies_of(wanted, planner_.copy_engine_offset(wanted));
  }
  comm::ExchangeCall& call_of(const std::byte* input, std::byte* output, std::size_t count,
                              Collective collective = Collective::all_gather, int root = 0) {
    CollectiveRequest wanted = request(collective, input, output, count);
    wanted.root = root;
    return planner_.call_of(wanted);
  }

 private:
  static CollectiveRequest request(Collective collective, const std::byte* input, std::byte* output,
                                   std::size_t count) {
    CollectiveRequest made;
    made.collective = collective;
    made.input = input;
    made.output = output;
    made.count = count;
    made.type = DataType::u8;
    return made;
  }
  ExchangePlanner planner_;
};

Result<window::RegisteredWindow> register_with(window::WindowRank& rank, std::byte* at,
                                               std::size_t bytes, std::uint32_t flags) {
  window::WindowRequest request;
  request.pointer = at;
  request.bytes = bytes;
  request.flags = flags;
  ORIEL_TRY(const auto registered, rank.register_batch({request}));
  return registered.front();
}

/// Checks that a call uses copy engines only if all ranks have asked for them and the shared buffer
/// lies entirely in a symmetric window.
Status check_choice(window::WindowRank& rank) {
  const window::HostBuffer symmetric(8 * kBlock), plain(8 * kBlock), loose(8 * kBlock);
  ORIEL_TRY(const auto window,
            register_with(rank, symmetric.at(), 8 * kBlock, window::kWindowSymmetric));
  ORIEL_TRY(const auto other, register_with(rank, plain.at(), 8 * kBlock, 0));
  const PlannedRank asked(rank, window.flat_base, true), silent(rank, window.flat_base, false);
  constexpr auto kGather = Collective::all_gather;
  std::byte* const in = symmetric.at(kBlock);
  ORIEL_EXPECT(asked.offset_of(kGather, in, loose.at(), kBlock) == window.slot_offset + kBlock);
  ORIEL_EXPECT(asked.offset_of(kGather, in, plain.at(), kBlock) == window.slot_offset + kBlock);
  ORIEL_EXPECT(silent.offset_of(kGather, in, loose.at(), kBlock) == kNoOffset);
  ORIEL_EXPECT(asked.offset_of(kGather, in, loose.at(), kBlock - 1) == kNoOffset);
  ORIEL_EXPECT(asked.offset_of(kGather, plain.at(), symmetric.at(), kBlock) == kNoOffset);
  ORIEL_EXPECT(asked.offset_of(kGather, loose.at(), symmetric.at(), kBlock) == kNoOffset);
  ORIEL_EXPECT(asked.offset_of(kGather, symmetric.at(7 * kBlock + 1), loose.at(), kBlock) ==
               kNoOffset);
  ORIEL_EXPECT(asked.offset_of(Collective::broadcast, in, symmetric.at(4 * kBlock), kBlock) ==
               kNoOffset);
  // In place, the shared buffer is the output. For a scatter out of place it is the output too.
  std::byte* const own = symmetric.at(static_cast<std::size_t>(rank.rank()) * kBlock);
  ORIEL_EXPECT(asked.offset_of(kGather, own, symmetric.at(), kBlock) == window.slot_offset);
  ORIEL_EXPECT(asked.offset_of(Collective::scatter, nullptr, in, kBlock) ==
               window.slot_offset + kBlock);
  ORIEL_EXPECT(asked.offset_of(Collective::scatter, in, loose.at(), kBlock) == kNoOffset);
  ORIEL_EXPECT(asked.offset_of(Collective::gather, in, nullptr, kBlock) ==
               window.slot_offset + kBlock);
  ORIEL_CHECK(rank.barrier());
  return rank.deregister({window, other});
}

/// Checks that the copies of a call follow its first launch and read from the peer's input.
Status check_plan(window::WindowRank& rank) {
  const window::HostBuffer buffer(8 * kBlock);
  ORIEL_TRY(const auto window,
            register_with(rank, buffer.at(), 8 * kBlock, window::kWindowSymmetric));
  PlannedRank planned(rank, window.flat_base, true);
  const int peer = 1 - rank.rank();
  const auto own_block = static_cast<std::size_t>(rank.rank()) * kBlock;
  comm::ExchangeCall& call =
      planned.copies_of(Collective::all_to_all, buffer.at(), buffer.at(4 * kBlock), kBlock);
  ORIEL_EXPECT(call.launches.size() == 2 && call.launches_before_copies == 1);
  ORIEL_EXPECT(call.launches[0].signatures == 64 && call.launches[1].signatures == 0);
  ORIEL_EXPECT(call.copies.size() == 2);
  ORIEL_EXPECT(call.copies[0].from == rank.peer(window, peer) + own_block);
  ORIEL_EXPECT(call.copies[0].to ==
               buffer.at(4 * kBlock) + static_cast<std::size_t>(peer) * kBlock);
  ORIEL_EXPECT(call.copies[1].from == buffer.at(own_block));
  for (const kernels::ExchangeArguments& launch : call.launches) {
    ORIEL_EXPECT(launch.messages == 2 && launch.form == kernels::ExchangeForm::packets);
  }
  // Rank 0, the root of the gather, copies. The other rank signals the root, and waits.
  comm::ExchangeCall& rooted =
      planned.copies_of(Collective::gather, buffer.at(), buffer.at(4 * kBlock), kBlock);
  const bool is_root = rank.rank() == 0;
  ORIEL_EXPECT(rooted.launches.size() == (is_root ? 2 : 1));
  ORIEL_EXPECT(rooted.copies.size() == (is_root ? 2 : 0));
  ORIEL_EXPECT(rooted.launches[0].signatures == 0);
  planned.copies_of(Collective::all_to_all, buffer.at(), buffer.at(4 * kBlock), kBlock);
  ORIEL_EXPECT(planned.call_of(buffer.at(), buffer.at(4 * kBlock), kBlock).copies.empty());
  ORIEL_CHECK(rank.barrier());
  return rank.deregister({window});
}

/// Checks that no root of a scatter in place copies its own block, on one GPU or several.
Status check_in_place(window::WindowRank& rank) {
  const window::HostBuffer buffer(8 * kBlock);
  ORIEL_TRY(const auto window, register_with(rank, buffer.at(), 8 * kBlock, 0));
  std::byte* const own = buffer.at(static_cast<std::size_t>(rank.rank()) * kBlock);
  for (const bool on_one_gpu : {false, true}) {
    PlannedRank planned(rank, window.flat_base, false, on_one_gpu);
    for (const int root : {0, 1}) {
      const auto copies = [&](std::byte* output, std::size_t block) {
        return planned.call_of(buffer.at(), output, block, Collective::scatter, root)
            .launches[0]
            .copies;
      };
      ORIEL_EXPECT(copies(own, kBlock) == 0);
      constexpr std::size_t kShort = 48 << 10;  // too short to go past the slots
      ORIEL_EXPECT(copies(buffer.at(static_cast<std::size_t>(rank.rank()) * kShort), kShort) == 0);
    }
  }
  ORIEL_CHECK(rank.barrier());
  return rank.deregister({window});
}

/// Checks the launch of a scatter among ranks on one GPU: receivers copy out of the root's window.
Status check_one_gpu(window::WindowRank& rank) {
  const window::HostBuffer buffer(8 * kBlock);
  ORIEL_TRY(const auto window, register_with(rank, buffer.at(), 8 * kBlock, 0));
  PlannedRank planned(rank, window.flat_base, false, true);
  const bool is_root = rank.rank() == 0;
  const auto launch_of = [&](std::byte* output) -> const kernels::ExchangeArguments& {
    return planned.call_of(buffer.at(), output, kBlock, Collective::scatter).launches[0];
  };
  const kernels::ExchangeArguments& scatter = launch_of(buffer.at(4 * kBlock));
  ORIEL_EXPECT(scatter.form == kernels::ExchangeForm::one_gpu);
  ORIEL_EXPECT(scatter.pulled_parts == (is_root ? kernels::kPulledParts : 0));
  ORIEL_EXPECT(scatter.copies == (is_root ? 1 : 0));
  ORIEL_EXPECT(!is_root || scatter.message[0].data == rank.peer(window, 0) + kBlock);
  const window::HostBuffer loose(kBlock);
  ORIEL_EXPECT(planned.call_of(loose.at(), loose.at(), kBlock / 2, Collective::scatter)
                   .launches[0]
                   .pulled_parts == 0);
  ORIEL_CHECK(rank.barrier());
  return rank.deregister({window});
}

}  // namespace

TEST_CASE(
    "calls go by copy engines where all ranks ask for it, long blocks lie in symmetric windows",
    "[req:5.9]") {
  window::check_ranks({{2}}, {}, check_choice);
}

TEST_CASE("channels of GPUs take a third of the scratch size, 4.5 to 21 MiB", "[req:5.12]") {
  constexpr std::uint64_t kMib = 1 << 20;
  for (const int ranks : {2, 4, 8}) {
    std::vector<int> team;
    for (int rank = 0; rank < ranks; ++rank) team.push_back(rank);
    ExchangePlanner planner(kernels::Backend::cuda, {team}, 0);
    planner.lay_out(32, 4096, 64 * kMib);
    CHECK(planner.scratch_bytes() == 21 * kMib);
    planner.lay_out(32, 4096, 24 * kMib);
    CHECK(planner.scratch_bytes() == 8 * kMib);
    CHECK(planner.channels().front().total_bytes <= 8 * kMib);
    planner.lay_out(32, 4096, kMib);
    CHECK(planner.scratch_bytes() == 9 * kMib / 2);
    CHECK(planner.channels().front().slot_bytes >= 4096);
  }
}

TEST_CASE("receivers on the root's GPU copy a scatter out of the root's window", "[req:5.23]") {
  window::check_ranks({{2}}, {}, check_one_gpu);
}

TEST_CASE("a scatter in place copies nothing inside its root", "[req:5.9]") {
  window::check_ranks({{2}}, {}, check_in_place);
}

TEST_CASE("copies of a call stand between its barriers, and read the peers' windows", "[req:5.9]") {
  window::check_ranks({{2}}, {}, check_plan);
}

}  // namespace oriel::test

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/communicator/all_reduce_reference.hpp"
#include "comm/communicator/random_all_reduces.hpp"
#include "comm/support/in_teams.hpp"
#include "kernels/plan/collective.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Broadcast, reduce, all-to-all, gather and scatter through the C interface, against a reference.
namespace oriel::test {
namespace {

using kernels::Collective;

constexpr Collective kExchanged[] = {Collective::broadcast, Collective::reduce,
                                     Collective::all_to_all, Collective::gather,
                                     Collective::scatter};

/// What all ranks draw alike for one call.
struct ExchangedCall {
  Collective collective = Collective::broadcast;
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  std::size_t count = 0;
  int root = 0;
  bool in_place = false;
  std::uint64_t places = 0;  ///< bit 2 r: rank r sends from a window; bit 2 r + 1: receives in one
  std::size_t skew = 0;      ///< elements by which buffers are off their alignment
  std::uint64_t seed = 0;

  std::size_t bytes() const { return count * size_of(type); }
  bool is_root(int rank) const { return !has_root(collective) || rank == root; }
  bool sends(int rank) const {
    const bool only_root = collective == Collective::broadcast || collective == Collective::scatter;
    return !only_root || is_root(rank);
  }
  bool receives(int rank) const {
    const bool only_root = collective == Collective::reduce || collective == Collective::gather;
    return !only_root || is_root(rank);
  }
  std::string text() const {
    return fmt::format("{} of {} x {} ({}), root {}, in place {}, places {:x}, skew {}, seed {:#x}",
                       name_of(collective), count, name_of(type), name_of(op), root, in_place,
                       places & 0xffff, skew, seed);
  }
};

/// One rank and its memory, of which one half lies in a window.
class ExchangeRank {
 public:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kGuardByte{0x5a};

  ExchangeRank(int rank, int size, std::size_t most_bytes)
      : rank_(rank),
        size_(static_cast<std::size_t>(size)),
        area_bytes_((most_bytes * size_ + 4 * kGuard + 4095) / 4096 * 4096),
        window_(2 * area_bytes_),
        plain_(2 * area_bytes_) {}

  ncclComm_t comm = nullptr;
  void* window() const { return window_.at(); }
  std::size_t window_bytes() const { return 2 * area_bytes_; }

  /// Fills the buffers of `call`; `input` is this rank's.
  void begin(const ExchangedCall& call, const std::vector<std::byte>& input) {
    const std::size_t off = kGuard + call.skew * size_of(call.type);
    const std::uint64_t bits = call.places >> (2 * rank_);
    std::byte* const in_area = (bits & 1) != 0 ? window_.at() : plain_.data();
    std::byte* const out_area = (bits & 2) != 0 ? window_.at() : plain_.data();
    input_ = in_area + off;
    output_ = out_area + area_bytes_ + off;
    const std::size_t own = static_cast<std::size_t>(rank_) * call.bytes();
    if (call.in_place && call.sends(rank_) && call.receives(rank_)) {
      if (receives_blocks(call.collective)) {
        input_ = output_ + own;
      } else {
        output_ = input_ + (sends_blocks(call.collective) ? own : 0);
      }
    }
    in_place_ = call.in_place && call.sends(rank_) && call.receives(rank_);
    received_ = call.bytes() * (receives_blocks(call.collective) ? size_ : 1);
    if (!in_place_) std::fill_n(output_ - kGuard, received_ + 2 * kGuard, kGuardByte);
    if (call.sends(rank_)) std::copy(input.begin(), input.end(), input_);
  }

  ncclResult_t issue(const ExchangedCall& call, std::uint64_t scalar) {
    // A buffer that a rank does not use may be anything.
    const void* const input = call.sends(rank_) ? input_ : nullptr;
    void* const output = call.receives(rank_) ? output_ : nullptr;
    const auto type = static_cast<ncclDataType_t>(call.type);
    switch (call.collective) {
      case Collective::broadcast:
        if (call.in_place) {
          return ncclBcast(call.sends(rank_) ? input_ : output_, call.count, type, call.root, comm,
                           nullptr);
        }
        return ncclBroadcast(input, output, call.count, type, call.root, comm, nullptr);
      case Collective::all_to_all:
        return pncclAlltoAll(input, output, call.count, type, comm, nullptr);
      case Collective::gather:
        return ncclGather(input, output, call.count, type, call.root, comm, nullptr);
      case Collective::scatter:
        return ncclScatter(input, output, call.count, type, call.root, comm, nullptr);
      default:
        return reduce(call, input, output, scalar);
    }
  }

  void check(const ExchangedCall& call, const std::vector<std::byte>& input,
             const std::vector<std::byte>& expected) const {
    if (!in_place_) {
      const std::size_t written = call.receives(rank_) ? received_ : 0;
      for (std::size_t i = 0; i < kGuard; ++i) {
        require(output_[-1 - static_cast<std::ptrdiff_t>(i)] == kGuardByte &&
                    output_[written + i] == kGuardByte,
                "bytes beside the output: " + call.text());
      }
      const bool is_kept = !call.sends(rank_) || std::equal(input.begin(), input.end(), input_);
      require(is_kept, "the input is as it was: " + call.text());
    }
    if (!call.receives(rank_)) return;
    const bool is_right =
        expected.size() == received_ && std::equal(expected.begin(), expected.end(), output_);
    require(is_right, fmt::format("what rank {} has got: {}", rank_, call.text()));
  }

 private:
  ncclResult_t reduce(const ExchangedCall& call, const void* input, void* output,
                      std::uint64_t scalar) {
    const auto type = static_cast<ncclDataType_t>(call.type);
    auto op = static_cast<ncclRedOp_t>(call.op);
    const bool scales = call.op == ReduceOp::premul_sum;
    if (scales) {
      require(ncclRedOpCreatePreMulSum(&op, &scalar, type, ncclScalarHostImmediate, comm),
              "ncclRedOpCreatePreMulSum");
    }
    const ncclResult_t done =
        ncclReduce(input, output, call.count, type, op, call.root, comm, nullptr);
    if (scales) require(ncclRedOpDestroy(op, comm), "ncclRedOpDestroy");
    return done;
  }

  int rank_;
  std::size_t size_;
  std::size_t area_bytes_;
  Buffer window_;
  std::vector<std::byte> plain_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  bool in_place_ = false;
  std::size_t received_ = 0;
};

/// The inputs of all ranks, and what each rank is to get.
class ExchangeReference {
 public:
  ExchangeReference(const ExchangedCall& call, int size)
      : call_(call), size_(static_cast<std::size_t>(size)) {
    const std::size_t blocks = sends_blocks(call.collective) ? size_ : 1;
    for (std::size_t rank = 0; rank < size_; ++rank) {
      inputs.emplace_back(blocks * call.bytes());
      fill_elements(call.type, Inputs::moderate, mix(call.seed, rank), inputs.back().data(),
                    blocks * call.count);
      std::uint64_t bits = 0;
      std::byte scalar[8] = {};
      fill_elements(call.type, Inputs::moderate, mix(call.seed, rank + 77), scalar, 1);
      std::memcpy(&bits, scalar, size_of(call.type));
      scalars.push_back(bits);
    }
  }

  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::uint64_t> scalars;

  std::vector<std::byte> output_of(int rank) const {
    const auto root = static_cast<std::size_t>(call_.root);
    const auto me = static_cast<std::size_t>(rank);
    const std::size_t bytes = call_.bytes();
    std::vector<std::byte> expected;
    switch (call_.collective) {
      case Collective::broadcast:
        return inputs[root];
      case Collective::reduce: {
        std::vector<const std::byte*> arrays;
        for (const auto& input : inputs) arrays.push_back(input.data());
        expected.resize(bytes);
        if (bytes > 0) {
          reduce_arrays(call_.type, call_.op, arrays, scalars, call_.count, expected.data());
        }
        return expected;
      }
      case Collective::scatter:
        return block(inputs[root], me);
      default:
        for (const auto& input : inputs) {
          const auto part = call_.collective == Collective::gather ? input : block(input, me);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        return expected;
    }
  }

 private:
  std::vector<std::byte> block(const std::vector<std::byte>& input, std::size_t index) const {
    const auto begin = input.begin() + static_cast<std::ptrdiff_t>(index * call_.bytes());
    return {begin, begin + static_cast<std::ptrdiff_t>(call_.bytes())};
  }

  const ExchangedCall& call_;
  std::size_t size_;
};

/// The ranks of one player.
class ExchangePlayer {
 public:
  ExchangePlayer(Players& players, std::size_t most_bytes)
      : players_(players), comms_(players.init()) {
    std::vector<void*> memory;
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      ranks_.emplace_back(players.ranks()[i], players.size(), most_bytes);
      ranks_.back().comm = comms_[i];
      memory.push_back(ranks_.back().window());
    }
    windows_ = players.register_windows(comms_, memory, ranks_.front().window_bytes());
  }

  void check(const ExchangedCall& call) {
    const ExchangeReference reference(call, players_.size());
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].begin(call, reference.inputs[static_cast<std::size_t>(players_.ranks()[i])]);
    }
    require(players_.together([&](std::size_t i, int rank) {
      return ranks_[i].issue(call, reference.scalars[static_cast<std::size_t>(rank)]);
    }),
            call.text().c_str());
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const int rank = players_.ranks()[i];
      ranks_[i].check(call, reference.inputs[static_cast<std::size_t>(rank)],
                      reference.output_of(rank));
    }
  }

  void end() {
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      require(ncclCommWindowDeregister(comms_[i], windows_[i]), "ncclCommWindowDeregister");
    }
    players_.destroy(comms_);
  }

 private:
  Players& players_;
  std::vector<ncclComm_t> comms_;
  std::vector<ExchangeRank> ranks_;
  std::vector<ncclWindow_t> windows_;
};

ExchangedCall draw_call(Collective collective, DataType type, ReduceOp op, int size,
                        std::uint64_t seed) {
  constexpr std::size_t kSmall[] = {0, 1, 3, 777};
  ExchangedCall call{.collective = collective, .type = type, .op = op};
  call.seed = seed;
  const std::uint64_t drawn = mix(seed, 1);
  // One in eight does not fit into the ring of a channel.
  call.count = drawn % 8 == 7 ? 400'001 / size_of(type) : kSmall[drawn / 8 % 4];
  call.root = static_cast<int>(drawn / 64 % static_cast<std::uint64_t>(size));
  call.in_place = drawn / 4096 % 2 == 0 && collective != Collective::all_to_all;
  call.skew = drawn / 8192 % 8;
  call.places = mix(seed, 2);
  return call;
}

/// Every collective with every type, and every operation; other things vary along.
void exchange_everything(Players& players, std::uint64_t seed) {
  ExchangePlayer player(players, 400'100);
  std::uint64_t step = 0;
  for (const Collective collective : kExchanged) {
    for (int type = 0; type < kDataTypeCount; ++type) {
      for (int op = 0; op < (reduces(collective) ? kReduceOpCount : 1); ++op) {
        const std::uint64_t drawn = mix(seed, ++step);
        // Every second call under a smaller share, one in eight under a sanitizer.
        const bool left_out = (drawn >> 32 & (kSanitized ? 7 : 1)) != 0;
        if (left_out && scaled(repeats(100, 4)) < 100) continue;
        player.check(draw_call(collective, static_cast<DataType>(type), static_cast<ReduceOp>(op),
                               players.size(), drawn));
      }
    }
  }
  player.end();
}

}  // namespace

TEST_CASE("every exchanged collective, type, operation and root gives the reference's bits",
          "[req:5.8]") {
  const std::uint64_t seed = test_seed();
  const int ranks = GENERATE(1, 2, 3, 4, 5, 8);
  for (const Cast cast : kCasts) {
    if (ranks == 1 && cast != Cast::processes) continue;
    INFO(ranks << " ranks as " << name_of(cast));
    check_all_ok(play(
        cast, ranks,
        [&](Players& players) {
          exchange_everything(players, mix(seed, static_cast<std::uint64_t>(ranks)));
        },
        std::chrono::seconds(120)));
  }
}

TEST_CASE("a root that is ahead by many small broadcasts overwrites nothing, all data are right",
          "[req:5.8]") {
  const std::uint64_t seed = test_seed();
  check_all_ok(play(Cast::processes, 3, [&](Players& players) {
    auto comms = players.init();
    const int calls = scaled(repeats(2'000));
    for (int i = 0; i < calls; ++i) {
      // The root of many calls in a row waits for nobody.
      const int root = i / 50 % 3;
      std::uint64_t word = players.first() == root ? mix(seed, static_cast<std::uint64_t>(i)) : 0;
      require(ncclBcast(&word, 1, ncclUint64, root, comms[0], nullptr), "ncclBcast");
      require(word == mix(seed, static_cast<std::uint64_t>(i)), fmt::format("call {}", i));
      if (i % 97 == 0) {
        float one = 1;
        require(ncclAllReduce(&one, &one, 1, ncclFloat, ncclSum, comms[0], nullptr), "all-reduce");
        require(one == 3, "the sum");
      }
    }
    players.destroy(comms);
  }));
}

namespace {

/// Calls with one wrong argument, by rank 0 of two.
void make_wrong_calls(Players& players) {
  auto comms = players.init();
  ncclComm_t comm = comms[0];
  float data[16] = {};
  const auto refused = [](ncclResult_t result, const std::vector<std::string>& words) {
    expect_error(result, ncclInvalidArgument, "a wrong call", words);
  };
  if (players.first() == 0) {
    for (const int root : {-1, 2}) {
      const std::string text = fmt::format("root is {}, but ranks go from 0 to 1", root);
      refused(ncclBroadcast(data, data, 1, ncclFloat, root, comm, nullptr), {"a broadcast", text});
      refused(ncclBcast(data, 0, ncclFloat, root, comm, nullptr), {"ncclBcast", text});
      refused(ncclReduce(data, data, 1, ncclFloat, ncclSum, root, comm, nullptr),
              {"a reduce", text});
      refused(ncclGather(data, data + 8, 1, ncclFloat, root, comm, nullptr), {"a gather", text});
      refused(ncclScatter(data, data + 8, 1, ncclFloat, root, comm, nullptr), {"a scatter", text});
    }
    refused(ncclBroadcast(nullptr, data, 1, ncclFloat, 0, comm, nullptr), {"sendbuff is null"});
    refused(ncclBroadcast(nullptr, nullptr, 1, ncclFloat, 1, comm, nullptr), {"recvbuff is null"});
    refused(ncclReduce(nullptr, data, 1, ncclFloat, ncclSum, 1, comm, nullptr),
            {"sendbuff is null"});
    refused(ncclReduce(data, nullptr, 1, ncclFloat, ncclSum, 0, comm, nullptr),
            {"recvbuff is null"});
    refused(ncclGather(data, nullptr, 1, ncclFloat, 0, comm, nullptr), {"recvbuff is null"});
    refused(ncclScatter(nullptr, data, 1, ncclFloat, 0, comm, nullptr), {"sendbuff is null"});
    refused(ncclAlltoAll(nullptr, data, 1, ncclFloat, comm, nullptr), {"sendbuff is null"});
    refused(ncclAlltoAll(data, data, 1, ncclFloat, comm, nullptr),
            {"an all-to-all does not work in place"});
    refused(ncclBroadcast(data, data + 1, 2, ncclFloat, 0, comm, nullptr), {"are not equal"});
    refused(ncclReduce(data, data + 1, 2, ncclFloat, ncclSum, 0, comm, nullptr), {"are not equal"});
    refused(ncclGather(data + 1, data, 2, ncclFloat, 0, comm, nullptr),
            {"sendbuff is not recvbuff + root * count elements"});
    refused(ncclScatter(data, data + 1, 2, ncclFloat, 0, comm, nullptr),
            {"recvbuff is not sendbuff + root * count elements"});
    auto* const odd = reinterpret_cast<float*>(reinterpret_cast<char*>(data) + 1);
    refused(ncclReduce(odd, data + 8, 1, ncclFloat, ncclSum, 0, comm, nullptr),
            {"sendbuff is not aligned to f32"});
    refused(ncclAlltoAll(data, data + 8, SIZE_MAX / 8, ncclFloat, comm, nullptr),
            {"is larger than memory"});
    refused(ncclGather(data, data + 8, SIZE_MAX / 8 / 4, ncclFloat, 0, comm, nullptr),
            {"is larger than memory"});
    refused(ncclBroadcast(data, data, 1, ncclNumTypes, 0, comm, nullptr), {"datatype is 12"});
    refused(
        ncclScatter(data, data + 8, 1, ncclFloat, 0, comm, reinterpret_cast<cudaStream_t>(data)),
        {"the stream is not null"});
  }
  players.barrier();
  // Nothing of it was begun; and calls of no elements need no buffers.
  require(ncclBcast(nullptr, 0, ncclFloat, 1, comm, nullptr), "no elements");
  require(ncclAlltoAll(nullptr, nullptr, 0, ncclFloat, comm, nullptr), "no elements");
  data[0] = players.first() == 1 ? 5 : 0;
  require(ncclBcast(data, 1, ncclFloat, 1, comm, nullptr), "a right call");
  require(data[0] == 5, "what was broadcast");
  players.destroy(comms);
}

}  // namespace

TEST_CASE("a wrong argument of an exchanged collective is refused by name, and nothing is begun",
          "[req:5.8]") {
  check_all_ok(play(Cast::processes, 2, make_wrong_calls));
}

TEST_CASE("ranks that name different roots get an error that says so", "[req:5.8][req:1.38]") {
  const Environment bounded(Variables{{"ORIEL_COLLECTIVE_TIMEOUT", "20s"}});
  check_all_ok(play(Cast::processes, 3, [](Players& players) {
    auto comms = players.init();
    std::vector<float> data(1'000'000);
    const int root = players.first() == 2 ? 1 : 0;
    const ncclResult_t done =
        ncclBcast(data.data(), data.size(), ncclFloat, root, comms[0], nullptr);
    // The root sends what fits into the channels, and finds out later.
    const ncclResult_t result = done == ncclSuccess ? await_failure(comms[0]) : done;
    require(result == ncclInvalidUsage || result == ncclRemoteError, "it failed");
    require_words(ncclGetLastError(comms[0]), {"are in different calls"});
    players.barrier();
    players.destroy(comms);
  }));
}

TEST_CASE("a broadcast of several parts reaches every rank of every node, from any root",
          "[req:5.11][req:5.8]") {
  constexpr int kRanks = 5;  // of nodes of 2, 2 and 1
  check_all_ok(play(Cast::processes, kRanks, [](Players& players) {
    const Environment own(of_node(players.first() / 2));
    auto comms = players.init();
    std::vector<std::uint64_t> data(700'001);
    for (int root = 0; root < kRanks; ++root) {
      const auto value = [&](std::size_t i) { return mix(static_cast<std::uint64_t>(root), i); };
      const bool is_root = players.first() == root;
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = is_root ? value(i) : 0;
      require(ncclBcast(data.data(), data.size(), ncclUint64, root, comms[0], nullptr),
              "ncclBcast");
      for (std::size_t i = 0; i < data.size(); ++i) {
        require(data[i] == value(i), fmt::format("element {} from root {}", i, root));
      }
    }
    players.destroy(comms);
  }));
}

TEST_CASE("every exchanged collective of ranks of several nodes gives the reference's bits",
          "[req:5.11][req:5.8]") {
  const std::uint64_t seed = test_seed();
  // Sums of several nodes do not depend on the nodes only when that is asked for.
  const Environment deterministic(Variables{{"ORIEL_DETERMINISTIC", "1"}});
  const auto [ranks, of_a_node] =
      GENERATE(std::pair(2, 1), std::pair(3, 2), std::pair(4, 2), std::pair(7, 3), std::pair(8, 4));
  INFO(ranks << " ranks, " << of_a_node << " of a node");
  check_all_ok(play(
      Cast::processes, ranks,
      [&, ranks = ranks, of_a_node = of_a_node](Players& players) {
        const Environment own(of_node(players.first() / of_a_node));
        exchange_everything(players, mix(seed, static_cast<std::uint64_t>(100 + ranks)));
      },
      std::chrono::seconds(120)));
}

}  // namespace oriel::test

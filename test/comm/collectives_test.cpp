// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "api/api_ranks.hpp"
#include "comm/all_reduce_reference.hpp"
#include "comm/random_all_reduces.hpp"

/// Collectives inside one node and among several, against a reference (3.16, 3.17).
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

enum class Kind { all_reduce, all_gather, reduce_scatter };
constexpr const char* kKindNames[] = {"all-reduce", "all-gather", "reduce-scatter"};

/// The node of each rank.
using Nodes = std::vector<int>;

std::string text_of(const Nodes& nodes) {
  std::string text;
  for (const int node : nodes) text += std::to_string(node);
  return text;
}

/// Where the buffers of a call lie.
enum class Buffers { apart, in_place, windows, window_in_place };

struct Call {
  Kind kind = Kind::all_reduce;
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  std::size_t count = 0;
  Buffers buffers = Buffers::apart;
  Inputs inputs = Inputs::moderate;
  std::size_t skew = 0;  ///< elements by which buffers are off their alignment
  std::uint64_t seed = 0;

  std::string text() const {
    return fmt::format("{} of {} x {}, {}, buffers {}, inputs {}, skew {}, seed {}",
                       kKindNames[static_cast<int>(kind)], count, name_of(type), name_of(op),
                       static_cast<int>(buffers), static_cast<int>(inputs), skew, seed);
  }
};

std::uint64_t scalar_of(const Call& call, int rank) {
  std::byte bytes[8] = {};
  fill_elements(call.type, Inputs::moderate, mix(call.seed, static_cast<std::uint64_t>(rank) + 77),
                bytes, 1);
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes, size_of(call.type));
  return bits;
}

/// One rank with room for calls, and what it knows of them.
class Caller {
 public:
  Caller(Players& players, std::size_t most_bytes)
      : players_(players),
        size_(static_cast<std::size_t>(players.size())),
        area_bytes_((most_bytes * size_ + 2 * kGuard + 4095) / 4096 * 4096),
        comm_(join(players)),
        memory_(must(comm_.allocate(2 * area_bytes_))),
        window_(must(comm_.register_window(memory_))),
        plain_(2 * area_bytes_) {}

  Communicator& comm() { return comm_; }

  /// Makes the call and checks what it gave, by exact bits if `exact`. Returns a hash of it.
  std::uint64_t check(const Call& call, bool exact) {
    const std::size_t element = size_of(call.type);
    const std::size_t bytes = call.count * element;
    const auto me = static_cast<std::size_t>(players_.first());
    const std::size_t sent = call.kind == Kind::reduce_scatter ? bytes * size_ : bytes;
    const std::size_t received = call.kind == Kind::all_gather ? bytes * size_ : bytes;
    const bool in_window =
        call.buffers == Buffers::windows || call.buffers == Buffers::window_in_place;
    const bool in_place =
        call.buffers == Buffers::in_place || call.buffers == Buffers::window_in_place;
    std::byte* const area = in_window ? static_cast<std::byte*>(memory_.data()) : plain_.data();
    std::byte* input = area + kGuard + call.skew * element;
    std::byte* output = area + area_bytes_ + kGuard + call.skew * element;
    if (in_place && call.kind == Kind::all_gather) input = output + me * bytes;
    if (in_place && call.kind == Kind::reduce_scatter) output = input + me * bytes;
    if (in_place && call.kind == Kind::all_reduce) output = input;

    std::vector<std::vector<std::byte>> inputs(size_, std::vector<std::byte>(sent));
    std::vector<const std::byte*> pointers;
    std::vector<std::uint64_t> scalars;
    for (std::size_t rank = 0; rank < size_; ++rank) {
      fill_elements(call.type, call.inputs, mix(call.seed, rank), inputs[rank].data(),
                    sent / element);
      pointers.push_back(inputs[rank].data());
      scalars.push_back(scalar_of(call, static_cast<int>(rank)));
    }
    if (!in_place) std::fill_n(output - kGuard, received + 2 * kGuard, kGuardByte);
    if (sent != 0) std::memcpy(input, inputs[me].data(), sent);
    make(call, input, output, &scalars[me]);
    if (!in_place) {
      for (std::size_t i = 0; i < kGuard; ++i) {
        require(output[i - kGuard] == kGuardByte && output[received + i] == kGuardByte,
                "bytes beside the output: " + call.text());
      }
      require(sent == 0 || std::memcmp(input, inputs[me].data(), sent) == 0,
              "the input is as it was: " + call.text());
    }
    compare(call, pointers, scalars, output, exact);
    return hash_bytes(output, received);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kGuardByte{0x5a};

  void make(const Call& call, const void* input, void* output, const std::uint64_t* scalar) {
    const void* const factor = call.op == ReduceOp::premul_sum ? scalar : nullptr;
    Status done;
    if (call.kind == Kind::all_gather) {
      done = comm_.all_gather(
          {.input = input, .output = output, .count = call.count, .type = call.type});
    } else if (call.kind == Kind::all_reduce) {
      done = comm_.all_reduce({.input = input,
                               .output = output,
                               .count = call.count,
                               .type = call.type,
                               .op = call.op,
                               .scalar = factor});
    } else {
      done = comm_.reduce_scatter({.input = input,
                                   .output = output,
                                   .count = call.count,
                                   .type = call.type,
                                   .op = call.op,
                                   .scalar = factor});
    }
    require(done.ok(), call.text() + ": " + (done.ok() ? "" : done.error().to_string()));
  }

  void compare(const Call& call, std::vector<const std::byte*> inputs,
               const std::vector<std::uint64_t>& scalars, const std::byte* output, bool exact) {
    const std::size_t bytes = call.count * size_of(call.type);
    if (call.count == 0) return;
    if (call.kind == Kind::all_gather) {
      for (std::size_t rank = 0; rank < size_; ++rank) {
        require(std::memcmp(output + rank * bytes, inputs[rank], bytes) == 0,
                fmt::format("what rank {} has sent: {}", rank, call.text()));
      }
      return;
    }
    if (call.kind == Kind::reduce_scatter) {
      for (auto& input : inputs) input += static_cast<std::size_t>(players_.first()) * bytes;
    }
    if (exact) {
      std::vector<std::byte> expected(bytes);
      reduce_arrays(call.type, call.op, inputs, scalars, call.count, expected.data());
      require(std::memcmp(output, expected.data(), bytes) == 0, "the bits of " + call.text());
      return;
    }
    for (std::size_t i = 0; i < call.count; i += 1 + call.count / 50) {
      const std::string wrong = compare_with_exact(call.type, call.op, inputs, scalars, i, output);
      require(wrong.empty(), wrong + ": " + call.text());
    }
  }

  Players& players_;
  std::size_t size_;
  std::size_t area_bytes_;
  Communicator comm_;
  oriel::Buffer memory_;
  Window window_;
  std::vector<std::byte> plain_;
};

/// All ranks have the same bits.
void agree(Players& players, std::uint64_t hash, const std::string& what) {
  players.word(static_cast<std::size_t>(players.first())) = hash;
  players.barrier();
  for (int rank = 0; rank < players.size(); ++rank) {
    require(players.word(static_cast<std::size_t>(rank)) == hash, "the same bits: " + what);
  }
  players.barrier();
}

/// Plays with ranks on these nodes.
void play_on(const Nodes& nodes, const Variables& variables, const Body& body, int line) {
  INFO("line " << line << ", nodes of the ranks: " << text_of(nodes));
  const Environment common(variables);
  check_all_ok(play(
      Cast::processes, static_cast<int>(nodes.size()),
      [&](Players& players) {
        const int node = nodes[static_cast<std::size_t>(players.first())];
        const Environment own(Variables{{"ORIEL_HOSTID", "node" + std::to_string(node)}});
        body(players);
      },
      100s));
}

constexpr DataType kTypes[] = {DataType::i8,  DataType::u8,   DataType::i32,  DataType::u32,
                               DataType::i64, DataType::u64,  DataType::f16,  DataType::f32,
                               DataType::f64, DataType::bf16, DataType::e4m3, DataType::e5m2};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::max,
                             ReduceOp::min, ReduceOp::avg,  ReduceOp::premul_sum};

/// Every type with every operation, small and in several rounds; other things vary along.
void call_everything(Players& players, std::uint64_t seed, bool exact) {
  constexpr std::size_t kMost = 2100;
  Caller caller(players, (kMost + 8) * 8);
  const std::size_t counts[] = {1, 63, 777, kMost};
  std::uint64_t step = 0;
  for (const DataType type : kTypes) {
    for (const ReduceOp op : kOps) {
      for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather}) {
        if (kind == Kind::all_gather && op != ReduceOp::sum) continue;
        const std::uint64_t drawn = mix(seed, ++step);
        Call call;
        call.kind = kind;
        call.type = type;
        call.op = op;
        call.count = counts[drawn % 4];
        call.buffers = static_cast<Buffers>(drawn / 4 % 4);
        call.skew = drawn / 16 % 8;
        if (exact) call.inputs = static_cast<Inputs>(drawn / 128 % 3);
        call.seed = drawn;
        const std::uint64_t hash = caller.check(call, exact);
        if (kind == Kind::all_reduce && step % 5 == 0) agree(players, hash, call.text());
      }
    }
  }
  Call nothing;
  for (const Kind kind : {Kind::all_reduce, Kind::all_gather, Kind::reduce_scatter}) {
    nothing.kind = kind;
    caller.check(nothing, exact);
  }
  players.barrier();
}

/// The nodes of 1 to 6 ranks that the demands name, and others.
const std::vector<Nodes> kSplits = {
    {0},          {0, 0, 0},          {0, 1},       {0, 0, 1, 1},
    {0, 1, 1, 1}, {0, 0, 0, 1, 2, 2}, {0, 1, 2, 3}, {0, 1, 0, 1, 0},
};

}  // namespace

TEST_CASE("3.16 the smallest all-reduce between two nodes") {
  play_on(
      {0, 1}, {},
      [](Players& players) {
        Caller caller(players, 400'000);
        Call call;
        for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{100'000}}) {
          call.count = count;
          call.seed = count;
          agree(players, caller.check(call, true), call.text());
        }
      },
      __LINE__);
}

TEST_CASE("3.16 every type and operation among nodes of all kinds") {
  const std::uint64_t seed = test_seed();
  WARN("ORIEL_TEST_SEED=" << seed);
  for (const Nodes& nodes : kSplits) {
    play_on(
        nodes, {{"ORIEL_CHUNK", "512"}, {"ORIEL_SCRATCH_SIZE", "4M"}},
        [&](Players& players) { call_everything(players, mix(seed, nodes.size()), false); },
        __LINE__);
  }
}

TEST_CASE("3.17 with ORIEL_DETERMINISTIC the bits do not depend on the nodes") {
  const std::uint64_t seed = test_seed();
  WARN("ORIEL_TEST_SEED=" << seed);
  for (const Nodes& nodes : kSplits) {
    play_on(
        nodes, {{"ORIEL_DETERMINISTIC", "1"}, {"ORIEL_CHUNK", "512"}, {"ORIEL_SCRATCH_SIZE", "4M"}},
        [&](Players& players) { call_everything(players, mix(seed, nodes.size()), true); },
        __LINE__);
  }
}

}  // namespace oriel::test

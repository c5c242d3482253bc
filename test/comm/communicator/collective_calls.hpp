// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "api/api_ranks.hpp"
#include "comm/communicator/all_reduce_reference.hpp"
#include "comm/communicator/random_all_reduces.hpp"

/// Ranks on several nodes of one machine, whose collectives are compared with a reference.
namespace oriel::test {

enum class Kind { all_reduce, all_gather, reduce_scatter };
inline constexpr Kind kKinds[] = {Kind::all_reduce, Kind::all_gather, Kind::reduce_scatter};
inline constexpr const char* kKindNames[] = {"all-reduce", "all-gather", "reduce-scatter"};

inline constexpr DataType kTypes[] = {
    DataType::i8,  DataType::u8,  DataType::i32, DataType::u32,  DataType::i64,  DataType::u64,
    DataType::f16, DataType::f32, DataType::f64, DataType::bf16, DataType::e4m3, DataType::e5m2};
inline constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::max,
                                    ReduceOp::min, ReduceOp::avg,  ReduceOp::premul_sum};

/// The node of each rank.
using Nodes = std::vector<int>;

inline std::string text_of(const Nodes& nodes) {
  std::string text;
  for (const int node : nodes) text += std::to_string(node);
  return text;
}

/// Placement of a call's buffers.
enum class Buffers {
  apart,
  in_place,
  windows,
  window_in_place,
  input_in_window,  ///< only the input; on every other rank only the output
  some_in_place,    ///< in place on all ranks, in a window on every other rank
};
inline constexpr std::uint64_t kBuffers = 6;

struct Call {
  Kind kind = Kind::all_reduce;
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  std::size_t count = 0;
  Buffers buffers = Buffers::apart;
  Inputs inputs = Inputs::moderate;
  std::size_t skew = 0;  ///< elements by which buffers are misaligned
  std::uint64_t seed = 0;

  std::string text() const {
    return fmt::format("{} of {} x {}, {}, buffers {}, inputs {}, skew {}, seed {}",
                       kKindNames[static_cast<int>(kind)], count, name_of(type), name_of(op),
                       static_cast<int>(buffers), static_cast<int>(inputs), skew, seed);
  }
};

/// Makes a call of any kind.
inline Status collective(Communicator& comm, Kind kind, const AllReduceArguments& call) {
  if (kind == Kind::all_reduce) return comm.all_reduce(call);
  if (kind == Kind::reduce_scatter) {
    return comm.reduce_scatter({.input = call.input,
                                .output = call.output,
                                .count = call.count,
                                .type = call.type,
                                .op = call.op,
                                .scalar = call.scalar,
                                .stream = call.stream});
  }
  return comm.all_gather({.input = call.input,
                          .output = call.output,
                          .count = call.count,
                          .type = call.type,
                          .stream = call.stream});
}

inline std::uint64_t scalar_of(const Call& call, int rank) {
  std::byte bytes[8] = {};
  fill_elements(call.type, Inputs::moderate, mix(call.seed, static_cast<std::uint64_t>(rank) + 77),
                bytes, 1);
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes, size_of(call.type));
  return bits;
}

/// Provides a rank's buffers outside windows, and runs its calls.
class CallPlace {
 public:
  virtual ~CallPlace() = default;
  /// Returns memory outside any window; valid while this object lives.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void write(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void read(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  /// Runs `call(stream)` and waits for its end.
  virtual void run(Communicator& comm, const std::function<void(void* stream)>& call) = 0;
};

class HostPlace final : public CallPlace {
 public:
  std::byte* allocate(std::size_t bytes) override { return blocks_.emplace_back(bytes).data(); }
  void write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  void read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  void run(Communicator& /*comm*/, const std::function<void(void* stream)>& call) override {
    call(nullptr);
  }

 private:
  std::deque<std::vector<std::byte>> blocks_;
};

/// One rank with its communicator and its buffers for calls.
class Caller {
 public:
  Caller(TestRanks& test_ranks, std::size_t most_bytes,
         std::unique_ptr<CallPlace> place = std::make_unique<HostPlace>())
      : test_ranks_(test_ranks),
        place_(std::move(place)),
        size_(static_cast<std::size_t>(test_ranks.size())),
        area_bytes_((most_bytes * size_ + 2 * kGuard + 4095) / 4096 * 4096),
        comm_(join(test_ranks)),
        memory_(must(comm_.allocate(2 * area_bytes_))),
        window_(must(comm_.register_window(memory_))),
        plain_(place_->allocate(2 * area_bytes_)) {}

  Communicator& comm() { return comm_; }

  /// Makes the call and checks the result, bit by bit if `exact`. Returns a hash of the result.
  std::uint64_t check(const Call& call, bool exact) {
    const std::size_t element = size_of(call.type);
    const std::size_t bytes = call.count * element;
    const auto me = static_cast<std::size_t>(test_ranks_.first());
    const std::size_t sent = call.kind == Kind::reduce_scatter ? bytes * size_ : bytes;
    const std::size_t received = call.kind == Kind::all_gather ? bytes * size_ : bytes;
    const bool in_place = call.buffers == Buffers::in_place ||
                          call.buffers == Buffers::window_in_place ||
                          call.buffers == Buffers::some_in_place;
    std::byte* const input_area = area(call.buffers, true);
    std::byte* const output_area = area(call.buffers, false);
    std::byte* input = input_area + kGuard + call.skew * element;
    std::byte* output = output_area + area_bytes_ + kGuard + call.skew * element;
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
    std::vector<std::byte> guarded(received + 2 * kGuard, kGuardByte);
    if (!in_place) place_->write(output - kGuard, guarded.data(), guarded.size());
    place_->write(input, inputs[me].data(), sent);
    place_->run(comm_, [&](void* stream) { make(call, input, output, &scalars[me], stream); });
    place_->read(guarded.data(), output - kGuard, guarded.size());
    const std::byte* const result = guarded.data() + kGuard;
    if (!in_place) {
      for (std::size_t i = 0; i < kGuard; ++i) {
        require(guarded[i] == kGuardByte && result[received + i] == kGuardByte,
                "bytes beside the output: " + call.text());
      }
      std::vector<std::byte> after(sent);
      place_->read(after.data(), input, sent);
      require(after == inputs[me], "the input is as it was: " + call.text());
    }
    compare(call, pointers, scalars, result, exact);
    return hash_bytes(result, received);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kGuardByte{0x5a};

  std::byte* area(Buffers buffers, bool of_input) {
    const bool odd = test_ranks_.first() % 2 == 1;
    const bool in_window = buffers == Buffers::windows || buffers == Buffers::window_in_place ||
                           (buffers == Buffers::input_in_window && of_input != odd) ||
                           (buffers == Buffers::some_in_place && odd);
    return in_window ? static_cast<std::byte*>(memory_.data()) : plain_;
  }

  void make(const Call& call, const void* input, void* output, const std::uint64_t* scalar,
            void* stream) {
    const void* const factor = call.op == ReduceOp::premul_sum ? scalar : nullptr;
    const Status done = collective(comm_, call.kind,
                                   {.input = input,
                                    .output = output,
                                    .count = call.count,
                                    .type = call.type,
                                    .op = call.op,
                                    .scalar = factor,
                                    .stream = stream});
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
      for (auto& input : inputs) input += static_cast<std::size_t>(test_ranks_.first()) * bytes;
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

  TestRanks& test_ranks_;
  std::unique_ptr<CallPlace> place_;
  std::size_t size_;
  std::size_t area_bytes_;
  Communicator comm_;
  oriel::Buffer memory_;
  Window window_;
  std::byte* plain_;
};

/// Checks that all ranks have the same hash.
inline void agree(TestRanks& test_ranks, std::uint64_t hash, const std::string& what) {
  test_ranks.word(static_cast<std::size_t>(test_ranks.first())) = hash;
  test_ranks.barrier();
  for (int rank = 0; rank < test_ranks.size(); ++rank) {
    require(test_ranks.word(static_cast<std::size_t>(rank)) == hash, "the same bits: " + what);
  }
  test_ranks.barrier();
}

/// Returns the setting that names a rank's node.
inline Variables on_node(const Nodes& nodes, const TestRanks& test_ranks) {
  const int node = nodes[static_cast<std::size_t>(test_ranks.first())];
  return {{"ORIEL_HOSTID", "node" + std::to_string(node)}};
}

/// Runs ranks on these nodes.
inline void run_on(const Nodes& nodes, const Variables& variables, const Body& body, int line) {
  INFO("line " << line << ", nodes of the ranks: " << text_of(nodes));
  const Environment common(variables);
  check_all_ok(run_ranks(
      LaunchMode::processes, static_cast<int>(nodes.size()),
      [&](TestRanks& test_ranks) {
        const Environment own(on_node(nodes, test_ranks));
        body(test_ranks);
      },
      std::chrono::seconds(100)));
}

}  // namespace oriel::test

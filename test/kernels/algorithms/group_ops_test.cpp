// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "base/alignment.hpp"
#include "kernels/algorithms/copy_bytes.hpp"
#include "kernels/algorithms/family.hpp"
#include "kernels/algorithms/group_copy_ops.hpp"
#include "kernels/algorithms/group_hierarchy_ops.hpp"
#include "kernels/algorithms/group_reduce_ops.hpp"
#include "kernels/algorithms/reference.hpp"
#include "kernels/algorithms/tiles.hpp"
#include "kernels/host/hierarchy_ops_host.hpp"
#include "kernels/plan/arguments.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Tests how the threads of a GPU's group move and reduce. One CPU thread runs them one after the
/// other, which is possible because they do not wait for each other.
namespace oriel::kernels {
namespace {

/// Group policy: rank() is the thread that is being emulated.
struct SerialGroup {
  static inline std::uint32_t at = 0;
  static inline std::uint32_t threads = 1;
  static std::uint32_t rank() { return at; }
  static std::uint32_t size() { return threads; }

  /// Calls `body` as each thread of a group of `size`.
  template <class Body>
  static void run(std::uint32_t size, const Body& body) {
    threads = size;
    for (at = 0; at < threads; ++at) body();
  }
};

/// Buffer whose address is `address` modulo 16. Guard bytes of a known value lie on both sides.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t address)
      : memory_(bytes + 2 * kGuard + 16, kFill),
        begin_(kGuard +
               ((address - reinterpret_cast<std::uintptr_t>(memory_.data()) - kGuard) & 15)),
        bytes_(bytes) {}

  std::byte* data() { return memory_.data() + begin_; }
  std::span<std::byte> span() { return {data(), bytes_}; }
  bool is_intact() const {
    const auto fill = [](std::byte byte) { return byte == kFill; };
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(memory_.begin(), begin, fill) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), memory_.end(), fill);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kFill{0xa5};
  std::vector<std::byte> memory_;
  std::size_t begin_;
  std::size_t bytes_;
};

void fill(std::span<std::byte> bytes, std::mt19937_64& random) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
}

template <int kUnroll>
void check_tiles(std::uint32_t threads, std::uint64_t count) {
  std::vector<int> loaded(count);
  std::vector<int> stored(count);
  bool is_inside = true;
  SerialGroup::run(threads, [&] {
    for_each_tile<SerialGroup, kUnroll>(count, [&](const auto& tile) {
      for (int u = 0; u < std::remove_cvref_t<decltype(tile)>::kUnits; ++u) {
        const std::uint64_t at = tile.at(u);
        is_inside = is_inside && at < count;
        if (!is_inside) return;
        ++loaded[at];
        if (tile.has(u)) ++stored[at];
      }
    });
  });
  CAPTURE(threads, count, kUnroll);
  CHECK(is_inside);
  CHECK(std::all_of(stored.begin(), stored.end(), [](int times) { return times == 1; }));
  CHECK(std::all_of(loaded.begin(), loaded.end(), [](int times) { return times >= 1; }));
}

TEST_CASE("tiles give each unit to one thread, and load none behind the end", "[req:5.9]") {
  const std::uint32_t threads = GENERATE(32u, 96u, 256u, 512u);
  for (std::uint64_t count = 0; count < 2 * threads; count += 1 + count / 16) {
    check_tiles<1>(threads, count);
    check_tiles<4>(threads, count);
  }
  for (const std::uint64_t rounds : {2, 4, 7, 8, 9, 16, 17}) {
    for (const std::uint64_t more : {0u, 1u, 31u, threads - 1}) {
      check_tiles<2>(threads, rounds * threads + more);
      check_tiles<8>(threads, rounds * threads + more);
    }
  }
}

TEST_CASE("copies of any length between any addresses move all bytes and touch no others",
          "[req:5.9]") {
  std::mt19937_64 random(test::test_seed());
  const std::uint32_t threads = GENERATE(32u, 256u);
  for (std::size_t to = 0; to < 16; ++to) {
    for (std::size_t from = 0; from < 16; ++from) {
      const std::size_t sizes[] = {0,
                                   1,
                                   random() % 100,
                                   95,
                                   96,
                                   97,
                                   random() % 1000,
                                   16 * threads + random() % 40,
                                   random() % 20'000};
      for (const std::size_t bytes : sizes) {
        Guarded target(bytes, to);
        // Has no guard behind it, so that a sanitizer sees a read beyond the end.
        std::vector<std::byte> memory(bytes + from);
        const std::span<std::byte> source(memory.data() + from, bytes);
        fill(source, random);
        SerialGroup::run(threads,
                         [&] { copy_bytes<SerialGroup>(target.data(), source.data(), bytes); });
        CAPTURE(to, from, bytes, threads);
        REQUIRE(std::equal(source.begin(), source.end(), target.span().begin()));
        REQUIRE(target.is_intact());
      }
    }
  }
}

/// Shape of one reduction of the stream algorithm.
template <class T>
struct ReduceCase {
  int ranks;
  std::size_t count;
  std::size_t misaligned;  ///< offset of the own source, in elements
  bool is_alike;           ///< the targets have the same offset
  bool all_targets;
};

/// Reduces as a random rank and compares each target. Only this rank's source is not yet scaled.
template <class T, ReduceOp op, int kRanks>
void check_reduce(const ReduceCase<T>& one, std::mt19937_64& random) {
  const auto ranks = static_cast<std::size_t>(one.ranks);
  const int me = static_cast<int>(random() % ranks);
  const std::size_t bytes = one.count * sizeof(T);
  const std::size_t off = one.misaligned * sizeof(T);
  std::vector<std::vector<T>> values(ranks, std::vector<T>(one.count));
  std::vector<Guarded> sources;
  std::vector<Guarded> targets;
  const T scalar = test::random_element<T>(random, test::Inputs::moderate);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const bool is_own = static_cast<int>(rank) == me;
    sources.emplace_back(bytes, is_own ? off : 0);
    targets.emplace_back(bytes, one.is_alike ? off : 0);
    for (T& value : values[rank]) value = test::random_element<T>(random, test::Inputs::edges);
    if (bytes > 0) std::memcpy(sources[rank].data(), values[rank].data(), bytes);
    fill(targets[rank].span(), random);
  }
  AllReduceArguments arguments;
  arguments.rank = me;
  arguments.ranks = one.ranks;
  arguments.operation = {op == ReduceOp::avg, op == ReduceOp::premul_sum, op == ReduceOp::max};
  std::memcpy(&arguments.scalar_bits, &scalar, sizeof(T));
  SerialGroup::run(64, [&] {
    GroupReduceOps<T, family_of(op), kRanks, SerialGroup> ops(arguments);
    ops.begin();
    ops.reduce([&](int rank) { return sources[static_cast<std::size_t>(rank)].data(); },
               [&](int rank) { return targets[static_cast<std::size_t>(rank)].data(); },
               one.all_targets ? one.ranks : 1, one.count);
  });
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < one.count; ++i) {
    std::vector<T> inputs;
    std::vector<T> scalars(ranks, T(1));
    for (std::size_t rank = 0; rank < ranks; ++rank) inputs.push_back(values[rank][i]);
    // The other ranks have scaled their inputs already.
    if (op == ReduceOp::premul_sum) scalars[static_cast<std::size_t>(me)] = scalar;
    const T expected = test::reduce_reference<T, op>(inputs, scalars, one.ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (!one.all_targets && static_cast<int>(rank) != me) continue;
      const std::byte* const got = targets[rank].data() + i * sizeof(T);
      if (std::memcmp(&expected, got, sizeof(T)) != 0) ++wrong;
    }
  }
  CAPTURE(me, one.ranks, one.count, one.misaligned, one.all_targets, name_of(op));
  REQUIRE(wrong == 0);
  for (const Guarded& target : targets) REQUIRE(target.is_intact());
}

template <class T, ReduceOp op>
void check_reduces(std::mt19937_64& random) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{random() % 300},
                                  std::size_t{64 * 64 / sizeof(T) + random() % 200}}) {
    for (const std::size_t misaligned : {std::size_t{0}, std::size_t{1 + random() % 3}}) {
      const bool all = random() % 2 == 0;
      const bool alike = random() % 3 == 0;
      check_reduce<T, op, 2>({2, count, misaligned, alike, all}, random);
      check_reduce<T, op, 4>({4, count, misaligned, alike, !all}, random);
      check_reduce<T, op, 0>({1, count, misaligned, alike, all}, random);
      check_reduce<T, op, 0>({3, count, misaligned, alike, all}, random);
      check_reduce<T, op, 8>({8, count, misaligned, !alike, all}, random);
      check_reduce<T, op, 0>({8, count, misaligned, alike, !all}, random);
    }
  }
}

TEMPLATE_TEST_CASE("groups reduce as the definition says, averages by powers of two to the bit",
                   "[req:1.26][req:5.8]", float, double, device::bf16, device::f16, device::e5m2,
                   std::int8_t, std::uint64_t) {
  std::mt19937_64 random(test::test_seed());
  for (int turn = 0; turn < test::repeats(3, 1); ++turn) {
    check_reduces<TestType, ReduceOp::sum>(random);
    check_reduces<TestType, ReduceOp::avg>(random);
    check_reduces<TestType, ReduceOp::premul_sum>(random);
    check_reduces<TestType, ReduceOp::prod>(random);
    check_reduces<TestType, ReduceOp::max>(random);
    check_reduces<TestType, ReduceOp::min>(random);
  }
}

TEST_CASE("groups bring blocks to all ranks but the root, and to this one unless it is there",
          "[req:5.9]") {
  std::mt19937_64 random(test::test_seed());
  const int ranks = GENERATE(1, 2, 3, 4, 5, 8);
  const bool one_source = GENERATE(false, true);
  const int roots = one_source ? ranks : 0;  // blocks of their own come from no root
  for (int root = -1; root < roots; ++root) {
    for (int me = 0; me < ranks; ++me) {
      const bool is_there = random() % 2 == 0 || root == me;
      const std::size_t count = random() % 12'000;
      // Registered targets have the same address modulo 16.
      const bool are_alike = random() % 2 == 0;
      const std::size_t all_off = random() % 16;
      const auto off = [&] { return random() % 3 == 0 ? random() % 16 : 0; };
      const auto n = static_cast<std::size_t>(ranks);
      std::vector<Guarded> sources;
      std::vector<Guarded> targets;
      for (std::size_t rank = 0; rank < n; ++rank) {
        sources.emplace_back(count, off());
        targets.emplace_back(count, are_alike ? all_off : off());
        fill(sources[rank].span(), random);
      }
      AllReduceArguments arguments;
      arguments.rank = me;
      arguments.ranks = ranks;
      arguments.root = root;
      arguments.type = DataType::u8;
      const auto has_target = [&](int rank) { return rank != root && (rank != me || !is_there); };
      const auto target = [&](int rank) {
        return has_target(rank) ? targets[static_cast<std::size_t>(rank)].data() : nullptr;
      };
      const auto source_of = [&](int rank) {
        return sources[one_source ? 0 : static_cast<std::size_t>(rank)].data();
      };
      SerialGroup::run(96, [&] {
        const GroupCopyOps<SerialGroup> ops(arguments);
        if (one_source) {
          ops.pass_on(target, source_of(0), count);
        } else {
          ops.distribute(target, source_of, count);
        }
      });
      for (int rank = 0; rank < ranks; ++rank) {
        Guarded& got = targets[static_cast<std::size_t>(rank)];
        CAPTURE(rank, me, root, ranks, count, is_there, are_alike, all_off);
        REQUIRE(got.is_intact());
        const bool is_same = count == 0 || std::memcmp(got.data(), source_of(rank), count) == 0;
        if (has_target(rank)) REQUIRE(is_same);
        if (!has_target(rank) && count > 0) REQUIRE(got.data()[0] == std::byte{0xa5});
      }
    }
  }
}

/// Inputs of one fold: the other ranks' parts in aligned slots, and this rank's own part, which may
/// be misaligned.
template <class T>
class FoldInputs {
 public:
  FoldInputs(int sources, std::size_t count, std::mt19937_64& random)
      : slot_(round_up(count, kUnitQuantum) * sizeof(T)),
        slots_(static_cast<std::size_t>(sources) * slot_, 0),
        own_(count * sizeof(T), sizeof(T) * (random() % 3)) {
    for (const std::span<std::byte> bytes : {slots_.span(), own_.span()}) {
      for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
        const T value = test::random_element<T>(random, test::Inputs::moderate);
        std::memcpy(bytes.data() + at, &value, sizeof(T));
      }
    }
    const int own = static_cast<int>(random() % static_cast<unsigned>(sources + 1)) - 1;
    sources_ = {slots_.data(), slot_, sources, own, own_.data()};
  }

  std::byte* own() { return own_.data(); }
  const FoldSources& sources() const { return sources_; }

 private:
  std::size_t slot_;
  Guarded slots_;
  Guarded own_;
  FoldSources sources_;
};

/// Calls `move` with the GPU's ops and with the CPU's, and compares the stored bytes.
template <class T, class Move>
void check_fold(const HierarchyArguments& arguments, std::size_t count, std::size_t stored_bytes,
                const Move& move) {
  const std::size_t buffer_bytes = round_up(count, kUnitQuantum) * stored_bytes;
  Guarded by_group(buffer_bytes, 0);
  Guarded by_host(buffer_bytes, 0);
  SerialGroup::run(96, [&] {
    GroupHierarchyOps<T, SerialGroup> ops(arguments);
    ops.begin();
    move(ops, by_group.data());
  });
  const HostHierarchyOps host(arguments);
  host.begin();
  move(host, by_host.data());
  CAPTURE(name_of(arguments.op), name_of(arguments.type), count);
  const bool is_same =
      count == 0 || std::memcmp(by_group.data(), by_host.data(), count * stored_bytes) == 0;
  REQUIRE(is_same);
  REQUIRE(by_group.is_intact());
}

TEMPLATE_TEST_CASE_SIG("groups fold what other teams have sent as CPU ranks do, to the bit",
                       "[req:5.11][req:5.15]", ((DataType kType), kType), DataType::f32,
                       DataType::f64, DataType::bf16, DataType::f16, DataType::e5m2, DataType::e4m3,
                       DataType::i8, DataType::u64) {
  using T = device::ElementOf<kType>;
  using Acc = device::Accumulator<T>;
  std::mt19937_64 random(test::test_seed());
  HierarchyArguments arguments;
  arguments.type = kType;
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max,
                            ReduceOp::avg, ReduceOp::premul_sum}) {
    for (const int ranks : {1, 2, 3, 8, 9, 40}) {
      const std::size_t count = random() % (random() % 2 == 0 ? 4 : 700);
      FoldInputs<T> inputs(ranks, count, random);
      const FoldInputs<Acc> sums(ranks, count, random);
      arguments.op = op;
      arguments.comm.world_size = ranks;
      arguments.input = inputs.own();
      const T scalar = test::random_element<T>(random, test::Inputs::moderate);
      std::memcpy(&arguments.scalar_bits, &scalar, sizeof(T));
      CAPTURE(ranks, inputs.sources().own);
      const auto check = [&](std::size_t stored_bytes, const auto& move) {
        check_fold<T>(arguments, count, stored_bytes, move);
      };
      check(sizeof(T), [&](auto& ops, std::byte* to) { ops.send(to, 0, count); });
      check(sizeof(T), [&](auto& ops, std::byte* to) { ops.copy(to, inputs.own(), count); });
      check(sizeof(T),
            [&](auto& ops, std::byte* to) { ops.fold_all(to, inputs.sources(), count); });
      check(sizeof(Acc),
            [&](auto& ops, std::byte* to) { ops.fold_inputs(to, inputs.sources(), count); });
      check(sizeof(T), [&](auto& ops, std::byte* to) { ops.fold_sums(to, sums.sources(), count); });
    }
  }
}

}  // namespace
}  // namespace oriel::kernels

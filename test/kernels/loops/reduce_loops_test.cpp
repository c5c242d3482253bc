// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/loops/reduce_loops.hpp"

#include <algorithm>
#include <cstring>
#include <iostream>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/algorithms/reference.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace {

using namespace oriel;
using namespace oriel::test;
namespace host = oriel::kernels::host;

#ifdef __SANITIZE_ADDRESS__
constexpr int kRounds = 3;  // AddressSanitizer makes rounds slow
#else
constexpr int kRounds = 12;
#endif
constexpr std::size_t kGuardBytes = 128;
constexpr std::byte kGuard{0xa5};

std::vector<host::Isa> available_isas() {
  std::vector<host::Isa> isas;
  for (int i = 0; i < host::kIsaCount; ++i) {
    const auto isa = static_cast<host::Isa>(i);
    if (host::is_available(isa)) isas.push_back(isa);
  }
  return isas;
}

/// Array of `bytes` bytes between guards, `misalignment` bytes behind a multiple of 64.
class Array {
 public:
  Array(std::size_t bytes, std::size_t misalignment)
      : bytes_(bytes), storage_(bytes + 2 * kGuardBytes + 128, kGuard) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data()) + kGuardBytes;
    start_ = kGuardBytes + (64 - address % 64) % 64 + misalignment;
  }
  std::byte* data() { return storage_.data() + start_; }
  const std::byte* data() const { return storage_.data() + start_; }

  bool guards_are_whole() const {
    const auto is_guard = [](std::byte b) { return b == kGuard; };
    const auto begin = storage_.begin() + static_cast<std::ptrdiff_t>(start_);
    return std::all_of(storage_.begin(), begin, is_guard) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), storage_.end(), is_guard);
  }

 private:
  std::size_t bytes_;
  std::size_t start_ = 0;
  std::vector<std::byte> storage_;
};

/// Shape of one call of a loop.
struct Case {
  int n_srcs = 1;
  int n_dsts = 1;
  int n_ranks = 1;
  int in_place = -1;  // the source that is the first destination, or -1
  std::size_t count = 0;
  bool streaming = false;
  bool same_misalignment = false;
  Inputs inputs = Inputs::any_bits;
};

template <typename T>
struct Operands {
  std::vector<std::vector<T>> columns;  // [source][element]
  std::vector<T> scalars;
};

template <typename T>
Operands<T> make_operands(std::mt19937_64& rng, const Case& c) {
  Operands<T> operands;
  for (int k = 0; k < c.n_srcs; ++k) {
    std::vector<T> column(c.count);
    for (T& x : column) x = random_element<T>(rng, c.inputs);
    operands.columns.push_back(std::move(column));
    operands.scalars.push_back(random_element<T>(rng, c.inputs));
  }
  return operands;
}

template <typename T, ReduceOp op>
std::vector<T> expected_result(const Operands<T>& operands, const Case& c) {
  std::vector<T> expected(c.count);
  std::vector<T> row(operands.columns.size());
  for (std::size_t i = 0; i < c.count; ++i) {
    for (std::size_t k = 0; k < row.size(); ++k) row[k] = operands.columns[k][i];
    expected[i] = reduce_reference<T, op>(row, operands.scalars, c.n_ranks);
  }
  return expected;
}

/// Runs one loop on fresh arrays; returns an error text, or an empty one.
template <typename T>
std::string run_loop(host::ReduceLoop loop, const Operands<T>& operands, const Case& c,
                     const std::vector<T>& expected, std::mt19937_64& rng) {
  const std::size_t bytes = c.count * sizeof(T);
  const std::size_t common = rng() % 64 / sizeof(T) * sizeof(T);
  const auto misalignment = [&] {
    return c.same_misalignment ? common : rng() % 64 / sizeof(T) * sizeof(T);
  };
  std::vector<Array> sources, destinations;
  for (const auto& column : operands.columns) {
    sources.emplace_back(bytes, misalignment());
    if (bytes > 0) std::memcpy(sources.back().data(), column.data(), bytes);
  }
  for (int d = 0; d < c.n_dsts; ++d) destinations.emplace_back(bytes, misalignment());

  std::vector<const std::byte*> srcs;
  std::vector<std::byte*> dsts;
  for (auto& source : sources) srcs.push_back(source.data());
  for (auto& destination : destinations) dsts.push_back(destination.data());
  if (c.in_place >= 0) dsts[0] = sources[static_cast<std::size_t>(c.in_place)].data();
  std::vector<std::byte> scalars(8 * operands.scalars.size());
  for (std::size_t k = 0; k < operands.scalars.size(); ++k) {
    std::memcpy(scalars.data() + 8 * k, &operands.scalars[k], sizeof(T));
  }

  host::ReduceLoopArgs args;
  args.dsts = dsts.data();
  args.n_dsts = c.n_dsts;
  args.srcs = srcs.data();
  args.n_srcs = c.n_srcs;
  args.count = c.count;
  args.n_ranks_for_avg = c.n_ranks;
  args.scalars = scalars.data();
  args.streaming = c.streaming;
  loop(args);

  for (const std::byte* dst : dsts) {
    if (bytes > 0 && std::memcmp(dst, expected.data(), bytes) != 0) return "a wrong result";
  }
  for (int k = 0; k < c.n_srcs; ++k) {
    const auto i = static_cast<std::size_t>(k);
    if (!sources[i].guards_are_whole()) return "a write beside a source";
    if (k == c.in_place || bytes == 0) continue;
    if (std::memcmp(sources[i].data(), operands.columns[i].data(), bytes) != 0) {
      return "a changed source";
    }
  }
  for (const Array& destination : destinations) {
    if (!destination.guards_are_whole()) return "a write beside a destination";
  }
  return "";
}

template <DataType type, ReduceOp op>
void check_case(const Case& c, std::mt19937_64& rng) {
  using T = device::ElementOf<type>;
  const Operands<T> operands = make_operands<T>(rng, c);
  const std::vector<T> expected = expected_result<T, op>(operands, c);
  for (const host::Isa isa : available_isas()) {
    const host::ReduceLoop loop = host::find_reduce_loop(type, op, isa);
    REQUIRE(loop != nullptr);
    const std::string wrong = run_loop<T>(loop, operands, c, expected, rng);
    if (!wrong.empty()) {
      INFO(name_of(type) << " " << name_of(op) << " on " << host::name_of(isa) << ": " << c.n_srcs
                         << " sources, " << c.n_dsts << " destinations, " << c.count
                         << " elements, in place " << c.in_place << ", streaming " << c.streaming
                         << ", inputs " << static_cast<int>(c.inputs));
      FAIL(wrong);
    }
  }
}

Case random_case(std::mt19937_64& rng, int n_srcs) {
  Case c;
  c.n_srcs = n_srcs;
  c.n_dsts = rng() % 4 == 0 ? 1 + static_cast<int>(rng() % 5) : 1;
  c.n_ranks = rng() % 2 == 0 ? n_srcs : 1 + static_cast<int>(rng() % 1000);
  if (rng() % 3 == 0) c.in_place = static_cast<int>(rng() % static_cast<unsigned>(n_srcs));
  constexpr std::size_t kLimits[] = {3, 70, 700};
  c.count = rng() % kLimits[rng() % 3];
  c.streaming = rng() % 3 == 0;
  c.same_misalignment = rng() % 2 == 0;
  c.inputs = static_cast<Inputs>(rng() % 3);
  return c;
}

std::mt19937_64 seeded() {
  const std::uint64_t seed = test_seed();
  return std::mt19937_64(seed);
}

}  // namespace

TEST_CASE("every loop equals the scalar fold on every instruction set", "[req:1.30][loops]") {
  for (int i = 0; i < host::kIsaCount; ++i) {
    const auto isa = static_cast<host::Isa>(i);
    const bool there = host::is_available(isa);
    std::cout << (there ? "" : "skipped: this processor lacks ") << host::name_of(isa) << "\n";
  }
  std::mt19937_64 rng = seeded();
  for_each_type_and_op([&]<DataType type, ReduceOp op>() {
    for (const int n : {1, 2, 3, 4, 5, 7, 8, 16, 64}) {
      for (int round = 0; round < kRounds; ++round) check_case<type, op>(random_case(rng, n), rng);
    }
    for (int round = 0; round < 2 * kRounds; ++round) {
      check_case<type, op>(random_case(rng, 1 + static_cast<int>(rng() % 64)), rng);
    }
  });
}

TEST_CASE("reductions of every type are right for each count up to some registers",
          "[req:1.30][loops]") {
  std::mt19937_64 rng = seeded();
  for_each_type_and_op([&]<DataType type, ReduceOp op>() {
    // Under a sanitizer, tests only every seventh count above 70.
    for (std::size_t count = 0; count <= 3 * 64; count += kSanitized && count > 70 ? 7 : 1) {
      Case c;
      c.n_srcs = 2 + static_cast<int>(count % 3);
      c.n_ranks = 3;
      c.count = count;
      c.in_place = static_cast<int>(count % 2);
      check_case<type, op>(c, rng);
    }
  });
}

TEST_CASE("a reduction to 64 destinations, one of them in place, is right in each",
          "[req:1.30][loops]") {
  std::mt19937_64 rng = seeded();
  Case c;
  c.n_srcs = 64;
  c.n_dsts = 64;
  c.n_ranks = 64;
  c.in_place = 63;
  c.count = 1000;
  for (const bool streaming : {false, true}) {
    c.streaming = streaming;
    c.same_misalignment = streaming;
    check_case<DataType::f32, ReduceOp::sum>(c, rng);
    check_case<DataType::bf16, ReduceOp::avg>(c, rng);
    check_case<DataType::u8, ReduceOp::max>(c, rng);
  }
}

#if defined(__x86_64__)
TEST_CASE("the caller's rounding and flush-to-zero modes change nothing", "[req:1.30][loops]") {
  std::mt19937_64 rng = seeded();
  const unsigned saved = _mm_getcsr();
  // Sets flush to zero, denormals are zero and round up, with all exceptions unmasked.
  constexpr unsigned kOther = 0x8000 | 0x4000 | 0x0040;
  for_each_type_and_op([&]<DataType type, ReduceOp op>() {
    using T = device::ElementOf<type>;
    Case c;
    c.n_srcs = 5;
    c.n_ranks = 5;
    c.count = 300;
    const Operands<T> operands = make_operands<T>(rng, c);
    const std::vector<T> expected = expected_result<T, op>(operands, c);
    for (const host::Isa isa : available_isas()) {
      static thread_local host::ReduceLoop loop;
      loop = host::find_reduce_loop(type, op, isa);
      const std::string wrong = run_loop<T>(
          [](const host::ReduceLoopArgs& args) {
            _mm_setcsr(kOther);
            loop(args);
            const unsigned after = _mm_getcsr();
            _mm_setcsr(0x1f80);
            if (after != kOther) FAIL("the modes were not restored");
          },
          operands, c, expected, rng);
      INFO(name_of(type) << " " << name_of(op) << " on " << host::name_of(isa));
      if (!wrong.empty()) FAIL(wrong);
    }
  });
  _mm_setcsr(saved);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

/// Returns whether the processor reports which register states are in use (XGETBV with ECX = 1).
bool reports_states_in_use() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(13, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 4) != 0;
}

/// Returns whether the upper halves of the vector registers are in use.
[[gnu::target("xsave")]] bool uses_upper_halves() {
  constexpr unsigned long long kAvxState = 4;
  return (_xgetbv(1) & kAvxState) != 0;
}

TEST_CASE("a reduction of any length leaves no upper half of a vector register in use",
          "[req:5.22][loops]") {
  if (kIsSanitized) return;  // instrumented code keeps upper halves in use
  if (!reports_states_in_use()) {
    WARN("skipped: the processor does not report which registers are in use");
    return;
  }
  const std::vector<float> a(64, 1), b(64, 2);
  std::vector<float> out(64);
  for (const host::Isa isa : available_isas()) {
    if (isa != host::Isa::avx2) continue;  // others have no upper halves, or further registers
    const host::ReduceLoop loop = host::find_reduce_loop(DataType::f32, ReduceOp::sum, isa);
    for (std::size_t count = 1; count <= out.size(); ++count) {
      const std::byte* const srcs[] = {reinterpret_cast<const std::byte*>(a.data()),
                                       reinterpret_cast<const std::byte*>(b.data())};
      std::byte* const dsts[] = {reinterpret_cast<std::byte*>(out.data())};
      host::ReduceLoopArgs args;
      args.srcs = srcs;
      args.n_srcs = 2;
      args.dsts = dsts;
      args.n_dsts = 1;
      args.count = count;
      loop(args);
      if (uses_upper_halves()) FAIL(count << " floats on " << host::name_of(isa));
    }
  }
}
#endif

TEST_CASE("the copy loop of each instruction set copies all bytes, and writes no others",
          "[req:1.30][loops]") {
  std::mt19937_64 rng = seeded();
  for (const host::Isa isa : available_isas()) {
    const host::CopyLoop copy = host::find_copy_loop(isa);
    for (int round = 0; round < 500; ++round) {
      const std::size_t bytes = rng() % (round % 2 == 0 ? 5000 : 200);
      Array source(bytes, rng() % 64);
      Array destination(bytes, rng() % 64);
      for (std::size_t i = 0; i < bytes; ++i) source.data()[i] = static_cast<std::byte>(rng());
      copy(destination.data(), source.data(), bytes, round % 3 != 0);
      if (!std::equal(source.data(), source.data() + bytes, destination.data())) {
        FAIL(bytes << " bytes on " << host::name_of(isa));
      }
      if (!destination.guards_are_whole()) FAIL("a write beside the destination");
    }
  }
}

TEST_CASE("the table answers for what it does not have", "[req:1.30][loops]") {
  REQUIRE(host::find_reduce_loop(static_cast<DataType>(12), ReduceOp::sum, host::Isa::baseline) ==
          nullptr);
  REQUIRE(host::find_reduce_loop(DataType::f32, static_cast<ReduceOp>(6), host::Isa::baseline) ==
          nullptr);
  REQUIRE(host::is_available(host::detect_isa()));
  REQUIRE(host::is_available(host::Isa::baseline));
}

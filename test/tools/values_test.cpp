// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/values.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include <catch2/catch.hpp>

using namespace oriel;
using namespace oriel::perf;

namespace {

using Half = SmallFloat<5, 10, false>;
using Bfloat = SmallFloat<8, 7, false>;
using E4m3 = SmallFloat<4, 3, true>;
using E5m2 = SmallFloat<5, 2, false>;

template <typename Codec>
void check_round_trip(std::uint32_t codes) {
  for (std::uint32_t code = 0; code < codes; ++code) {
    const float value = Codec::decode(code);
    if (!std::isfinite(value)) continue;
    if (Codec::encode(value) != code) FAIL("code " << code << " is " << value);
  }
}

std::vector<std::uint64_t> keys_of(const Pattern& p) {
  std::vector<std::uint64_t> keys;
  for (int rank = 0; rank < p.ranks; ++rank) keys.push_back(key_of(p.seed, rank));
  return keys;
}

/// One step of a reduction; integers wrap.
template <typename T>
T combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::min) return std::min(a, b);
  if (op == ReduceOp::max) return std::max(a, b);
  using Wide = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
  const auto wide_a = static_cast<Wide>(a);
  const auto wide_b = static_cast<Wide>(b);
  return static_cast<T>(op == ReduceOp::prod ? wide_a * wide_b : wide_a + wide_b);
}

/// A straightforward reduction in the type itself, or in double for floats. Precise enough to check
/// that correct results are accepted.
template <DataType kType>
typename Element<kType>::Storage reduce(const Pattern& p, std::uint64_t index) {
  using Storage = typename Element<kType>::Storage;
  using Value = std::conditional_t<Element<kType>::kInteger, Storage, double>;
  const auto keys = keys_of(p);
  Value result{};
  for (int rank = 0; rank < p.ranks; ++rank) {
    auto value = static_cast<Value>(
        input_at<kType>(p.op, rank, keys[static_cast<std::size_t>(rank)], index));
    if (p.op == ReduceOp::premul_sum) {
      value = combine(ReduceOp::prod, value, static_cast<Value>(premul_scalar(kType, rank)));
    }
    result = rank == 0 ? value : combine(p.op, result, value);
  }
  if (p.op == ReduceOp::avg) result = static_cast<Value>(result / static_cast<Value>(p.ranks));
  return static_cast<Storage>(result);
}

template <DataType kType>
void check_accepts_and_refuses() {
  for (int op = 0; op < kReduceOpCount; ++op)
    for (const int ranks : {1, 2, 3, 8}) {
      const Pattern p{kType, static_cast<ReduceOp>(op), ranks, 42};
      const auto keys = keys_of(p);
      for (std::uint64_t i = 0; i < 200; ++i) {
        const auto right = reduce<kType>(p, i);
        if (!result_ok<kType>(p, keys.data(), i, right))
          FAIL("refused: " << name_of(kType) << " " << name_of(p.op) << " ranks " << ranks);
        auto wrong = right;
        if constexpr (Element<kType>::kInteger)
          wrong = static_cast<decltype(wrong)>(right ^ 1);
        else
          wrong += std::abs(right) * static_cast<decltype(wrong)>(1e-3) +
                   static_cast<decltype(wrong)>(1e-3);
        if (result_ok<kType>(p, keys.data(), i, wrong))
          FAIL("accepted: " << name_of(kType) << " " << name_of(p.op) << " ranks " << ranks);
      }
    }
}

}  // namespace

TEST_CASE("the reference reads and writes every small float", "[req:1.35]") {
  check_round_trip<Half>(1 << 16);
  check_round_trip<Bfloat>(1 << 16);
  check_round_trip<E4m3>(1 << 8);
  check_round_trip<E5m2>(1 << 8);
  CHECK(Half::decode(0x3c00) == 1.0f);
  CHECK(Half::decode(0x7bff) == 65504.0f);
  CHECK(Half::decode(0x0001) == std::ldexp(1.0f, -24));
  CHECK(Bfloat::decode(0xbf80) == -1.0f);
  CHECK(E4m3::decode(0x7e) == 448.0f);
  CHECK(E4m3::decode(0x01) == std::ldexp(1.0f, -9));
  CHECK(std::isnan(E4m3::decode(0x7f)));
  CHECK(std::isinf(E5m2::decode(0x7c)));
  CHECK(E5m2::decode(0x7b) == 57344.0f);
}

TEST_CASE("an unwritten float is never right", "[req:1.35]") {
  for (const DataType type : {DataType::f16, DataType::bf16, DataType::f32, DataType::f64,
                              DataType::e4m3, DataType::e5m2})
    with_type(type, [&](auto t) {
      typename Element<t()>::Storage poison;
      std::memset(&poison, poison_byte(type), sizeof poison);
      if constexpr (!Element<t()>::kInteger) CHECK(std::isnan(Element<t()>::decode(poison)));
    });
}

TEST_CASE("right results pass and wrong ones do not, exact types and floats", "[req:1.35]") {
  check_accepts_and_refuses<DataType::i8>();
  check_accepts_and_refuses<DataType::u8>();
  check_accepts_and_refuses<DataType::i32>();
  check_accepts_and_refuses<DataType::u32>();
  check_accepts_and_refuses<DataType::i64>();
  check_accepts_and_refuses<DataType::u64>();
  check_accepts_and_refuses<DataType::f32>();
  check_accepts_and_refuses<DataType::f64>();
}

TEST_CASE("inputs of 16- and 8-bit floats stay in range and results may round", "[req:1.35]") {
  for (const DataType type : {DataType::f16, DataType::bf16, DataType::e4m3, DataType::e5m2})
    for (int op = 0; op < kReduceOpCount; ++op)
      with_type(type, [&](auto t) {
        if constexpr (!Element<t()>::kInteger) {
          for (int rank = 0; rank < 8; ++rank)
            for (std::uint64_t i = 0; i < 300; ++i) {
              const double value = Element<t()>::decode(
                  input_at<t()>(static_cast<ReduceOp>(op), rank, key_of(7, rank), i));
              if (!(std::abs(value) <= 2)) FAIL("input " << value);
            }
          // Sums of 8-bit floats are exact, so that the smallest change is detected.
          const Pattern p{type, ReduceOp::sum, 4, 9};
          const auto keys = keys_of(p);
          for (std::uint64_t i = 0; i < 300; ++i) {
            double sum = 0;
            for (int rank = 0; rank < 4; ++rank)
              sum += Element<t()>::decode(
                  input_at<t()>(p.op, rank, keys[static_cast<std::size_t>(rank)], i));
            if (!float_result_ok<t()>(p, keys.data(), i, sum)) FAIL("refused " << sum);
            if (float_result_ok<t()>(p, keys.data(), i, sum + 0.5)) FAIL("accepted " << sum);
            if (float_result_ok<t()>(p, keys.data(), i, NAN)) FAIL("accepted NaN");
          }
        }
      });
}

TEST_CASE("inputs differ between ranks, seeds and places", "[req:1.35]") {
  std::map<std::uint64_t, int> seen;
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    for (int rank = 0; rank < 4; ++rank)
      for (std::uint64_t i = 0; i < 1000; ++i)
        ++seen[input_at<DataType::u64>(ReduceOp::sum, rank, key_of(seed, rank), i)];
  CHECK(seen.size() == 16'000);
}

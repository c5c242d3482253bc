// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// Element types and reduction operations of collectives. All functions are local, do not block and
/// never fail, and any thread may call them.
///
/// Example:
/// ```cpp
/// #include <cstdio>
/// void print_request(oriel::ReduceOp op, std::size_t count, oriel::DataType type) {
///   std::printf("%s of %zu %s, %zu bytes\n", oriel::name_of(op), count, oriel::name_of(type),
///               count * oriel::size_of(type));
/// }
/// ```
namespace oriel {

/// Element types of collectives. The values equal those of ncclDataType_t.
enum class DataType : std::uint8_t {
  i8 = 0,     ///< signed, 1 byte
  u8 = 1,     ///< unsigned, 1 byte
  i32 = 2,    ///< signed, 4 bytes
  u32 = 3,    ///< unsigned, 4 bytes
  i64 = 4,    ///< signed, 8 bytes
  u64 = 5,    ///< unsigned, 8 bytes
  f16 = 6,    ///< IEEE binary16, 2 bytes
  f32 = 7,    ///< IEEE binary32, 4 bytes
  f64 = 8,    ///< IEEE binary64, 8 bytes
  bf16 = 9,   ///< upper half of an f32, 2 bytes
  e4m3 = 10,  ///< 4 exponent and 3 mantissa bits, 1 byte
  e5m2 = 11,  ///< 5 exponent and 2 mantissa bits, 1 byte
};
inline constexpr int kDataTypeCount = 12;  ///< number of types; all values are below it

/// Reduction operations. The first five values equal those of ncclRedOp_t.
enum class ReduceOp : std::uint8_t {
  sum = 0,         ///< sum; integers wrap
  prod = 1,        ///< product; integers wrap
  max = 2,         ///< NaN if any rank has NaN; +0 is above -0
  min = 3,         ///< NaN if any rank has NaN; -0 is below +0
  avg = 4,         ///< sum / ranks; for integers the wrapped sum, rounded toward zero
  premul_sum = 5,  ///< multiplies each rank's input by that rank's own scalar, then sums
};
inline constexpr int kReduceOpCount = 6;  ///< number of operations; all values are below it

/// Returns the bytes of one element, or 0 if `type` is no DataType.
constexpr std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::i8:
    case DataType::u8:
    case DataType::e4m3:
    case DataType::e5m2:
      return 1;
    case DataType::f16:
    case DataType::bf16:
      return 2;
    case DataType::i32:
    case DataType::u32:
    case DataType::f32:
      return 4;
    case DataType::i64:
    case DataType::u64:
    case DataType::f64:
      return 8;
  }
  return 0;
}

/// Returns the short name used in tables, settings and messages, such as "f32".
constexpr const char* name_of(DataType type) {
  constexpr const char* kNames[] = {"i8",  "u8",  "i32", "u32",  "i64",  "u64",
                                    "f16", "f32", "f64", "bf16", "e4m3", "e5m2"};
  return static_cast<int>(type) < kDataTypeCount ? kNames[static_cast<int>(type)] : "unknown type";
}
/// Returns the short name used in tables, settings and messages, such as "premul_sum".
constexpr const char* name_of(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "prod", "max", "min", "avg", "premul_sum"};
  return static_cast<int>(op) < kReduceOpCount ? kNames[static_cast<int>(op)] : "unknown operation";
}

}  // namespace oriel

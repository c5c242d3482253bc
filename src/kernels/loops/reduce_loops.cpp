// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/loops/reduce_loops.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/loops/loop_tables.hpp"

namespace oriel::kernels::host {
namespace {

struct LoopTable {
  const LoopRow* rows[kDataTypeCount];  // in the order of DataType
  const CopyLoop* copy;
};

#define ORIEL_LOOP_TABLE(isa)                                                \
  {                                                                          \
    {&isa::kLoopsI8,  &isa::kLoopsU8,   &isa::kLoopsI32,  &isa::kLoopsU32,   \
     &isa::kLoopsI64, &isa::kLoopsU64,  &isa::kLoopsF16,  &isa::kLoopsF32,   \
     &isa::kLoopsF64, &isa::kLoopsBf16, &isa::kLoopsE4m3, &isa::kLoopsE5m2}, \
        &isa::kCopyLoop                                                      \
  }
#if defined(__x86_64__)
constexpr LoopTable kTables[kIsaCount] = {ORIEL_LOOP_TABLE(baseline), ORIEL_LOOP_TABLE(avx2),
                                          ORIEL_LOOP_TABLE(avx512)};
#else
constexpr LoopTable kTables[1] = {ORIEL_LOOP_TABLE(baseline)};
#endif
#undef ORIEL_LOOP_TABLE

const LoopTable& table_of(Isa isa) {
  const auto index = static_cast<std::size_t>(isa);
  return kTables[index < sizeof(kTables) / sizeof(kTables[0]) ? index : 0];
}

#if defined(__x86_64__)
/// Tests the CPUID bit: clang 14, which checks this file, does not know the feature by name.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

}  // namespace

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::baseline:
      return "baseline";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "unknown instruction set";
}

bool is_available(Isa isa) {
  switch (isa) {
    case Isa::baseline:
      return true;
#if defined(__x86_64__)
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && has_f16c();
    case Isa::avx512:
      return is_available(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq");
#endif
    default:
      return false;
  }
}

Isa detect_isa() {
  static const Isa best = is_available(Isa::avx512) ? Isa::avx512
                          : is_available(Isa::avx2) ? Isa::avx2
                                                    : Isa::baseline;
  return best;
}

ReduceLoop find_reduce_loop(DataType type, ReduceOp op, Isa isa) {
  const int row = static_cast<int>(type);
  const int column = static_cast<int>(op);
  if (row >= kDataTypeCount || column >= kReduceOpCount) return nullptr;
  return table_of(isa).rows[row]->loops[column];
}

CopyLoop find_copy_loop(Isa isa) {
  return *table_of(isa).copy;
}

}  // namespace oriel::kernels::host

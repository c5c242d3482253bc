// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/loops/reduce_loops.hpp"

/// Declares the exports of each instruction set's translation units: constant tables of functions.
/// They export nothing else that the linker could merge.
namespace oriel::kernels::host {

/// The loops of one type, indexed by ReduceOp.
struct LoopRow {
  ReduceLoop loops[kReduceOpCount];
};

#define ORIEL_DECLARE_LOOPS(isa)                                                            \
  namespace isa {                                                                           \
  extern const LoopRow kLoopsI8, kLoopsU8, kLoopsI32, kLoopsU32, kLoopsI64, kLoopsU64;      \
  extern const LoopRow kLoopsF16, kLoopsBf16, kLoopsF32, kLoopsF64, kLoopsE4m3, kLoopsE5m2; \
  extern const CopyLoop kCopyLoop;                                                          \
  }
ORIEL_DECLARE_LOOPS(baseline)
ORIEL_DECLARE_LOOPS(avx2)
ORIEL_DECLARE_LOOPS(avx512)
#undef ORIEL_DECLARE_LOOPS

}  // namespace oriel::kernels::host

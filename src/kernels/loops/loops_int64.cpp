// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/loops/loop_template.hpp"

namespace oriel::kernels::host::ORIEL_LOOP_ISA {

const LoopRow kLoopsI64 = make_row<std::int64_t>();
const LoopRow kLoopsU64 = make_row<std::uint64_t>();

}  // namespace oriel::kernels::host::ORIEL_LOOP_ISA

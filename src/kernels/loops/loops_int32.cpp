// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/loops/loop_template.hpp"

namespace oriel::kernels::host::ORIEL_LOOP_ISA {

const LoopRow kLoopsI32 = make_row<std::int32_t>();
const LoopRow kLoopsU32 = make_row<std::uint32_t>();

}  // namespace oriel::kernels::host::ORIEL_LOOP_ISA

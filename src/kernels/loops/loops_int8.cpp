// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/loops/loop_template.hpp"

namespace oriel::kernels::host::ORIEL_LOOP_ISA {

const LoopRow kLoopsI8 = make_row<std::int8_t>();
const LoopRow kLoopsU8 = make_row<std::uint8_t>();

}  // namespace oriel::kernels::host::ORIEL_LOOP_ISA

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/loops/loop_template.hpp"

namespace oriel::kernels::host::ORIEL_LOOP_ISA {

const LoopRow kLoopsF16 = make_row<device::f16>();

}  // namespace oriel::kernels::host::ORIEL_LOOP_ISA

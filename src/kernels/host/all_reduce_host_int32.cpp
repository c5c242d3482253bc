// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/device/scalar.hpp"

#include "kernels/host/all_reduce_host_lines.hpp"

namespace oriel::kernels::detail {

template bool run_lines_on_host<std::int32_t>(Algorithm, const AllReduceArguments&);
template bool run_lines_on_host<std::uint32_t>(Algorithm, const AllReduceArguments&);

}  // namespace oriel::kernels::detail

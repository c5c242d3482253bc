// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/algorithms/one_shot.hpp"
#include "kernels/algorithms/two_shot.hpp"

namespace oriel::kernels {

/// Selects the kind of line that carries elements of type T.
#if defined(__CUDACC__)
template <class T>
using LineFor = std::conditional_t<std::is_floating_point_v<T> || device::kIsSmallFloat<T>,
                                   SentinelLine<T>, FlaggedLine<T>>;
#else
// A CPU loads 16 bytes as two halves anyway, and flags need no emptying of slots.
template <class T>
using LineFor = FlaggedLine<T>;
#endif

}  // namespace oriel::kernels

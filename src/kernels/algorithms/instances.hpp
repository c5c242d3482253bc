// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/algorithms/one_shot.hpp"
#include "kernels/algorithms/two_shot.hpp"

namespace oriel::kernels {

/// The kind of line that carries elements of type T.
template <class T>
using LineFor = std::conditional_t<std::is_floating_point_v<T> || device::kIsSmallFloat<T>,
                                   SentinelLine<T>, FlaggedLine<T>>;

}  // namespace oriel::kernels

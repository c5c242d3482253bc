// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/bench.hpp"

namespace oriel::scale {

/// Returns the object to which all parts of scale_model report.
bench::Bench& results();

}  // namespace oriel::scale

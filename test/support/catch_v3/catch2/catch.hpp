// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stands in for Catch2 2.13's one header, for which the tests are written, on systems that ship
// version 3 (Ubuntu 24.04). main() comes from Catch2's library.
#include <catch2/catch_all.hpp>

using Catch::Approx;

namespace Catch {
using namespace Matchers;
}

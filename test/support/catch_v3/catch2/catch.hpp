// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tests are written for Catch2 2.13, whose one header has this name. On a system that ships
// version 3 instead (Ubuntu 24.04) this one stands in for it; main comes from Catch2's library.
#include <catch2/catch_all.hpp>

using Catch::Approx;

namespace Catch {
using namespace Matchers;
}

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#define CATCH_CONFIG_MAIN
// gcc 12 sees an uninitialised std::function in its own <regex> once the address sanitizer is on.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <catch2/catch.hpp>

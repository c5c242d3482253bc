// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>

#include "window/memory/memory_host.hpp"
#include "window/memory/sizes.hpp"

namespace oriel::window {

inline Memory& memory() {
  return host_memory();
}

inline char* allocate(std::size_t bytes, Backing backing = Backing::ready) {
  const auto made = memory().allocate(bytes, backing);
  REQUIRE((made.ok() ? "ok" : made.error().to_string()) == "ok");
  return static_cast<char*>(*made);
}

}  // namespace oriel::window

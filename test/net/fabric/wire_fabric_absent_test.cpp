// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "net/fabric/wire_fabric.hpp"

TEST_CASE("a library without libfabric's header says what to install", "[req:3.13]") {
  const auto wire = oriel::net::WireFabric::create({});
  REQUIRE_FALSE(wire.ok());
  CHECK(wire.error().to_string().find("libfabric-dev") != std::string::npos);
}

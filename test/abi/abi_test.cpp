// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <catch2/catch.hpp>

#include "facts.h"
#include "signatures.hpp"

TEST_CASE("the header's numbers are NCCL 2.28.9's", "[req:1.31][req:5.16]") {
  int compared = 0;
  for (; oriel_abi_facts[compared].name != nullptr; ++compared) {
    REQUIRE(vendor_abi_facts[compared].name != nullptr);
    INFO(oriel_abi_facts[compared].name);
    REQUIRE(std::string(oriel_abi_facts[compared].name) == vendor_abi_facts[compared].name);
    CHECK(oriel_abi_facts[compared].value == vendor_abi_facts[compared].value);
  }
  CHECK(compared > 100);
  CHECK(vendor_abi_facts[compared].name == nullptr);
}

TEST_CASE("the initializers set the same values as NCCL's", "[req:1.31][req:5.16]") {
  int field = 0;
  for (; oriel_abi_initial(field) != -1; ++field) {
    INFO("field " << field);
    CHECK(oriel_abi_initial(field) == vendor_abi_initial(field));
  }
  CHECK(field == 21);
}

TEST_CASE("the functions have the same types as NCCL's", "[req:1.31][req:5.16]") {
  const Signatures ours = oriel_signatures();
  const Signatures theirs = vendor_signatures();
  REQUIRE(ours.size() == theirs.size());
  CHECK(ours.size() == 82);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    CHECK(ours[i].first == theirs[i].first);
    CHECK(ours[i].second == theirs[i].second);
  }
}

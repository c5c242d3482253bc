// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/mapping/map_set.hpp"

#include <cerrno>

#include "support/process_state.hpp"
#include "window/memory/memory_host.hpp"

namespace oriel::window {

TEST_CASE("host: after a failure at the k-th call the allocations before it are mapped", "[H5]") {
  const test::ProcessState before = test::process_state();
  check_each_failed_call<test::ScopedSystemFaults>(host_memory(), ENOMEM);
  CHECK(test::process_state() == before);
}

TEST_CASE("host: mapping again what is mapped makes no call of the system", "[H7]") {
  check_mapped_again<test::ScopedSystemFaults>(host_memory());
}

}  // namespace oriel::window

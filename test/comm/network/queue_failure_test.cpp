// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/queue_failure.hpp"

#include <cstdint>
#include <string>

#include <catch2/catch.hpp>

#include "net/queue/syndrome.hpp"

/// Tests the texts of failed queues (3.6).
namespace oriel::comm {
namespace {

TEST_CASE("the text of a failed WQE has its operation by number and name, and its index",
          "[req:3.6]") {
  FailedQueue failed;
  failed.rank = 0;
  failed.peer = 1;
  failed.origin = 0;
  failed.error.syndrome = static_cast<std::uint8_t>(net::Syndrome::local_operation);
  failed.error.opcode = 0x08;
  failed.error.index = 12;
  failed.cause = describe_syndrome(failed.error.syndrome);
  const std::string text = to_error(failed).message();
  CHECK(text ==
        "the queue from rank 0 to rank 1 has failed: a malformed WQE (syndrome 0x02, operation "
        "0x08: write, WQE 12)");
}

TEST_CASE("every check of a software NIC and every operation has a text of its own", "[req:3.6]") {
  CHECK(describe_complaint(0) == std::string("none"));
  for (int complaint = 1; complaint <= 15; ++complaint) {
    const bool exists = complaint != 13;
    INFO("check " << complaint);
    CHECK((describe_complaint(static_cast<std::uint8_t>(complaint)) != std::string("unknown")) ==
          exists);
  }
  for (const int opcode : {0x00, 0x08, 0x09, 0x10, 0x11, 0x12, 0x14, 0x15, 0x23}) {
    INFO("opcode " << opcode);
    CHECK(name_of_operation(static_cast<std::uint8_t>(opcode)) != std::string("unknown"));
  }
  CHECK(name_of_operation(0x0a) == std::string("unknown"));
}

}  // namespace
}  // namespace oriel::comm

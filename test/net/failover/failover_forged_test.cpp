// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string>

#include <catch2/catch.hpp>

#include "net/failover/failover_pair.hpp"
#include "net/failover/failover_workload.hpp"

// Peers that say by their channel what cannot be (3.14, 3.23).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;

TEST_CASE("a peer that claims to have accepted less than it has answered ends the queue",
          "[req:3.14][req:3.23]") {
  const bool forged = GENERATE(true, false);
  FailoverPair pair;
  RawPoster raw(pair.view());
  post_adds(pair, raw, 4);
  raw.ring();
  REQUIRE(pair.run_until([&] { return pair.is_complete(4); }));
  if (forged) {
    pair.post.forge = [](int to, Bytes& message) {
      PathStatement statement = decode_statement(message).value();
      if (to == 0) statement.delivered = std::min<std::uint64_t>(statement.delivered, 3);
      message = encode_statement(statement);
    };
  }
  pair.a.nics[0]->stop();
  post_adds(pair, raw, 1);
  raw.ring();
  const auto has_ended = [&] { return pair.there->failure().has_value(); };
  REQUIRE(pair.run_until([&] { return has_ended() || pair.is_complete(5); }));
  REQUIRE(has_ended() == forged);
  if (!forged) return;
  const std::string text = pair.there->failure()->to_string();
  INFO(text);
  CHECK(text.find("it has accepted 3 requests and answered 4") != std::string::npos);
  CHECK(text.find("rank 7") != std::string::npos);
  REQUIRE(pair.run_until([&] { return pair.back->failure().has_value(); }));
}

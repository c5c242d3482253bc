// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests one root service with the number of connections of a large job.
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/resource.h>

#include "base/try.hpp"
#include "boot/link/frame.hpp"
#include "boot/session/rendezvous.hpp"
#include "boot/support/loopback.hpp"
#include "support/descriptor_limit.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;

/// Joins as one of `size` ranks and waits for the addresses of its neighbours.
Task<Status> introduce(EventLoop& loop, UniqueId id, int rank, int size) {
  const Deadline deadline = Deadline::after(60s);
  DialTarget target = target_of(id, rank);
  ORIEL_CO_TRY(const OwnedFd fd, co_await dial(loop, std::move(target), {.refused = 1s}, deadline));
  const RootHello hello = {
      .rank = rank, .size = size, .timeout_ms = 60'000, .process = 1, .address = id.root};
  const Bytes bytes = hello.encode();
  const ByteView view = bytes;
  ORIEL_CO_CHECK(write_some(fd.get(), std::span(&view, 1)));
  FrameReader reader;
  std::vector<Frame> frames;
  std::array<std::byte, 4096> buffer;
  while (frames.empty()) {
    ORIEL_CO_CHECK(co_await loop.readable(fd.get(), deadline));
    ORIEL_CO_TRY(const IoOutcome got, read_some(fd.get(), buffer));
    if (got.closed) co_return Error(ErrorCode::remote, "the root service has closed");
    ORIEL_CO_CHECK(reader.feed(ByteView(buffer).first(got.bytes), frames));
  }
  if (frames[0].kind != FrameKind::root_peers) co_return Error(ErrorCode::remote, "no addresses");
  co_return Status();
}

}  // namespace

TEST_CASE("a root service with a soft limit of 256 files serves 1,024 ranks", "[req:3.22][D5]") {
  constexpr int kMany = 1024;
  const test::DescriptorLimit limit(kMany + 256);
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  if (files.rlim_cur < kMany + 256) {
    std::printf("skipped: RLIMIT_NOFILE is %ju at most, and this takes %d descriptors\n",
                static_cast<std::uintmax_t>(files.rlim_max), kMany + 256);
    std::exit(77);
  }
  const ServedId id([&]() -> Result<UniqueId> {
    const rlimit few = {256, files.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return system_error("setrlimit");
    return create_unique_id(kLoopback.socket);
  });
  auto loop = std::move(EventLoop::create()).value();
  std::vector<Task<Status>> ranks;
  for (int rank = 0; rank < kMany; ++rank) {
    ranks.push_back(introduce(loop, id.value(), rank, kMany));
  }
  std::map<std::string, int> outcomes;
  for (const Status& status : loop.run_all(std::move(ranks))) ++outcomes[text_of(status)];
  CHECK(outcomes == std::map<std::string, int>{{"ok", kMany}});
}

}  // namespace oriel::boot

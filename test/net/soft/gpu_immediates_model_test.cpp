// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include <catch2/catch.hpp>

#include "net/soft/gpu_side.hpp"
#include "net/soft/immediates_body.hpp"

// Immediates of queues that kernels of a GPU use (B4), on a model of the driver whose streams run
// late: the body that the kernel in gpu_nic_kernels.cu has, by a thread.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;

TEST_CASE("what waits for immediates of a GPU's queue sees the bytes that came with them", "[B4]") {
  const bool direct = GENERATE(false, true);
  const bool servers = GENERATE(false, true);
  LateModel model;
  SendQueue::Options options;
  options.receives = 4;
  options.mode = DoorbellMode::alone;
  GpuPair pair(direct, 65'536, options, false, servers);
  ImmediatesPath from{pair.view(), {}, pair.a.region, pair.b.region, 1024, 8, pair.control};
  ImmediatesPath to{pair.back.view(), pair.back.receives(), pair.b.region, pair.a.region, 1024, 8,
                    pair.control};
  // More than a message carries at once.
  from.bytes = to.bytes = GENERATE(1024u, 6000u);
  ImmediatesBody<Thread, LateMemory> sender(from);
  ImmediatesBody<Thread, LateMemory> receiver(to);
  // The host makes the first room.
  REQUIRE(pair.back.post_receives(4).ok());
  std::uint32_t sent = 0;
  for (std::uint32_t round = 0; round < 60; ++round) {
    for (; sent < round + 1 + round % 4; ++sent) {
      REQUIRE(sender.send(sent) == QueueOutcome::done);
    }
    REQUIRE(receiver.receive(round) == QueueOutcome::done);
  }
  CHECK(receiver.wrong() == 0);
  CHECK(pair.back.receives().position->taken == 60);
  // The host has its turn again.
  for (std::uint32_t left = sent - 60, polls = 0; left > 0; LateMemory::relax()) {
    REQUIRE(++polls < 1'000'000);
    SendQueue::Immediate immediate;
    if (pair.back.take_immediate(immediate)) --left;
  }
  to.control.timeout_ns = 1'000'000;
  CHECK(receiver.receive(sent) == QueueOutcome::timed_out);
  const std::uint32_t abort = 1;
  to.control.abort = &abort;
  CHECK(receiver.receive(sent) == QueueOutcome::aborted);
  to.control = pair.control;
  REQUIRE(pair.back.refuse_posts().ok());
  CHECK(receiver.receive(sent) == QueueOutcome::aborted);
}

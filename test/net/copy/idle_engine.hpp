// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/copy/copy_engine.hpp"

namespace oriel::net::test {

/// Engine that moves nothing. Tests override the functions that they need.
class IdleEngine : public CopyEngine {
 public:
  StagedPart load(const std::byte*, std::size_t) override { return {}; }
  bool keep(StagedPart&) override { return false; }
  std::size_t store(std::byte*, ByteView, MoveTicket&) override { return 0; }
  bool copy(std::byte*, const std::byte*, std::size_t, MoveTicket&) override { return false; }
  bool step_atomic(AtomicMove&, std::byte*) override { return false; }
  bool is_done(MoveTicket) override { return false; }
  bool flush() override { return true; }
  void forget(const std::byte*, std::size_t) override {}

 private:
  void release(StagedPart&) noexcept override {}
};

}  // namespace oriel::net::test

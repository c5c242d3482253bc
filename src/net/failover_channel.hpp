// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "base/bytes.hpp"

namespace oriel::net {

/// One end's way to tell its peer which path to take. It goes by no NIC that it speaks of, so that
/// it is there when one of these fails. What is sent may be lost, repeated, late and out of order;
/// who sends is the peer and nobody else. Neither call blocks. Thread-safe.
class FailoverChannel {
 public:
  virtual ~FailoverChannel() = default;
  virtual void send(ByteView message) = 0;
  /// False if nothing has come.
  virtual bool receive(Bytes& message) = 0;
};

/// Both ends in one process.
class LocalFailoverChannel final : public FailoverChannel {
 public:
  using Pair = std::pair<std::unique_ptr<FailoverChannel>, std::unique_ptr<FailoverChannel>>;
  static Pair make();
  void send(ByteView message) override;
  bool receive(Bytes& message) override;

 private:
  struct Inbox {
    std::mutex mutex;
    std::deque<Bytes> messages;
  };
  LocalFailoverChannel(std::shared_ptr<Inbox> mine, std::shared_ptr<Inbox> peers)
      : mine_(std::move(mine)), peers_(std::move(peers)) {}
  std::shared_ptr<Inbox> mine_;
  std::shared_ptr<Inbox> peers_;
};

}  // namespace oriel::net

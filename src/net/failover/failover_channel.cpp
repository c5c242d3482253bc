// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/failover/failover_channel.hpp"

namespace oriel::net {

namespace {
// More are lost: whoever says something repeats it until he is heard.
constexpr std::size_t kStatementsMost = 64;
}  // namespace

LocalFailoverChannel::Pair LocalFailoverChannel::make() {
  auto a = std::make_shared<Inbox>(), b = std::make_shared<Inbox>();
  return {std::unique_ptr<FailoverChannel>(new LocalFailoverChannel(a, b)),
          std::unique_ptr<FailoverChannel>(new LocalFailoverChannel(b, a))};
}

void LocalFailoverChannel::send(ByteView message) {
  const std::lock_guard lock(peers_->mutex);
  if (peers_->messages.size() >= kStatementsMost) return;
  peers_->messages.emplace_back(message.begin(), message.end());
}

bool LocalFailoverChannel::receive(Bytes& message) {
  const std::lock_guard lock(mine_->mutex);
  if (mine_->messages.empty()) return false;
  message = std::move(mine_->messages.front());
  mine_->messages.pop_front();
  return true;
}

}  // namespace oriel::net

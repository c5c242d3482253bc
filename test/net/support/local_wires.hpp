// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <variant>

#include "net/wire/wire.hpp"

namespace oriel::net::test {

/// Wires between the NICs of one process. Thread-safe: each NIC has its own lock, and so has each
/// inbox.
class LocalWires {
 public:
  static constexpr std::size_t kInboxMost = 1024;  ///< messages queued for one NIC

  /// Returns the wire of a new NIC; it may outlive this object.
  std::unique_ptr<Wire> attach() { return std::make_unique<End>(inboxes_); }

 private:
  struct Inboxes {
    struct Inbox {
      std::mutex mutex;
      std::deque<WireMessage> messages;
      bool closed = false;
    };
    std::shared_ptr<Inbox> find(WireAddress address) {
      const std::lock_guard lock(mutex);
      const auto it = all.find(address.value);
      return it == all.end() ? nullptr : it->second;
    }
    std::mutex mutex;
    std::map<std::uint64_t, std::shared_ptr<Inbox>> all;
    std::uint64_t last = 0;
  };

  class End final : public Wire {
   public:
    explicit End(std::shared_ptr<Inboxes> inboxes)
        : inboxes_(std::move(inboxes)), inbox_(std::make_shared<Inboxes::Inbox>()) {
      const std::lock_guard lock(inboxes_->mutex);
      address_.value = ++inboxes_->last;
      inboxes_->all.emplace(address_.value, inbox_);
    }
    ~End() override {
      {
        const std::lock_guard lock(inboxes_->mutex);
        inboxes_->all.erase(address_.value);
      }
      const std::lock_guard lock(inbox_->mutex);
      inbox_->closed = true;
      inbox_->messages.clear();
    }
    WireAddress address() const override { return address_; }
    bool send(WireAddress to, WireMessage& message) override {
      // Caches the last peer, which is usually the next one too.
      if (!(to == peer_address_) || peer_ == nullptr) {
        peer_ = inboxes_->find(to);
        peer_address_ = to;
        if (peer_ == nullptr) return true;
      }
      const std::lock_guard lock(peer_->mutex);
      if (peer_->closed) return true;
      if (peer_->messages.size() >= kInboxMost) return false;
      std::visit([](auto& body) { body.payload.own(); }, message.body);
      peer_->messages.push_back(std::move(message));
      return true;
    }
    bool receive(WireMessage& message) override {
      const std::lock_guard lock(inbox_->mutex);
      if (inbox_->messages.empty()) return false;
      message = std::move(inbox_->messages.front());
      inbox_->messages.pop_front();
      return true;
    }

   private:
    std::shared_ptr<Inboxes> inboxes_;
    std::shared_ptr<Inboxes::Inbox> inbox_;
    WireAddress address_;
    std::shared_ptr<Inboxes::Inbox> peer_;
    WireAddress peer_address_;
  };

  std::shared_ptr<Inboxes> inboxes_ = std::make_shared<Inboxes>();
};

}  // namespace oriel::net::test

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>

#include "base/shared_memory.hpp"
#include "net/queue/queue_pages.hpp"

namespace oriel::net::test {

/// Memory whose addresses differ between its users and the NIC, as for pinned memory.
class SplitPages final : public QueuePages {
 public:
  explicit SplitPages(std::size_t bytes) {
    const std::size_t whole = (bytes + 4095) / 4096 * 4096;
    OwnedFd fd = make_sealed_memfd(whole).value();
    of_users_ = SharedMapping::map(fd, whole).value();
    of_nic_ = SharedMapping::map(fd, whole).value();
    user_ = of_users_.data();
    own_ = of_nic_.data();
    bytes_ = bytes;
  }
  Status write(std::size_t offset, ByteView from) override {
    std::memcpy(own_ + offset, from.data(), from.size());
    return {};
  }

 private:
  SharedMapping of_users_, of_nic_;
};

class SplitSource final : public QueuePagesSource {
 public:
  Result<std::unique_ptr<QueuePages>> allocate(std::size_t bytes) override {
    return std::unique_ptr<QueuePages>(std::make_unique<SplitPages>(bytes));
  }
  Result<std::unique_ptr<QueuePages>> allocate_on_host(std::size_t bytes) override {
    auto made = std::make_unique<SplitPages>(bytes);
    on_host = made->user();
    on_host_bytes = bytes;
    return std::unique_ptr<QueuePages>(std::move(made));
  }
  std::byte* on_host = nullptr;  ///< address of the last pages on the host, for their users
  std::size_t on_host_bytes = 0;
};

}  // namespace oriel::net::test

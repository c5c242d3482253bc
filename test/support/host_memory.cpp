// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "support/rank_memory.hpp"
#include "support/ranks.hpp"

namespace oriel::test {
namespace {

class HostMemory final : public RankMemory {
 public:
  explicit HostMemory(std::size_t area_bytes) : registrable_(area_bytes), heap_(area_bytes) {}

  std::byte* area(std::size_t kind) override {
    return kind == kRegistrable ? registrable_.at() : heap_.data();
  }
  std::byte* scalar() override { return scalar_; }
  void write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  // A collective has ended when its call returns.
  void wait(ncclComm_t /*comm*/) override {}

 private:
  Buffer registrable_;
  std::vector<std::byte> heap_;
  alignas(8) std::byte scalar_[8] = {};
};

}  // namespace

MemoryFactory host_memory_factory() {
  return {{"window", "malloc"}, [](int /*rank*/, std::size_t area_bytes) {
            return std::unique_ptr<RankMemory>(new HostMemory(area_bytes));
          }};
}

}  // namespace oriel::test

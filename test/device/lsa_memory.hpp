// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace oriel::test {

/// Memory of an LSA team on the CPU, laid out as the device headers expect: one memfd per rank,
/// mapped at slots of 4 GiB. Threads share one Mapping; each forked rank makes its own.
class LsaMemory {
 public:
  LsaMemory(int ranks, std::size_t bytes) : bytes_(bytes) {
    for (int rank = 0; rank < ranks; ++rank) {
      const int fd = memfd_create("oriel-device-test", MFD_CLOEXEC);
      if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
        throw std::runtime_error("no memfd of " + std::to_string(bytes) + " bytes");
      }
      fds_.push_back(fd);
    }
  }
  ~LsaMemory() {
    for (const int fd : fds_) close(fd);
  }
  LsaMemory(const LsaMemory&) = delete;
  LsaMemory& operator=(const LsaMemory&) = delete;

  class Mapping {
   public:
    explicit Mapping(const LsaMemory& memory) : reserved_(memory.fds_.size() * kSlotBytes) {
      void* base =
          mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base == MAP_FAILED) throw std::runtime_error("no address range for the slots");
      base_ = static_cast<char*>(base);
      for (std::size_t rank = 0; rank < memory.fds_.size(); ++rank) {
        if (mmap(base_ + rank * kSlotBytes, memory.bytes_, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED, memory.fds_[rank], 0) == MAP_FAILED) {
          throw std::runtime_error("cannot map a slot");
        }
      }
    }
    ~Mapping() { munmap(base_, reserved_); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    char* base() const { return base_; }

   private:
    std::size_t reserved_;
    char* base_ = nullptr;
  };

  static constexpr std::size_t kSlotBytes = std::size_t{1} << 32;
  static constexpr std::uint32_t kStride4g = 1;

 private:
  std::size_t bytes_;
  std::vector<int> fds_;
};

}  // namespace oriel::test

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "net/mlx5/fake_verbs.hpp"
#include "net/mlx5/nic_mlx5.hpp"

namespace oriel::net::test {

/// Adapter of the model of verbs, and memory of this process for its queues.
struct Mlx5Fixture {
  FakeVerbs verbs;
  Mlx5HostMemory memory;
  NicMlx5::Options options;
  std::uint32_t receives = 0;  ///< receives of each queue in whole_life
  alignas(64) std::array<std::uint64_t, 64> window{};

  Mlx5Fixture() {
    options.device.name = "mlx5_0";
    options.device.verbs = &verbs.library;
  }
  FakeVerbs::Adapter& adapter() { return verbs.adapters[0]; }
  void use_ethernet() {
    adapter().link_layer = 2;
    adapter().lid = 0;
    adapter().gids = {FakeVerbs::gid({0xfe, 0x80}, {0x01}, 1),
                      FakeVerbs::gid({0xfe, 0x80}, {0x01}, 2),
                      FakeVerbs::gid({0, 0}, {0xff, 0xff, 10, 0, 0, 1}, 2)};
  }
  Result<std::shared_ptr<const Mlx5Device>> open_device() {
    return Mlx5Device::open(options.device);
  }
  Result<NicMlx5> open() { return NicMlx5::open(options); }
  Result<std::vector<Mlx5Queue>> create(NicMlx5& nic, std::size_t count,
                                        Mlx5Queue::Options each = {}) {
    each.depth = 128;
    each.fetch_slots = 16;
    const std::vector<Mlx5Queue::Options> all(count, each);
    return nic.create_queues(memory, all);
  }
};

}  // namespace oriel::net::test

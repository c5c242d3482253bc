// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "oriel/device/window.hpp"
#include "oriel/error.hpp"

#include "comm/device/device.hpp"
#include "shadow/shadow_pool.hpp"
#include "window/registration/participant.hpp"

namespace oriel::comm {

/// Makes and frees the tables in which kernels find a window's keys at the NICs of other nodes.
class NetworkTables {
 public:
  /// Returns the table of the window with this serial, for its object. The table stays where it is
  /// until drop_table(). Kernels find it, the host need not.
  virtual Result<const device::NetworkWindow*> make_table(std::uint64_t serial) = 0;
  virtual void drop_table(const device::NetworkWindow* table) noexcept = 0;

 protected:
  ~NetworkTables() = default;
};

/// Makes the objects behind the window handles of one communicator, in the pool of its device. They
/// share a table that tells which world rank has which place in the LSA team.
class PooledWindowSink final : public window::WindowSink {
 public:
  /// `windows` holds objects of a WindowObject's size, `tables` of at least 4 bytes for each world
  /// rank; both of the device that the communicator's kernels run on.
  static Result<std::unique_ptr<PooledWindowSink>> make(std::shared_ptr<shadow::ShadowPool> windows,
                                                        std::shared_ptr<shadow::ShadowPool> tables,
                                                        const TeamFacts& facts);
  ~PooledWindowSink() override;

  /// The size of the table for so many world ranks, rounded so that communicators share pools.
  static std::size_t table_bytes(int world_size);

  /// Where NICs reach the windows too: objects point to tables of `network`, which outlives
  /// them.
  void set_network(NetworkTables& network) { network_ = &network; }

  Result<void*> create(const window::WindowFacts& facts) override;
  Status flush() override;
  void destroy(void* handle) noexcept override;

  /// The window as kernels see it, from the host's copy of its object; empty for a handle that
  /// create() has not returned or that was destroyed.
  device::WindowView view(const void* handle) const;

 private:
  PooledWindowSink(std::shared_ptr<shadow::ShadowPool> windows,
                   std::shared_ptr<shadow::ShadowPool> tables, TeamFacts facts)
      : windows_(std::move(windows)), tables_(std::move(tables)), facts_(std::move(facts)) {}

  shadow::Shadows<device::WindowObject> windows_;
  std::shared_ptr<shadow::ShadowPool> tables_;
  TeamFacts facts_;
  NetworkTables* network_ = nullptr;
  void* lsa_index_of_ = nullptr;  // of tables_
};

}  // namespace oriel::comm

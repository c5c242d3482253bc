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

/// Creates and frees the tables from which kernels read a window's keys for NICs of other nodes.
class NetworkTables {
 public:
  /// Returns the table of the window with this serial, for the window's object. The address stays
  /// valid until drop_table(). It is an address for kernels; the host may be unable to access it.
  virtual Result<const device::NetworkWindow*> make_table(std::uint64_t serial) = 0;
  virtual void drop_table(const device::NetworkWindow* table) noexcept = 0;

 protected:
  ~NetworkTables() = default;
};

/// Creates the objects behind the window handles of one communicator, in the pool of its device.
/// The objects share a table that maps world ranks to places in the LSA team.
class PooledWindowSink final : public window::WindowSink {
 public:
  /// `windows` holds objects of the size of WindowObject. `tables` holds objects of at least 4
  /// bytes per world rank. Both pools belong to the device that runs the communicator's kernels.
  static Result<std::unique_ptr<PooledWindowSink>> make(std::shared_ptr<shadow::ShadowPool> windows,
                                                        std::shared_ptr<shadow::ShadowPool> tables,
                                                        const TeamFacts& facts);
  ~PooledWindowSink() override;

  /// Returns the size of the table for `world_size` ranks, rounded up so that communicators share
  /// pools.
  static std::size_t table_bytes(int world_size);

  /// Makes objects refer to tables of `network`, for windows that NICs access. `network` outlives
  /// the objects.
  void set_network(NetworkTables& network) { network_ = &network; }

  Result<void*> create(const window::WindowFacts& facts) override;
  Status flush() override;
  void destroy(void* handle) noexcept override;

  /// Returns the window as kernels see it, from the host's copy of its object. Returns an empty
  /// view if create() has not returned the handle, or if it was destroyed.
  device::WindowView view(const void* handle) const;

 private:
  PooledWindowSink(std::shared_ptr<shadow::ShadowPool> windows,
                   std::shared_ptr<shadow::ShadowPool> tables, TeamFacts facts)
      : windows_(std::move(windows)), tables_(std::move(tables)), facts_(std::move(facts)) {}

  shadow::Shadows<device::WindowObject> windows_;
  std::shared_ptr<shadow::ShadowPool> tables_;
  TeamFacts facts_;
  NetworkTables* network_ = nullptr;
  void* lsa_index_of_ = nullptr;  // allocated from tables_
};

}  // namespace oriel::comm

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "oriel/error.hpp"

#include "net/mlx5/mlx5_commands.hpp"
#include "net/mlx5/mlx5_handle.hpp"
#include "net/mlx5/mlx5_memory.hpp"
#include "net/mlx5/mlx5_owners.hpp"
#include "net/mlx5/verbs_table.hpp"

namespace oriel::net {

/// State of an active port, and the GID by which peers reach it.
class Mlx5Port {
 public:
  /// Finds an active port. `gid_index` is that of Mlx5Device::Options.
  static Result<Mlx5Port> find(const VerbsTable& verbs, VerbsContext* context,
                               const Mlx5Place& place, std::int32_t gid_index);

  LinkLayer link_layer() const { return link_layer_; }
  std::uint8_t mtu() const { return static_cast<std::uint8_t>(port_.mtu); }
  std::uint16_t lid() const { return port_.lid; }
  bool needs_global_route() const {
    return (port_.flags & VerbsConstants::kPortNeedsGlobalRoute) != 0;
  }
  std::uint8_t gid_index() const { return static_cast<std::uint8_t>(gid_.index); }
  std::uint8_t roce_version() const;
  std::array<std::uint8_t, 16> gid() const;

 private:
  Status check(const Mlx5Place& place);

  VerbsPort port_{};
  VerbsGid gid_{};
  LinkLayer link_layer_ = LinkLayer::infiniband;
};

/// Open port of an mlx5 adapter, with a protection domain. Mlx5Queue, Mlx5Register and Mlx5Region
/// keep it open. The owners that its functions return do not. Immutable; any thread may use it.
class Mlx5Device {
 public:
  struct Options {
    std::string name;                   ///< such as "mlx5_0": topo::Nic::name of the chosen NIC
    std::uint32_t port = 1;             ///< topo::Nic::port
    std::int32_t gid_index = -1;        ///< -1: 0 on InfiniBand, the best on Ethernet
    std::uint16_t partition_index = 0;  ///< given to the adapter on Ethernet too
    std::uint8_t service_level = 0;     ///< on Ethernet: the priority
    std::uint8_t traffic_class = 0;
    const VerbsLibrary* verbs = nullptr;  ///< outlives the device; null: verbs_library()
  };

  /// Opens the port. Fails, with the reason, if the libraries, the device, an active port, or a
  /// capability that queues need is missing.
  static Result<std::shared_ptr<const Mlx5Device>> open(const Options& options);

  const Options& options() const { return options_; }
  const Mlx5Place& place() const { return place_; }
  const VerbsTable& verbs() const { return *verbs_; }
  VerbsContext* context() const { return context_.get(); }
  VerbsDomain* domain() const { return domain_.get(); }
  std::uint32_t domain_number() const { return domain_number_; }
  std::uint32_t event_queue() const { return event_queue_; }
  const mlx5::Capabilities& capabilities() const { return capabilities_; }

  const Mlx5Port& port() const { return port_; }

  /// Executes a command that creates an object. `number` becomes the adapter's number of the
  /// object.
  Result<Mlx5ObjectOwner> create(const Bytes& command, const char* call, const std::string& purpose,
                                 std::uint32_t& number) const;
  /// Executes a command that changes an object.
  Status modify(const Mlx5ObjectOwner& object, const Bytes& command, const char* call,
                const std::string& purpose) const;
  /// Registers memory for the adapter's rings. `at` comes from Mlx5Memory::export_range.
  Result<Mlx5UmemOwner> register_umem(void* address, std::size_t bytes, const Mlx5Export& at) const;
  /// Registers memory that WQEs may name, under its own address. `access` as in MemoryRange.
  Result<Mlx5RegionOwner> register_memory(void* address, std::size_t bytes, const Mlx5Export& at,
                                          std::uint8_t access) const;

 private:
  Mlx5Device() = default;
  Status open_context();
  Status check_capabilities();
  Status make_domain();
  Result<Bytes> query_capabilities(std::uint16_t modifier, const char* which) const;

  Options options_;
  Mlx5Place place_;
  const VerbsTable* verbs_ = nullptr;
  Mlx5ContextOwner context_;
  Mlx5DomainOwner domain_;  // released before the context
  std::uint32_t domain_number_ = 0;
  std::uint32_t event_queue_ = 0;
  Mlx5Port port_;
  mlx5::Capabilities capabilities_;
};

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_device.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::net {
namespace {

Error unusable(const Mlx5Place& place, std::string_view why, const char* hint) {
  return Error(ErrorCode::system,
               fmt::format("{} port {} cannot be used: {}", place.device, place.port, why))
      .with_hint(hint);
}

const char* name_of_state(std::uint32_t state) {
  constexpr const char* kNames[] = {"unknown", "down",   "initialising",
                                    "armed",   "active", "deferred"};
  return state < std::size(kNames) ? kNames[state] : "unknown";
}

/// Returns the GID's rank: a greater one is better; 0 is unusable. RoCE v2 comes before v1. Within
/// v2, IPv4-mapped GIDs come first and link-local ones last.
int rank_of(const VerbsGid& gid) {
  const auto* bytes = gid.bytes;
  if (std::all_of(bytes, bytes + 16, [](std::uint8_t byte) { return byte == 0; })) return 0;
  if (gid.type == VerbsConstants::roce_v1) return 1;
  if (gid.type != VerbsConstants::roce_v2) return 0;
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::memcmp(bytes, kMapped, sizeof kMapped) == 0) return 4;
  const bool link_local = bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
  return link_local ? 2 : 3;
}

/// Owns the list of devices. Opened contexts stay valid after it is destroyed.
class DeviceList {
 public:
  DeviceList(const VerbsTable& verbs, VerbsDevice** list) : verbs_(verbs), list_(list) {}
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ~DeviceList() { verbs_.free_device_list(list_); }

 private:
  const VerbsTable& verbs_;
  VerbsDevice** list_;
};

}  // namespace

std::uint8_t Mlx5Port::roce_version() const {
  if (link_layer_ != LinkLayer::ethernet) return 0;
  return gid_.type == VerbsConstants::roce_v2 ? 2 : 1;
}

std::array<std::uint8_t, 16> Mlx5Port::gid() const {
  return std::to_array(gid_.bytes);
}

Result<std::shared_ptr<const Mlx5Device>> Mlx5Device::open(const Options& options) {
  const VerbsLibrary& library = options.verbs != nullptr ? *options.verbs : verbs_library();
  if (!library.missing.empty()) {
    return Error(ErrorCode::system, fmt::format("the RDMA adapter {} cannot be opened: {}",
                                                options.name, library.missing))
        .with_hint("install libibverbs1 and ibverbs-providers (or NVIDIA's DOCA-OFED)");
  }
  const std::shared_ptr<Mlx5Device> device(new Mlx5Device);
  device->options_ = options;
  device->place_ = {options.name, options.port};
  device->verbs_ = &library.table;
  ORIEL_CHECK(device->open_context());
  ORIEL_TRY(device->port_,
            Mlx5Port::find(library.table, device->context(), device->place(), options.gid_index));
  ORIEL_CHECK(device->check_capabilities());
  ORIEL_CHECK(device->make_domain());
  return std::shared_ptr<const Mlx5Device>(device);
}

Status Mlx5Device::open_context() {
  int count = 0;
  VerbsDevice** list = verbs_->get_device_list(&count);
  if (list == nullptr) return mlx5_error(place_, "ibv_get_device_list", "listing devices", errno);
  const DeviceList owner(*verbs_, list);
  std::string names;
  VerbsDevice* found = nullptr;
  for (int i = 0; i < count && found == nullptr; ++i) {
    const char* name = verbs_->get_device_name(list[i]);
    if (name == nullptr) continue;
    if (options_.name == name) found = list[i];
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  if (found == nullptr) {
    return Error(ErrorCode::system, fmt::format("there is no RDMA adapter {}; there is {}",
                                                options_.name, names.empty() ? "none" : names))
        .with_hint("look at /sys/class/infiniband; a container needs /dev/infiniband");
  }
  if (!verbs_->is_supported(found)) {
    return unusable(place_, "it is no mlx5 adapter", "use one of NVIDIA's ConnectX from 4 on");
  }
  Mlx5ContextOptions context{.flags = VerbsConstants::kDevx, .mask = 0};
  context_ = Mlx5ContextOwner(*verbs_, verbs_->open_device(found, &context));
  if (!context_) return mlx5_error(place_, "mlx5dv_open_device", "opening it with DevX", errno);
  return {};
}

Status Mlx5Port::check(const Mlx5Place& place) {
  if (port_.state != VerbsConstants::kPortActive) {
    return unusable(place, fmt::format("the port is {}", name_of_state(port_.state)),
                    "check the cable, and on InfiniBand the subnet manager");
  }
  if (port_.link_layer == VerbsConstants::kInfiniband) {
    link_layer_ = LinkLayer::infiniband;
  } else if (port_.link_layer == VerbsConstants::kEthernet) {
    link_layer_ = LinkLayer::ethernet;
  } else {
    return unusable(
        place,
        fmt::format("its link layer is {}, neither InfiniBand nor Ethernet", port_.link_layer), "");
  }
  if (port_.mtu < 1 || port_.mtu > 5) {
    return unusable(place, fmt::format("its MTU is number {}, of 1 to 5", port_.mtu), "");
  }
  return {};
}

Result<Mlx5Port> Mlx5Port::find(const VerbsTable& verbs, VerbsContext* context,
                                const Mlx5Place& place, std::int32_t gid_index) {
  Mlx5Port found;
  const int polled = detail::errno_of(
      verbs.query_port(context, static_cast<std::uint8_t>(place.port), &found.port_));
  if (polled != 0) return mlx5_error(place, "ibv_query_port", "looking at the port", polled);
  ORIEL_CHECK(found.check(place));
  const auto query = [&](std::uint32_t index, VerbsGid& gid) {
    return detail::errno_of(verbs.query_gid(context, place.port, index, &gid, 0, sizeof gid));
  };
  const bool ethernet = found.link_layer_ == LinkLayer::ethernet;
  if (!ethernet || gid_index >= 0) {
    const auto index = static_cast<std::uint32_t>(std::max(gid_index, 0));
    const int status = query(index, found.gid_);
    if (status != 0) {
      return mlx5_error(place, "ibv_query_gid_ex", fmt::format("GID {}", index), status);
    }
    if (index > 0xff || (ethernet && rank_of(found.gid_) == 0)) {
      return unusable(place, fmt::format("GID {} is none of RoCE", index),
                      "show_gids lists those that there are");
    }
    return found;
  }
  int best = 0;
  const int count = std::min(found.port_.gid_count, 256);
  for (int i = 0; i < count; ++i) {
    VerbsGid gid{};
    const int status = query(static_cast<std::uint32_t>(i), gid);
    if (status == ENODATA) continue;  // empty entry of the table
    if (status != 0) {
      return mlx5_error(place, "ibv_query_gid_ex", fmt::format("GID {}", i), status);
    }
    if (rank_of(gid) <= best) continue;
    best = rank_of(gid);
    found.gid_ = gid;
    found.gid_.index = static_cast<std::uint32_t>(i);
  }
  if (best != 0) return found;
  return unusable(place, "none of its GIDs is one of RoCE",
                  "give its network interface an address");
}

Result<Bytes> Mlx5Device::query_capabilities(std::uint16_t modifier, const char* which) const {
  const Bytes in = mlx5::query_capabilities(modifier);
  Bytes out(mlx5::QueryCapabilities::kOutBytes);
  const int status = detail::errno_of(
      verbs_->general_command(context_.get(), in.data(), in.size(), out.data(), out.size()));
  const mlx5::Answer answer = mlx5::answer_of(out);
  if (status != 0 || !answer.good()) {
    return mlx5_error(place_, "QUERY_HCA_CAP", which, status, answer);
  }
  return out;
}

Status Mlx5Device::check_capabilities() {
  ORIEL_TRY(const Bytes general,
            query_capabilities(mlx5::QueryCapabilities::kGeneral, "general capabilities"));
  capabilities_ = mlx5::general_capabilities(general);
  const auto firmware = "update its firmware, or use a newer adapter";
  if (!capabilities_.reliable_connection || !capabilities_.cq_ignores_overrun) {
    return unusable(place_, "it lacks reliable connections or completion queues without an overrun",
                    firmware);
  }
  if (capabilities_.completion_version != 1) {
    return unusable(place_,
                    fmt::format("its completions have version {}, queues need 1",
                                capabilities_.completion_version),
                    firmware);
  }
  if (!capabilities_.atomic) return unusable(place_, "it has no atomics", firmware);
  ORIEL_TRY(const Bytes atomic,
            query_capabilities(mlx5::QueryCapabilities::kAtomic, "capabilities of atomics"));
  mlx5::add_atomic_capabilities(capabilities_, atomic);
  if (capabilities_.atomic_endianness != 1) {
    return unusable(place_, "it takes the operands of 8-byte atomics for big-endian", firmware);
  }
  const int status = detail::errno_of(verbs_->query_event_queue(context_.get(), 0, &event_queue_));
  if (status != 0) {
    return mlx5_error(place_, "mlx5dv_devx_query_eqn", "the event queue of vector 0", status);
  }
  return {};
}

Status Mlx5Device::make_domain() {
  domain_ = Mlx5DomainOwner(*verbs_, verbs_->alloc_domain(context_.get()));
  if (!domain_) return mlx5_error(place_, "ibv_alloc_pd", "a protection domain", errno);
  Mlx5DomainNumber number{};
  Mlx5Details details{};
  details.domain.in = domain_.get();
  details.domain.out = &number;
  const int status = detail::errno_of(verbs_->init_obj(&details, VerbsConstants::kDomainDetails));
  if (status != 0) {
    return mlx5_error(place_, "mlx5dv_init_obj", "the number of the protection domain", status);
  }
  domain_number_ = number.number;
  return {};
}

Result<Mlx5ObjectOwner> Mlx5Device::create(const Bytes& command, const char* call,
                                           const std::string& purpose,
                                           std::uint32_t& number) const {
  Bytes out(mlx5::CommandOut::kBytes);
  Mlx5ObjectOwner object(*verbs_, verbs_->create_object(context_.get(), command.data(),
                                                        command.size(), out.data(), out.size()));
  const int status = object ? 0 : errno;
  const mlx5::Answer answer = mlx5::answer_of(out);
  if (!object || !answer.good()) return mlx5_error(place_, call, purpose, status, answer);
  Result<std::uint32_t> made = mlx5::created_number(out);
  if (!made.ok()) {
    return std::move(made).error().with_context(
        fmt::format("{} port {}: {} ({})", place_.device, place_.port, call, purpose));
  }
  number = made.value();
  return object;
}

Status Mlx5Device::modify(const Mlx5ObjectOwner& object, const Bytes& command, const char* call,
                          const std::string& purpose) const {
  Bytes out(mlx5::CommandOut::kBytes);
  const int status = detail::errno_of(
      verbs_->modify_object(object.get(), command.data(), command.size(), out.data(), out.size()));
  const mlx5::Answer answer = mlx5::answer_of(out);
  if (status != 0 || !answer.good()) return mlx5_error(place_, call, purpose, status, answer);
  return {};
}

Result<Mlx5UmemOwner> Mlx5Device::register_umem(void* address, std::size_t bytes,
                                                const Mlx5Export& at) const {
  constexpr std::uint32_t kLocalWriteAccess = 1;
  Mlx5Umem* umem = nullptr;
  if (!at.descriptor.valid()) {
    umem = verbs_->register_umem(context_.get(), address, bytes, kLocalWriteAccess);
  } else {
    Mlx5UmemOptions options{};
    options.address = reinterpret_cast<void*>(at.offset);
    options.bytes = bytes;
    options.access = kLocalWriteAccess;
    options.page_sizes = ~std::uint64_t{4095};
    options.mask = VerbsConstants::kUmemOfDmabuf;
    options.descriptor = at.descriptor.get();
    umem = verbs_->register_umem_ex(context_.get(), &options);
  }
  const int status = errno;
  if (umem != nullptr) return Mlx5UmemOwner(*verbs_, umem);
  return mlx5_error(place_,
                    at.descriptor.valid() ? "mlx5dv_devx_umem_reg_ex" : "mlx5dv_devx_umem_reg",
                    fmt::format("{} bytes of a queue", bytes), status);
}

Result<Mlx5RegionOwner> Mlx5Device::register_memory(void* address, std::size_t bytes,
                                                    const Mlx5Export& at,
                                                    std::uint8_t access) const {
  const auto number = reinterpret_cast<std::uint64_t>(address);
  VerbsRegion* region = at.descriptor.valid()
                            ? verbs_->register_dmabuf(domain_.get(), at.offset, bytes, number,
                                                      at.descriptor.get(), access)
                            : verbs_->register_memory(domain_.get(), address, bytes, access);
  const int status = errno;
  if (region != nullptr) return Mlx5RegionOwner(*verbs_, region);
  return mlx5_error(place_, at.descriptor.valid() ? "ibv_reg_dmabuf_mr" : "ibv_reg_mr",
                    fmt::format("registering {} bytes", bytes), status);
}

}  // namespace oriel::net

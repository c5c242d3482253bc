// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "oriel/error.hpp"

#include "base/log.hpp"
#include "base/system_table.hpp"
#include "net/mlx5/mlx5_commands.hpp"
#include "net/mlx5/verbs_table.hpp"

/// Owners of objects of libibverbs and libmlx5. Each is move-only and releases its one object when
/// destroyed. Release queue pairs (objects) before the completion queues, umems and UARs that they
/// use. Release regions, umems, UARs and addresses before their domain or context; the context
/// last.
namespace oriel::net {

namespace detail {

/// Returns the errno value of a call that returns it, or that returns -1 and sets errno.
inline int errno_of(int status) {
  return status < 0 ? errno : status;
}

/// Owns a `T`. `kRelease` is the member of the table that releases it.
template <typename T, auto kRelease>
class VerbsOwner {
 public:
  VerbsOwner() = default;
  VerbsOwner(const VerbsTable& verbs, T* object) : verbs_(&verbs), object_(object) {}
  VerbsOwner(VerbsOwner&& other) noexcept
      : verbs_(other.verbs_), object_(std::exchange(other.object_, nullptr)) {}
  VerbsOwner& operator=(VerbsOwner&& other) noexcept {
    if (this != &other) {
      reset();
      verbs_ = other.verbs_;
      object_ = std::exchange(other.object_, nullptr);
    }
    return *this;
  }
  ~VerbsOwner() { reset(); }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

  void reset() {
    T* object = std::exchange(object_, nullptr);
    if (object == nullptr) return;
    if constexpr (std::is_void_v<decltype((verbs_->*kRelease)(object))>) {
      (verbs_->*kRelease)(object);
    } else {
      const int status = errno_of((verbs_->*kRelease)(object));
      // The kernel keeps the object until the context is closed; nothing more can be done.
      if (status != 0) {
        Log().warn(
            "an RDMA adapter did not release an object, which stays until the process ends: {}; "
            "hint: restart the process if the adapter runs out of objects",
            system_error("releasing it", status).to_string());
      }
    }
  }

 private:
  const VerbsTable* verbs_ = nullptr;
  T* object_ = nullptr;
};

}  // namespace detail

using Mlx5ContextOwner = detail::VerbsOwner<VerbsContext, &VerbsTable::close_device>;
using Mlx5DomainOwner = detail::VerbsOwner<VerbsDomain, &VerbsTable::dealloc_domain>;
using Mlx5RegionOwner = detail::VerbsOwner<VerbsRegion, &VerbsTable::deregister_memory>;
using Mlx5AddressOwner = detail::VerbsOwner<VerbsAddress, &VerbsTable::destroy_address>;
using Mlx5UmemOwner = detail::VerbsOwner<Mlx5Umem, &VerbsTable::deregister_umem>;
using Mlx5UarOwner = detail::VerbsOwner<Mlx5Uar, &VerbsTable::free_uar>;
using Mlx5ObjectOwner = detail::VerbsOwner<Mlx5Object, &VerbsTable::destroy_object>;

/// Port of a device, as errors name it.
struct Mlx5Place {
  std::string device;
  std::uint32_t port = 0;
};

/// Makes the error of a call that failed with `status` (an errno value). Names device, port, call,
/// purpose and status, and the adapter's own status and syndrome if there are any. Adds a hint.
Error mlx5_error(const Mlx5Place& place, std::string_view call, std::string_view purpose,
                 int status, const mlx5::Answer& answer = {});

}  // namespace oriel::net

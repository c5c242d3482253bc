// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "net/fabric/fabric_table.hpp"

/// Owners of libfabric's objects. An endpoint must be closed before the objects bound to it
/// (completion queue, address vector) and before the memory that it uses. These must be closed
/// before the domain, and the domain before the fabric. FabricEndpoint keeps that order.
namespace oriel::net {

/// Keeps a pointer to a leaked object, so that leak checkers still find it reachable.
void leave_to_process(void* object);

/// Owns a fid_... and closes it by fi_close(). Move-only; the table outlives it.
template <typename Fid>
class FabricObject {
 public:
  FabricObject() = default;
  FabricObject(const FabricTable& table, Fid* object) : table_(&table), object_(object) {}
  FabricObject(FabricObject&& other) noexcept
      : table_(other.table_), object_(std::exchange(other.object_, nullptr)) {}
  FabricObject& operator=(FabricObject&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(object_, other.object_);
    return *this;
  }
  ~FabricObject() {
    // Ignores failure: there is no other way to release the object.
    if (object_ != nullptr) static_cast<void>(table_->fi_close(&object_->fid));
  }
  Fid* get() const { return object_; }
  /// Leaks the object to the process, unclosed.
  void abandon() {
    if (object_ != nullptr) leave_to_process(std::exchange(object_, nullptr));
  }

 private:
  const FabricTable* table_ = nullptr;
  Fid* object_ = nullptr;
};

using FabricMemory = FabricObject<fid_mr>;

/// Owns the list that fi_getinfo() returns. Move-only; the table outlives it.
class FabricInfo {
 public:
  FabricInfo() = default;
  FabricInfo(const FabricTable& table, fi_info* info) : table_(&table), info_(info) {}
  FabricInfo(FabricInfo&& other) noexcept
      : table_(other.table_), info_(std::exchange(other.info_, nullptr)) {}
  FabricInfo& operator=(FabricInfo&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(info_, other.info_);
    return *this;
  }
  ~FabricInfo() {
    if (info_ != nullptr) table_->fi_freeinfo(info_);
  }
  fi_info* get() const { return info_; }
  fi_info* operator->() const { return info_; }

 private:
  const FabricTable* table_ = nullptr;
  fi_info* info_ = nullptr;
};

/// Makes the error of a call that returned `status`, a negative number. Names call and reason.
Error fabric_error(const FabricTable& table, const char* call, long status);

/// Enabled reliable datagram endpoint (FI_EP_RDM), with one completion queue for all operations and
/// an address vector. The memory of operations in flight must outlive it. Move-constructible. Must
/// not be assigned: an assignment would close memory_ before endpoint_. Thread safety: the caller
/// serializes calls (it requests FI_THREAD_DOMAIN).
class FabricEndpoint {
 public:
  /// Opens what the first element of `info` describes. `completions` is the size of the completion
  /// queue. Local.
  static Result<FabricEndpoint> open(const FabricTable& table, FabricInfo info,
                                     std::size_t completions, std::size_t peers);

  const fi_info& info() const { return *info_.get(); }
  fid_ep* endpoint() const { return endpoint_.get(); }
  fid_cq* completions() const { return completions_.get(); }
  fid_domain* domain() const { return domain_.get(); }

  /// Returns the endpoint's address in the provider's own format (info().addr_format).
  Result<Bytes> name() const;
  /// Adds an address of that format and provider to the address vector. Returns the handle that
  /// sends take.
  Result<fi_addr_t> add(ByteView address);
  /// Registers memory for sends and receives, which providers with needs_memory() require; allowed
  /// for others. Returns the descriptor that calls take beside the memory; valid as long as this
  /// endpoint.
  Result<void*> register_memory(std::byte* memory, std::size_t bytes);
  /// Registers memory that peers read (FI_REMOTE_READ), or into which this end reads (FI_READ). The
  /// registration ends with the returned object.
  Result<FabricMemory> register_for(std::uint64_t access, const std::byte* memory,
                                    std::size_t bytes);
  bool can_read() const { return (info().caps & kReadCaps) == kReadCaps; }
  static constexpr std::uint64_t kReadCaps = FI_RMA | FI_READ | FI_REMOTE_READ;

  /// Closes the endpoint before its destruction. Afterwards operations in flight touch no memory,
  /// and only reopen(), destruction and reads of completions() are allowed. Completions still in
  /// the queue are to be ignored. Must be called before the destruction of an endpoint whose
  /// address peers know.
  ///
  /// libfabric 1.17's tcp crashes if it is closed while part of a read from a peer's memory has
  /// arrived. It reports such a read twice, the second time after freeing it. So close() first ends
  /// all connections of tcp and drives the endpoint until it has seen that, for up to kTimeout.
  /// Data that arrives meanwhile is stored where it belongs. `may_drive`: all memory that the
  /// endpoint uses still exists.
  ///
  /// Returns false if the connections cannot be ended so. Then the endpoint and all that it depends
  /// on are leaked to the process, and nobody can reach it. It touches no memory any more, because
  /// no thread drives it.
  bool close(bool may_drive);
  static constexpr std::chrono::milliseconds kTimeout{500};
  /// Reopens the endpoint at `name`, its former address, with its address vector and its memory.
  /// Returns an error if the provider cannot do so; the endpoint is closed then.
  Status reopen(ByteView name);
  /// Returns the completion queue's descriptor. It becomes readable when there may be work, for a
  /// thread for which may_sleep() returned true. -1 if the provider has none, and after reopen().
  /// Owned by the queue.
  int wait_descriptor() const { return wait_descriptor_; }
  /// Returns whether there is no work until wait_descriptor() becomes readable.
  bool may_sleep() const;
  bool needs_memory() const { return (info().domain_attr->mr_mode & FI_MR_LOCAL) != 0; }

 private:
  FabricEndpoint(const FabricTable& table, FabricInfo info)
      : table_(&table), info_(std::move(info)) {}
  Status open_completions(std::size_t completions);
  Status open_endpoint();
  bool end_all(bool may_drive);
  bool drive();  ///< reads one completion; returns false if there is none
  void leave_to_process();

  const FabricTable* table_;
  // Destroyed in reverse order.
  FabricInfo info_;
  FabricObject<fid_fabric> fabric_;
  FabricObject<fid_domain> domain_;
  FabricObject<fid_av> addresses_;
  FabricObject<fid_cq> completions_;
  int queue_descriptor_ = -1;  // the completion queue's; valid as long as the queue
  int wait_descriptor_ = -1;
  std::vector<FabricMemory> memory_;
  FabricObject<fid_ep> endpoint_;
};

}  // namespace oriel::net

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

/// libfabric's objects, each with one owner. Those that stand on others must go first: an endpoint
/// before what is bound to it (completion queue, address vector) and before the memory that it was
/// given, these before the domain, the domain before the fabric. FabricEndpoint keeps that order.
namespace oriel::net {

/// Keeps what nobody owns any more from looking lost.
void leave_to_process(void* object);

/// A fid_... that fi_close() ends. Move-only; the table outlives it.
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
    // What it says of failure is of no use: there is no other way to give the object back.
    if (object_ != nullptr) static_cast<void>(table_->fi_close(&object_->fid));
  }
  Fid* get() const { return object_; }
  /// It stays with the process, as it is.
  void abandon() {
    if (object_ != nullptr) leave_to_process(std::exchange(object_, nullptr));
  }

 private:
  const FabricTable* table_ = nullptr;
  Fid* object_ = nullptr;
};

using FabricMemory = FabricObject<fid_mr>;

/// What fi_getinfo() yields, a list. Move-only; the table outlives it.
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

/// The error of a call that returned `status`, a negative number: names call and reason.
Error fabric_error(const FabricTable& table, const char* call, long status);

/// A reliable endpoint that is not connected (FI_EP_RDM), with a completion queue for all it does
/// and a table of addresses; enabled. The memory that is on its way in it must outlive it.
/// Move-only, but not to be assigned to. Thread safety: the caller's (FI_THREAD_DOMAIN is what is
/// asked for).
class FabricEndpoint {
 public:
  /// `info`'s first element says what to open. `completions`: how many the queue holds. Local.
  static Result<FabricEndpoint> open(const FabricTable& table, FabricInfo info,
                                     std::size_t completions, std::size_t peers);

  const fi_info& info() const { return *info_.get(); }
  fid_ep* endpoint() const { return endpoint_.get(); }
  fid_cq* completions() const { return completions_.get(); }
  fid_domain* domain() const { return domain_.get(); }

  /// Where others reach it, in the provider's own format (info().addr_format).
  Result<Bytes> name() const;
  /// An address in that format, of the same provider; what sends to it name.
  Result<fi_addr_t> add(ByteView address);
  /// For providers that send from and receive into registered memory only; also where
  /// needs_memory() is false. What calls name beside the memory; valid as long as this.
  Result<void*> register_memory(std::byte* memory, std::size_t bytes);
  /// Memory that peers read (FI_REMOTE_READ), or into which this end does (FI_READ), for as long as
  /// what this yields lives.
  Result<FabricMemory> register_for(std::uint64_t access, const std::byte* memory,
                                    std::size_t bytes);
  bool can_fetch() const { return (info().caps & kFetchCaps) == kFetchCaps; }
  static constexpr std::uint64_t kFetchCaps = FI_RMA | FI_READ | FI_REMOTE_READ;

  /// Ends it before its time: whatever is under way touches no memory any more, and nothing but
  /// reopening or destruction may be asked for. What its queue still holds says nothing. Must be
  /// called before one is destroyed that peers have known.
  ///
  /// libfabric 1.17's tcp crashes where it is closed while part of what it reads from a peer's
  /// memory has come (it reports such a read twice, the second time after freeing it). So all its
  /// connections are ended first, and it is driven until it has seen that, for up to kPatience;
  /// what has come is put where it belongs meanwhile. `may_drive`: all memory is still there that
  /// has been given to it.
  ///
  /// False if that is not to be had: then it is left to the process with all that it stands on,
  /// and nobody reaches it. It touches no memory any more, since nobody drives it: no thread does.
  bool close(bool may_drive);
  static constexpr std::chrono::milliseconds kPatience{500};
  /// Makes it anew, with its addresses and its memory, where others reach it: at `name`, its own
  /// before. An error where the provider cannot do that; then it is closed.
  Status reopen(ByteView name);
  /// Becomes readable when there may be something to do, for a thread that may_sleep(); -1 where
  /// the provider has no such descriptor, and after reopen(). It is the queue's.
  int wait_descriptor() const { return wait_descriptor_; }
  /// Whether nothing is to be done until wait_descriptor() becomes readable.
  bool may_sleep() const;
  bool needs_memory() const { return (info().domain_attr->mr_mode & FI_MR_LOCAL) != 0; }

 private:
  FabricEndpoint(const FabricTable& table, FabricInfo info)
      : table_(&table), info_(std::move(info)) {}
  Status open_completions(std::size_t completions);
  Status open_endpoint();
  bool end_all(bool may_drive);
  bool drive();  ///< one turn; false if nothing has come
  void leave_to_process();

  const FabricTable* table_;
  // Destroyed from the last to the first.
  FabricInfo info_;
  FabricObject<fid_fabric> fabric_;
  FabricObject<fid_domain> domain_;
  FabricObject<fid_av> addresses_;
  FabricObject<fid_cq> completions_;
  int queue_descriptor_ = -1;  // the queue's, as long as that lives
  int wait_descriptor_ = -1;
  std::vector<FabricMemory> memory_;
  FabricObject<fid_ep> endpoint_;
};

}  // namespace oriel::net

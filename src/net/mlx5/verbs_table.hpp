// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <sys/types.h>

/// User-space interface to RDMA adapters: libibverbs and, for mlx5 adapters, libmlx5, both loaded
/// at run time. Oriel has its own declarations, so that it builds without the headers of rdma-core.
/// Layouts, names and numbers are those of its ABI (libibverbs.so.1 and libmlx5.so.1, which keep it
/// by versioned symbols). test_verbs_abi compares sizes, fields in use and numbers with the headers
/// where these are installed. It compares the names with the libraries. Only the part that a queue
/// needs is here.
namespace oriel::net {

struct VerbsDevice;
struct VerbsContext;
struct VerbsDomain;   ///< protection domain
struct VerbsAddress;  ///< address handle: the path to a peer
struct Mlx5Object;    ///< object that a DevX command has created

/// Properties of a port. The functions fill in those that they know; the rest stays zero.
struct VerbsPort {
  std::uint32_t state;
  std::uint32_t mtu_most;
  std::uint32_t mtu;  ///< 1: 256 bytes, 5: 4096
  std::int32_t gid_count;
  std::uint32_t capabilities;
  std::uint32_t message_most;
  std::uint32_t bad_partition_keys;
  std::uint32_t bad_queue_keys;
  std::uint16_t partition_count;
  std::uint16_t lid;
  std::uint16_t manager_lid;
  std::uint8_t lid_mask;
  std::uint8_t lanes_most;
  std::uint8_t manager_level;
  std::uint8_t timeout;
  std::uint8_t init_reply;
  std::uint8_t width;
  std::uint8_t speed;
  std::uint8_t physical_state;
  std::uint8_t link_layer;
  std::uint8_t flags;
  std::uint16_t more_capabilities;
};

struct VerbsGid {
  std::uint8_t bytes[16];
  std::uint32_t index;
  std::uint32_t port;
  std::uint32_t type;
  std::uint32_t interface;
};

struct VerbsRegion {
  VerbsContext* context;
  VerbsDomain* domain;
  void* address;
  std::size_t length;
  std::uint32_t handle;
  std::uint32_t lkey;
  std::uint32_t rkey;
};

/// Path to a peer, from which an address handle is made.
struct VerbsPath {
  std::uint8_t gid[16];  ///< the peer's
  std::uint32_t flow_label;
  std::uint8_t own_gid_index;
  std::uint8_t hop_limit;
  std::uint8_t traffic_class;
  alignas(4) std::uint16_t lid;
  std::uint8_t service_level;
  std::uint8_t path_bits;
  std::uint8_t static_rate;
  std::uint8_t is_global;
  std::uint8_t port;
};

struct Mlx5ContextOptions {
  std::uint32_t flags;
  std::uint64_t mask;
};
struct Mlx5Umem {
  std::uint32_t id;
};
struct Mlx5UmemOptions {
  void* address;  ///< if there is a descriptor: the offset in it
  std::size_t bytes;
  std::uint32_t access;
  std::uint64_t page_sizes;
  std::uint64_t mask;
  int descriptor;
};
struct Mlx5Uar {
  void* doorbell;
  void* page;
  std::uint32_t page_number;
  off_t map_offset;
  std::uint64_t mask;
};

/// Address vector of a path, big-endian. Oriel only needs the peer's link-layer address from it.
struct Mlx5AddressVector {
  std::uint8_t key[8];
  std::uint8_t queue[4];
  std::uint8_t rate_and_level;
  std::uint8_t lid_bits;
  std::uint8_t lid[2];
  std::uint8_t reserved[4];
  std::uint8_t link_address[6];
  std::uint8_t traffic_class;
  std::uint8_t hop_limit;
  std::uint8_t gid_and_flow[4];
  std::uint8_t gid[16];
};

/// Results of init_obj; a bit selects each kind.
struct Mlx5DomainNumber {
  std::uint32_t number;
  std::uint64_t mask;
};
struct Mlx5AddressDetails {
  Mlx5AddressVector* vector;
  std::uint64_t mask;
};
struct Mlx5Details {
  struct Pair {
    void* in;
    void* out;
  };
  Pair queue_pair, completion_queue, shared_queue, work_queue, device_memory;
  struct {
    VerbsAddress* in;
    Mlx5AddressDetails* out;
  } address;
  struct {
    VerbsDomain* in;
    Mlx5DomainNumber* out;
  } domain;
};

/// Constants of the ABI.
struct VerbsConstants {
  static constexpr std::uint32_t kPortActive = 4;
  static constexpr std::uint8_t kInfiniband = 1;
  static constexpr std::uint8_t kEthernet = 2;
  static constexpr std::uint8_t kPortNeedsGlobalRoute = 1;  // VerbsPort::flags
  enum GidType : std::uint32_t { infiniband = 0, roce_v1 = 1, roce_v2 = 2 };
  // Access is as net's own Access: 1 local write, 2 remote write, 4 remote read, 8 remote atomic.
  static constexpr std::uint32_t kDevx = 1;          // Mlx5ContextOptions::flags
  static constexpr std::uint64_t kUmemOfDmabuf = 1;  // Mlx5UmemOptions::mask
  static constexpr std::uint32_t kUarBlueFlame = 0;  // write-combining
  static constexpr std::uint32_t kUarNotCached = 1;
  static constexpr std::uint64_t kAddressDetails = 1 << 5;
  static constexpr std::uint64_t kDomainDetails = 1 << 6;
};

/// X(member, symbol, result, parameters). On failure, calls that return a pointer return null and
/// set errno. Calls that return an int return 0, or an errno value, or -1 and set errno.
#define ORIEL_IBVERBS_CALLS(X)                                                                     \
  X(get_device_list, ibv_get_device_list, VerbsDevice**, (int* count))                             \
  X(free_device_list, ibv_free_device_list, void, (VerbsDevice * *list))                           \
  X(get_device_name, ibv_get_device_name, const char*, (VerbsDevice * device))                     \
  X(close_device, ibv_close_device, int, (VerbsContext * context))                                 \
  X(query_port, ibv_query_port, int, (VerbsContext * context, std::uint8_t port, VerbsPort * out)) \
  X(query_gid, _ibv_query_gid_ex, int,                                                             \
    (VerbsContext * context, std::uint32_t port, std::uint32_t index, VerbsGid * out,              \
     std::uint32_t flags, std::size_t out_bytes))                                                  \
  X(alloc_domain, ibv_alloc_pd, VerbsDomain*, (VerbsContext * context))                            \
  X(dealloc_domain, ibv_dealloc_pd, int, (VerbsDomain * domain))                                   \
  X(register_memory, ibv_reg_mr, VerbsRegion*,                                                     \
    (VerbsDomain * domain, void* address, std::size_t bytes, int access))                          \
  X(register_dmabuf, ibv_reg_dmabuf_mr, VerbsRegion*,                                              \
    (VerbsDomain * domain, std::uint64_t offset, std::size_t bytes, std::uint64_t address,         \
     int descriptor, int access))                                                                  \
  X(deregister_memory, ibv_dereg_mr, int, (VerbsRegion * region))                                  \
  X(create_address, ibv_create_ah, VerbsAddress*, (VerbsDomain * domain, VerbsPath * path))        \
  X(destroy_address, ibv_destroy_ah, int, (VerbsAddress * address))

#define ORIEL_MLX5_CALLS(X)                                                                        \
  X(is_supported, mlx5dv_is_supported, bool, (VerbsDevice * device))                               \
  X(open_device, mlx5dv_open_device, VerbsContext*,                                                \
    (VerbsDevice * device, Mlx5ContextOptions * options))                                          \
  X(init_obj, mlx5dv_init_obj, int, (Mlx5Details * details, std::uint64_t kinds))                  \
  X(general_command, mlx5dv_devx_general_cmd, int,                                                 \
    (VerbsContext * context, const void* in, std::size_t in_bytes, void* out,                      \
     std::size_t out_bytes))                                                                       \
  X(create_object, mlx5dv_devx_obj_create, Mlx5Object*,                                            \
    (VerbsContext * context, const void* in, std::size_t in_bytes, void* out,                      \
     std::size_t out_bytes))                                                                       \
  X(modify_object, mlx5dv_devx_obj_modify, int,                                                    \
    (Mlx5Object * object, const void* in, std::size_t in_bytes, void* out, std::size_t out_bytes)) \
  X(destroy_object, mlx5dv_devx_obj_destroy, int, (Mlx5Object * object))                           \
  X(register_umem, mlx5dv_devx_umem_reg, Mlx5Umem*,                                                \
    (VerbsContext * context, void* address, std::size_t bytes, std::uint32_t access))              \
  X(register_umem_ex, mlx5dv_devx_umem_reg_ex, Mlx5Umem*,                                          \
    (VerbsContext * context, Mlx5UmemOptions * options))                                           \
  X(deregister_umem, mlx5dv_devx_umem_dereg, int, (Mlx5Umem * umem))                               \
  X(alloc_uar, mlx5dv_devx_alloc_uar, Mlx5Uar*, (VerbsContext * context, std::uint32_t flags))     \
  X(free_uar, mlx5dv_devx_free_uar, void, (Mlx5Uar * uar))                                         \
  X(query_event_queue, mlx5dv_devx_query_eqn, int,                                                 \
    (VerbsContext * context, std::uint32_t vector, std::uint32_t * number))

/// Table of the libraries' functions, so that a test can replace them. No member is null: a
/// function that a library lacks fails with EOPNOTSUPP.
struct VerbsTable {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration has no place for them
#define ORIEL_DETAIL_MEMBER(member, symbol, result, parameters) result(*member) parameters;
  ORIEL_IBVERBS_CALLS(ORIEL_DETAIL_MEMBER)
  ORIEL_MLX5_CALLS(ORIEL_DETAIL_MEMBER)
#undef ORIEL_DETAIL_MEMBER
};

/// Result of loading the libraries.
struct VerbsLibrary {
  VerbsTable table;
  std::string missing;  ///< why they cannot be used, and the package that has them; else empty
};

/// Loads libibverbs.so.1 and libmlx5.so.1 at the first call and keeps them. Thread-safe.
const VerbsLibrary& verbs_library();

/// Replaces verbs_library() in tests, while it exists. `library` outlives what is made with it. One
/// at a time.
class ScopedVerbsLibrary {
 public:
  explicit ScopedVerbsLibrary(const VerbsLibrary& library);
  ~ScopedVerbsLibrary();
  ScopedVerbsLibrary(const ScopedVerbsLibrary&) = delete;
  ScopedVerbsLibrary& operator=(const ScopedVerbsLibrary&) = delete;
};

/// Loads the libraries from these files. Tests name other files than verbs_library() does.
VerbsLibrary load_verbs(const char* ibverbs, const char* mlx5);

}  // namespace oriel::net

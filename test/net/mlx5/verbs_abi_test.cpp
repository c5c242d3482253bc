// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include <catch2/catch.hpp>
#include <dlfcn.h>

#include "net/mlx5/verbs_table.hpp"
#include "net/queue/memory_keys.hpp"

// Compares our declarations with rdma-core's headers, if installed, and the symbols with the
// libraries, if present.
#if defined(ORIEL_HAVE_MLX5DV)
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#endif

using namespace oriel::net;

TEST_CASE("absent libraries are named with their package, and every call fails in order",
          "[req:3.11]") {
  const VerbsLibrary none = load_verbs("liboriel-has-no-such.so.1", "liboriel-nor-this.so.1");
  CHECK(none.missing.find("liboriel-has-no-such.so.1") != std::string::npos);
  CHECK(none.missing.find("libibverbs1") != std::string::npos);
  int count = 0;
  errno = 0;
  CHECK(none.table.get_device_list(&count) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  CHECK(none.table.close_device(nullptr) == EOPNOTSUPP);
  CHECK_FALSE(none.table.is_supported(nullptr));
  CHECK(none.table.alloc_uar(nullptr, 0) == nullptr);
  none.table.free_uar(nullptr);
}

TEST_CASE("the libraries of this machine have every symbol, if they are installed", "[req:3.11]") {
  const VerbsLibrary& here = verbs_library();
  if (!here.missing.empty()) {
    WARN("skipped: " << here.missing);
    return;
  }
  void* ibverbs = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  void* mlx5 = ::dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);
#define ORIEL_DETAIL_CHECK(member, symbol, result, parameters) \
  CHECK(reinterpret_cast<void*>(here.table.member) == ::dlsym(library, #symbol));
  void* library = ibverbs;
  ORIEL_IBVERBS_CALLS(ORIEL_DETAIL_CHECK)
  library = mlx5;
  ORIEL_MLX5_CALLS(ORIEL_DETAIL_CHECK)
#undef ORIEL_DETAIL_CHECK
}

#if defined(ORIEL_HAVE_MLX5DV)
#define ORIEL_SAME(ours, theirs, ours_member, theirs_member)             \
  CHECK(offsetof(ours, ours_member) == offsetof(theirs, theirs_member)); \
  CHECK(sizeof(ours::ours_member) == sizeof(theirs::theirs_member))

TEST_CASE("ports, GIDs, regions and paths are laid out as in rdma-core's headers", "[req:3.12]") {
  // Newer releases have further fields at the end; the exported ibv_query_port fills only the first
  // ones.
  CHECK(sizeof(VerbsPort) <= sizeof(ibv_port_attr));
  ORIEL_SAME(VerbsPort, ibv_port_attr, state, state);
  ORIEL_SAME(VerbsPort, ibv_port_attr, mtu, active_mtu);
  ORIEL_SAME(VerbsPort, ibv_port_attr, gid_count, gid_tbl_len);
  ORIEL_SAME(VerbsPort, ibv_port_attr, lid, lid);
  ORIEL_SAME(VerbsPort, ibv_port_attr, link_layer, link_layer);
  ORIEL_SAME(VerbsPort, ibv_port_attr, flags, flags);
  CHECK(sizeof(VerbsGid) == sizeof(ibv_gid_entry));
  ORIEL_SAME(VerbsGid, ibv_gid_entry, bytes, gid);
  ORIEL_SAME(VerbsGid, ibv_gid_entry, index, gid_index);
  ORIEL_SAME(VerbsGid, ibv_gid_entry, port, port_num);
  ORIEL_SAME(VerbsGid, ibv_gid_entry, type, gid_type);
  CHECK(sizeof(VerbsRegion) == sizeof(ibv_mr));
  ORIEL_SAME(VerbsRegion, ibv_mr, lkey, lkey);
  ORIEL_SAME(VerbsRegion, ibv_mr, rkey, rkey);
  CHECK(sizeof(VerbsPath) == sizeof(ibv_ah_attr));
  CHECK(offsetof(VerbsPath, gid) == offsetof(ibv_ah_attr, grh.dgid));
  CHECK(offsetof(VerbsPath, flow_label) == offsetof(ibv_ah_attr, grh.flow_label));
  CHECK(offsetof(VerbsPath, own_gid_index) == offsetof(ibv_ah_attr, grh.sgid_index));
  CHECK(offsetof(VerbsPath, hop_limit) == offsetof(ibv_ah_attr, grh.hop_limit));
  CHECK(offsetof(VerbsPath, traffic_class) == offsetof(ibv_ah_attr, grh.traffic_class));
  ORIEL_SAME(VerbsPath, ibv_ah_attr, lid, dlid);
  ORIEL_SAME(VerbsPath, ibv_ah_attr, service_level, sl);
  ORIEL_SAME(VerbsPath, ibv_ah_attr, is_global, is_global);
  ORIEL_SAME(VerbsPath, ibv_ah_attr, port, port_num);
}

TEST_CASE("structures of libmlx5 are laid out as in rdma-core's headers", "[req:3.12]") {
  CHECK(sizeof(Mlx5ContextOptions) == sizeof(mlx5dv_context_attr));
  ORIEL_SAME(Mlx5ContextOptions, mlx5dv_context_attr, flags, flags);
  CHECK(sizeof(Mlx5Umem) == sizeof(mlx5dv_devx_umem));
  CHECK(sizeof(Mlx5UmemOptions) == sizeof(mlx5dv_devx_umem_in));
  ORIEL_SAME(Mlx5UmemOptions, mlx5dv_devx_umem_in, address, addr);
  ORIEL_SAME(Mlx5UmemOptions, mlx5dv_devx_umem_in, bytes, size);
  ORIEL_SAME(Mlx5UmemOptions, mlx5dv_devx_umem_in, access, access);
  ORIEL_SAME(Mlx5UmemOptions, mlx5dv_devx_umem_in, page_sizes, pgsz_bitmap);
  ORIEL_SAME(Mlx5UmemOptions, mlx5dv_devx_umem_in, mask, comp_mask);
  ORIEL_SAME(Mlx5UmemOptions, mlx5dv_devx_umem_in, descriptor, dmabuf_fd);
  CHECK(sizeof(Mlx5Uar) == sizeof(mlx5dv_devx_uar));
  ORIEL_SAME(Mlx5Uar, mlx5dv_devx_uar, doorbell, reg_addr);
  ORIEL_SAME(Mlx5Uar, mlx5dv_devx_uar, page_number, page_id);
  CHECK(sizeof(Mlx5AddressVector) == sizeof(mlx5_wqe_av));
  ORIEL_SAME(Mlx5AddressVector, mlx5_wqe_av, link_address, rmac);
  ORIEL_SAME(Mlx5AddressVector, mlx5_wqe_av, gid, rgid);
  CHECK(sizeof(Mlx5Details) == sizeof(mlx5dv_obj));
  CHECK(offsetof(Mlx5Details, address.in) == offsetof(mlx5dv_obj, ah.in));
  CHECK(offsetof(Mlx5Details, address.out) == offsetof(mlx5dv_obj, ah.out));
  CHECK(offsetof(Mlx5Details, domain.in) == offsetof(mlx5dv_obj, pd.in));
  CHECK(offsetof(Mlx5Details, domain.out) == offsetof(mlx5dv_obj, pd.out));
  CHECK(offsetof(Mlx5AddressDetails, vector) == offsetof(mlx5dv_ah, av));
  CHECK(sizeof(Mlx5AddressDetails) == sizeof(mlx5dv_ah));
  ORIEL_SAME(Mlx5DomainNumber, mlx5dv_pd, number, pdn);
  CHECK(sizeof(Mlx5DomainNumber) == sizeof(mlx5dv_pd));
}

TEST_CASE("numbers of the ABI are those of rdma-core's headers", "[req:3.12]") {
  CHECK(VerbsConstants::kPortActive == IBV_PORT_ACTIVE);
  CHECK(VerbsConstants::kInfiniband == IBV_LINK_LAYER_INFINIBAND);
  CHECK(VerbsConstants::kEthernet == IBV_LINK_LAYER_ETHERNET);
  CHECK(VerbsConstants::kPortNeedsGlobalRoute == IBV_QPF_GRH_REQUIRED);
  CHECK(VerbsConstants::infiniband == static_cast<unsigned>(IBV_GID_TYPE_IB));
  CHECK(VerbsConstants::roce_v1 == static_cast<unsigned>(IBV_GID_TYPE_ROCE_V1));
  CHECK(VerbsConstants::roce_v2 == static_cast<unsigned>(IBV_GID_TYPE_ROCE_V2));
  CHECK(VerbsConstants::kDevx == MLX5DV_CONTEXT_FLAGS_DEVX);
  CHECK(VerbsConstants::kUmemOfDmabuf == MLX5DV_UMEM_MASK_DMABUF);
  CHECK(VerbsConstants::kUarBlueFlame == MLX5DV_UAR_ALLOC_TYPE_BF);
  CHECK(VerbsConstants::kUarNotCached == MLX5DV_UAR_ALLOC_TYPE_NC);
  CHECK(VerbsConstants::kAddressDetails == MLX5DV_OBJ_AH);
  CHECK(VerbsConstants::kDomainDetails == MLX5DV_OBJ_PD);
  CHECK(int{kLocalWrite} == IBV_ACCESS_LOCAL_WRITE);
  CHECK(int{kRemoteWrite} == IBV_ACCESS_REMOTE_WRITE);
  CHECK(int{kRemoteRead} == IBV_ACCESS_REMOTE_READ);
  CHECK(int{kRemoteAtomic} == IBV_ACCESS_REMOTE_ATOMIC);
}
#endif

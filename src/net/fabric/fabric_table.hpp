// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/// libfabric, loaded at run time: hosts without it run Oriel. Its header is needed to build this
/// part of the room, and without it the part is left out (wire_fabric_absent.cpp).
namespace oriel::net {

/// What the library exports. X(symbol), all with the prototypes of <rdma/fabric.h>
#define ORIEL_FABRIC_EXPORTS(X) \
  X(fi_version)                 \
  X(fi_getinfo)                 \
  X(fi_freeinfo)                \
  X(fi_dupinfo)                 \
  X(fi_fabric)                  \
  X(fi_strerror)

/// What its headers define, over pointers that its objects carry.
#define ORIEL_FABRIC_INLINES(X) \
  X(fi_close)                   \
  X(fi_domain)                  \
  X(fi_endpoint)                \
  X(fi_av_open)                 \
  X(fi_av_insert)               \
  X(fi_cq_open)                 \
  X(fi_cq_read)                 \
  X(fi_cq_readerr)              \
  X(fi_cq_strerror)             \
  X(fi_control)                 \
  X(fi_trywait)                 \
  X(fi_ep_bind)                 \
  X(fi_enable)                  \
  X(fi_getname)                 \
  X(fi_mr_reg)                  \
  X(fi_mr_desc)                 \
  X(fi_mr_key)                  \
  X(fi_recv)                    \
  X(fi_read)                    \
  X(fi_sendmsg)

/// The calls behind pointers that a test replaces; both kinds, so that each can be made to fail.
struct FabricTable {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration has no place for them
#define ORIEL_DETAIL_MEMBER(symbol) decltype(&::symbol) symbol;
  ORIEL_FABRIC_EXPORTS(ORIEL_DETAIL_MEMBER)
  ORIEL_FABRIC_INLINES(ORIEL_DETAIL_MEMBER)
#undef ORIEL_DETAIL_MEMBER
};

/// What came of loading the library.
struct FabricLibrary {
  FabricTable table;
  std::string missing;  ///< why it cannot be used, and then no entry may be called; else empty
};

/// The oldest version whose interface has been tried.
inline constexpr unsigned kFabricVersionLeast = FI_VERSION(1, 17);

/// The version of the interface that calls ask for: that of the headers, or the library's own if
/// that is older.
unsigned fabric_version(const FabricTable& table);

/// Loads `name` and looks at its version. Handlers of signals that come with it (those of PSM's
/// libraries, on which Debian's libfabric depends) are taken off again.
FabricLibrary load_fabric_library(const char* name);

/// libfabric.so.1, loaded at the first call and kept. Thread-safe.
const FabricLibrary& fabric_library();

/// For tests: while it exists, wires that are made without a table of their own have this one,
/// which outlives them. One at a time.
class ScopedFabricTable {
 public:
  explicit ScopedFabricTable(const FabricTable& table);
  ~ScopedFabricTable();
  ScopedFabricTable(const ScopedFabricTable&) = delete;
  ScopedFabricTable& operator=(const ScopedFabricTable&) = delete;
};

/// That table; null as a rule. Thread-safe.
const FabricTable* fabric_stand_in();

}  // namespace oriel::net

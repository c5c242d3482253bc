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

/// libfabric, loaded at run time, so that Oriel runs on hosts without it. Its header is needed to
/// build this part; without the header wire_fabric_absent.cpp takes its place.
namespace oriel::net {

/// Functions that the library exports: X(symbol), with the prototypes of libfabric's headers.
#define ORIEL_FABRIC_EXPORTS(X) \
  X(fi_version)                 \
  X(fi_getinfo)                 \
  X(fi_freeinfo)                \
  X(fi_dupinfo)                 \
  X(fi_fabric)                  \
  X(fi_strerror)

/// Inline functions of libfabric's headers, which call through function pointers in its objects.
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

/// Table of libfabric's functions. It has the exported and the inline ones, so that a test can make
/// each fail.
struct FabricTable {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration has no place for them
#define ORIEL_DETAIL_MEMBER(symbol) decltype(&::symbol) symbol;
  ORIEL_FABRIC_EXPORTS(ORIEL_DETAIL_MEMBER)
  ORIEL_FABRIC_INLINES(ORIEL_DETAIL_MEMBER)
#undef ORIEL_DETAIL_MEMBER
};

/// Result of loading the library.
struct FabricLibrary {
  FabricTable table;
  std::string missing;  ///< why it cannot be used: no entry may be called then; else empty
};

/// Oldest version whose interface has been tried.
inline constexpr unsigned kFabricVersionLeast = FI_VERSION(1, 17);

/// Returns the interface version that calls request: the headers' version, or the library's if
/// older.
unsigned fabric_version(const FabricTable& table);

/// Loads `name` and checks its version. Removes signal handlers that are installed meanwhile: PSM's
/// libraries, on which Debian's libfabric depends, install some.
FabricLibrary load_fabric_library(const char* name);

/// Returns libfabric.so.1, loaded at the first call and kept. Thread-safe.
const FabricLibrary& fabric_library();

/// Replaces libfabric in tests: while it exists, wires that are made without a table use this one.
/// The table outlives those wires. One at a time.
class ScopedFabricTable {
 public:
  explicit ScopedFabricTable(const FabricTable& table);
  ~ScopedFabricTable();
  ScopedFabricTable(const ScopedFabricTable&) = delete;
  ScopedFabricTable& operator=(const ScopedFabricTable&) = delete;
};

/// Returns the table of the ScopedFabricTable; usually null. Thread-safe.
const FabricTable* fabric_stand_in();

}  // namespace oriel::net

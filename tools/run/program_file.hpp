// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace oriel::run {

/// An executable, and how it is bound to NCCL.
struct ProgramFile {
  enum class Nccl {
    loaded,        ///< no sign of static linking: the loader binds NCCL
    linked_in,     ///< the executable defines ncclAllReduce
    maybe,         ///< no symbol table, but names of NCCL's kernels: probably linked in
    beyond_reach,  ///< static executable without a loader: nothing can be preloaded
    more_rights    ///< changes its user or group: the loader ignores LD_PRELOAD and LD_AUDIT
  };
  std::string path;  ///< path of the executable; for a script, of its interpreter
  Nccl nccl = Nccl::loaded;
};

/// Finds `command` as execvp() does and reads the executable. If the file cannot be read or is not
/// a 64-bit ELF file, returns `loaded`: starting the program gives the better error.
ProgramFile read_program_file(const std::string& command);

/// Returns a warning if the program's calls cannot reach Oriel; empty for `loaded`.
std::string preload_warning(const ProgramFile& file);

}  // namespace oriel::run

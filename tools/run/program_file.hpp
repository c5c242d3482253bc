// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace oriel::run {

/// What the file of a program says about the NCCL that it calls.
struct ProgramFile {
  enum class Nccl {
    loaded,        ///< left to the loader, as far as the file shows
    linked_in,     ///< ncclAllReduce is part of the executable
    maybe,         ///< no symbol table, but names of NCCL's kernels: probably linked in
    beyond_reach,  ///< the executable has no loader, so that nothing can be preloaded
    more_rights    ///< set-user-ID or set-group-ID: the loader ignores LD_PRELOAD and LD_AUDIT
  };
  std::string path;  ///< of the executable; of a script, its interpreter's
  Nccl nccl = Nccl::loaded;
};

/// Finds `command` as execvp() would, and reads the executable. A file that cannot be read or is no
/// program of this machine counts as `loaded`: starting it gives the better error.
ProgramFile read_program_file(const std::string& command);

/// The warning for a user who wants the program's calls to reach Oriel; empty if there is none.
std::string preload_warning(const ProgramFile& file);

}  // namespace oriel::run

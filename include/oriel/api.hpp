// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Exports a symbol of the shared library to C++ callers. NCCL's C functions and their oriel_nccl
/// twins are exported too. All other symbols are hidden, so neither Oriel's names nor those of
/// libraries linked into it can clash with a program's own.
/// Example:
/// ```cpp
/// namespace oriel::example {
/// ORIEL_API int visible();  // programs can call this function
/// int hidden();             // only the library's own code can call this one
/// }  // namespace oriel::example
/// ```
#define ORIEL_API [[gnu::visibility("default")]]

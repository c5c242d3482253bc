/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* library_user LIBRARY: opens a library that uses NCCL, as Python opens an extension module, and
   runs the client in it. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  void* library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  int (*client)(void) = library != NULL ? (int (*)(void))dlsym(library, "client_main") : NULL;
  if (client == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  return client();
}

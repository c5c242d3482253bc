/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* opener local:PATH|global:PATH...: opens libraries in this order. Prints for each library, and
   then for the whole process, the version from ncclGetVersion and the file that defines
   ncclAllReduce. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void show(const char* what, void* handle) {
  Dl_info place = {0};
  int version = 0;
  int (*get_version)(int*) = (int (*)(int*))dlsym(handle, "ncclGetVersion");
  void* all_reduce = dlsym(handle, "ncclAllReduce");
  if (get_version != NULL) get_version(&version);
  if (all_reduce != NULL) dladdr(all_reduce, &place);
  printf("%s: %d %s\n", what, version, place.dli_fname != NULL ? place.dli_fname : "nothing");
}

int main(int argc, char** argv) {
  void* handles[8] = {0};
  for (int i = 1; i < argc && i < 8; ++i) {
    const char* path = strchr(argv[i], ':') + 1;
    const int scope = strncmp(argv[i], "global:", 7) == 0 ? RTLD_GLOBAL : RTLD_LOCAL;
    handles[i] = dlopen(path, RTLD_NOW | scope);
    if (handles[i] == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
  }
  for (int i = 1; i < argc && i < 8; ++i) show(argv[i], handles[i]);
  show("process", RTLD_DEFAULT);
  return 0;
}

// SPDX-License-Identifier: Apache-2.0

// lookup prints the addresses that the C library's getaddrinfo finds for each argument, one line per name.

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    struct addrinfo hints, *list, *a;
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    printf("%s", argv[i]);
    int code = getaddrinfo(argv[i], "80", &hints, &list);
    if (code != 0) {
      printf(" %s\n", code == EAI_NONAME ? "no such name" : gai_strerror(code));
      continue;
    }
    for (a = list; a; a = a->ai_next) {
      char text[INET6_ADDRSTRLEN];
      void *address = a->ai_family == AF_INET ? (void *)&((struct sockaddr_in *)a->ai_addr)->sin_addr
                                              : (void *)&((struct sockaddr_in6 *)a->ai_addr)->sin6_addr;
      printf(" %s", inet_ntop(a->ai_family, address, text, sizeof text));
    }
    printf("\n");
    freeaddrinfo(list);
  }
  return 0;
}

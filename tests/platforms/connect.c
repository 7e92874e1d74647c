/* Asks a host for / and prints its answer, by the resolver of the C library it is built with. */
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **words) {
  struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM};
  int failed = count != 3 ? EAI_NONAME : getaddrinfo(words[1], words[2], &hints, &found);
  if (failed) {
    fprintf(stderr, "%s\n", gai_strerror(failed));
    return 1;
  }
  for (; found; found = found->ai_next) {
    int one = socket(found->ai_family, SOCK_STREAM, 0);
    if (one < 0 || connect(one, found->ai_addr, found->ai_addrlen) < 0) {
      perror(words[1]);
      continue;
    }
    dprintf(one, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", words[1]);
    char text[4096];
    for (ssize_t length; (length = read(one, text, sizeof text)) > 0;)
      fwrite(text, 1, length, stdout);
    return 0;
  }
  return 1;
}

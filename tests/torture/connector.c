/* In place of Python: hands stdin, stdout, stderr and the arguments to runtime_server.py and waits for its process.
 *
 * TFB_RUNTIME_SERVER names the server's socket. The exit status is 0 when the runtime's process has ended.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int count, char **words)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("TFB_RUNTIME_SERVER");
    char text[4096] = "", fds[CMSG_SPACE(3 * sizeof(int))] = "";
    for (int i = 1; i < count; ++i) {
        if (strlen(text) + strlen(words[i]) + 2 > sizeof text) return 2;
        strcat(strcat(text, words[i]), "\n");
    }
    int server = socket(AF_UNIX, SOCK_STREAM, 0);
    if (!path || strlen(path) >= sizeof address.sun_path) return 2;
    strcpy(address.sun_path, path);
    if (connect(server, (struct sockaddr *)&address, sizeof address)) return 2;
    struct iovec part = {text, strlen(text)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = fds, .msg_controllen = sizeof fds};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(3 * sizeof(int));
    memcpy(CMSG_DATA(header), (int[]){0, 1, 2}, 3 * sizeof(int));
    if (sendmsg(server, &message, 0) < 0) return 2;
    close(0), close(1), close(2);
    return recv(server, text, 1, 0) < 0 ? 2 : 0; /* the end of the runtime's process closes the socket */
}

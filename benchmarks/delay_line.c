/*
 * delay_line NANOSECONDS NAMESPACE...
 *
 * A wire between network namespaces that holds every packet for so long, and nothing else: order is
 * kept, nothing is lost, there is no limit to the rate. It makes the interface `wire` (layer 3) in
 * each NAMESPACE, which is the path of one; a packet goes to the namespace that the last byte of its
 * IPv4 destination numbers, from 1. It says "ready" when all interfaces are there.
 *
 * Large segments pass whole and without checksums, as between a virtual machine and its host, so that
 * a packet costs two system calls and one wake-up or less. A packet that cannot be delivered ends the
 * program: a measurement with losses would not be the one that was asked for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define NAMESPACES_MAX 16
#define PACKET_MAX (65536 + sizeof(struct virtio_net_hdr))
#define DESTINATION (sizeof(struct virtio_net_hdr) + 19) /* the last byte of the IPv4 destination */

struct packet {
    struct packet *next;
    int64_t due;
    int target;
    size_t length;
    unsigned char bytes[];
};

static struct pollfd ends[NAMESPACES_MAX];
static int count;
/* In the order of arrival, which is the order of `due`: all wait equally long. */
static struct packet *first, **last = &first;

static void check(int64_t result, const char *what)
{
    if (result < 0) {
        perror(what);
        exit(1);
    }
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int open_end(const char *namespace_path)
{
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR, .ifr_name = "wire"};

    int namespace = open(namespace_path, O_RDONLY | O_CLOEXEC);
    check(namespace, namespace_path);
    check(setns(namespace, CLONE_NEWNET), "setns");
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    check(fd, "/dev/net/tun");
    check(ioctl(fd, TUNSETIFF, &request), "TUNSETIFF");
    check(ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4), "TUNSETOFFLOAD");
    close(namespace);
    return fd;
}

/* Take all that `fd` has. What is not IPv4 to one of us is noise of the kernel: multicast, IPv6. */
static void take(int fd, int64_t due)
{
    static unsigned char bytes[PACKET_MAX];
    ssize_t length;

    while ((length = read(fd, bytes, sizeof bytes)) > 0) {
        int is_ipv4 = length > (ssize_t) DESTINATION && bytes[DESTINATION - 19] >> 4 == 4;
        int target = is_ipv4 ? bytes[DESTINATION] - 1 : -1;
        if (target < 0 || target >= count)
            continue;
        struct packet *packet = malloc(sizeof *packet + length);
        check(packet == NULL ? -1 : 0, "malloc");
        packet->next = NULL;
        packet->due = due;
        packet->target = ends[target].fd;
        packet->length = length;
        memcpy(packet->bytes, bytes, length);
        *last = packet;
        last = &packet->next;
    }
    if (length < 0 && errno != EAGAIN)
        check(length, "read");
}

static void deliver(int64_t until)
{
    while (first != NULL && first->due <= until) {
        struct packet *packet = first;
        check(write(packet->target, packet->bytes, packet->length), "write");
        first = packet->next;
        if (first == NULL)
            last = &first;
        free(packet);
    }
}

static void wait_for_packets(void)
{
    struct timespec timeout = {0, 0};

    if (first != NULL) {
        int64_t left = first->due - now();
        if (left > 0)
            timeout = (struct timespec){left / 1000000000, left % 1000000000};
    }
    check(ppoll(ends, count, first == NULL ? NULL : &timeout, NULL), "ppoll");
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc - 2 > NAMESPACES_MAX) {
        fprintf(stderr, "usage: %s NANOSECONDS NAMESPACE...\n", argv[0]);
        return 2;
    }
    int64_t delay = atoll(argv[1]);
    for (count = 0; count < argc - 2; count++)
        ends[count] = (struct pollfd){.fd = open_end(argv[count + 2]), .events = POLLIN};
    /* On time, as netem is, which runs in the kernel's interrupts. */
    check(prctl(PR_SET_TIMERSLACK, 1), "PR_SET_TIMERSLACK");
    check(sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1}),
          "SCHED_FIFO");
    puts("ready");
    fflush(stdout);
    for (;;) {
        wait_for_packets();
        int64_t due = now() + delay;
        for (int i = 0; i < count; i++)
            if (ends[i].revents != 0)
                take(ends[i].fd, due);
        deliver(now());
    }
}

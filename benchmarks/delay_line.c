/*
 * delay_line NANOSECONDS INTERFACE...
 *
 * A switch for Ethernet that holds every packet for so long, counted from its arrival, and forwards
 * it to the interface that the last byte of its destination numbers, from 1; multicasts to all
 * others. It keeps the order of each interface. It says "ready" when it listens on all of them.
 *
 * It must cost little, for what it uses is not there for those who are measured. The kernel notes
 * the time of arrival, so the program wakes when the next packet is due, and not when one comes.
 * A packet waits where the kernel has put it and is sent from there; large segments pass whole and
 * without checksums, as through any virtual network card.
 *
 * A packet lost ends the program: a measurement with losses is not the one that was asked for.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#define PORTS_MAX 16
#define FRAMES 128           /* of one interface, that wait at the same time */
#define FRAME_BYTES (1 << 17) /* a large segment has 64 KiB and headers */
#define SECOND 1000000000LL

struct port {
    unsigned char *ring;
    int head; /* the frame that comes next, or has waited longest */
};

static struct port ports[PORTS_MAX];
static struct pollfd sockets[PORTS_MAX];
static int count;

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
    clock_gettime(CLOCK_REALTIME, &time); /* the clock of the times of arrival */
    return time.tv_sec * SECOND + time.tv_nsec;
}

static void set(int fd, int option, const void *value, socklen_t size, const char *what)
{
    check(setsockopt(fd, SOL_PACKET, option, value, size), what);
}

static void open_port(int number, const char *interface)
{
    struct tpacket_req request = {FRAME_BYTES, FRAMES, FRAME_BYTES, FRAMES};
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    int on = 1, version = TPACKET_V2;

    int fd = socket(AF_PACKET, SOCK_RAW, 0);
    check(fd, "socket");
    set(fd, PACKET_VERSION, &version, sizeof version, "PACKET_VERSION");
    set(fd, PACKET_VNET_HDR, &on, sizeof on, "PACKET_VNET_HDR");
    set(fd, PACKET_IGNORE_OUTGOING, &on, sizeof on, "PACKET_IGNORE_OUTGOING");
    set(fd, PACKET_RX_RING, &request, sizeof request, "PACKET_RX_RING");
    void *ring = mmap(NULL, (size_t) FRAMES * FRAME_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(ring == MAP_FAILED ? -1 : 0, "mmap");
    address.sll_ifindex = if_nametoindex(interface);
    check(bind(fd, (struct sockaddr *) &address, sizeof address), interface);
    ports[number] = (struct port){ring, 0};
    sockets[number] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void forward(int source, struct tpacket2_hdr *header)
{
    const unsigned char *packet = (unsigned char *) header + header->tp_mac;
    int is_multicast = packet[0] & 1;

    for (int i = 0; i < count; i++)
        if (i != source && (is_multicast || i == packet[ETH_ALEN - 1] - 1)) {
            size_t before = sizeof(struct virtio_net_hdr);
            ssize_t sent = send(sockets[i].fd, packet - before, before + header->tp_snaplen, 0);
            check(sent, "send");
        }
}

/* Forwards what is due, and returns when the next packet is, or INT64_MAX. */
static int64_t serve(int number, int64_t delay)
{
    struct port *port = &ports[number];

    for (;;) {
        struct tpacket2_hdr *header = (void *) (port->ring + (size_t) port->head * FRAME_BYTES);
        uint32_t status = __atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE);
        if (!(status & TP_STATUS_USER))
            return INT64_MAX;
        if (status & TP_STATUS_LOSING || header->tp_snaplen < header->tp_len) {
            fputs("a packet is lost: too many wait\n", stderr);
            exit(1);
        }
        int64_t due = header->tp_sec * SECOND + header->tp_nsec + delay;
        if (due > now())
            return due;
        forward(number, header);
        __atomic_store_n(&header->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        port->head = (port->head + 1) % FRAMES;
    }
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc - 2 > PORTS_MAX) {
        fprintf(stderr, "usage: %s NANOSECONDS INTERFACE...\n", argv[0]);
        return 2;
    }
    int64_t delay = atoll(argv[1]);
    for (count = 0; count < argc - 2; count++)
        open_port(count, argv[count + 2]);
    /* On time, as netem is, which runs in the kernel's interrupts. */
    check(sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1}),
          "SCHED_FIFO");
    puts("ready");
    fflush(stdout);
    for (;;) {
        int64_t next = INT64_MAX;
        for (int i = 0; i < count; i++) {
            int64_t due = serve(i, delay);
            next = due < next ? due : next;
        }
        if (next == INT64_MAX)
            check(poll(sockets, count, -1), "poll");
        else
            clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME,
                            &(struct timespec){next / SECOND, next % SECOND}, NULL);
    }
}

/*
 * delay_line LINKS INTERFACE...
 *
 * A switch for Ethernet that holds every packet for the delay of its link, counted from its
 * arrival. It forwards the packet to the interface whose number, from 1, is the last byte of its
 * destination; multicasts go to all others. It keeps the order of each link. It prints "ready" when
 * it listens on all interfaces.
 *
 * LINKS is a file of `struct link`s in the format of this machine: from the first interface to the
 * first, the second and so on, then from the second. It is mapped into memory, so a write to it
 * changes the network at once, also for packets in transit. A link that loses all packets is cut.
 *
 * It must use little CPU time, which the measured processes lack. The kernel records the time of
 * arrival. So the program wakes when the next packet is due, not when one arrives; or after the
 * least delay of all links, because a packet that arrives now on that link may be due first. A
 * packet waits where the kernel has put it and is sent from there. Large segments pass whole and
 * without checksums, as through any virtual network card.
 *
 * If a packet is lost for another reason than its link's loss, the program ends, because such a
 * measurement is invalid.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
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
#include <sys/stat.h>
#include <time.h>

#define PORTS_MAX 16
#define FRAMES 512           /* of one interface, that can wait at the same time: 64 MiB */
#define FRAME_BYTES (1 << 17) /* a large segment has 64 KiB and headers */
#define SECOND 1000000000LL
#define MILLION 1000000

struct link {
    int64_t delay_ns;
    int64_t lost_per_million;
};

struct port {
    unsigned char *ring;
    int head;                 /* the frame that has waited longest, or the next one */
    int waiting;              /* the number of known frames from there on */
    uint16_t pending[FRAMES]; /* the remaining destinations of each, one bit per interface */
};

static struct port ports[PORTS_MAX];
static struct pollfd sockets[PORTS_MAX];
static int count;
static const volatile struct link *links;

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
    clock_gettime(CLOCK_REALTIME, &time); /* the clock of arrival times */
    return time.tv_sec * SECOND + time.tv_nsec;
}

static int64_t minimum(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

static void set(int fd, int option, const void *value, socklen_t size, const char *what)
{
    check(setsockopt(fd, SOL_PACKET, option, value, size), what);
}

static void *map(int fd, size_t size, int protection)
{
    void *memory = mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    check(memory == MAP_FAILED ? -1 : 0, "mmap");
    return memory;
}

static void open_links(const char *path)
{
    size_t size = (size_t) count * count * sizeof(struct link);
    struct stat file;

    int fd = open(path, O_RDONLY);
    check(fd, path);
    check(fstat(fd, &file), path);
    if ((size_t) file.st_size != size) {
        fprintf(stderr, "%s: expected %zu bytes, got %zu\n", path, size, (size_t) file.st_size);
        exit(2);
    }
    links = map(fd, size, PROT_READ);
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
    ports[number].ring = map(fd, (size_t) FRAMES * FRAME_BYTES, PROT_READ | PROT_WRITE);
    address.sll_ifindex = if_nametoindex(interface);
    check(bind(fd, (struct sockaddr *) &address, sizeof address), interface);
    sockets[number] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static const unsigned char *packet_of(const struct tpacket2_hdr *header)
{
    return (const unsigned char *) header + header->tp_mac;
}

/* One bit for each interface to which the packet goes. */
static uint16_t destinations(int source, const struct tpacket2_hdr *header)
{
    const unsigned char *packet = packet_of(header);
    int is_multicast = packet[0] & 1, number = packet[ETH_ALEN - 1] - 1;
    uint16_t all = (1 << count) - 1;

    if (!is_multicast && (number < 0 || number >= count))
        return 0;
    return (is_multicast ? all : 1 << number) & ~(1 << source);
}

static void deliver(const struct tpacket2_hdr *header, const volatile struct link *link, int to)
{
    size_t before = sizeof(struct virtio_net_hdr);

    if (link->lost_per_million > 0 && lrand48() % MILLION < link->lost_per_million)
        return;
    check(send(sockets[to].fd, packet_of(header) - before, before + header->tp_snaplen, 0), "send");
}

/* Sends the packet where it is due. Returns when it is due next, or INT64_MAX. */
static int64_t forward(int source, const struct tpacket2_hdr *header, uint16_t *pending)
{
    int64_t arrived = header->tp_sec * SECOND + header->tp_nsec, next = INT64_MAX;

    for (int to = 0; to < count && *pending; to++)
        if (*pending & 1 << to) {
            const volatile struct link *link = &links[source * count + to];
            int64_t due = arrived + link->delay_ns;
            if (due > now())
                next = minimum(next, due);
            else {
                deliver(header, link, to);
                *pending &= ~(1 << to);
            }
        }
    return next;
}

static struct tpacket2_hdr *frame(const struct port *port, int number)
{
    return (void *) (port->ring + (size_t) number * FRAME_BYTES);
}

/* Forwards what is due. Returns when the next packet is due, or INT64_MAX. */
static int64_t serve(int source)
{
    struct port *port = &ports[source];
    int64_t next = INT64_MAX;

    for (int i = 0; i < FRAMES; i++) {
        int number = (port->head + i) % FRAMES;
        struct tpacket2_hdr *header = frame(port, number);
        uint32_t status = __atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE);
        if (!(status & TP_STATUS_USER))
            break;
        if (status & TP_STATUS_LOSING || header->tp_snaplen < header->tp_len) {
            fputs("a packet was lost: too many are waiting\n", stderr);
            exit(1);
        }
        if (i == port->waiting) {
            port->pending[number] = destinations(source, header);
            port->waiting++;
        }
        next = minimum(next, forward(source, header, &port->pending[number]));
    }
    while (port->waiting > 0 && !port->pending[port->head]) {
        __atomic_store_n(&frame(port, port->head)->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        port->head = (port->head + 1) % FRAMES;
        port->waiting--;
    }
    return next;
}

static int64_t least_delay(void)
{
    int64_t least = INT64_MAX;

    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++)
            if (i != j)
                least = minimum(least, links[i * count + j].delay_ns);
    return least;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc - 2 > PORTS_MAX) {
        fprintf(stderr, "usage: %s LINKS INTERFACE...\n", argv[0]);
        return 2;
    }
    count = argc - 2;
    open_links(argv[1]);
    for (int i = 0; i < count; i++)
        open_port(i, argv[i + 2]);
    /* Real-time priority: netem is as punctual, because it runs in the kernel's interrupts. */
    check(sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1}),
          "SCHED_FIFO");
    puts("ready");
    fflush(stdout);
    for (;;) {
        int64_t begun = now(), next = INT64_MAX;
        for (int i = 0; i < count; i++)
            next = minimum(next, serve(i));
        if (next == INT64_MAX) {
            check(poll(sockets, count, -1), "poll");
            continue;
        }
        next = minimum(next, begun + least_delay());
        clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME,
                        &(struct timespec){next / SECOND, next % SECOND}, NULL);
    }
}

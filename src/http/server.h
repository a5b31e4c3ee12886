/* http/server.h: what the files of http/ share. Private to the folder.
 *
 *   server.c   start, stop
 *   listen.c   the listening sockets, each with a libmicrohttpd daemon
 *   conn.c     the list of connections, and the watchdog that closes those that keep us waiting
 *   request.c  one request from its request line to its end: libmicrohttpd's callbacks, the checks, what handlers ask
 *   reply.c    headers, fixed and streamed responses, error bodies, the log line
 *
 * One thread a connection runs everything of that connection; the listener thread opens and closes them; the watchdog
 * only ever calls shutdown() on a socket. libmicrohttpd's own idle timeout is off: in 0.9.75 its poll() spins through
 * the last second of it, and it also counts the time a handler takes.
 */
#ifndef KV_HTTP_SERVER_H
#define KV_HTTP_SERVER_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/clock.h"
#include "http/auth.h"
#include "http/http.h"
#include "http/inflate.h"

#define KV_CONN_NEVER INT64_MAX /* no deadline */

typedef struct kv_conn {
    struct kv_conn *prev, *next; /* in kv_http.conns */
    kv_http *http;
    int fd;             /* borrowed from libmicrohttpd: open for as long as the conn is in the list */
    bool loopback;      /* the peer is on this machine */
    bool over_limit;    /* was let in only to be told 503 */
    bool idle;          /* no request line yet; guarded by kv_http.mutex, as are the next two */
    int64_t idle_since; /* microseconds; may lie ahead: not to be cut before */
    int64_t deadline;   /* microseconds on kv_clock_real; then the watchdog closes it */
} kv_conn;

typedef struct kv_listener {
    kv_http *http;
    struct MHD_Daemon *daemon;
    int fd;                 /* libmicrohttpd's until quiesced; -1 when closed */
    char *address;          /* owned: "http://127.0.0.1:8080", "unix:/run/k.sock" */
    bool local;             /* a UNIX socket */
    char *socket_path;      /* owned; NULL: TCP, or removed already */
    uint64_t device, inode; /* of that file */
} kv_listener;

struct kv_http {
    kv_listener *listeners; /* owned, n_listeners of them */
    int n_listeners;
    int port;                 /* of the TCP listeners; 0 = there is none */
    kv_buf tls_key, tls_cert; /* PEM texts; empty = plain HTTP */
    bool started;             /* before, libmicrohttpd's words are kept in `trouble` */
    char trouble[200];
    kv_http_config cfg; /* strings and lists owned; not the TLS files' names */
    kv_keys keys;
    kv_wake stop; /* set once, by kv_http_stop */
    kv_wake tick; /* the watchdog has an earlier deadline to wait for */
    pthread_t watchdog;
    pthread_mutex_t mutex; /* guards the connections and next_deadline; a leaf */
    kv_conn *conns;
    int n_conns;           /* without those over the limit */
    int64_t next_deadline; /* what the watchdog waits for */
    _Atomic int in_flight;
    _Atomic bool stopping, quiesced;
};

/* listen.c */
kv_status kv_listen_open(kv_http *h, kv_error *err); /* of cfg.hosts; after a failure kv_listen_close cleans up */
void kv_listen_quiesce(kv_http *h);                  /* once: nobody can connect any more, socket files are gone */
void kv_listen_stop(kv_http *h);                     /* the daemons and their connections */
void kv_listen_close(kv_http *h);

/* conn.c */
kv_status kv_conn_watch_start(kv_http *h, kv_error *err);
void kv_conn_watch_join(kv_http *h); /* after h->stop was set */
void kv_conn_notify(void *listener, struct MHD_Connection *mhd, void **context,
                    enum MHD_ConnectionNotificationCode code);
/* The connection's thread tells what may take how long from now; seconds are those of idle_timeout_s plus `more_us`. */
void kv_conn_deadline(kv_conn *c, int64_t more_us);
void kv_conn_no_deadline(kv_conn *c); /* a handler is at work */
void kv_conn_idle(kv_conn *c);        /* waits for the next request */
/* Half-closes and reads away what the peer still sends, for a bounded time, so that it gets to read our answer:
 * closing a socket with unread bytes would reset the connection and drop the answer with it. */
void kv_conn_linger(kv_conn *c);

/* request.c */
typedef enum kv_stage {
    KV_STAGE_HEAD,    /* the request line is there, headers are being read */
    KV_STAGE_BODY,    /* headers passed or were refused; the body, if any, is being read */
    KV_STAGE_REPLIED, /* the response is libmicrohttpd's now */
} kv_stage;

struct kv_http_request {
    kv_http *http;
    kv_conn *conn;
    struct MHD_Connection *mhd;
    kv_stage stage;
    const char *method; /* borrowed from libmicrohttpd until the request ends */
    kv_buf path;
    kv_buf segment; /* of the path, for the route's "{}" */
    kv_buf body;
    kv_inflate *inflate; /* owned; while a packed body comes, else NULL */
    size_t received;     /* bytes of the body that came, packed or not */
    char id[132];        /* up to 128 and the NUL */
    int64_t started_us;
    const kv_http_route *route; /* the route of path and method; NULL when refused before */
    kv_http_error_body error_body;
    char allow[96];       /* methods of the path, for the Allow header; "" = unknown path */
    const char *origin;   /* the Origin header when it may see the answer, else NULL */
    bool head;            /* HEAD: no body is sent */
    bool close;           /* the connection must end with this request */
    bool has_unread_body; /* answered before all of the body was read */
    bool keyed;           /* keys are in use */
    kv_rights rights;     /* of the key that was sent */
    /* A request that does not get to its handler: status > 0, and err (or for OPTIONS an empty body). */
    int refused;
    kv_error err;
    kv_status path_status;
    /* the answer */
    kv_http_response res;
    int status;
    uint64_t bytes;
    kv_buf pending; /* of a stream: what next() gave and libmicrohttpd has not taken yet */
    size_t pending_at;
    bool hung_up;
};

void *kv_request_uri(void *http, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result kv_request_access(void *http, struct MHD_Connection *mhd, const char *url, const char *method,
                                  const char *version, const char *data, size_t *n_data, void **context);
void kv_request_completed(void *http, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode code);

/* reply.c */
/* Turn req->res into an error of `http_status`; err decides the body. */
void kv_reply_error(kv_http_request *req, int http_status, const kv_error *err);
enum MHD_Result kv_reply_send(kv_http_request *req); /* hands req->res to libmicrohttpd */
void kv_reply_raw(kv_http_request *req); /* writes it to the socket, where libmicrohttpd takes no response */
void kv_reply_log(const kv_http_request *req, enum MHD_RequestTerminationCode code);

#endif

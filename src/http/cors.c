#include "http/cors.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

/* "host:port", cut in two. An IPv6 literal keeps its brackets. */
typedef struct authority {
    const char *host, *port;
    size_t host_len, port_len; /* port_len 0 = no port */
} authority;

static bool parse_authority(authority *a, const char *s) {
    size_t n = *s == '[' ? strcspn(s, "]") + 1 : strcspn(s, ":");
    if (*s == '[' && s[n - 1] != ']') return false;
    *a = (authority){.host = s, .host_len = n};
    if (n == 0) return false;
    if (s[n] == '\0') return true;
    if (s[n] != ':') return false;
    a->port = s + n + 1;
    a->port_len = strspn(a->port, "0123456789");
    return a->port[a->port_len] == '\0' && a->port_len <= 5; /* "host:" is allowed by the grammar */
}

static bool same_text(const char *a, size_t n, const char *b) {
    return strlen(b) == n && strncasecmp(a, b, n) == 0;
}

static bool is_ip_literal(const authority *a) {
    char text[INET6_ADDRSTRLEN + 1];
    unsigned char address[16];
    bool six = a->host[0] == '[';
    const char *p = six ? a->host + 1 : a->host;
    size_t n = six ? a->host_len - 2 : a->host_len;
    const char *zone = six ? memchr(p, '%', n) : NULL; /* [fe80::1%25eth0] */
    if (zone) n = (size_t)(zone - p);
    if (n >= sizeof text) return false;
    memcpy(text, p, n);
    text[n] = '\0';
    return inet_pton(six ? AF_INET6 : AF_INET, text, address) == 1;
}

bool kv_host_allowed(const char *host, const char *const *names, int n) {
    authority a;
    if (!parse_authority(&a, host)) return false;
    if (is_ip_literal(&a)) return true;
    if (a.host_len > 1 && a.host[a.host_len - 1] == '.') a.host_len--; /* "localhost." is the same name */
    if (same_text(a.host, a.host_len, "localhost")) return true;
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], "*") == 0 || same_text(a.host, a.host_len, names[i])) return true;
    return false;
}

/* "http://host:port": false for "null", other schemes and anything with a path. */
static bool parse_origin(authority *a, bool *https, const char *origin) {
    *https = strncasecmp(origin, "https://", 8) == 0;
    if (!*https && strncasecmp(origin, "http://", 7) != 0) return false;
    return parse_authority(a, origin + (*https ? 8 : 7));
}

static bool is_local_origin(const char *origin) {
    authority a;
    bool https;
    if (!parse_origin(&a, &https, origin)) return false;
    return same_text(a.host, a.host_len, "localhost") || same_text(a.host, a.host_len, "127.0.0.1") ||
           same_text(a.host, a.host_len, "[::1]");
}

bool kv_origin_allowed(const char *config, const char *origin) {
    for (const char *p = config; *p;) {
        size_t n = strcspn(p, ",");
        const char *next = p + n + (p[n] == ',');
        while (n && isspace((unsigned char)*p)) p++, n--;
        while (n && (isspace((unsigned char)p[n - 1]) || p[n - 1] == '/'))
            n--; /* "https://a/" is meant as "https://a" */
        if (n == 1 && *p == '*') return true;
        if (same_text(p, n, "localhost") ? is_local_origin(origin) : n && same_text(p, n, origin)) return true;
        p = next;
    }
    return false;
}

static bool is_port(const authority *a, const char *port, size_t n, const char *standard) {
    const char *own = a->port_len ? a->port : standard;
    size_t own_len = a->port_len ? a->port_len : strlen(standard);
    const char *other = n ? port : standard;
    size_t other_len = n ? n : strlen(standard);
    return own_len == other_len && memcmp(own, other, own_len) == 0;
}

bool kv_origin_is_host(const char *origin, const char *host) {
    authority a, b;
    bool https;
    if (!parse_origin(&a, &https, origin) || !parse_authority(&b, host)) return false;
    if (a.host_len != b.host_len || strncasecmp(a.host, b.host, a.host_len) != 0) return false;
    return is_port(&a, b.port, b.port_len, https ? "443" : "80");
}

static bool is_alnum(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool kv_request_id_valid(const char *id) {
    size_t n = 0;
    for (; id[n]; n++)
        if (n >= 128 || (!is_alnum(id[n]) && !strchr("._:-", id[n]))) return false;
    return n > 0;
}

static bool is_token_char(char c) {
    return c && (is_alnum(c) || strchr("!#$%&'*+-.^_`|~", c));
}

bool kv_header_name_valid(const char *name) {
    size_t n = 0;
    while (is_token_char(name[n])) n++;
    return n > 0 && name[n] == '\0';
}

bool kv_header_names_valid(const char *list) {
    size_t n = 0;
    for (; list[n]; n++)
        if (n >= 1024 || (!is_token_char(list[n]) && list[n] != ',' && list[n] != ' ')) return false;
    return n > 0;
}

// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/certificate"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// secured adds a second address whose clients may get all pages with the token "good".
func secured(t *testing.T) func(*admin.Config) {
	t.Helper()
	c, err := certificate.SelfSigned("node", time.Now())
	assert.NoError(t, err)
	return func(cfg *admin.Config) {
		echoing(cfg)
		cfg.Secure = &admin.Secure{Addr: netip.MustParseAddrPort("127.0.0.1:0"), TLS: c.TLS(), Authorize: authorize}
	}
}

func authorize(r *http.Request, _ netip.Addr) admin.Verdict {
	if r.Header.Get("Authorization") == "Bearer good" {
		return admin.Verdict{}
	}
	return admin.Verdict{Code: http.StatusUnauthorized, Why: "the token is not valid"}
}

// noVerify is the configuration of a client that trusts every certificate, as Prometheus beside the kubelet.
func noVerify() *tls.Config { return &tls.Config{InsecureSkipVerify: true} } //nolint:gosec // the purpose

// overTLS gets a page of a running server's second address.
func overTLS(t *testing.T, s *admin.Server, client *tls.Config, method, path, token string) (code int, body string, head http.Header, err error) {
	t.Helper()
	hc := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: client, ForceAttemptHTTP2: true}}
	r, err := http.NewRequestWithContext(t.Context(), method, "https://"+s.SecureAddr().String()+path, http.NoBody)
	assert.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	got, err := hc.Do(r)
	if err != nil {
		return 0, "", nil, err
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	if got.ProtoMajor != 1 {
		t.Errorf("%s: the protocol is %s", path, got.Proto)
	}
	return got.StatusCode, string(text), got.Header, err
}

// TestSecureAccess asks each address for pages of each kind. With Secure, the first address keeps probes, and needs the token for
// what it gave to all. Secure gives nothing without the verdict, and no page that the first address would keep for its token or the socket.
func TestSecureAccess(t *testing.T) {
	t.Parallel()
	s := listening(t, secured(t))
	stop := run(t, s)
	for _, tt := range []struct {
		method, path               string
		plain, own, open, verified int // without and with the token of the process, over TLS without and with a token of Kubernetes
	}{
		{"GET", "/livez", 200, 200, 401, 200},
		{"GET", "/readyz", 200, 200, 401, 200},
		{"GET", "/metrics", 403, 200, 401, 200},
		{"GET", "/status", 403, 200, 401, 200},
		{"GET", "/", 403, 200, 401, 200},
		{"GET", "/page.js", 200, 200, 401, 200},
		{"GET", "/cache/top", 403, 200, 401, 403},
		{"GET", "/page", 403, 403, 401, 403},
		{"POST", "/cache/flush", 403, 403, 401, 403},
		{"GET", "/debug/pprof/", 403, 403, 401, 403},
		{"GET", "/none", 404, 404, 401, 404},
	} {
		plain := func(path string) int {
			r, err := http.NewRequestWithContext(t.Context(), tt.method, "http://"+s.Addr().String()+path, http.NoBody)
			assert.NoError(t, err)
			got, err := http.DefaultClient.Do(r)
			assert.NoError(t, err)
			_ = got.Body.Close()
			return got.StatusCode
		}
		assert.Equal(t, tt.path, tt.plain, plain(tt.path))
		assert.Equal(t, tt.path+" with the token", tt.own, plain(tt.path+"?token="+s.Token()))
		refused, _, head, err := overTLS(t, s, noVerify(), tt.method, tt.path, "bad")
		assert.NoError(t, err)
		assert.Equal(t, tt.path+" over TLS without permission", tt.open, refused)
		assert.Equal(t, tt.path+", WWW-Authenticate", "Bearer", head.Get("WWW-Authenticate"))
		code, _, _, err := overTLS(t, s, noVerify(), tt.method, tt.path, "good")
		assert.NoError(t, err)
		assert.Equal(t, tt.path+" over TLS", tt.verified, code)
	}
	if code, body, _, err := overTLS(t, s, noVerify(), "GET", "/cache/top?token="+s.Token(), "good"); err != nil || code != 200 {
		t.Errorf("/cache/top with both tokens: %d %s, %v", code, body, err)
	}
	stop()
}

// TestSecureClients has clients that are not what the address is for.
func TestSecureClients(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := listening(t, func(c *admin.Config) {
		secured(t)(c)
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	stop := run(t, s)
	old := noVerify()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if _, _, _, err := overTLS(t, s, old, "GET", "/metrics", "good"); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.1: %v", err)
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		only := noVerify()
		only.MinVersion, only.MaxVersion = version, version
		if code, _, _, err := overTLS(t, s, only, "GET", "/metrics", "good"); code != 200 {
			t.Errorf("%s: %d, %v", tls.VersionName(version), code, err)
		}
	}
	if code, _, _, err := overTLS(t, s, noVerify(), "GET", "/metrics", strings.Repeat("x", 2*admin.MaxHeader)); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a long token: %d, %v", code, err)
	}
	r, err := http.Get("http://" + s.SecureAddr().String() + "/metrics")
	assert.NoError(t, err)
	_ = r.Body.Close()
	assert.Equal(t, "without TLS", http.StatusBadRequest, r.StatusCode)
	stop()
	if log.Len() > 0 { // it would be a line for each packet that a client likes to send
		t.Errorf("the log is %s", &log)
	}
}

// TestSecureHandOver has a successor adopt both addresses, each for its own use.
func TestSecureHandOver(t *testing.T) {
	t.Parallel()
	named := func(reason string) func(*admin.Config) {
		return func(c *admin.Config) {
			secured(t)(c)
			c.Ready = func() error { return name(reason) }
		}
	}
	first := listening(t, named("first"))
	stopFirst := run(t, first)
	second := server(t, func(c *admin.Config) {
		named("second")(c)
		c.Addr, c.Secure.Addr = first.Addr(), first.SecureAddr()
	})
	for addr, raw := range first.Sockets() {
		assert.NoError(t, second.Adopt(addr, duplicate(t, raw)))
	}
	assert.NoError(t, second.Listen(t.Context()))
	stopSecond := run(t, second)
	expect := func(want string) {
		t.Helper()
		_, plain := fetch(t, second, "/readyz")
		_, encrypted, _, err := overTLS(t, second, noVerify(), "GET", "/readyz", "good")
		assert.NoError(t, err)
		assert.Equal(t, "who answers", [2]string{want, want}, [2]string{plain, encrypted})
	}
	expect("first\n")
	second.Open()
	first.Give()
	expect("second\n")
	stopFirst()
	expect("second\n")
	stopSecond()
}

// TestRotation replaces the certificate while a connection is open.
func TestRotation(t *testing.T) {
	t.Parallel()
	var current atomic.Pointer[certificate.Certificate]
	next := func(name string) {
		c, err := certificate.SelfSigned(name, time.Now())
		assert.NoError(t, err)
		current.Store(c)
	}
	next("first")
	s := listening(t, func(c *admin.Config) {
		secured(t)(c)
		c.Secure.TLS.GetCertificate = func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return current.Load().TLS().GetCertificate(h) }
	})
	stop := run(t, s)
	dials := 0
	transport := &http.Transport{TLSClientConfig: noVerify(), DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	get := func() string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.SecureAddr().String()+"/metrics", http.NoBody)
		assert.NoError(t, err)
		r.Header.Set("Authorization", "Bearer good")
		got, err := transport.RoundTrip(r)
		assert.NoError(t, err)
		_, _ = io.Copy(io.Discard, got.Body)
		_ = got.Body.Close()
		return got.TLS.PeerCertificates[0].Subject.CommonName
	}
	assert.Equal(t, "at first", "first", get())
	next("second")
	assert.Equal(t, "the open connection", "first", get())
	assert.Equal(t, "connections", 1, dials)
	transport.CloseIdleConnections()
	assert.Equal(t, "the next connection", "second", get())
	transport.CloseIdleConnections()
	stop()
}

// A securePipes is pipes for the second address.
type securePipes struct{ *pipes }

// handshake connects a client over TLS.
func (p securePipes) handshake(from string) (*tls.Conn, error) {
	cfg := noVerify()
	cfg.CurvePreferences = []tls.CurveID{tls.X25519} // cheap, for the test's sake
	c := tls.Client(p.dialFrom(from), cfg)
	return c, c.HandshakeContext(p.Context())
}

// serveSecure is serve for the second address.
func serveSecure(t *testing.T, change func(*admin.Config), test func(p securePipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &pipes{T: t, Listener: servertest.NewListener(), server: server(t, func(c *admin.Config) {
			secured(t)(c)
			c.Addr = netip.AddrPort{}
			if change != nil {
				change(c)
			}
		})}
		l.server.UseSecure(l)
		l.stop = run(t, l.server)
		test(securePipes{l})
		l.stop()
	})
}

// TestSlowHandshake closes connections whose client does not complete its handshake.
func TestSlowHandshake(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{"nothing sent": "", "a hello unfinished": "\x16\x03\x01\x02\x00\x01"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			serveSecure(t, nil, func(p securePipes) {
				c := p.dialFrom("10.244.2.2")
				_, err := io.WriteString(c, sent)
				assert.NoError(p.T, err)
				assert.Equal(p.T, "closed after", admin.HeaderTimeout, closedAfter(p.T, c))
			})
		})
	}
}

// TestHandshakeFlood has a pod open connections without end, complete their handshakes, and send requests without a permission: they
// cost a bounded share of a CPU. A scraper that keeps its connection does not wait, and one with new connections waits little.
func TestHandshakeFlood(t *testing.T) {
	t.Parallel()
	serveSecure(t, nil, func(p securePipes) {
		const duration = 4 * time.Second
		end := time.Now().Add(duration)
		ask := func(c net.Conn, token string) int {
			if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer "+token+"\r\n\r\n"); err != nil {
				return 0
			}
			code, _, _ := response(c)
			return code
		}
		kept, err := p.handshake("10.244.1.1")
		assert.NoError(p.T, err)
		assert.Equal(p.T, "before", 200, ask(kept, "good"))
		var handshakes atomic.Int64
		var all sync.WaitGroup
		for range 2 * admin.MaxConns {
			all.Go(func() {
				for time.Now().Before(end) {
					c, err := p.handshake("10.244.2.2")
					if err == nil {
						handshakes.Add(1)
						ask(c, "bad")
					}
					_ = c.NetConn().Close()
					time.Sleep(200 * time.Millisecond) // each attempt costs this test CPU time
				}
			})
		}
		for time.Now().Before(end) {
			time.Sleep(time.Second)
			began := time.Now()
			assert.Equal(p.T, "over a connection that is kept", 200, ask(kept, "good"))
			if took := time.Since(began); took > time.Millisecond {
				p.Errorf("a scrape over a connection that is kept took %s", took)
			}
			began = time.Now()
			c, err := p.handshake("10.244.1.1")
			assert.NoError(p.T, err)
			assert.Equal(p.T, "over a new connection", 200, ask(c, "good"))
			if took := time.Since(began); took > 2*time.Second {
				p.Errorf("a scrape over a new connection took %s", took)
			}
			_ = c.NetConn().Close()
		}
		all.Wait()
		took := time.Since(end) + duration // the last ones wait for their turn
		if got := handshakes.Load(); got > 100*int64((took+time.Second)/time.Millisecond)/1000+10 {
			p.Errorf("%d handshakes in %s, want 100 a second at most, and a second's more", got, took)
		}
		_ = kept.NetConn().Close()
	})
}

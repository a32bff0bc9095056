// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// newDoHHarness makes a transport for a server in memory with the name dns.example.
func newDoHHarness(t *testing.T, s *upstreamtest.Server, connections int, change func(*Target)) *harness {
	t.Helper()
	target := Target{Network: "https", Addr: peer, Name: "dns.example", CAFile: secure(t, s, "dns.example")}
	if change != nil {
		change(&target)
	}
	return newHarness(t, target, connections, upstreamtest.Network{peer: s}.Dial)
}

// The request is as in RFC 8484 section 4.1.
func TestHTTPSRequest(t *testing.T) {
	t.Parallel()
	type seen struct{ Method, Proto, Host, Path, Accept, Type, Agent string }
	tests := []struct {
		name   string
		change func(*Target)
		want   seen
	}{
		{
			name: "POST", want: seen{"POST", "HTTP/2.0", "dns.example:853", "/dns-query", dnsMessage, dnsMessage, ""},
		},
		{
			name: "GET", change: func(t *Target) { t.Method = "GET" },
			want: seen{"GET", "HTTP/2.0", "dns.example:853", "/dns-query", dnsMessage, "", ""},
		},
		{
			name: "another path", change: func(t *Target) { t.Path = "/a/b" },
			want: seen{"POST", "HTTP/2.0", "dns.example:853", "/a/b", dnsMessage, dnsMessage, ""},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(answerOrRefuse)
				h := newDoHHarness(t, s, 1, tt.change)
				for range 3 {
					if got := h.ask(t); got != "192.0.2.10" {
						t.Fatalf("got %q, want 192.0.2.10", got)
					}
				}
				for _, q := range s.Queries() {
					r := q.HTTP
					got := seen{
						r.Method, r.Proto, r.Host, r.URL.Path, r.Header.Get("Accept"), r.Header.Get("Content-Type"), r.Header.Get("User-Agent"),
					}
					assert.Same(t, "request", tt.want, got)
					if q.ID != 0 || len(q.Raw)%128 != 0 || q.Conn != 1 {
						t.Errorf("ID %d, %d bytes, connection %d, want 0, a multiple of 128, 1", q.ID, len(q.Raw), q.Conn)
					}
				}
			})
		})
	}
}

// TestHTTPSReceiveWindows reads the windows that bound what a peer may send before it is read (RFC 9113 section 5.2).
func TestHTTPSReceiveWindows(t *testing.T) {
	t.Parallel()
	authority := upstreamtest.NewAuthority(t, time.Now())
	ca := filepath.Join(t.TempDir(), "ca.pem")
	authority.Trust(t, ca)
	config := &tls.Config{Certificates: []tls.Certificate{authority.Issue(t, time.Now().Add(time.Hour), "dns.example")}, NextProtos: []string{"h2"}}
	windows := make(chan [2]uint32, 8) // of each connection
	dial := func(context.Context, string, netip.AddrPort) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer func() { _ = far.Close() }()
			var got [2]uint32 // of a stream, and of the connection
			in := bufio.NewReader(tls.Server(far, config))
			_, _ = in.Discard(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
			for got[1] == 0 {
				header := make([]byte, 9)
				if _, err := io.ReadFull(in, header); err != nil {
					break
				}
				payload := make([]byte, int(header[1])<<8+int(header[2]))
				_, _ = io.ReadFull(in, payload)
				switch header[3] {
				case 4: // SETTINGS
					for ; len(payload) >= 6; payload = payload[6:] {
						if binary.BigEndian.Uint16(payload) == 4 { // SETTINGS_INITIAL_WINDOW_SIZE
							got[0] = binary.BigEndian.Uint32(payload[2:])
						}
					}
				case 8: // WINDOW_UPDATE, to what every connection begins with
					got[1] = binary.BigEndian.Uint32(payload) + 65535
				}
			}
			windows <- got
		}()
		return near, nil
	}
	h := newHarness(t, Target{Network: "https", Addr: peer, Name: "dns.example", CAFile: ca}, 1, dial)
	assert.Equal(t, "answer of a server that hangs up", "network", h.ask(t))
	if got := <-windows; got[0] > 64<<10 || got[0] == 0 || got[1] > 2<<20 {
		t.Errorf("windows of %d bytes, want 64 KiB for a stream and about 1 MiB for the connection", got)
	}
}

// Each response is either an answer or a classified error.
func TestHTTPSResponses(t *testing.T) {
	t.Parallel()
	raw := func(f func(q []byte) []byte) upstreamtest.Action {
		return upstreamtest.Action{Raw: []upstreamtest.Raw{f}}
	}
	tests := []struct {
		name  string
		a     upstreamtest.Action
		want  string
		cause Cause // CauseTimeout: none
	}{
		{name: "an answer", a: raw(upstreamtest.Forged), want: "192.0.2.66"},
		{name: "NXDOMAIN", a: upstreamtest.Action{Rcode: dns.RcodeNameError}, want: "NXDOMAIN"},
		{name: "status 503", a: upstreamtest.Action{Status: http.StatusServiceUnavailable}, want: "network"},
		{name: "status 302", a: upstreamtest.Action{Status: http.StatusFound}, want: "network"},
		{name: "a page", a: upstreamtest.Action{ContentType: "text/html; charset=utf-8"}, want: "network"},
		{name: "no kind", a: upstreamtest.Action{ContentType: "/;"}, want: "network"},
		{name: "too long", a: raw(func([]byte) []byte { return make([]byte, wire.MaxMessage+1) }), want: "malformed", cause: CauseMalformed},
		{name: "nothing", a: raw(func([]byte) []byte { return nil }), want: "malformed", cause: CauseMismatch},
		{name: "another ID", a: raw(upstreamtest.WithID(upstreamtest.Forged, 1)), want: "malformed", cause: CauseMismatch},
		{name: "truncated", a: raw(func(q []byte) []byte {
			r := upstreamtest.Forged(q)
			r[2] |= 2
			return r
		}), want: "malformed", cause: CauseMalformed},
		{name: "reset", a: upstreamtest.Action{Reset: true}, want: "network"},
	}
	for _, shape := range upstreamtest.BadShapes() {
		cause := CauseMismatch
		if shape.Reads {
			cause = CauseMalformed
		}
		test := tests[0]
		test.name, test.a, test.want, test.cause = shape.Name, raw(shape.Make), "malformed", cause
		tests = append(tests, test)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(upstreamtest.Always(tt.a))
				h := newDoHHarness(t, s, 1, nil)
				assert.Equal(t, "got", tt.want, h.ask(t))
				for cause := range NumCauses {
					want := uint64(0)
					if cause == tt.cause && cause != CauseTimeout {
						want = 1
					}
					assert.Equal(t, cause.String()+": times counted", want, h.count.failures[cause].Load())
				}
				if len(s.Queries()) != 1 {
					t.Errorf("asked %d times, want once", len(s.Queries()))
				}
			})
		})
	}
}

// The Age of a response is subtracted from its TTLs.
func TestHTTPSAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		age := 0
		s := upstreamtest.New(func(upstreamtest.Query) upstreamtest.Action {
			return upstreamtest.Action{Age: age, Records: []string{"www.example. 60 IN A 192.0.2.1", "www.example. 5 IN A 192.0.2.2"}}
		})
		h := newDoHHarness(t, s, 1, nil)
		for _, tt := range []struct {
			age  int
			want string
		}{{0, "[60 5]"}, {5, "[55 0]"}, {59, "[1 0]"}, {60, "[0 0]"}, {1<<31 - 1, "[0 0]"}} {
			age = tt.age
			got := make(chan string, 1)
			h.query(t, "www.example.", func(a *attempt) {
				a.receiver = replyFunc(func(r reply, _ *wire.SendBatch) {
					var ttls []uint32
					for _, record := range r.m.Records {
						ttls = append(ttls, r.m.RecordTTL(record))
					}
					got <- fmt.Sprint(ttls)
				})
			})
			assert.Equal(t, fmt.Sprintf("after %d s", tt.age), tt.want, <-got)
		}
	})
}

// No query is lost if the server sends GOAWAY or closes the connection.
func TestHTTPSConnectionsEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]upstreamtest.Action{"GOAWAY": {Close: true}, "reset": {Reset: true}} {
		for _, connections := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s of %d", name, connections), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					ended := map[int]bool{}
					asked := 0
					var mu sync.Mutex // guards ended and asked
					s := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
						mu.Lock()
						defer mu.Unlock()
						if asked++; asked%40 == 0 && !ended[q.Conn] {
							ended[q.Conn] = true
							a := end
							a.Records = []string{"www.example. 60 IN A 192.0.2.10"}
							return a
						}
						a := answerOrRefuse(q)
						a.Delay = 5 * time.Millisecond
						return a
					})
					h := newDoHHarness(t, s, connections, nil)
					h.ask(t)
					synctest.Wait()
					for range 50 {
						var all []*pendingAnswer
						for range 10 {
							all = append(all, h.query(t, "www.example."))
						}
						for _, p := range all {
							assert.Equal(t, "got", "192.0.2.10", p.wait(time.Second))
						}
						time.Sleep(100 * time.Millisecond)
					}
					if got := s.Connections(); got < 10 {
						t.Errorf("%d connections, want many", got)
					}
				})
			})
		}
	}
}

// The number of requests is bounded, and canceled ones end on both sides.
func TestHTTPSCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(answerOrRefuse)
		h := newDoHHarness(t, s, 4, nil)
		h.ask(t)
		s.SetScript(upstreamtest.Always(upstreamtest.Action{Drop: true}))
		var all []*pendingAnswer
		for range maxInflight {
			all = append(all, h.query(t, "www.example."))
		}
		assert.Equal(t, "query above the limit", "refused: limit", h.ask(t))
		synctest.Wait()
		for _, p := range all {
			if got := p.wait(1); got != "timeout" {
				t.Errorf("got %q, want nothing", got)
			}
		}
		synctest.Wait()
		pool := h.transport.(*connPool)
		pool.mu.Lock()
		pending := pool.pending
		pool.mu.Unlock()
		assert.Equal(t, "requests are under way", 0, pending)
		s.SetScript(answerOrRefuse)
		assert.Equal(t, "afterwards", "192.0.2.10", h.ask(t))
	})
}

// SPDX-License-Identifier: Apache-2.0

package subscribe_test

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A resolver is the real server of subscriptions, and the zone that it follows.
type resolver struct {
	*push.Server
	t     *testing.T
	store *zone.Store
	zones zone.Zones
}

func newResolver(t *testing.T) *resolver {
	t.Helper()
	r := &resolver{t: t, store: zone.NewStore()}
	cluster, err := zone.New(zone.Config{Store: r.store, Domain: "cluster.local.", TTL: ttl, AllSlices: true})
	assert.NoError(t, err)
	r.zones = zone.Zones{cluster}
	domain := wireName(t, "cluster.local")
	r.Server = push.New(push.Config{
		Permits: func(netip.Addr) bool { return true },
		Owner:   func(name []byte) []byte { return zone.Owner(name, domain) },
		Zones:   func() zone.Zones { return r.zones },
		View:    func(time.Time) dso.View { return dso.View{Kinds: []dso.Versions{{Newest: 1, UpTo: 1}}} },
		Budget:  func() int64 { return 1 << 30 },
		Now:     time.Now,
	})
	r.store.Observe([][]byte{domain}, observer{r.Server})
	r.store.Expect(zone.Services, zone.Slices, zone.Namespaces)
	for _, kind := range []zone.Kind{zone.Services, zone.Slices, zone.Namespaces} {
		r.store.SetSynced(kind)
		r.store.ConfirmFresh(kind, r.store.BootTime(time.Now()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return r
}

type observer struct{ *push.Server }

func (observer) Changing() {}
func (observer) Changed()  {}

func (r *resolver) put(addr string) {
	r.store.PutService(zone.Service{
		Namespace: "shop", Name: "web", Type: zone.ClusterIP, TTL: -1, Ports: []zone.Port{{Name: "http", Number: 80}},
		Addrs: []netip.Addr{netip.MustParseAddr(addr)},
	}, time.Now())
}

// A peer is a connection to an agent.
type peer struct {
	net.Conn
	mu   sync.Mutex
	mute bool // it sends nothing more
}

func (p *peer) SendMessage(msg []byte) bool { return p.Push(msg) }

func (p *peer) Push(msg []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.mute && writeFrame(p.Conn, msg) == nil
}
func (p *peer) HasRoom() bool   { return true }
func (p *peer) Last(msg []byte) { p.Push(msg) }
func (p *peer) Abort()          { _ = p.Close() }

// serve answers an agent.
func (r *resolver) serve(conn net.Conn, _ int) {
	p := &peer{Conn: conn}
	session := r.NewSession(netip.MustParseAddr("192.0.2.9"), p)
	defer session.Close()
	for msg := readFrame(conn); msg != nil; msg = readFrame(conn) {
		if dso.IsDSO(msg) {
			session.Handle(msg)
			continue
		}
		var q wire.Query
		q.Parse(msg)
		answer, _ := r.zones.Answer(&q, zone.Client{MaxSize: wire.MaxMessage}, time.Now(), nil)
		wire.SetID(answer, q.ID)
		answer[2] |= 0x80
		p.Push(answer)
	}
}

// TestHits asks for a name every 20 s for ten minutes. Its TTL is 5 s, and the server is the real one.
func TestHits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(t)
		r.put("10.96.0.7")
		h := newHarness(t, r.serve)
		time.Sleep(3 * time.Second) // until the first View
		assert.Same(t, "first answer", "10.96.0.7", h.lookup())
		hits := 0
		for range 30 {
			time.Sleep(20 * time.Second)
			if h.lookup() == "hit" {
				hits++
			}
		}
		assert.Same(t, "hits of 30", 30, hits)
		r.put("10.96.0.8")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		assert.Same(t, "answer 1 ms after a change", "10.96.0.8", h.lookup())
		assert.Same(t, "sessions", 1, len(h.opened))
		assert.Same(t, "queries of the pool", 0, h.pool)
		st := h.Stats()
		if st.Asked != 2 || st.Kept != 2 || st.Events != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// TestDenial asks for a name that does not exist until it does.
func TestDenial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(t)
		h := newHarness(t, r.serve)
		time.Sleep(3 * time.Second)
		assert.Same(t, "first answer", "none", h.lookup())
		time.Sleep(time.Minute)
		assert.Same(t, "a minute later", "hit", h.lookup())
		r.put("10.96.0.7")
		time.Sleep(time.Millisecond)
		assert.Same(t, "after it was made", "10.96.0.7", h.lookup())
	})
}

// TestDeaf has a server that reads nothing after the session began, and sends Views: the session ends 5 s after a question.
func TestDeaf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(conn net.Conn, _ int) {
			s := &scripted{peer: &peer{Conn: conn}}
			m, _ := dso.Parse(readFrame(conn))
			s.Push(dso.AppendKeepalive(dso.AppendHeader(nil, dso.Response, m.ID, 0), dso.Keepalive{Inactivity: time.Hour, Interval: time.Hour}))
			for s.Push(view()) {
				select {
				case <-time.After(2 * time.Second):
				case <-t.Context().Done():
				}
			}
		})
		time.Sleep(time.Second)
		assert.Same(t, "answer", "192.0.2.255", h.lookup())
		time.Sleep(5 * time.Second)
		h.logMu.Lock()
		defer h.logMu.Unlock()
		if !strings.Contains(h.log.String(), "push session ended") {
			t.Error("the session goes on")
		}
	})
}

// TestRetryDelay has a server ask the agent to come back a month later. It does so after an hour.
func TestRetryDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(conn net.Conn, _ int) {
			s := &scripted{peer: &peer{Conn: conn}}
			readFrame(conn)
			s.Push(dso.AppendRetryDelay(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 30*24*time.Hour))
		})
		time.Sleep(59 * time.Minute)
		assert.Same(t, "sessions after 59 min", 1, len(h.opened))
		time.Sleep(2 * time.Minute)
		assert.Same(t, "sessions after 61 min", 2, len(h.opened))
	})
}

// TestIdle has the agent close a session without names, and open one for the next name.
func TestIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(t)
		r.put("10.96.0.7")
		h := newHarness(t, r.serve)
		time.Sleep(time.Hour)
		assert.Same(t, "sessions in an hour", 1, len(h.opened))
		assert.Same(t, "the answer of any server", "192.0.2.255", h.lookup())
		time.Sleep(10 * time.Second)
		assert.Same(t, "sessions", 2, len(h.opened))
		assert.Same(t, "the answer of the session", "10.96.0.7", h.lookup())
		time.Sleep(5 * time.Minute)
		assert.Same(t, "kept", "hit", h.lookup())
		time.Sleep(11 * time.Minute)
		assert.Same(t, "names after 11 minutes without a query", 0, h.Stats().Names)
	})
}

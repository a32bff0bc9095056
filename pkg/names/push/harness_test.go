// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A harness is a server and the store that it follows.
type harness struct {
	*push.Server
	store, set *zone.Store
	budget     int64
	reads      atomic.Int64 // of names' records
	defect     bool         // a defect of the zones
	refused    string       // a name whose answers come from elsewhere
	denied     string       // a client that may not subscribe
	zones      func() zone.Zones
	view       dso.View
}

func newHarness(tb testing.TB) *harness {
	tb.Helper()
	h := &harness{store: zone.NewStore(), budget: 1 << 30, view: dso.View{Age: time.Second, Kinds: []dso.Versions{{Newest: 7, UpTo: 9}}}}
	h.set = zone.NewClusterSet(h.store)
	cluster, err := zone.New(zone.Config{
		Store: h.store, Domain: "cluster.local.", TTL: 5 * time.Second, Pods: zone.PodsVerified, AllSlices: true, ReverseZones: []string{"10.in-addr.arpa."},
	})
	assert.NoError(tb, err)
	set, err := zone.New(zone.Config{Store: h.set, Cluster: h.store, Domain: "clusterset.local.", TTL: 5 * time.Second, AllSlices: true})
	assert.NoError(tb, err)
	zones := zone.Zones{cluster, set}
	domains := [][]byte{wireName(tb, "cluster.local"), wireName(tb, "clusterset.local")}
	h.zones = func() zone.Zones { return zones }
	h.Server = push.New(push.Config{
		Permits: func(client netip.Addr) bool { return client.Is4() && client.String() != h.denied },
		Owner: func(name []byte) []byte {
			for _, domain := range domains {
				if owner := zone.Owner(name, domain); owner != nil && zones.Follows(name) && text(name) != h.refused {
					return owner
				}
			}
			return nil
		},
		Zones: func() zone.Zones {
			h.reads.Add(1)
			if h.defect {
				panic("a defect")
			}
			return zones
		},
		View:   func(time.Time) dso.View { return h.view },
		Budget: func() int64 { return h.budget },
		Now:    time.Now,
		Log:    slog.New(slog.DiscardHandler),
	})
	h.store.Observe(domains[:1], observer{h.Server})
	h.set.Observe(domains[1:], observer{h.Server})
	for _, store := range []*zone.Store{h.store, h.set} {
		store.Expect(zone.Services, zone.Slices, zone.Namespaces, zone.Pods)
		for kind := range zone.Kind(4) {
			store.SetSynced(kind)
			store.ConfirmFresh(kind, store.BootTime(time.Now()))
		}
	}
	return h
}

// An observer passes on the owners.
type observer struct{ *push.Server }

func (observer) Changing() {}
func (observer) Changed()  {}

// run runs the server until the test ends. Within a bubble of virtual time.
func (h *harness) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
}

// put puts a Service of the namespace shop.
func (h *harness) put(name string, addrs ...string) {
	svc := zone.Service{Namespace: "shop", Name: name, Type: zone.ClusterIP, TTL: -1, Ports: []zone.Port{{Name: "http", Number: 80}}}
	for _, a := range addrs {
		svc.Addrs = append(svc.Addrs, netip.MustParseAddr(a))
	}
	h.store.PutService(svc, time.Now())
}

func (h *harness) alias(name, to string) {
	h.store.PutService(zone.Service{Namespace: "shop", Name: name, Type: zone.ExternalName, ExternalName: to, TTL: -1}, time.Now())
}

// A conn is a client that reads, unless it is full.
type conn struct {
	mu      sync.Mutex
	got     []string
	raw     [][]byte
	takes   time.Duration // to queue a message with Push
	full    bool
	unread  func() // called with each PUSH, for which there is no room; nil: there is
	sending func() // called before a message is sent
	turns   bool   // it has room for one message after each response
	aborted bool
	ended   bool
}

func (c *conn) SendMessage(msg []byte) bool {
	if c.sending != nil {
		c.sending()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aborted || c.ended {
		return false
	}
	c.full = c.full && !c.turns
	c.got = append(c.got, show(msg))
	c.raw = append(c.raw, slices.Clone(msg))
	return true
}

func (c *conn) Push(msg []byte) bool {
	c.mu.Lock()
	full, takes, unread := c.full, c.takes, c.unread
	c.mu.Unlock()
	time.Sleep(takes)
	if m, err := dso.Parse(msg); unread != nil && err == nil && m.Primary().Type == dso.TypePush {
		unread()
		return false
	}
	if full {
		return false
	}
	c.SendMessage(msg)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = c.full || c.turns
	return true
}

func (c *conn) HasRoom() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.full
}

func (c *conn) Last(msg []byte) {
	c.SendMessage(msg)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}

func (c *conn) Abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = true
}

func (c *conn) setUnread(unread func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unread = unread
}

func (c *conn) setFull(full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = full
}

func (c *conn) setTakes(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takes = d
}

// take returns what came since the last call, without heartbeats.
func (c *conn) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	got := slices.DeleteFunc(c.got, func(m string) bool { return strings.HasPrefix(m, "heartbeat") })
	c.got = nil
	if c.aborted {
		got = append(got, "abort")
	}
	return strings.Join(got, "; ")
}

// heartbeats returns the number of heartbeats since the last call.
func (c *conn) heartbeats() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.got {
		if strings.HasPrefix(m, "heartbeat") {
			n++
		}
	}
	c.got = nil
	return n
}

// A client has a session.
type client struct {
	*conn
	session *push.Session
	id      uint16
}

func (h *harness) client(address string) *client {
	c := &client{conn: new(conn)}
	c.session = h.NewSession(netip.MustParseAddr(address), c.conn)
	return c
}

// unsubscribe ends a subscription.
func (c *client) unsubscribe(id uint16) {
	c.session.Handle(dso.AppendUnsubscribe(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), id))
}

// subscribe subscribes to ANY of names.
func (c *client) subscribe(tb testing.TB, names ...string) {
	tb.Helper()
	for _, n := range names {
		c.id++
		c.session.Handle(subscribe(tb, c.id, n, wire.TypeANY))
	}
}

func subscribe(tb testing.TB, id uint16, name string, rrtype uint16) []byte {
	tb.Helper()
	return dso.AppendSubscribe(dso.AppendHeader(nil, dso.Request, id, 0), dso.Subscription{Name: wireName(tb, name), Type: rrtype, Class: 1})
}

func wireName(tb testing.TB, text string) []byte {
	tb.Helper()
	buf := make([]byte, 256)
	n, err := dns.PackDomainName(dns.Fqdn(text), buf, 0, nil, false) // keeps upper case
	assert.NoError(tb, err)
	return buf[:n]
}

func text(name []byte) string { return strings.TrimSuffix(string(wire.AppendText(nil, name)), ".") }

// show writes a message of the server as text.
func show(msg []byte) string {
	m, err := dso.Parse(msg)
	if err != nil {
		return err.Error()
	}
	if m.Kind == dso.Response {
		out := fmt.Sprintf("%d %s", m.ID, dns.RcodeToString[int(m.Rcode)])
		if m.Rcode == dso.RcodeTypeNI {
			out = fmt.Sprintf("%d DSOTYPENI", m.ID)
		}
		if k, err := m.Primary().Keepalive(); err == nil {
			out += fmt.Sprintf(" %s %s", k.Inactivity, k.Interval)
		}
		if tlv, ok := m.Find(dso.TypeRetryDelay); ok {
			delay, _ := tlv.RetryDelay()
			out += " retry " + delay.String()
		}
		if _, ok := m.Find(dso.TypePadding); ok {
			out += " padded"
		}
		return out
	}
	switch p := m.Primary(); p.Type {
	case dso.TypeKeepalive:
		tlv, _ := m.Find(dso.TypeView)
		v, err := tlv.View()
		return fmt.Sprintf("heartbeat %s %v %v", v.Age, v.Kinds, err)
	case dso.TypeRetryDelay:
		return "retry delay " + dns.RcodeToString[int(m.Rcode)]
	case dso.TypePush:
		var all []string
		err := m.Changes(func(c dso.Change) bool {
			if c.TTL == dso.TTLRemoveCollective {
				all = append(all, "-"+text(c.Name))
				return true
			}
			rr := append(slices.Clone(c.Name), byte(c.Type>>8), byte(c.Type), 0, 1, 0, 0, 0, byte(c.TTL), byte(len(c.Data)>>8), byte(len(c.Data)))
			record, _, err := dns.UnpackRR(append(rr, c.Data...), 0)
			if err != nil {
				all = append(all, err.Error())
				return true
			}
			data := strings.TrimPrefix(record.String(), record.Header().String())
			all = append(all, fmt.Sprintf("+%s %s %s", text(c.Name), dns.TypeToString[c.Type], data))
			return true
		})
		if err != nil {
			return err.Error()
		}
		if len(all) > 12 {
			return fmt.Sprintf("push of %d changes in %d bytes", len(all), len(msg))
		}
		return "push " + strings.Join(all, " ")
	default:
		return fmt.Sprintf("type %d", p.Type)
	}
}

// discard is a Conn.
type discard struct{}

func (discard) SendMessage([]byte) bool { return true }
func (discard) Push([]byte) bool        { return true }
func (discard) HasRoom() bool           { return true }
func (discard) Last([]byte)             {}
func (discard) Abort()                  {}

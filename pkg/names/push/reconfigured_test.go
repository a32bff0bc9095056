// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
)

// After a reload only the sessions end that must: of clients that may not subscribe any longer, and with a name that has another
// source. Names with other answers are pushed, and aliases, which may lead to another source.
func TestReconfigured(t *testing.T) {
	t.Parallel()
	const web, db, alias = "web.shop.svc.cluster.local", "db.shop.svc.cluster.local", "alias.shop.svc.cluster.local"
	records := map[string]string{
		web:   "-" + web + " +" + web + " A 10.0.0.7 +" + web + " SRV 0 100 80 " + web + ".",
		alias: "-" + alias + " +" + alias + " CNAME " + web + ".",
	}
	for name, tt := range map[string]struct {
		change        func(h *harness) (before zone.Zones)
		names         []string
		want, another string // what clients get, the second one of web alone
	}{
		"nothing":                      {func(h *harness) zone.Zones { return h.zones() }, []string{web, db}, "", ""},
		"all":                          {func(*harness) zone.Zones { return nil }, []string{web}, "push " + records[web], "push " + records[web]},
		"an alias":                     {func(h *harness) zone.Zones { return h.zones() }, []string{web, alias}, "push " + records[alias], ""},
		"a name that was not there":    {func(h *harness) zone.Zones { return h.zones()[1:] }, []string{web}, "push " + records[web], "push " + records[web]},
		"a name of another source":     {func(h *harness) zone.Zones { h.refused = db; return h.zones() }, []string{web, db}, "retry delay NOERROR", ""},
		"a client that is not allowed": {func(h *harness) zone.Zones { h.denied = "192.0.2.1"; return h.zones() }, []string{web}, "retry delay NOERROR", ""},
		"a defect":                     {func(h *harness) zone.Zones { z := h.zones(); h.defect = true; return z }, []string{web}, "retry delay NOERROR", "retry delay NOERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.put("web", "10.0.0.7")
				h.put("db", "10.0.0.8")
				h.alias("alias", web)
				h.run(t)
				c, other := h.client("192.0.2.1"), h.client("192.0.2.2")
				c.subscribe(t, tt.names...)
				other.subscribe(t, web)
				synctest.Wait()
				c.take()
				other.take()
				h.Reconfigured(t.Context(), tt.change(h))
				synctest.Wait()
				assert.Same(t, "the client gets", tt.want, c.take())
				assert.Same(t, "the other one gets", tt.another, other.take())
			})
		})
	}
}

// A name gets another source while its SUBSCRIBE is answered: too late to refuse it, so the session ends.
func TestReconfiguredMeanwhile(t *testing.T) {
	t.Parallel()
	const web = "web.shop.svc.cluster.local"
	h := newHarness(t)
	h.put("web", "10.0.0.7")
	c := &client{conn: new(conn)}
	c.session = h.NewSession(netip.MustParseAddr("192.0.2.1"), &hooked{c.conn, func() {
		h.refused = web
		h.Reconfigured(t.Context(), h.zones())
	}})
	c.subscribe(t, web)
	assert.Same(t, "messages", "1 NOERROR; retry delay NOERROR", c.take())
	if st := h.Stats(); st.Sessions != 0 || st.Names != 0 || st.Bytes != 0 {
		t.Errorf("what is left: %+v", st)
	}
}

// A hooked conn calls a function with its first response.
type hooked struct {
	*conn
	hook func()
}

func (c *hooked) SendMessage(msg []byte) bool {
	ok := c.conn.SendMessage(msg)
	if hook := c.hook; hook != nil {
		c.hook = nil
		hook()
	}
	return ok
}

// BenchmarkReconfigured compares 11,000 names of which 1,000,000 subscriptions are, and finds no change.
func BenchmarkReconfigured(b *testing.B) {
	h := newHarness(b)
	for i := range 11000 {
		h.put(fmt.Sprintf("service-%05d", i), "10.0.0.7")
	}
	for s := range 3333 {
		c := &client{conn: new(conn)}
		c.session = h.NewSession(netip.AddrFrom4([4]byte{10, 0, byte(s >> 8), byte(s)}), discard{})
		for i := range 300 {
			c.subscribe(b, fmt.Sprintf("service-%05d.shop.svc.cluster.local", (s*7+i*37)%11000))
		}
	}
	b.ResetTimer()
	for b.Loop() {
		h.Reconfigured(b.Context(), h.zones())
	}
}

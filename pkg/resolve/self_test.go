// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/resolve"
)

// TestSelf has the agent ask itself, which leaves no trace in counts, cache and log.
func TestSelf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, self, want string }{
		{"a token", "a1b2c3", "a1b2c3"},
		{"the longest", strings.Repeat("x", 255), strings.Repeat("x", 255)},
		{"longer than a string of a TXT record", strings.Repeat("x", 300), strings.Repeat("x", 255)},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(tt.name+map[bool]string{false: ", UDP", true: ", TCP"}[stream], func(t *testing.T) {
				t.Parallel()
				var log bytes.Buffer
				p := plan(t, newUpstream(t))
				p.Self = tt.self
				local(p)
				p.QueryLog = &resolve.QueryLog{TypeName: typeName, Log: slog.New(slog.NewTextHandler(&log, nil)), All: true}
				r := newResolver(t, p)
				c := newClient(r, stream)
				c.from.Addr = netip.MustParseAddrPort(near)
				for _, name := range []string{resolve.SelfName, resolve.SelfName, resolve.SelfName + "cluster.local."} {
					m := unpack(t, c.exchange(t, classed(t, name, dns.TypeTXT, dns.ClassCHAOS)))
					if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 || m.Answer[0].Header().Ttl != 0 {
						t.Fatalf("answered\n%s", m)
					}
					assert.Same(t, "text", []string{tt.want}, m.Answer[0].(*dns.TXT).Txt)
				}
				assert.Same(t, "counted", resolve.Stats{}, r.Stats())
				assert.Equal(t, "cache entries", 0, p.Cache.Stats().Entries)
				if log.Len() > 0 {
					t.Errorf("logged %s", &log)
				}
			})
		}
	}
}

// TestSelfRemoteClients queries the agent's own name from elsewhere: a remote client does not get the name, but can have it
// confirmed. The query is counted like any other in class CHAOS.
func TestSelfRemoteClients(t *testing.T) {
	t.Parallel()
	p := plan(t, newUpstream(t))
	p.Self = "a1b2c3"
	local(p)
	r := newResolver(t, p)
	c := newClient(r, false)
	for name, want := range map[string]int{
		resolve.SelfName: dns.RcodeRefused, resolve.SelfName + "cluster.local.": dns.RcodeRefused, "a1b2c4." + resolve.SelfName: dns.RcodeRefused, "a1b2c3." + resolve.SelfName: dns.RcodeSuccess,
	} {
		if m := unpack(t, c.exchange(t, classed(t, name, dns.TypeTXT, dns.ClassCHAOS))); m.Rcode != want {
			t.Errorf("%s: answered\n%s", name, m)
		}
	}
	if got := r.Stats().Responses; got[resolve.SourceRefused][dns.RcodeRefused] != 3 || got[resolve.SourceLocal][dns.RcodeSuccess] != 1 {
		t.Errorf("counted %v, want three refused and one answered", got)
	}
}

// TestNoSelf is an agent that never asks itself: the name is one of many.
func TestNoSelf(t *testing.T) {
	t.Parallel()
	r := newResolver(t, plan(t, newUpstream(t)))
	c := newClient(r, false)
	c.from.Addr = netip.MustParseAddrPort(near)
	if m := unpack(t, c.exchange(t, classed(t, resolve.SelfName, dns.TypeTXT, dns.ClassCHAOS))); m.Rcode != dns.RcodeRefused {
		t.Errorf("answered\n%s", m)
	}
	if got := r.Stats().Responses[resolve.SourceRefused]; got[5] != 1 {
		t.Errorf("refused %v, want one REFUSED", got)
	}
	p := plan(t, newUpstream(t))
	p.Self = "new"
	local(p)
	r.Swap(p)
	if m := unpack(t, c.exchange(t, classed(t, resolve.SelfName, dns.TypeTXT, dns.ClassCHAOS))); m.Rcode != dns.RcodeSuccess {
		t.Errorf("after a swap, answered\n%s", m)
	}
}

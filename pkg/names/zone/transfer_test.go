// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
)

// listed returns the records of the model in a transfer, without the SOA.
func (m *model) listed() []string {
	m.build()
	list := m.apex()[dns.TypeNS].answer
	for name, sets := range m.types {
		labels := dns.SplitDomainName(strings.TrimSuffix(name, "."+m.cfg.Domain))
		for rrtype, set := range sets {
			if n := len(labels); n == 5 && labels[4] == "svc" || m.cfg.External && n == 4 { // a port
				if rrtype != dns.TypeSRV || labels[0][0] != '_' || labels[1][0] != '_' || labels[0] == "_" {
					continue
				}
			}
			list = append(list, set.answer...)
		}
	}
	slices.Sort(list)
	return list
}

func TestTransferAgainstModel(t *testing.T) {
	t.Parallel()
	for _, cfg := range []zone.Config{{NodeZone: "east"}, {External: true}, {External: true, Headless: true, Fallthrough: []string{"example.org."}}} {
		t.Run(fmt.Sprintf("external %t, headless %t", cfg.External, cfg.Headless), func(t *testing.T) {
			t.Parallel()
			cfg.TTL = 5 * time.Second
			w := newHarness(t, 42, cfg)
			for step := range 300 {
				if w.step(); step%10 == 0 {
					freshen(w.store, w.now)
					w.compareTransfer(step)
				}
			}
		})
	}
}

// compareTransfer compares the records of a transfer with those of the model.
func (h *harness) compareTransfer(step int) {
	h.t.Helper()
	var records []dns.RR
	assert.NoError(h.t, h.zone.Transfer(h.now, func(rr dns.RR) error {
		records = append(records, rr)
		return nil
	}))
	last := len(records) - 1
	if records[0].String() != records[last].String() || records[0].Header().Rrtype != dns.TypeSOA {
		h.t.Fatalf("step %d: from %s to %s, want the SOA record at both ends", step, records[0], records[last])
	}
	if diff := cmp.Diff(h.model.listed(), texts(records[1:last])); diff != "" {
		h.t.Fatalf("step %d (-want +got):\n%s", step, diff)
	}
}

func TestTransferUnready(t *testing.T) {
	t.Parallel()
	s := zone.NewStore()
	s.Expect(zone.Services, zone.Slices)
	z, err := zone.New(zone.Config{Store: s, Domain: "cluster.local"})
	assert.NoError(t, err)
	emit := func(dns.RR) error { return nil }
	if err := z.Transfer(epoch(), emit); !errors.Is(err, zone.ErrNotReady) {
		t.Errorf("before the first list: %v, want ErrNotReady", err)
	}
	freshen(s, epoch())
	if err := z.Transfer(epoch().Add(time.Hour), emit); err != nil {
		t.Errorf("with stale data: %v, want a transfer", err)
	}
	stop := errors.New("the client left")
	if err := z.Transfer(epoch(), func(dns.RR) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("emit failed: %v, want its error", err)
	}
}

func TestTransferHuge(t *testing.T) {
	t.Parallel()
	z, err := zone.New(zone.Config{Store: clusterOf(0, 1, 50), Domain: "cluster.local", AllSlices: true})
	assert.NoError(t, err)
	counts := map[uint16]int{}
	assert.NoError(t, z.Transfer(epoch(), func(rr dns.RR) error {
		counts[rr.Header().Rrtype]++
		return nil
	}))
	// The service's addresses and those of every endpoint's name; SRV records of
	// the service, of its port, and of every endpoint's name.
	want := map[uint16]int{dns.TypeSOA: 2, dns.TypeNS: 1, dns.TypeTXT: 1, dns.TypeA: 10000, dns.TypeSRV: 15000}
	assert.Same(t, "records by type", want, counts)
}
